/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The look-up of a key in the tables (ebpf/shared/table.h). */
#ifndef ROOST_FIND_H
#define ROOST_FIND_H

#include "verifier.h"
#include "maps.h"

/* The slots of a bucket whose tag matches, as a bit mask, eight tags at a time: of the 112 slots a key may lie in, seldom
 * any but the right one is then touched. */
GLOBAL __u64 matching(const struct roost_bucket_head *head, __u8 tag) {
    __u64 mask = 0;
    if (!head)
        return 0;
    const volatile __u64 *tags = head->tags;
#pragma clang loop unroll(full)
    for (int i = 0; i < ROOST_BUCKET_SLOTS / 8; i++)
        mask |= ((roost_same_tags(tags[i], tag) >> 7) * 0x0102040810204080ULL >> 56) << (8 * i);
    return mask;
}

/* Index of the lowest bit: the number of ones below it. */
static __always_inline __u32 lowest(__u64 mask) {
    __u64 n = (mask & -mask) - 1;
    n -= (n >> 1) & 0x5555555555555555ULL;
    n = (n & 0x3333333333333333ULL) + ((n >> 2) & 0x3333333333333333ULL);
    n = (n + (n >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
    __u32 count = (n * 0x0101010101010101ULL) >> 56;
    asm volatile("" : "+r"(count)); /* or clang compares the number before the shift, and the verifier knows no bound */
    return count;
}

GLOBAL __u32 lowest_of(__u64 mask) {
    return lowest(mask);
}

GLOBAL __u64 hash_of4(const struct roost_config *cfg, const struct roost_key *key) {
    return cfg && key ? roost_hash4(cfg, key) : 0;
}

GLOBAL __u64 hash_of6(const struct roost_config *cfg, const struct roost_key *key) {
    return cfg && key ? roost_hash6(cfg, key) : 0;
}

static __always_inline __u32 low32(const __u8 *address) {
    __u32 value;
    __builtin_memcpy(&value, address + 12, 4);
    return value;
}

static __always_inline int near_is(__u32 endpoint, const __u8 *address, __be16 port) {
    const struct roost_endpoint *e = bpf_map_lookup_elem(&endpoints, &endpoint);
    return e && roost_same_near(e, address, port);
}

/* Whether a slot is this key's. ctl: its own, read before. */
GLOBAL int is4(const struct roost_slot4 *s, __u32 ctl, const struct roost_key *key) {
    if (!s || !key)
        return 0;
    if (ROOST_FLAGS(ctl) & ROOST_F_SERVER)
        return s->far == low32(key->local) && s->far_port == key->local_port &&
               near_is(s->endpoint, key->client, key->client_port);
    return s->far == low32(key->client) && s->far_port == key->client_port &&
           near_is(s->endpoint, key->local, key->local_port);
}

GLOBAL int is6(const struct roost_slot6 *s, __u32 ctl, const struct roost_key *key) {
    if (!s || !key)
        return 0;
    if (ROOST_FLAGS(ctl) & ROOST_F_SERVER)
        return s->far_port == key->local_port && roost_same_address(s->far, key->local) &&
               near_is(s->endpoint, key->client, key->client_port);
    return s->far_port == key->client_port && roost_same_address(s->far, key->client) &&
           near_is(s->endpoint, key->local, key->local_port);
}

static __always_inline __u32 buckets_of(const struct roost_generations *generations, __u32 which) {
    asm volatile("" : "+r"(which)); /* or it comes back from the stack, where the verifier forgets its bounds */
    which &= ROOST_GENERATIONS - 1;
    return generations->buckets[which];
}

/* Where a key is: of numbers alone, as a global function may hand no pointer on. */
struct spot {
    __u64 hash; /* of the key: set whether or not it was found */
    __u32 generation, bucket, at;
    __u32 ctl; /* of the moment when the slot was this key's */
};

/* Where a key was found. */
struct found {
    struct roost_ka *slot;
    __u64 hash;
    __u32 ctl;   /* these as in struct spot */
    __u32 moved; /* of struct roost_filter_gate, before anything was looked at */
};

/* The fetching add is a full barrier on every architecture. */
static __always_inline __u32 ctl_of(struct roost_ka *slot) {
    return __sync_fetch_and_add(&slot->ctl, 0);
}

#define ROOST_FIND_IN(family)                                                                                                  \
    GLOBAL int spot_in##family(__u32 generation, const struct roost_place *place, const struct roost_key *key,                 \
                               struct spot *spot) {                                                                            \
        void *table = bpf_map_lookup_elem(&tables##family, &generation);                                                       \
        for (int side = 0; table && place && key && spot && side < 2; side++) {                                                \
            __u32 index = side ? place->bucket[1] : place->bucket[0];                                                          \
            struct roost_bucket##family *b = bpf_map_lookup_elem(table, &index);                                               \
            __u64 mask = b ? matching(&b->head, place->tag) : 0;                                                               \
            for (int i = 0; i < ROOST_SAME_TAG_MAX; i++) {                                                                     \
                __u32 at = lowest_of(mask);                                                                                    \
                if (!mask || at >= ROOST_BUCKET_SLOTS || !b)                                                                   \
                    break;                                                                                                     \
                __u32 ctl = ctl_of(&b->slot[at].ka);                                                                           \
                if (is##family(&b->slot[at], ctl, key)) {                                                                      \
                    spot->generation = generation;                                                                             \
                    spot->bucket = index;                                                                                      \
                    spot->at = at;                                                                                             \
                    spot->ctl = ctl;                                                                                           \
                    return 1;                                                                                                  \
                }                                                                                                              \
                mask &= mask - 1;                                                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
        return 0;                                                                                                              \
    }                                                                                                                          \
    GLOBAL int spot##family(const struct roost_config *cfg, const struct roost_key *key, struct spot *spot) {                  \
        if (!cfg || !key || !spot)                                                                                             \
            return 0;                                                                                                          \
        __u32 in_use = *(volatile const __u32 *)&cfg->v##family.in_use;                                                        \
        spot->hash = hash_of##family(cfg, key);                                                                                \
        if (ROOST_PREVIOUS(in_use)) { /* before the current one: a slot is copied, then removed */                             \
            __u32 old = (ROOST_PREVIOUS(in_use) - 1) % ROOST_GENERATIONS;                                                      \
            struct roost_place place = roost_place_of(spot->hash, buckets_of(&cfg->v##family, old));                           \
            if (spot_in##family(old, &place, key, spot))                                                                       \
                return 1;                                                                                                      \
        }                                                                                                                      \
        __u32 current = ROOST_CURRENT(in_use) % ROOST_GENERATIONS;                                                             \
        struct roost_place place = roost_place_of(spot->hash, buckets_of(&cfg->v##family, current));                           \
        return spot_in##family(current, &place, key, spot);                                                                    \
    }                                                                                                                          \
    /* Where the generation ended since it was looked into, it finds nothing: the guard keeps the answer of the stack back. */ \
    static __always_inline int find##family(const struct roost_config *cfg, const struct roost_key *key,                       \
                                            struct found *found) {                                                             \
        struct spot spot = {};                                                                                                 \
        int there = spot##family(cfg, key, &spot);                                                                             \
        found->hash = spot.hash;                                                                                               \
        void *table = there ? bpf_map_lookup_elem(&tables##family, &spot.generation) : 0;                                      \
        struct roost_bucket##family *b = table ? bpf_map_lookup_elem(table, &spot.bucket) : 0;                                 \
        if (!b || spot.at >= ROOST_BUCKET_SLOTS)                                                                               \
            return 0;                                                                                                          \
        found->slot = &b->slot[spot.at].ka;                                                                                    \
        found->ctl = spot.ctl;                                                                                                 \
        return 1;                                                                                                              \
    }

ROOST_FIND_IN(4)
ROOST_FIND_IN(6)

/* Loads before it are done before it, and loads behind it after it. */
static __always_inline __u32 moves_of(struct roost_filter_gate *gate) {
#ifdef ROOST_LOADS_IN_ORDER
    __u32 moved = *(volatile __u32 *)&gate->moved;
    asm volatile("" ::: "memory");
    return moved;
#else
    return __sync_fetch_and_add(&gate->moved, 0);
#endif
}

static __always_inline __u32 moves(void) {
    __u32 zero = 0;
    struct roost_filter_gate *gate = bpf_map_lookup_elem(&filter_gate, &zero);
    return gate ? moves_of(gate) : 0;
}

/* Looks a key up. 0: it is in no table. */
static __noinline int find(const struct roost_config *cfg, const struct roost_key *key, int v6, struct found *found) {
    found->moved = moves();
    return v6 ? find6(cfg, key, found) : find4(cfg, key, found);
}

/* One moment of a record. Returns 0 when the slot changed hands since it was found. */
static __always_inline int snapshot(const struct found *found, struct roost_ka *copy) {
    __builtin_memcpy(copy, found->slot, sizeof(*copy));
    copy->ctl = found->ctl;
    return ctl_of(found->slot) == found->ctl;
}

#endif
