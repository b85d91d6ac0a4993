// SPDX-License-Identifier: Apache-2.0
#include "filter.h"

#include <stddef.h>
#include <string.h>

#include "cext/base/count.h"

#define FILL_PERCENT 96 /* of all places, with as many as it is made for */
#define FULL_PERCENT 97 /* there is room beyond, but to find it would cost 40 us, and more to find that there is none */
#define NODES_MAX 512   /* buckets that are looked at before an insertion is refused */
#define NONE UINT32_MAX

/* A bucket that may have room, on the way from one of the two that a fingerprint belongs to: the fingerprint at `place` of
 * the parent could move here. */
struct node {
    uint32_t bucket, parent, place;
};

static uint32_t fingerprint_at(uint64_t word, uint32_t place) {
    return word >> place * ROOST_FILTER_BITS & ROOST_FILTER_MASK;
}

static void put(struct roost_filter *f, uint32_t bucket, uint32_t place, uint32_t fingerprint) {
    uint64_t mask = (uint64_t)ROOST_FILTER_MASK << place * ROOST_FILTER_BITS;
    uint64_t word = (f->bucket[bucket] & ~mask) | (uint64_t)fingerprint << place * ROOST_FILTER_BITS;
    __atomic_store_n(&f->bucket[bucket], word, __ATOMIC_SEQ_CST);
}

static void count_move(struct roost_filter *f) {
    __atomic_store_n(&f->gate->moved, f->gate->moved + 1, __ATOMIC_SEQ_CST);
}

/* Where this fingerprint stands in a bucket; 0 finds a free place. NONE: it is not there. */
static uint32_t place_in(const struct roost_filter *f, uint32_t bucket, uint32_t fingerprint) {
    for (uint32_t place = 0; place < ROOST_FILTER_PLACES; place++)
        if (fingerprint_at(f->bucket[bucket], place) == fingerprint)
            return place;
    return NONE;
}

static uint32_t taken_in(const struct roost_filter *f, uint32_t bucket) {
    uint32_t taken = 0;
    for (uint32_t place = 0; place < ROOST_FILTER_PLACES; place++)
        taken += fingerprint_at(f->bucket[bucket], place) != 0;
    return taken;
}

uint32_t roost_filter_buckets(uint32_t connections) {
    return (uint32_t)(((uint64_t)connections * 100 + FILL_PERCENT * ROOST_FILTER_PLACES - 1) /
                      (FILL_PERCENT * ROOST_FILTER_PLACES));
}

static void tell_members(struct roost_filter *f, uint64_t members) {
    f->gate->members = members;
    __atomic_store_n(&f->gate->buckets, members ? f->buckets : 0, __ATOMIC_SEQ_CST);
}

void roost_filter_begin(struct roost_filter *f, __u64 *bucket, uint32_t buckets, struct roost_filter_gate *gate) {
    uint64_t members = 0;
    f->bucket = bucket;
    f->buckets = buckets;
    f->gate = gate;
    f->refused = f->moves = 0;
    for (uint32_t i = 0; i < buckets; i++) /* a predecessor that was killed may have miscounted by one */
        members += bucket[i] ? taken_in(f, i) : 0;
    if (!members) /* the ports may be those of services that are gone */
        memset(gate->port, 0, sizeof(gate->port));
    tell_members(f, members);
}

/* Whether a bucket is on the way to this node: a place that is moved twice would lose its fingerprint. */
static bool is_on_the_way(const struct node *node, uint32_t at, uint32_t bucket) {
    for (; at != NONE; at = node[at].parent)
        if (node[at].bucket == bucket)
            return true;
    return false;
}

/* Looks for a bucket with room, the nearest first. node: those looked at. Its index there, or NONE. */
static uint32_t find_room(const struct roost_filter *f, const struct roost_filter_place *home, struct node *node) {
    uint32_t count = 0, fuller = taken_in(f, home->bucket[0]) > taken_in(f, home->bucket[1]);
    node[count++] = (struct node){home->bucket[fuller], NONE, 0};
    if (home->bucket[1] != home->bucket[0])
        node[count++] = (struct node){home->bucket[!fuller], NONE, 0};
    for (uint32_t at = 0; at < count; at++) {
        if (place_in(f, node[at].bucket, 0) != NONE)
            return at;
        for (uint32_t place = 0; place < ROOST_FILTER_PLACES && count < NODES_MAX; place++) {
            uint32_t fingerprint = fingerprint_at(f->bucket[node[at].bucket], place);
            uint32_t other = roost_filter_other(node[at].bucket, fingerprint, f->buckets);
            if (!is_on_the_way(node, at, other))
                node[count++] = (struct node){other, at, place};
        }
    }
    return NONE;
}

/* From now on members may have this local port. Counted as a move: a reader that sees the first of them, but not yet its
 * port, looks again. */
static void tell_port(struct roost_filter *f, uint16_t port) {
    if (roost_filter_has_port(f->gate, port))
        return;
    __atomic_fetch_or(&f->gate->port[port / 32], 1u << port % 32, __ATOMIC_SEQ_CST);
    count_move(f);
}

bool roost_filter_insert(struct roost_filter *f, uint64_t hash, uint16_t port) {
    struct node node[NODES_MAX];
    if (!f->buckets)
        return false;
    struct roost_filter_place home = roost_filter_place_of(hash, f->buckets);
    bool full = f->gate->members * 100 >= (uint64_t)f->buckets * ROOST_FILTER_PLACES * FULL_PERCENT;
    uint32_t at = full ? NONE : find_room(f, &home, node);
    if (at == NONE) {
        f->refused++;
        return false;
    }
    tell_port(f, port);
    /* From the end of the way: each stands at its new place before the next one takes its old one. */
    uint32_t place = place_in(f, node[at].bucket, 0);
    for (; node[at].parent != NONE; at = node[at].parent) {
        put(f, node[at].bucket, place, fingerprint_at(f->bucket[node[node[at].parent].bucket], node[at].place));
        count_move(f);
        f->moves++;
        place = node[at].place;
    }
    put(f, node[at].bucket, place, home.fingerprint);
    tell_members(f, f->gate->members + 1);
    return true;
}

bool roost_filter_remove(struct roost_filter *f, uint64_t hash) {
    if (!f->gate || !f->gate->buckets)
        return false;
    struct roost_filter_place home = roost_filter_place_of(hash, f->buckets);
    for (int side = 0; side < 2; side++) {
        uint32_t place = place_in(f, home.bucket[side], home.fingerprint);
        if (place == NONE)
            continue;
        count_move(f);
        put(f, home.bucket[side], place, 0);
        tell_members(f, roost_less(f->gate->members, 1));
        return true;
    }
    return false;
}

bool roost_filter_has(const struct roost_filter *f, uint64_t hash, uint16_t port) {
    if (!f->gate || !f->gate->buckets || !roost_filter_has_port(f->gate, port))
        return false;
    struct roost_filter_place home = roost_filter_place_of(hash, f->buckets);
    return roost_filter_word_has(f->bucket[home.bucket[0]], home.fingerprint) ||
           roost_filter_word_has(f->bucket[home.bucket[1]], home.fingerprint);
}

void roost_filter_prefetch(const struct roost_filter *f, uint64_t hash) {
    if (!f->gate || !f->gate->buckets)
        return;
    struct roost_filter_place home = roost_filter_place_of(hash, f->buckets);
    for (int side = 0; side < 2; side++)
        __builtin_prefetch(&f->bucket[home.bucket[side]]);
}
