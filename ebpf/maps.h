/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Every map, once. The engine sets the sizes before loading, pins them all, and the programs' objects share them by
 * their pins; a restarted daemon finds them again.
 */
#ifndef ROOST_MAPS_H
#define ROOST_MAPS_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "frame.h"
#include "table.h"

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct roost_config);
} config SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct roost_bucket4);
} table4 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct roost_bucket6);
} table6 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} ring SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, ROOST_N_COUNT);
    __type(key, __u32);
    __type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 what) {
    __u64 *n = bpf_map_lookup_elem(&counters, &what);
    if (n)
        *n += 1;
}

/* The slots of a bucket whose tag matches, as a bit mask: of the 40 slots a key may lie in, on average none but the
 * right one is then touched. Without a branch, or the verifier would follow every combination of them. */
static __always_inline __u32 matching(const volatile __u16 *tags, __u16 tag) {
    __u32 mask = 0;
#pragma clang loop unroll(full)
    for (int i = 0; i < ROOST_BUCKET_SLOTS; i++) {
        __u32 difference = tags[i] ^ tag;
        asm volatile("" : "+r"(difference));
        mask |= ((difference - 1) >> 31) << i; /* difference is at most 65535 */
    }
    return mask;
}

/* Index of the lowest bit: the number of ones below it. */
static __always_inline __u32 lowest(__u32 mask) {
    __u32 n = (mask & -mask) - 1;
    n -= (n >> 1) & 0x55555555;
    n = (n & 0x33333333) + ((n >> 2) & 0x33333333);
    n = (n + (n >> 4)) & 0x0f0f0f0f;
    n = (n * 0x01010101) >> 24;
    asm volatile(""
                 : "+r"(n)); /* or clang compares the number before the shift, and the verifier knows no bound of n */
    return n;
}

static __always_inline int same_key4(const struct roost_key4 *a, const struct roost_key4 *b) {
    return a->client == b->client && a->client_port == b->client_port && a->local == b->local &&
           a->local_port == b->local_port;
}

static __always_inline int same_key6(const struct roost_key *a, const struct roost_key *b) {
    const __u32 *x = (const void *)a, *y = (const void *)b;
    __u32 difference = 0;
#pragma clang loop unroll(full)
    for (int i = 0; i < 9; i++)
        difference |= x[i] ^ y[i];
    return !difference;
}

/* The slot of a key, or NULL. */
#define ROOST_FIND(table, same)                                                                                        \
    for (int side = 0; side < 2; side++) {                                                                             \
        __u32 index = side ? place.bucket[1] : place.bucket[0];                                                        \
        table##_value *b = bpf_map_lookup_elem(&table, &index);                                                        \
        __u32 mask = b ? matching(b->tag, place.tag) : 0;                                                              \
        for (int i = 0; i < ROOST_SAME_TAG_MAX; i++) {                                                                 \
            __u32 at = lowest(mask);                                                                                   \
            if (at >= ROOST_BUCKET_SLOTS || !b)                                                                        \
                break;                                                                                                 \
            if (same(&b->slot[at].key, key))                                                                           \
                return &b->slot[at].ka;                                                                                \
            mask &= mask - 1;                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    return 0

static __always_inline struct roost_ka *find4(const struct roost_config *cfg, const struct roost_key4 *key) {
    typedef struct roost_bucket4 table4_value;
    struct roost_place place = roost_place_of(roost_hash4(cfg, key), cfg->buckets4);
    ROOST_FIND(table4, same_key4);
}

static __always_inline struct roost_ka *find6(const struct roost_config *cfg, const struct roost_key *key) {
    typedef struct roost_bucket6 table6_value;
    struct roost_place place = roost_place_of(roost_hash6(cfg, key), cfg->buckets6);
    ROOST_FIND(table6, same_key6);
}

/* One moment of a record. Returns 0 when the slot changed hands while it was read, or since it was found: its ports are
 * looked at again (they lie just before ka in both kinds of slot; whoever has the same ports and the same tag in the same
 * bucket by chance still differs in ctl). The fetching add is a full barrier on every architecture. */
static __always_inline int snapshot(struct roost_ka *slot, struct roost_ka *copy, const struct roost_key *key) {
    __u32 before = __sync_fetch_and_add(&slot->ctl, 0);
    const __be16 *ports = (const __be16 *)slot - 2;
    if (ports[0] != key->client_port || ports[1] != key->local_port)
        return 0;
    __builtin_memcpy(copy, slot, sizeof(*copy));
    __u32 after = __sync_fetch_and_add(&slot->ctl, 0);
    copy->ctl = before;
    return before == after;
}

#endif
