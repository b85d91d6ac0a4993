/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The filter of connections that sleep without a slot: all that is in memory of a connection in SLEEP whose service needs no
 * keep-alives (`sleep_keepalive = "none"`). A hit makes a key a candidate; the row of the database says whether. Shared by the BPF
 * programs, which only look, and by the engine, which is the only one to change it.
 *
 * A cuckoo filter with partial keys (Fan, Andersen, Kaminsky, Mitzenmacher, CoNEXT 2014): of each connection a fingerprint
 * of 12 bits, in one of two buckets, each of which is to be had from the other and the fingerprint, so that a fingerprint
 * can be moved without its key. A bucket is one word, read and written at once:
 *
 *     bucket   | 4 bits unused | fingerprint 4 | fingerprint 3 | ... | fingerprint 0 |      a fingerprint of 0 is free
 *
 * 1.6 bytes a place, 1.7 a connection when it is as full as it is meant to be; then one key in some 430 that is in no
 * table is a false positive (tests/unit/test_filter.py measures it). It costs one store read; the engine then notes its hash
 * in the map `strangers`.
 *
 * Looked at behind a hit alone: whether members may have this local port. So other TCP of this machine is not taken for
 * theirs.
 *
 * Order of writes. A fingerprint that is moved, and a connection that goes from here to a table, are at the new place before
 * they leave the old one; in between `moved` is counted up. A reader reads `moved`, the tables, both buckets, and `moved`
 * again: if there was no hit and `moved` is the same, the key is no member's. A new port counts as a move.
 */
#ifndef ROOST_FILTER_H
#define ROOST_FILTER_H

#include <linux/types.h>

#define ROOST_FILTER_PLACES 5 /* of a bucket */
#define ROOST_FILTER_BITS 12  /* of a fingerprint */
#define ROOST_FILTER_MASK ((1u << ROOST_FILTER_BITS) - 1)
#define ROOST_FILTER_ONES 0x0001001001001001ULL /* the lowest bit of each fingerprint */
#define ROOST_FILTER_INTERFACES 8
#define ROOST_FILTER_PORTS (65536 / 32)

/* The one value of the map `filter_gate`, memory-mapped. */
struct roost_filter_gate {
    __u32 buckets; /* of the filter; 0: it has no members, and need not be read */
    __u32 moved;
    __u64 members;
    __u32 interface[ROOST_FILTER_INTERFACES]; /* where XDP hears clients, 0: none */
    __u32 port[ROOST_FILTER_PORTS];           /* a bit for each local port (network order) that a member may have */
};

struct roost_filter_place {
    __u32 bucket[2];
    __u32 fingerprint;
};

/* The other bucket of a fingerprint: their sum is the same from either, modulo the number of buckets. */
static inline __attribute__((always_inline)) __u32 roost_filter_other(__u32 bucket, __u32 fingerprint, __u32 buckets) {
    __u32 sum = ((__u64)(fingerprint * 0x9e3779b1u) * buckets) >> 32;
    return sum >= bucket ? sum - bucket : sum + buckets - bucket;
}

/* hash: roost_hash4 or roost_hash6 of the key. */
static inline __attribute__((always_inline)) struct roost_filter_place roost_filter_place_of(__u64 hash,
                                                                                             __u32 buckets) {
    struct roost_filter_place place;
    place.fingerprint = (__u32)hash & ROOST_FILTER_MASK;
    if (!place.fingerprint)
        place.fingerprint = 1;
    place.bucket[0] = (__u32)(((hash >> 32) * buckets) >> 32);
    place.bucket[1] = roost_filter_other(place.bucket[0], place.fingerprint, buckets);
    return place;
}

/* Whether one of a bucket's fingerprints is this one: a place that is all zero after the exclusive or borrows. */
static inline __attribute__((always_inline)) int roost_filter_word_has(__u64 word, __u32 fingerprint) {
    __u64 x = word ^ fingerprint * ROOST_FILTER_ONES;
    return ((x - ROOST_FILTER_ONES) & ~x & ROOST_FILTER_ONES << (ROOST_FILTER_BITS - 1)) != 0;
}

static inline __attribute__((always_inline)) int roost_filter_has_port(const struct roost_filter_gate *gate,
                                                                       __u16 port) {
    return *(const volatile __u32 *)&gate->port[port / 32] >> port % 32 & 1;
}

#endif
