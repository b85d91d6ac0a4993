/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Into the table from XDP, as the engine does it (roost_table_insert): under the locks of both buckets, in the order that
 * ebpf/shared/table.h demands.
 */
#ifndef ROOST_INSERT_H
#define ROOST_INSERT_H

#include "find.h"

#define LOCK_TRIES 4
#define PUT_IN 2

/* What is put there. */
struct newborn {
    __u64 hash;   /* of its key */
    __u32 in_use; /* the generations, as they were when the key was looked for */
    __u32 endpoint;
    __u32 now_s;
    struct roost_key key;
    struct roost_ka ka;
};

static __always_inline int try_lock_bucket(__u32 *lock) {
    for (int i = 0; i < LOCK_TRIES; i++)
        if (__sync_val_compare_and_swap(lock, ROOST_LOCK_FREE, ROOST_LOCK_XDP) == ROOST_LOCK_FREE)
            return 1;
    return 0;
}

static __always_inline void unlock_bucket(__u32 *lock) {
    __sync_val_compare_and_swap(lock, ROOST_LOCK_XDP, ROOST_LOCK_FREE); /* with a barrier */
}

/* Both buckets of a place, which may be one. */
static __always_inline int try_lock_place(const struct roost_place *place, __u32 *first, __u32 *second) {
    if (!try_lock_bucket(first))
        return 0;
    if (place->bucket[0] == place->bucket[1] || try_lock_bucket(second))
        return 1;
    unlock_bucket(first);
    return 0;
}

static __always_inline void unlock_place(const struct roost_place *place, __u32 *first, __u32 *second) {
    if (place->bucket[0] != place->bucket[1])
        unlock_bucket(second);
    unlock_bucket(first);
}

