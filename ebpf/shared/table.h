/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The inactive table: where a key's slot may lie. Shared by the BPF programs, which only look, and by the engine,
 * which is the only one to insert and remove.
 *
 * A table is a BPF array map of buckets, memory-mapped by the engine. A bucket is 56 slots behind a header of 64 bytes
 * (of IPv4 one cache line) with an 8-bit tag for each slot; a tag of 0 is a free slot. A key may lie in either of two
 * buckets (two-choice hashing with no relocation): nothing ever moves within a table, so a reader without a lock can never
 * miss an entry that is there. When both buckets are full the insert is refused; at 90 % load that is rarer than one in ten
 * thousand (tests/unit/test_table.py measures it).
 *
 *     bucket   | tag 0 .. tag 55 | lock due |  slot 0  |  slot 1  | ... | slot 55 |
 *              '------- 64 bytes --------' '- far ka -'
 *
 * A slot holds the far end alone; the near end it names by number, since few different ones serve all connections: the
 * client is the far end and the service's address the near one, of a server's leg (ROOST_F_SERVER) the server is the near
 * end and our address the far one.
 *
 * Generations. A table that fills up grows into a larger one, a few slots at a time. While it does, there are two: a
 * look-up reads the old one first, since a slot is copied before it is removed. `tables4` and `tables6` are
 * maps of maps, and struct roost_config says which of them are in use.
 *
 * Order of writes. Insert, under the locks of both buckets, for the XDP program inserts, too: ctl with a new version and a
 * phase that holds packets, the fields, the tag, then the real phase. Remove: phase FREE (which holds packets, too), then
 * the tag; from then on the slot is free. A reader takes ctl before and after the fields; if the two differ, the slot
 * changed hands under it and the packet is held for the engine.
 */
#ifndef ROOST_TABLE_H
#define ROOST_TABLE_H

#include "record.h"

#define ROOST_BUCKET_SLOTS 56
#define ROOST_SAME_TAG_MAX 8 /* slots of one bucket that may share a tag; insert sees to it, readers rely on it */
#define ROOST_HOME_SLOTS 3
#define ROOST_FIRST_BUCKET 44 /* slots that are taken in a key's first bucket from which on the emptier one is chosen */
#define ROOST_GENERATIONS 4   /* of which at most two are in use */

struct roost_slot4 { /* 40 bytes */
    __be32 far;
    __be16 far_port;
    __u16 endpoint;
    struct roost_ka ka;
};

struct roost_slot6 { /* 52 bytes */
    __u8 far[16];
    __be16 far_port;
    __u16 endpoint;
    struct roost_ka ka;
};

/* The holder of a bucket's lock: the engine's successor takes its lock away from a dead engine, never from XDP. */
#define ROOST_LOCK_FREE 0u
#define ROOST_LOCK_XDP 1u
#define ROOST_LOCK_ENGINE 2u

struct roost_bucket_head { /* 64 bytes */
    union {
        __u8 tag[ROOST_BUCKET_SLOTS];
        __u64 tags[ROOST_BUCKET_SLOTS / 8];
    };
    __u32 lock;
    __u32 due_s; /* CLOCK_MONOTONIC seconds when the engine must look at these slots; an insert may set it earlier */
};

struct roost_bucket4 { /* 2304 bytes */
    struct roost_bucket_head head;
    struct roost_slot4 slot[ROOST_BUCKET_SLOTS];
};

struct roost_bucket6 { /* 2976 bytes */
    struct roost_bucket_head head;
    struct roost_slot6 slot[ROOST_BUCKET_SLOTS];
};

/* The generations of one table. in_use = current | (previous + 1) << 8; no previous: 0 there. One word, so that a reader
 * sees one moment of it. */
struct roost_generations {
    __u32 in_use;
    __u32 buckets[ROOST_GENERATIONS];
};

#define ROOST_CURRENT(in_use) ((in_use)&0xffu)
#define ROOST_PREVIOUS(in_use) (((in_use) >> 8) & 0xffu) /* plus 1; 0 = none */

