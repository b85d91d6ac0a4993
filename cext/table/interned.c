// SPDX-License-Identifier: Apache-2.0
#include "interned.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(struct roost_class) == 64 && sizeof(struct roost_overrides) == 20,
               "the layout of the pinned map");

/* What tells interned classes apart. */
struct name {
    struct roost_overrides own;
    uint32_t service;
};

static struct name name_of(uint16_t service, const struct roost_overrides *own) {
    return (struct name){.own = *own, .service = service};
}

static uint64_t hash_of(const struct name *name) {
    return roost_hash_of_number(roost_fnv1a(name, sizeof(*name)));
}

static bool is_same(const void *entry, const void *wanted) {
    const struct roost_class *class = entry;
    struct name name = name_of(class->service, &class->own);
    return !memcmp(&name, wanted, sizeof(name));
}

bool roost_class_is_interned(uint32_t class) {
    return class >= ROOST_CLASS_SERVICES;
}

/* A service's policy with what was set in place of it. */
static struct roost_class derive(const struct roost_class *policy, const struct roost_overrides *own) {
    struct roost_class class = *policy;
    class.own = *own;
    for (int i = 0; i < 3; i++)
        if (own->given & 1 << i)
            class.quiet_ms[i] = own->quiet_ms[i];
    if (own->given & ROOST_GIVEN_PROBE)
        class.probe_interval_s = (uint16_t)(own->probe_interval_s < 0xffff ? own->probe_interval_s : 0xffff);
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

void roost_classes_hold(struct roost_classes *t, uint32_t class) {
    if (class < ROOST_CLASSES)
        t->uses[class] += roost_class_is_interned(class);
}

int roost_classes_settle(struct roost_classes *t) {
    roost_hash_clear(&t->used);
    t->free = 0;
    if (roost_hash_reserve(&t->used, ROOST_CLASSES - ROOST_CLASS_SERVICES))
        return -ENOMEM;
    for (uint16_t i = ROOST_CLASSES - 1; i >= ROOST_CLASS_SERVICES; i--) {
        struct name name = name_of(t->entry[i].service, &t->entry[i].own);
        if (t->uses[i]) {
            roost_hash_put(&t->used, hash_of(&name), &t->entry[i]);
        } else {
            memset(&t->entry[i], 0, sizeof(t->entry[i]));
            t->next[i] = t->free;
            t->free = i;
        }
    }
    return 0;
}

bool roost_classes_fit(const struct roost_classes *t, uint32_t class, uint16_t service) {
    return class < ROOST_CLASSES && service < ROOST_CLASS_SERVICES && t->entry[class].service == service;
}

uint32_t roost_classes_take(struct roost_classes *t, uint16_t service, const struct roost_overrides *own) {
    static const struct roost_overrides nothing;
    if (service >= ROOST_CLASS_SERVICES)
        return ROOST_CLASS_NONE;
    if (!memcmp(own, &nothing, sizeof(nothing)))
        return service;
    struct name name = name_of(service, own);
    const struct roost_class *entry = roost_hash_find(&t->used, hash_of(&name), is_same, &name);
    uint32_t class = entry ? (uint32_t)(entry - t->entry) : t->free;
    if (!class || (!entry && !roost_hash_put(&t->used, hash_of(&name), &t->entry[class])))
        return ROOST_CLASS_FULL;
    if (!entry) {
        t->free = t->next[class];
        t->entry[class] = derive(&t->entry[service], own);
    }
    t->uses[class]++;
    return class;
}

void roost_classes_drop(struct roost_classes *t, uint32_t class) {
    if (class >= ROOST_CLASSES || !t->uses[class] || --t->uses[class])
        return;
    struct name name = name_of(t->entry[class].service, &t->entry[class].own);
    roost_hash_drop(&t->used, hash_of(&name), &t->entry[class]);
    memset(&t->entry[class], 0, sizeof(t->entry[class]));
    t->next[class] = t->free;
    t->free = (uint16_t) class;
}

static bool store(struct roost_class *at, const struct roost_class *class) {
    bool changed = memcmp(at, class, sizeof(*at)) != 0;
    *at = *class;
    return changed;
}

bool roost_classes_change(struct roost_classes *t, uint16_t service, const struct roost_class *policy) {
    static const struct roost_overrides nothing;
    if (!service || service >= ROOST_CLASS_SERVICES)
        return false;
    struct roost_class fresh = derive(policy, &nothing);
    fresh.service = service;
    bool changed = store(&t->entry[service], &fresh);
    for (uint32_t i = ROOST_CLASS_SERVICES; i < ROOST_CLASSES; i++) {
        if (!t->uses[i] || t->entry[i].service != service)
            continue;
        struct roost_class derived = derive(&fresh, &t->entry[i].own);
        changed |= store(&t->entry[i], &derived);
    }
    return changed;
}

uint32_t roost_classes_interned(const struct roost_classes *t) {
    return (uint32_t)t->used.used;
}
