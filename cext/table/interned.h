/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The array of policy classes (ebpf/shared/class.h), which slots and connections name by number: the defaults of services,
 * and those that are interned, each with a count of its holders. A slot is one, a connection that is awake is one. One that
 * without a holder is given away again.
 */
#ifndef ROOST_CEXT_INTERNED_H
#define ROOST_CEXT_INTERNED_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/hash.h"
#include "ebpf/shared/class.h"

#define ROOST_CLASS_FULL 0xffffffffu
#define ROOST_GIVEN_PROBE 8 /* of roost_overrides.given; below it the quiet intervals */

struct roost_classes {
    struct roost_class *entry; /* memory-mapped BPF array, or plain memory in unit tests */
    uint32_t uses[ROOST_CLASSES];
    uint16_t next[ROOST_CLASSES]; /* of each free entry: the next one; 0: none */
    uint16_t free;
    struct roost_hash used; /* interned ones by service and `own` */
};

/* entry: memory for ROOST_CLASSES. All count as unused. */
void roost_classes_init(struct roost_classes *t, struct roost_class *entry);
void roost_classes_free(struct roost_classes *t);

/* Adopting what a predecessor left: `hold` for each holder, then once `settle`. -ENOMEM: no memory. */
void roost_classes_hold(struct roost_classes *t, uint32_t class);
int roost_classes_settle(struct roost_classes *t);

bool roost_class_is_interned(uint32_t class);
/* Whether a connection of this service may have this class. */
bool roost_classes_fit(const struct roost_classes *t, uint32_t class, uint16_t service);

/* The class of a service with these values in place of its own, with one use more; ROOST_CLASS_FULL: there is no room. */
uint32_t roost_classes_take(struct roost_classes *t, uint16_t service, const struct roost_overrides *own);
void roost_classes_drop(struct roost_classes *t, uint32_t class);

/* A service's policy from now on; its interned classes are derived anew. Whether anything changed. */
bool roost_classes_change(struct roost_classes *t, uint16_t service, const struct roost_class *policy);

uint32_t roost_classes_interned(const struct roost_classes *t); /* how many there are */

#endif
