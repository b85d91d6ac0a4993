/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The near ends that slots of the inactive table name by number (struct roost_endpoint). XDP reads them; the engine thread
 * alone writes. One that no slot names any more is given away again, but not one that is pinned.
 */
#ifndef ROOST_CEXT_ENDPOINTS_H
#define ROOST_CEXT_ENDPOINTS_H

#include <stdint.h>

#include "ebpf/shared/record.h"
#include "cext/base/hash.h"

#define ROOST_MAX_ENDPOINTS 65536u /* a slot has 16 bits for its number */
#define ROOST_NO_ENDPOINT 0xffffffffu
#define ROOST_ENDPOINT_PINNED 0xffffffffu

struct roost_endpoints {
    struct roost_endpoint *entry; /* memory-mapped BPF array, or plain memory in unit tests */
    uint32_t slots;
    uint32_t *uses; /* of each entry; ROOST_ENDPOINT_PINNED */
    uint32_t *next; /* of each free entry: the next one */
    uint32_t free;
    struct roost_hash used; /* entries */
};

/* entry: memory for `slots` of them, at most ROOST_MAX_ENDPOINTS. 0 or -ENOMEM. All count as unused. */
int roost_endpoints_init(struct roost_endpoints *e, struct roost_endpoint *entry, uint32_t slots);
void roost_endpoints_free(struct roost_endpoints *e);

/* Adopting what a predecessor left: `hold` for each slot that names an entry, then once `settle`. */
void roost_endpoints_hold(struct roost_endpoints *e, uint32_t index);
void roost_endpoints_settle(struct roost_endpoints *e);

/* The number of this endpoint, with one use more; ROOST_NO_ENDPOINT when all are in use by others. */
uint32_t roost_endpoints_take(struct roost_endpoints *e, const uint8_t address[16], uint16_t port, uint16_t service);
void roost_endpoints_drop(struct roost_endpoints *e, uint32_t index);

/* XDP puts slots under this number without counting them: it is not given away as long as this process lives. For one that
 * is in use, or before roost_endpoints_settle. */
void roost_endpoints_pin(struct roost_endpoints *e, uint32_t index);

#endif
