// SPDX-License-Identifier: Apache-2.0
#include "interned.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(struct roost_class) == 64 && sizeof(struct roost_overrides) == 20,
               "the layout of the pinned map");

static uint64_t hash_of(const struct roost_class *class) {
    return roost_hash_of_number(roost_fnv1a(class, sizeof(*class)));
}

static bool is_same(const void *entry, const void *wanted) {
    return !memcmp(entry, wanted, sizeof(struct roost_class));
}

bool roost_class_is_interned(uint32_t class) {
    return class >= ROOST_CLASS_SERVICES;
}

/* What was set in band may lie below a bound that came later; never (0) lies below none. */
static uint32_t at_least(uint32_t value, uint32_t least, bool by_command) {
    return value && value < least && !by_command ? least : value;
}

struct roost_class roost_class_derive(const struct roost_class *base, const struct roost_overrides *own) {
    struct roost_class class = *base;
    class.own = *own;
    for (int i = 0; i < 3; i++)
        if (own->given & 1 << i)
            class.quiet_ms[i] = at_least(own->quiet_ms[i], base->least_quiet_ms, own->by_command & 1 << i);
    if (own->given & ROOST_GIVEN_PROBE) {
        uint32_t probe_s = at_least(own->probe_interval_s, base->least_probe_s, own->by_command & ROOST_GIVEN_PROBE);
        class.probe_interval_s = (uint16_t)(probe_s < 0xffff ? probe_s : 0xffff);
        class.most_probe_s = 0;
    }
    class.always_active |= own->always_active;
    if (class.always_active)
        class.quiet_ms[0] = class.quiet_ms[1] = 0;
    if (!class.probe_retry_s)
        class.probe_retry_s = class.probe_interval_s;
    return class;
}

void roost_classes_init(struct roost_classes *t, struct roost_class *entry) {
    memset(t, 0, sizeof(*t));
    t->entry = entry;
    for (uint16_t i = 0; i < ROOST_CLASS_SERVICES; i++)
        entry[i].service = i;
    memset(&entry[ROOST_CLASS_NONE], 0, sizeof(*entry));
    for (uint16_t i = ROOST_CLASSES - 1; i >= ROOST_CLASS_SERVICES; i--) {
        t->next[i] = t->free;
        t->free = i;
    }
}

void roost_classes_free(struct roost_classes *t) {
    roost_hash_free(&t->used);
}

/* Whether its holders are counted: something was set in band. */
static bool is_own(const struct roost_classes *t, uint32_t class) {
    return roost_class_is_interned(class) && class < ROOST_CLASSES && t->entry[class].base != ROOST_CLASS_OF_RULES;
}

uint32_t roost_classes_base(const struct roost_classes *t, uint32_t class) {
    if (!is_own(t, class))
        return class;
    return t->entry[class].base ? t->entry[class].base : t->entry[class].service;
}

bool roost_classes_need_slot(const struct roost_classes *t, uint32_t class) {
    const struct roost_class *in_force = &t->entry[class % ROOST_CLASSES];
    return !in_force->no_keepalives || in_force->probe_interval_s || roost_classes_base(t, class) != class;
}

void roost_classes_hold(struct roost_classes *t, uint32_t class) {
    if (is_own(t, class))
        t->uses[class]++;
}

static void use_base(struct roost_classes *t, uint32_t class) {
    if (is_own(t, class) && t->entry[class].base)
        t->uses[t->entry[class].base]++;
}

static void give_away(struct roost_classes *t, uint32_t class) {
    memset(&t->entry[class], 0, sizeof(t->entry[class]));
    t->next[class] = t->free;
    t->free = (uint16_t) class;
}

/* Whether a class that a predecessor left stands in place of one of rules that is there. */
static bool has_base(const struct roost_classes *t, uint32_t class) {
    uint32_t base = t->entry[class].base;
    return !base || (roost_class_is_interned(base) && base < ROOST_CLASSES &&
                     t->entry[base].base == ROOST_CLASS_OF_RULES && t->entry[base].service == t->entry[class].service);
}

int roost_classes_settle(struct roost_classes *t) {
    roost_hash_clear(&t->used);
    t->free = t->own = 0;
    if (roost_hash_reserve(&t->used, ROOST_CLASSES - ROOST_CLASS_SERVICES))
        return -ENOMEM;
    for (uint32_t i = ROOST_CLASS_SERVICES; i < ROOST_CLASSES; i++) {
        bool of_rules = t->entry[i].base == ROOST_CLASS_OF_RULES;
        t->ruled[i] = of_rules ? ROOST_RULED_RETIRED : ROOST_RULED_NOT;
        t->uses[i] += of_rules;
        if (!of_rules && !has_base(t, i))
            t->entry[i].base = 0;
        if (t->uses[i])
            use_base(t, i);
    }
    for (uint32_t i = ROOST_CLASSES - 1; i >= ROOST_CLASS_SERVICES; i--) {
        t->own += t->uses[i] && is_own(t, i);
        if (t->uses[i])
            roost_hash_put(&t->used, hash_of(&t->entry[i]), &t->entry[i]);
        else
            give_away(t, i);
    }
    return 0;
}

bool roost_classes_fit(const struct roost_classes *t, uint32_t class, uint16_t service) {
    return class < ROOST_CLASSES && service < ROOST_CLASS_SERVICES && t->entry[class].service == service;
}

