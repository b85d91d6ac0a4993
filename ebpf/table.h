/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The inactive table: where a key's slot may lie. Shared by the BPF programs, which only look, and by the engine,
 * which is the only one to insert and remove.
 *
 * A table is one BPF array map of buckets, memory-mapped by the engine. A bucket is 20 slots behind a header with one
 * 16-bit tag per slot; a tag of 0 is a free slot. A key may lie in either of two buckets (two-choice hashing with no
 * relocation): nothing ever moves, so a reader without a lock can never miss an entry that is there. When both buckets
 * are full the insert is refused and the connection stays in the kernel; at 85 % load that is rarer than one in
 * ten thousand (tests/unit/test_table.py measures it).
 *
 *     bucket   | tag 0 .. tag 19 | pad |  slot 0  |  slot 1  | ... | slot 19 |
 *              '----- 64 bytes ------' '- key ka -'
 *
 * Order of writes. Insert: ctl with a new version and a phase that holds packets, the fields, the tag, then the real
 * phase. Remove: the tag, then phase FREE (which holds packets, too). A reader takes ctl before and after the fields;
 * if the two differ, the slot changed hands under it and the packet is held for the engine.
 */
#ifndef ROOST_TABLE_H
#define ROOST_TABLE_H

#include "record.h"

#define ROOST_BUCKET_SLOTS 20
#define ROOST_SAME_TAG_MAX 4 /* slots of one bucket that may share a tag; insert sees to it, readers rely on it */

struct roost_slot4 { /* 48 bytes */
    struct roost_key4 key;
    struct roost_ka ka;
};

struct roost_slot6 { /* 72 bytes */
    struct roost_key key;
    struct roost_ka ka;
};

struct roost_bucket4 { /* 1024 bytes */
    __u16 tag[ROOST_BUCKET_SLOTS];
    __u8 pad[24];
    struct roost_slot4 slot[ROOST_BUCKET_SLOTS];
};

struct roost_bucket6 { /* 1504 bytes */
    __u16 tag[ROOST_BUCKET_SLOTS];
    __u8 pad[24];
    struct roost_slot6 slot[ROOST_BUCKET_SLOTS];
};

/* What the BPF programs must know of the tables; the one value of the map `config`. */
struct roost_config {
    __u64 secret[2]; /* marks the engine's own frames (ebpf/outbox.h) */
    __u64 seed[2];   /* SipHash key: an outsider who picks addresses and ports must not be able to fill one bucket */
    __u32 buckets4;
    __u32 buckets6;
};

/* Where a key may lie. */
struct roost_place {
    __u32 bucket[2];
    __u16 tag;
};

#define ROOST_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define ROOST_SIPROUND                                                                                                 \
    do {                                                                                                               \
        v0 += v1, v1 = ROOST_ROTL(v1, 13), v1 ^= v0, v0 = ROOST_ROTL(v0, 32);                                          \
        v2 += v3, v3 = ROOST_ROTL(v3, 16), v3 ^= v2;                                                                   \
        v0 += v3, v3 = ROOST_ROTL(v3, 21), v3 ^= v0;                                                                   \
        v2 += v1, v1 = ROOST_ROTL(v1, 17), v1 ^= v2, v2 = ROOST_ROTL(v2, 32);                                          \
    } while (0)

/* SipHash-1-3 over count 64-bit words. */
static inline __attribute__((always_inline)) __u64 roost_siphash(const __u64 seed[2], const __u64 *word, int count) {
    __u64 v0 = seed[0] ^ 0x736f6d6570736575ULL, v1 = seed[1] ^ 0x646f72616e646f6dULL;
    __u64 v2 = seed[0] ^ 0x6c7967656e657261ULL, v3 = seed[1] ^ 0x7465646279746573ULL;
#ifdef __bpf__
#pragma clang loop unroll(full)
#endif
    for (int i = 0; i < count; i++) {
        v3 ^= word[i];
        ROOST_SIPROUND;
        v0 ^= word[i];
    }
    v2 ^= 0xff;
    ROOST_SIPROUND;
    ROOST_SIPROUND;
    ROOST_SIPROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}

static inline __attribute__((always_inline)) struct roost_place roost_place_of(__u64 hash, __u32 buckets) {
    struct roost_place place;
    place.bucket[0] = (__u32)(((hash & 0xffffffffULL) * buckets) >> 32);
    place.bucket[1] = (__u32)(((hash >> 32) * buckets) >> 32);
    place.tag = (__u16)((hash * 0x9e3779b97f4a7c15ULL) >> 48);
    if (!place.tag)
        place.tag = 1;
    return place;
}

static inline __attribute__((always_inline)) __u64 roost_hash4(const struct roost_config *config,
                                                               const struct roost_key4 *key) {
    __u64 word[2] = {((__u64)key->client << 32) | key->local, ((__u64)key->client_port << 16) | key->local_port};
    return roost_siphash(config->seed, word, 2);
}

static inline __attribute__((always_inline)) __u64 roost_hash6(const struct roost_config *config,
                                                               const struct roost_key *key) {
    __u64 word[5];
    __builtin_memcpy(word, key->client, 16);
    __builtin_memcpy(word + 2, key->local, 16);
    word[4] = ((__u64)key->client_port << 16) | key->local_port;
    return roost_siphash(config->seed, word, 5);
}

#endif
