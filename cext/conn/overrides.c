// SPDX-License-Identifier: Apache-2.0
/* A chained hash table by 4-tuple; it grows and never shrinks. */
#include "overrides.h"

#include <stdlib.h>
#include <string.h>

#include "ebpf/shared/table.h"

#define FIRST_SIZE 64

/* Where the entry of this key hangs, or would. */
static struct roost_override **place(const struct roost_override_table *t, const struct roost_config *config,
                                     const struct roost_key *key) {
    struct roost_override **at = &t->bucket[roost_hash6(config, key) & (t->size - 1)];
    while (*at && memcmp(&(*at)->key, key, sizeof(*key)) != 0)
        at = &(*at)->next;
    return at;
}

static bool grow(struct roost_override_table *t, const struct roost_config *config) {
    struct roost_override_table larger = {.size = t->size ? t->size * 2 : FIRST_SIZE, .used = t->used};
    larger.bucket = calloc(larger.size, sizeof(struct roost_override *));
    if (!larger.bucket)
        return false;
    for (uint64_t i = 0; i < t->size; i++)
        while (t->bucket[i]) {
            struct roost_override *o = t->bucket[i];
            t->bucket[i] = o->next;
            o->next = NULL;
            *place(&larger, config, &o->key) = o;
        }
    free(t->bucket);
    *t = larger;
    return true;
}

struct roost_override *roost_overrides_find(const struct roost_override_table *t, const struct roost_config *config,
                                            const struct roost_key *key, uint64_t id) {
    struct roost_override *o = t->used ? *place(t, config, key) : NULL;
    return o && o->id == id ? o : NULL;
}

struct roost_override *roost_overrides_make(struct roost_override_table *t, const struct roost_config *config,
                                            const struct roost_key *key, uint64_t id) {
    if (t->used >= t->size && !grow(t, config) && !t->size)
        return NULL;
    struct roost_override **at = place(t, config, key), *o = *at;
    if (o && o->id == id)
        return o;
    if (o) { /* of a connection that is gone */
        memset(&o->set, 0, sizeof(o->set));
        o->untold = false;
    } else {
        *at = o = calloc(1, sizeof(*o));
        if (!o)
            return NULL;
        t->used++;
    }
    o->id = id;
    o->key = *key;
    return o;
}

void roost_overrides_remove(struct roost_override_table *t, const struct roost_config *config,
                            const struct roost_key *key) {
    struct roost_override **at = t->used ? place(t, config, key) : NULL;
    if (!at || !*at)
        return;
    struct roost_override *o = *at;
    *at = o->next;
    free(o);
    t->used--;
}

void roost_overrides_close(struct roost_override_table *t) {
    for (uint64_t i = 0; i < t->size; i++)
        while (t->bucket[i]) {
            struct roost_override *o = t->bucket[i];
            t->bucket[i] = o->next;
            free(o);
        }
    free(t->bucket);
    memset(t, 0, sizeof(*t));
}
