// SPDX-License-Identifier: Apache-2.0
#include "overrides.h"

#include <stdlib.h>
#include <string.h>

#include "ebpf/shared/table.h"

static bool has_key(const void *one, const void *key) {
    return !memcmp(&((const struct roost_override *)one)->key, key, sizeof(struct roost_key));
}

static struct roost_override *of_key(const struct roost_override_table *t, const struct roost_config *config,
                                     const struct roost_key *key) {
    return t->by_key.used ? roost_hash_find(&t->by_key, roost_hash6(config, key), has_key, key) : NULL;
}

struct roost_override *roost_overrides_find(const struct roost_override_table *t, const struct roost_config *config,
                                            const struct roost_key *key, uint64_t id) {
    struct roost_override *o = of_key(t, config, key);
    return o && o->id == id ? o : NULL;
}

struct roost_override *roost_overrides_make(struct roost_override_table *t, const struct roost_config *config,
                                            const struct roost_key *key, uint64_t id) {
    struct roost_override *o = of_key(t, config, key);
    if (o && o->id == id)
        return o;
    if (o) { /* of a connection that is gone */
        memset(&o->set, 0, sizeof(o->set));
        o->untold = false;
    } else {
        o = calloc(1, sizeof(*o));
        if (!o || !roost_hash_put(&t->by_key, roost_hash6(config, key), o)) {
            free(o);
            return NULL;
        }
    }
    o->id = id;
    o->key = *key;
    return o;
}

void roost_overrides_remove(struct roost_override_table *t, const struct roost_config *config,
                            const struct roost_key *key) {
    struct roost_override *o = of_key(t, config, key);
    if (o)
        roost_hash_drop(&t->by_key, roost_hash6(config, key), o);
    free(o);
}

void roost_overrides_close(struct roost_override_table *t) {
    const struct roost_hash_slot *slot;
    for (uint64_t step = 0; (slot = roost_hash_walk(&t->by_key, 0, UINT64_MAX, &step));)
        free(slot->item);
    roost_hash_free(&t->by_key);
}
