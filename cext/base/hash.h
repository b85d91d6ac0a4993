/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash table of the engine: open addressing with linear probing, 16 bytes a slot, at most three quarters full. A slot
 * keeps the whole hash, so a look-up touches an item only when that is very likely the one wanted. Removal moves later
 * entries of the run back: there are no tombstones. An entry's home is given by the highest bits of its hash: a walk by
 * ranges of hashes visits the same entries in each range whatever the size of the table.
 */
#ifndef ROOST_CEXT_HASH_H
#define ROOST_CEXT_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct roost_hash_slot {
    uint64_t hash; /* 0: free */
    union {
        void *item;
        uint64_t number;
    };
};

struct roost_hash { /* all zeros: empty */
    struct roost_hash_slot *slot;
    uint64_t size, used; /* size: a power of two, or 0 */
    int shift;           /* 64 - log2(size) */
};

typedef bool roost_hash_same_fn(const void *item, const void *key);

/* Room for so many entries: as long as there are no more, adding one succeeds. 0 or -ENOMEM. */
int roost_hash_reserve(struct roost_hash *h, uint64_t entries);
void roost_hash_clear(struct roost_hash *h);
void roost_hash_free(struct roost_hash *h); /* the items are the caller's */

/* A new slot, its number 0; NULL: no memory. Of entries with the same hash the latest is found first. */
struct roost_hash_slot *roost_hash_add(struct roost_hash *h, uint64_t hash);
bool roost_hash_put(struct roost_hash *h, uint64_t hash, void *item); /* false: no memory */
/* Pointers to slots are good until the next addition or removal. */
void roost_hash_remove(struct roost_hash *h, struct roost_hash_slot *slot);
void roost_hash_drop(struct roost_hash *h, uint64_t hash, const void *item); /* of this item, if it is there */

/* Entries with hashes from `from` to `to`, one a call; NULL: no more. *step begins with 0. After the removal of what it
 * returned, decrease *step by one. Every entry is visited; one that a removal moved over the end of the table, twice. */
struct roost_hash_slot *roost_hash_walk(const struct roost_hash *h, uint64_t from, uint64_t to, uint64_t *step);

/* The slot of the entry with this hash whose item is the same as the key; same NULL: the hash says all. NULL: none. */
static inline struct roost_hash_slot *roost_hash_slot(const struct roost_hash *h, uint64_t hash,
                                                      roost_hash_same_fn *same, const void *key) {
    if (!h->used)
        return NULL;
    hash += !hash;
    struct roost_hash_slot *slot = &h->slot[hash >> h->shift], *end = &h->slot[h->size];
    while (slot->hash) {
        if (slot->hash == hash && (!same || same(slot->item, key)))
            return slot;
        if (++slot == end)
            slot = h->slot;
    }
    return NULL;
}

static inline void *roost_hash_find(const struct roost_hash *h, uint64_t hash, roost_hash_same_fn *same,
                                    const void *key) {
    const struct roost_hash_slot *slot = roost_hash_slot(h, hash, same, key);
    return slot ? slot->item : NULL;
}

/* One to one: different numbers have different hashes. For numbers that no outsider chooses. */
static inline uint64_t roost_hash_of_number(uint64_t number) {
    return number * 0x9e3779b97f4a7c15ULL;
}

/* FNV-1a, for bytes that no outsider chooses; of those that one does, roost_siphash (ebpf/shared/table.h). */
static inline uint32_t roost_fnv1a(const void *bytes, size_t length) {
    uint32_t hash = 2166136261u;
    for (const uint8_t *at = bytes; length--; at++)
        hash = (hash ^ *at) * 16777619u;
    return hash;
}

#endif