static __always_inline __u32 ones(__u64 mask) {
    __u64 n = mask - ((mask >> 1) & 0x5555555555555555ULL);
    n = (n & 0x3333333333333333ULL) + ((n >> 2) & 0x3333333333333333ULL);
    n = (n + (n >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
    return (n * 0x0101010101010101ULL) >> 56;
}

static __always_inline void far4(struct roost_slot4 *slot, const struct roost_key *key) {
    slot->far = low32(key->client);
}

static __always_inline void far6(struct roost_slot6 *slot, const struct roost_key *key) {
    __builtin_memcpy(slot->far, key->client, 16);
}

/* The engine looks at the bucket by then. It may change the time as well: a lost exchange is tried again. */
static __always_inline void due_by(struct roost_bucket_head *head, __u32 due_s) {
    for (int i = 0; i < LOCK_TRIES; i++) {
        __u32 now = *(volatile __u32 *)&head->due_s;
        if (now <= due_s || __sync_val_compare_and_swap(&head->due_s, now, due_s) == now)
            return;
    }
}

/* When its class wants a probe of it. Asked when the slot can be seen: ebpf/shared/class.h. */
static __always_inline void probe_by(struct roost_bucket_head *head, const struct newborn *n) {
    __u32 index = n->ka.class;
    const struct roost_class *class = bpf_map_lookup_elem(&classes, &index);
    __u16 interval_s = class ? *(volatile const __u16 *)&class->probe_interval_s : 0;
    if (interval_s)
        due_by(head, n->now_s + interval_s);
}

/* Fills a free slot of a bucket whose lock is held. */
#define ROOST_FILL(family)                                                                                             \
    static __always_inline int fill##family(struct roost_bucket##family *b, __u32 at, __u8 tag,                        \
                                            const struct newborn *n) {                                                 \
        if (at >= ROOST_BUCKET_SLOTS)                                                                                  \
            return 0;                                                                                                  \
        struct roost_slot##family *slot = &b->slot[at];                                                                \
        __u32 ctl = (n->ka.ctl & ~0xff00u) | ((slot->ka.ctl + 0x100u) & 0xff00u);                                      \
        __sync_lock_test_and_set(&slot->ka.ctl, (ctl & ~0xffu) | ROOST_FREEZING);                                      \
        far##family(slot, &n->key);                                                                                    \
        slot->far_port = n->key.client_port;                                                                           \
        slot->endpoint = n->endpoint;                                                                                  \
        slot->ka.snd_nxt = n->ka.snd_nxt;                                                                              \
        slot->ka.rcv_nxt = n->ka.rcv_nxt;                                                                              \
        slot->ka.ts_offset = n->ka.ts_offset;                                                                          \
        slot->ka.ts_recent = n->ka.ts_recent;                                                                          \
        slot->ka.heard = n->ka.heard;                                                                                  \
        slot->ka.window = n->ka.window;                                                                                \
        slot->ka.class = n->ka.class;                                                                                  \
        slot->ka.rest = n->ka.rest;                                                                                    \
        if (ctl_of(&slot->ka) != ((ctl & ~0xffu) | ROOST_FREEZING)) /* a barrier, as its result is wanted */           \
            return 0;                                                                                                  \
        b->head.tag[at] = tag;                                                                                         \
        __sync_lock_test_and_set(&slot->ka.ctl, ctl);                                                                  \
        probe_by(&b->head, n);                                                                                         \
        count(ROOST_N_BORN##family);                                                                                   \
        return PUT_IN;                                                                                                 \
    }

ROOST_FILL(4)
ROOST_FILL(6)

/* Whether a key has been put into the generation that a table is growing out of, under the locks there: another processor
 * may still see that one alone and be about to insert; after these locks it sees the new one, too. -1: no lock to be had. */
#define ROOST_IN_OLD(family)                                                                                           \
    static __noinline int in_old##family(const struct roost_config *cfg, const struct newborn *n) {                    \
        __u32 old = (ROOST_PREVIOUS(n->in_use) - 1) % ROOST_GENERATIONS;                                               \
        void *table = bpf_map_lookup_elem(&tables##family, &old);                                                      \
        if (!table)                                                                                                    \
            return 0; /* it has been grown out of meanwhile */                                                         \
        struct roost_place place = roost_place_of(n->hash, buckets_of(&cfg->v##family, old));                          \
        struct roost_bucket##family *a = bpf_map_lookup_elem(table, &place.bucket[0]);                                 \
        struct roost_bucket##family *b = bpf_map_lookup_elem(table, &place.bucket[1]);                                 \
        struct spot spot = {};                                                                                         \
        if (!a || !b || !try_lock_place(&place, &a->head.lock, &b->head.lock))                                         \
            return -1;                                                                                                 \
        int there = spot_in##family(old, &place, &n->key, &spot);                                                      \
        unlock_place(&place, &a->head.lock, &b->head.lock);                                                            \
        return there;                                                                                                  \
    }

ROOST_IN_OLD(4)
ROOST_IN_OLD(6)

/* The slot to take of those that are free: of its home, if it may be. */
static __always_inline __u32 choice(const struct roost_place *place, __u64 free, int second) {
    __u64 home = second ? 0 : free & (((1ULL << ROOST_HOME_SLOTS) - 1) << place->home);
    return lowest_of(home ? home : free);
}

/* Puts it where the engine would: PUT_IN; 1: it is there by now. 0: no room; -1: no lock to be had, or a table began to grow in
 * this moment. */
#define ROOST_INSERT(family)                                                                                           \
    static __noinline int insert##family(const struct roost_config *cfg, const struct newborn *n) {                    \
        __u32 current = ROOST_CURRENT(n->in_use) % ROOST_GENERATIONS;                                                  \
        void *table = bpf_map_lookup_elem(&tables##family, &current);                                                  \
        if (!table)                                                                                                    \
            return -1;                                                                                                 \
        struct roost_place place = roost_place_of(n->hash, buckets_of(&cfg->v##family, current));                      \
        struct roost_bucket##family *a = bpf_map_lookup_elem(table, &place.bucket[0]);                                 \
        struct roost_bucket##family *b = bpf_map_lookup_elem(table, &place.bucket[1]);                                 \
        struct spot spot = {};                                                                                         \
        int there = -1;                                                                                                \
        if (!a || !b || !try_lock_place(&place, &a->head.lock, &b->head.lock))                                         \
            return -1;                                                                                                 \
        if (*(volatile const __u32 *)&cfg->v##family.in_use == n->in_use) {                                            \
            __u64 same_a = matching(&a->head, place.tag), same_b = matching(&b->head, place.tag);                      \
            if ((same_a | same_b) && spot_in##family(current, &place, &n->key, &spot)) {                               \
                there = 1;                                                                                             \
            } else {                                                                                                   \
                __u64 free_a = matching(&a->head, 0), free_b = matching(&b->head, 0);                                  \
                int second = roost_side(ROOST_BUCKET_SLOTS - ones(free_a), ROOST_BUCKET_SLOTS - ones(free_b));         \
                if (ones(second ? same_b : same_a) >= ROOST_SAME_TAG_MAX)                                              \
                    there = 0;                                                                                         \
                else                                                                                                   \
                    there =                                                                                            \
                        fill##family(second ? b : a, choice(&place, second ? free_b : free_a, second), place.tag, n);  \
            }                                                                                                          \
        }                                                                                                              \
        unlock_place(&place, &a->head.lock, &b->head.lock);                                                            \
        return there;                                                                                                  \
    }

ROOST_INSERT(4)
ROOST_INSERT(6)

#endif