/* How many there may be of the kind of a class. */
static uint32_t most_like(const struct roost_class *class) {
    const struct roost_overrides *own = &class->own;
    bool in_band = own->always_active || own->given & ~own->by_command;
    return class->base == ROOST_CLASS_OF_RULES ? UINT32_MAX : in_band ? ROOST_IN_BAND_CLASSES : ROOST_OWN_CLASSES;
}

/* The number of the class with these values, new or not; ROOST_CLASS_FULL. */
static uint32_t intern(struct roost_classes *t, const struct roost_class *wanted) {
    const struct roost_class *entry = roost_hash_find(&t->used, hash_of(wanted), is_same, wanted);
    uint32_t class = entry ? (uint32_t)(entry - t->entry) : t->free;
    if (entry)
        return class;
    if (!class || t->own >= most_like(wanted) || !roost_hash_put(&t->used, hash_of(wanted), &t->entry[class]))
        return ROOST_CLASS_FULL;
    t->free = t->next[class];
    t->entry[class] = *wanted;
    t->own += is_own(t, class);
    use_base(t, class);
    return class;
}

uint32_t roost_classes_take(struct roost_classes *t, uint32_t base, const struct roost_overrides *own) {
    static const struct roost_overrides nothing;
    if (base >= ROOST_CLASSES)
        return ROOST_CLASS_NONE;
    if (!memcmp(own, &nothing, sizeof(nothing)))
        return base;
    struct roost_class wanted = roost_class_derive(&t->entry[base], own);
    wanted.base = (uint16_t)(roost_class_is_interned(base) ? base : 0);
    uint32_t class = intern(t, &wanted);
    if (class != ROOST_CLASS_FULL)
        t->uses[class]++;
    return class;
}

static void drop_use(struct roost_classes *t, uint32_t class) {
    if (!t->uses[class] || --t->uses[class])
        return;
    uint32_t base = is_own(t, class) ? t->entry[class].base : 0;
    t->own -= is_own(t, class);
    roost_hash_drop(&t->used, hash_of(&t->entry[class]), &t->entry[class]);
    give_away(t, class);
    if (base)
        drop_use(t, base);
}

void roost_classes_drop(struct roost_classes *t, uint32_t class) {
    if (is_own(t, class))
        drop_use(t, class);
}

static void unrule(struct roost_classes *t, uint32_t class) {
    t->ruled[class] = ROOST_RULED_NOT;
    drop_use(t, class);
}

int roost_classes_rule(struct roost_classes *t, const struct roost_class *policy, uint32_t count, uint32_t *class) {
    static const struct roost_overrides nothing;
    uint8_t before[ROOST_CLASSES];
    memcpy(before, t->ruled, sizeof(before));
    for (uint32_t i = 0; i < ROOST_CLASSES; i++)
        t->ruled[i] = before[i] ? ROOST_RULED_RETIRED : ROOST_RULED_NOT;
    uint32_t given = 0;
    for (; given < count; given++) {
        struct roost_class wanted = roost_class_derive(&policy[given], &nothing);
        wanted.base = ROOST_CLASS_OF_RULES;
        uint32_t found = class[given] = intern(t, &wanted);
        if (found == ROOST_CLASS_FULL)
            break;
        t->uses[found] += !t->ruled[found];
        t->ruled[found] = ROOST_RULED;
    }
    if (given == count)
        return 0;
    for (uint32_t i = ROOST_CLASS_SERVICES; i < ROOST_CLASSES; i++) {
        if (t->ruled[i] && !before[i])
            unrule(t, i);
        t->ruled[i] = before[i];
    }
    return -ENOSPC;
}

void roost_classes_retired_end(struct roost_classes *t) {
    for (uint32_t i = ROOST_CLASS_SERVICES; i < ROOST_CLASSES; i++)
        if (t->ruled[i] == ROOST_RULED_RETIRED)
            unrule(t, i);
}

/* In place: slots go on naming it. */
static bool store(struct roost_classes *t, uint32_t class, const struct roost_class *fresh) {
    struct roost_class *at = &t->entry[class];
    if (!memcmp(at, fresh, sizeof(*at)))
        return false;
    if (roost_class_is_interned(class)) {
        roost_hash_drop(&t->used, hash_of(at), at);
        roost_hash_put(&t->used, hash_of(fresh), at); /* in the room that it had */
    }
    *at = *fresh;
    return true;
}

bool roost_classes_change(struct roost_classes *t, uint16_t service, const struct roost_class *policy) {
    static const struct roost_overrides nothing;
    if (!service || service >= ROOST_CLASS_SERVICES)
        return false;
    struct roost_class fresh = roost_class_derive(policy, &nothing);
    fresh.service = service;
    fresh.base = 0;
    bool changed = store(t, service, &fresh);
    for (uint32_t i = ROOST_CLASS_SERVICES; i < ROOST_CLASSES; i++) {
        if (!t->uses[i] || roost_classes_base(t, i) != service)
            continue;
        struct roost_class derived = roost_class_derive(&fresh, &t->entry[i].own);
        changed |= store(t, i, &derived);
    }
    return changed;
}

uint32_t roost_classes_interned(const struct roost_classes *t) {
    return (uint32_t)t->used.used;
}
