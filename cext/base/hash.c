// SPDX-License-Identifier: Apache-2.0
#include "hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SIZE 64

/* The free slot in which a new entry with this hash belongs: behind all others that have it. */
static struct roost_hash_slot *free_slot(const struct roost_hash *h, uint64_t hash) {
    uint64_t at = hash >> h->shift;
    while (h->slot[at].hash)
        at = (at + 1) & (h->size - 1);
    return &h->slot[at];
}

int roost_hash_reserve(struct roost_hash *h, uint64_t entries) {
    struct roost_hash larger = {.size = h->size ? h->size : FIRST_SIZE, .used = h->used};
    while (entries > larger.size / 4 * 3)
        larger.size *= 2;
    if (larger.size == h->size)
        return 0;
    larger.slot = calloc(larger.size, sizeof(*larger.slot));
    if (!larger.slot)
        return -ENOMEM;
    larger.shift = 64 - __builtin_ctzll(larger.size);
    uint64_t begin = 0; /* of a run: entries with the same hash keep their order */
    while (begin < h->size && h->slot[begin].hash)
        begin++;
    for (uint64_t i = 0; i < h->size; i++) {
        const struct roost_hash_slot *slot = &h->slot[(begin + i) & (h->size - 1)];
        if (slot->hash)
            *free_slot(&larger, slot->hash) = *slot;
    }
    free(h->slot);
    *h = larger;
    return 0;
}

void roost_hash_clear(struct roost_hash *h) {
    if (h->size)
        memset(h->slot, 0, h->size * sizeof(*h->slot));
    h->used = 0;
}

void roost_hash_free(struct roost_hash *h) {
    free(h->slot);
    memset(h, 0, sizeof(*h));
}

struct roost_hash_slot *roost_hash_add(struct roost_hash *h, uint64_t hash) {
    struct roost_hash_slot carried = {.hash = hash + !hash}, *added = NULL;
    if (roost_hash_reserve(h, h->used + 1))
        return NULL;
    h->used++;
    for (uint64_t at = carried.hash >> h->shift; carried.hash; at = (at + 1) & (h->size - 1)) {
        struct roost_hash_slot *slot = &h->slot[at], there = *slot;
        if (there.hash && there.hash != carried.hash)
            continue;
        *slot = carried; /* before others that have the same hash, of which each moves on by one */
        carried = there;
        added = added ? added : slot;
    }
    return added;
}

bool roost_hash_put(struct roost_hash *h, uint64_t hash, void *item) {
    struct roost_hash_slot *slot = roost_hash_add(h, hash);
    if (slot)
        slot->item = item;
    return slot;
}

void roost_hash_remove(struct roost_hash *h, struct roost_hash_slot *slot) {
    uint64_t mask = h->size - 1, hole = (uint64_t)(slot - h->slot);
    for (uint64_t at = (hole + 1) & mask; h->slot[at].hash; at = (at + 1) & mask) {
        uint64_t home = h->slot[at].hash >> h->shift;
        if (((at - home) & mask) < ((at - hole) & mask)) /* it may not stand before its home */
            continue;
        h->slot[hole] = h->slot[at];
        hole = at;
    }
    h->slot[hole] = (struct roost_hash_slot){0};
    h->used--;
}

static bool is(const void *item, const void *wanted) {
    return item == wanted;
}

void roost_hash_drop(struct roost_hash *h, uint64_t hash, const void *item) {
    struct roost_hash_slot *slot = roost_hash_slot(h, hash, is, item);
    if (slot)
        roost_hash_remove(h, slot);
}

struct roost_hash_slot *roost_hash_walk(const struct roost_hash *h, uint64_t from, uint64_t to, uint64_t *step) {
    while (h->used && *step < h->size) {
        uint64_t first = from >> h->shift, at = (first + *step) & (h->size - 1);
        struct roost_hash_slot *slot = &h->slot[at];
        if (!slot->hash && *step >= (to >> h->shift) - first)
            break;
        ++*step;
        if (slot->hash && slot->hash >= from && slot->hash <= to)
            return slot;
    }
    return NULL;
}
