/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many connections each source has: the engine's side of what ebpf/shared/limit.h says. Counted are clients' slots and clients'
 * connections that are awake: one that is on its way between the two counts twice for that time. Those that sleep without a slot
 * do not count.
 */
#ifndef ROOST_CEXT_CONNECTED_H
#define ROOST_CEXT_CONNECTED_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/shared/limit.h"

struct roost_counted {
    const struct roost_limits *limits; /* NULL: nothing is counted; nor while limits->counting is 0 */
    struct roost_connected *connected;
};

/* A source has one more, or one less. */
void roost_counted_more(const struct roost_counted *s, const uint8_t client[16], uint16_t service);
void roost_counted_less(const struct roost_counted *s, const uint8_t client[16], uint16_t service);
/* How many a source has, of an address or of a network (enum roost_limit_of): never less than it has. */
uint32_t roost_counted_of(const struct roost_counted *s, const uint8_t client[16], uint16_t service, uint32_t level);

#endif
