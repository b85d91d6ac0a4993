// SPDX-License-Identifier: Apache-2.0
#include "spares.h"

#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "cext/base/count.h"

#define TRIM_SHARE 20 /* of what was not needed: at 50 ms a time, most of it is gone after two seconds */

/* Under which local address a spare socket is looked for: its own, or the unspecified one of its family. */
static struct roost_spare with_local(const struct roost_key *key, bool bound) {
    struct roost_spare spare = {0};
    if (bound) {
        memcpy(spare.local, key->local, sizeof(spare.local));
        spare.port = key->local_port;
    } else if (roost_address_is_v4(key->local)) {
        roost_address_map_v4(spare.local, &(uint32_t){INADDR_ANY});
    }
    return spare;
}

#define LOCAL_BYTES (offsetof(struct roost_spare, port) + sizeof(__be16))

static bool has_local(const void *spare, const void *wanted) {
    return !memcmp(spare, wanted, LOCAL_BYTES);
}

static struct roost_hash_slot *slot_of(const struct roost_spares *s, const struct roost_spare *wanted) {
    return roost_hash_slot(&s->by_local, roost_hash_of_number(roost_fnv1a(wanted, LOCAL_BYTES)), has_local, wanted);
}

static int remove_first(struct roost_spares *s, struct roost_hash_slot *slot) {
    struct roost_spare *spare = slot->item;
    slot->item = spare->next;
    if (!slot->item)
        roost_hash_remove(&s->by_local, slot);
    spare->next = s->free;
    s->free = spare;
    ROOST_ONE_LESS(s->count);
    if (s->count < s->least)
        s->least = s->count;
    return spare->fd;
}

int roost_spares_take(struct roost_spares *s, const struct roost_key *key, bool *bound) {
    for (int i = 0; i < 2 && s->count; i++) {
        *bound = !i;
        struct roost_spare wanted = with_local(key, *bound);
        struct roost_hash_slot *slot = slot_of(s, &wanted);
        if (slot)
            return remove_first(s, slot);
    }
    return -1;
}

bool roost_spares_put(struct roost_spares *s, const struct roost_key *key, bool bound, int fd) {
    struct roost_spare *spare = s->free ? s->free : s->fresh < ROOST_SPARES_MAX ? &s->spare[s->fresh] : NULL;
    struct roost_spare put = with_local(key, bound);
    if (!spare)
        return false;
    struct roost_hash_slot *slot = slot_of(s, &put);
    if (!slot && !(slot = roost_hash_add(&s->by_local, roost_hash_of_number(roost_fnv1a(&put, LOCAL_BYTES)))))
        return false;
    if (s->free)
        s->free = spare->next;
    else
        s->fresh++;
    put.fd = fd;
    put.next = slot->item;
    *spare = put;
    slot->item = spare;
    s->count++;
    return true;
}

void roost_spares_trim(struct roost_spares *s, uint32_t most) {
    uint32_t close_now = (s->least + TRIM_SHARE - 1) / TRIM_SHARE;
    if (s->count > most && s->count - most > close_now)
        close_now = s->count - most;
    while (close_now && s->count) {
        struct roost_hash_slot *slot = roost_hash_walk(&s->by_local, 0, UINT64_MAX, &s->trim_step);
        if (slot) {
            close(remove_first(s, slot)); /* silent: it is not connected */
            close_now--;
        } else {
            s->trim_step = 0;
        }
    }
    s->least = s->count;
}

void roost_spares_close(struct roost_spares *s) {
    roost_spares_trim(s, 0);
    roost_hash_free(&s->by_local);
}