/* What the BPF programs must know of the tables; the one value of the map `config`. */
struct roost_config {
    __u64 secret[2]; /* marks the engine's own frames (ebpf/xdp/outbox.h) */
    __u64 seed[2];   /* SipHash key: an outsider who picks addresses and ports must not be able to fill one bucket */
    struct roost_generations v4, v6;
};

/* Where a key may lie. */
struct roost_place {
    __u32 bucket[2];
    __u8 tag;
    __u8 home; /* the first slot of its home in bucket[0] */
};

#define ROOST_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define ROOST_SIPROUND                                                                                                 \
    do {                                                                                                               \
        v0 += v1, v1 = ROOST_ROTL(v1, 13), v1 ^= v0, v0 = ROOST_ROTL(v0, 32);                                          \
        v2 += v3, v3 = ROOST_ROTL(v3, 16), v3 ^= v2;                                                                   \
        v0 += v3, v3 = ROOST_ROTL(v3, 21), v3 ^= v0;                                                                   \
        v2 += v1, v1 = ROOST_ROTL(v1, 17), v1 ^= v2, v2 = ROOST_ROTL(v2, 32);                                          \
    } while (0)

/* A loop that clang 19 keeps may have a counter whose bounds the verifier loses, so that it sees no end of it. */
#ifdef __bpf__
#define ROOST_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ROOST_UNROLL
#endif

/* SipHash-1-3 over count 64-bit words. */
static inline __attribute__((always_inline)) __u64 roost_siphash(const __u64 seed[2], const __u64 *word, int count) {
    __u64 v0 = seed[0] ^ 0x736f6d6570736575ULL, v1 = seed[1] ^ 0x646f72616e646f6dULL;
    __u64 v2 = seed[0] ^ 0x6c7967656e657261ULL, v3 = seed[1] ^ 0x7465646279746573ULL;
    ROOST_UNROLL
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
    __u64 mixed = hash * 0x9e3779b97f4a7c15ULL;
    place.tag = (__u8)(mixed >> 56);
    if (!place.tag)
        place.tag = 1;
    place.home = (__u8)(((mixed >> 40 & 0xffff) * (ROOST_BUCKET_SLOTS / ROOST_HOME_SLOTS) >> 16) * ROOST_HOME_SLOTS);
    return place;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first of eight tags is taken for the lowest byte");

/* Those of eight tags that are this one: the highest bit of each. */
static inline __attribute__((always_inline)) __u64 roost_same_tags(__u64 eight, __u8 tag) {
    __u64 x = eight ^ tag * 0x0101010101010101ULL;
    return ~(((x & 0x7f7f7f7f7f7f7f7fULL) + 0x7f7f7f7f7f7f7f7fULL) | x | 0x7f7f7f7f7f7f7f7fULL);
}

/* Which of the two buckets a key goes into, by how many slots of them are taken. */
static inline __attribute__((always_inline)) int roost_side(__u32 taken0, __u32 taken1) {
    return taken0 >= ROOST_FIRST_BUCKET && taken1 < taken0;
}

/* client and local: the packet's source and destination, the low 32 bits of what an IPv4-mapped address is. */
static inline __attribute__((always_inline)) __u64 roost_hash4(const struct roost_config *config,
                                                               const struct roost_key *key) {
    __u32 client, local;
    __builtin_memcpy(&client, key->client + 12, 4);
    __builtin_memcpy(&local, key->local + 12, 4);
    __u64 word[2] = {((__u64)client << 32) | local, ((__u64)key->client_port << 16) | key->local_port};
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

static inline __attribute__((always_inline)) int roost_same_address(const __u8 *a, const __u8 *b) {
    __u32 x[4], y[4];
    __builtin_memcpy(x, a, 16);
    __builtin_memcpy(y, b, 16);
    return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]));
}

static inline __attribute__((always_inline)) int roost_same_near(const struct roost_endpoint *e, const __u8 *address,
                                                                 __be16 port) {
    return e->port == port && roost_same_address(e->address, address);
}

#endif
