/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The array of policy classes (ebpf/shared/class.h), which slots and connections name by number: the defaults of services,
 * and those that are interned, one for each set of values.
 *
 * What was set in band has a count of its holders, each a slot or a connection that is awake; without one it is given away
 * again. What rules give is not counted so, for XDP gives it to newborn slots by itself: it is there as long as the rules have it,
 * and then until every slot has been looked at (roost_classes_retired_end), or what was set in band in place of it is gone.
 */
#ifndef ROOST_CEXT_INTERNED_H
#define ROOST_CEXT_INTERNED_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/hash.h"
#include "ebpf/shared/class.h"
#include "ebpf/shared/rule.h"

#define ROOST_CLASS_FULL 0xffffffffu
/* Of the interned ones: what is set for connections leaves ROOST_RULE_CLASSES to rules, and what is set in band some to commands. */
#define ROOST_OWN_CLASSES (ROOST_CLASSES - ROOST_CLASS_SERVICES - ROOST_RULE_CLASSES)
#define ROOST_IN_BAND_CLASSES (ROOST_OWN_CLASSES - 256)
#define ROOST_GIVEN_PROBE 8  /* of roost_overrides.given; below it the quiet intervals */
#define ROOST_GIVEN_GROUP 16 /* of ROOST_OP_GIVE alone */

enum roost_ruled { /* of a class */
    ROOST_RULED_NOT = 0,
    ROOST_RULED,        /* the rules in force give it */
    ROOST_RULED_RETIRED /* earlier ones did: slots may still have it */
};

struct roost_classes {
    struct roost_class *entry; /* memory-mapped BPF array, or plain memory in unit tests */
    uint32_t uses[ROOST_CLASSES];
    uint16_t next[ROOST_CLASSES]; /* of each free entry: the next one; 0: none */
    uint16_t free;
    uint16_t own;                 /* interned ones that are not of rules */
    uint8_t ruled[ROOST_CLASSES]; /* enum roost_ruled; other than NOT it is a use */
    struct roost_hash used;       /* interned ones by their values */
};

/* entry: memory for ROOST_CLASSES. All count as unused. */
void roost_classes_init(struct roost_classes *t, struct roost_class *entry);
void roost_classes_free(struct roost_classes *t);

/* Adopting what a predecessor left: `hold` for each holder, then once `settle`. What rules gave is retired. -ENOMEM: no memory. */
void roost_classes_hold(struct roost_classes *t, uint32_t class);
int roost_classes_settle(struct roost_classes *t);

bool roost_class_is_interned(uint32_t class);
/* Whether a connection of this service may have this class. */
bool roost_classes_fit(const struct roost_classes *t, uint32_t class, uint16_t service);

/* The class of these values in place of those of `base`, a service's default or one of rules, with one use more;
 * ROOST_CLASS_FULL: there is no room. */
uint32_t roost_classes_take(struct roost_classes *t, uint32_t base, const struct roost_overrides *own);
void roost_classes_drop(struct roost_classes *t, uint32_t class);
/* In place of which class it has what was set in band: itself, where nothing was. */
uint32_t roost_classes_base(const struct roost_classes *t, uint32_t class);
/* Whether those of a class keep their slot in SLEEP: their keep-alives are answered, they are probed, or the slot alone says
 * what they set in band. */
bool roost_classes_need_slot(const struct roost_classes *t, uint32_t class);
/* What it would be with `base` in place of its own. */
struct roost_class roost_class_derive(const struct roost_class *base, const struct roost_overrides *own);

/* The rules in force give these policies from now on (their `service` says whose they are); class: of each. What they gave before
 * and do not any more is retired. -ENOSPC: there is no room, and nothing has changed. */
int roost_classes_rule(struct roost_classes *t, const struct roost_class *policy, uint32_t count, uint32_t *class);
/* Neither a slot nor a connection has one that is retired, but for what was set in band in place of it. */
void roost_classes_retired_end(struct roost_classes *t);

/* A service's policy from now on; its interned classes are derived anew. Whether anything changed. */
bool roost_classes_change(struct roost_classes *t, uint16_t service, const struct roost_class *policy);

uint32_t roost_classes_interned(const struct roost_classes *t); /* how many there are */

#endif
