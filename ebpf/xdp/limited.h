/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which clients may be born asleep: those that the policy lets connect, as far as their source keeps its limits
 * (ebpf/shared/limit.h).
 */
#ifndef ROOST_LIMITED_H
#define ROOST_LIMITED_H

#include "ebpf/shared/birth.h"
#include "ebpf/shared/limit.h"
#include "ebpf/lib/verifier.h"
#include "maps.h"

/* Whether the policy of this class lets none connect. */
static __noinline int is_denied(__u32 class) {
    __u32 zero = 0;
    const struct roost_class *policy = bpf_map_lookup_elem(&classes, &class);
    struct roost_limits *l = bpf_map_lookup_elem(&limits, &zero);
    if (!policy || !policy->refuses)
        return 0;
    if (l)
        __sync_fetch_and_add(&l->births_denied, 1);
    return 1;
}

/* The cell of a row that counts the connections of a source. */
static __always_inline __u32 *connected_of(const struct roost_limits *l, __u64 cells, int row) {
    __u32 at = roost_connected_at(cells, row, l->counting);
    struct roost_connected *c = bpf_map_lookup_elem(&connected, &at);
    return c ? &c->count[row] : 0;
}

/* Its source has one connection more (limit.h). */
static __noinline void count_connected(const struct roost_limits *l, __u32 service, const __u8 *client) {
    __u64 address[2];
    __builtin_memcpy(address, client, sizeof(address));
    ROOST_UNROLL
    for (int level = 0; level < ROOST_LIMIT_LEVELS && l->counting; level++) {
        __u64 cells = roost_limit_cells(l, ROOST_LIMIT_CONNECTIONS, service, level, address);
        for (int row = 0; row < ROOST_CONNECTED_ROWS; row++) {
            __u32 *cell = connected_of(l, cells, row);
            if (cell)
                __sync_fetch_and_add(cell, 1);
        }
    }
}

/* Whether the source of this address may have one more connection. most_of: by level. */
static __always_inline int has_room(const struct roost_limits *l, const __u32 *most_of, __u32 service,
                                    const __u8 *client) {
    __u64 address[2];
    __builtin_memcpy(address, client, sizeof(address));
    for (int level = 0; level < ROOST_LIMIT_LEVELS && l->counting; level++) {
        __u32 most = most_of[level], full = 0;
        __u64 cells = most ? roost_limit_cells(l, ROOST_LIMIT_CONNECTIONS, service, level, address) : 0;
        for (int row = 0; row < ROOST_CONNECTED_ROWS && most; row++) {
            const __u32 *cell = connected_of(l, cells, row);
            full += cell && *(const volatile __u32 *)cell >= most;
        }
        if (full == ROOST_CONNECTED_ROWS)
            return 0;
    }
    return 1;
}

/* Whether clients have been refused of late. */
static __always_inline int are_refused(const struct roost_limits *l, __u32 now_s) {
    return now_s - *(const volatile __u32 *)&l->refused_s <= ROOST_LIMIT_TOLD_S;
}

/* Whether a client from this address may be born now (limit.h). At a SYN, whose source may be forged, nothing is counted, and it is
 * asked only while there are some that may not. */
static __noinline int may_be_born(const struct roost_birth *birth, const __u8 *client, __u64 now_ms, int syn) {
    __u32 zero = 0, service = birth->service, now_s = now_ms / 1000, beyond = ROOST_LIMIT_CONNECTIONS;
    struct roost_limits *l = bpf_map_lookup_elem(&limits, &zero);
    if (!l || service >= ROOST_BIRTH_RATES || (syn && !are_refused(l, now_s)))
        return 1;
    /* The verifier of 6.1 forgets the bounds of what is spilled: this changes no number. */
    KEEP(service);
    service &= ROOST_BIRTH_RATES - 1;
    const __u32 *most_of = l->connections[service], *gap_us = l->births_gap_us[service];
    KEEP(most_of);
    KEEP(gap_us);
    if (has_room(l, most_of, service, client)) {
        if (roost_limit_allows(l, gap_us, ROOST_LIMIT_BIRTHS, service, client, now_ms * 1000, !syn, l->burst_us))
            return 1;
        beyond = ROOST_LIMIT_BIRTHS;
    }
    *(volatile __u32 *)&l->refused_s = now_s;
    roost_limit_refused(l, beyond, client);
    return 0;
}

/* Whether a packet of this key is to be dropped for what its source does. asks: it may be of a client that sleeps without a slot; that
 * it may be forged, only the row says, and it costs a read of the store: as many of a source as may wake, without a burst, and they take
 * nothing from those that wake. Else it is a SYN, which is the stack's: the client would be accepted to be reset. */
static __noinline int is_beyond(const struct roost_key *key, __u64 now_ms, int asks) {
    __u32 zero = 0;
    struct roost_limits *l = bpf_map_lookup_elem(&limits, &zero);
    if (!l || (!asks && !are_refused(l, now_ms / 1000)))
        return 0;
    struct roost_accepting_at at = {.bits = ROOST_ACCEPTING_BITS, .port = key->local_port};
    __builtin_memcpy(at.address, key->local, sizeof(at.address));
    const struct roost_accepting *a = bpf_map_lookup_elem(&accepting, &at);
    if (!a ||
        roost_limit_allows(l, asks ? a->wakes_gap_us : a->gap_us, asks ? ROOST_LIMIT_QUESTIONS : ROOST_LIMIT_HANDSHAKES,
                           a->service, key->client, now_ms * 1000, asks, asks ? ROOST_LIMIT_CROWD_US : l->burst_us))
        return 0;
    roost_limit_refused(l, asks ? ROOST_LIMIT_WAKES : ROOST_LIMIT_HANDSHAKES, key->client);
    return 1;
}

#endif
