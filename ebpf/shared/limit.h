/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Limits by source: what clients of one address, and of one network, may do in a time. XDP asks for births, the engine for the
 * rest.
 *
 * A limit is a rate, with what was not used of it in the last burst_us (GCRA, ITU-T I.371 annex A): a cell says when the next one
 * is due, and one more is in order while that is not further ahead than the burst. So a cell is a word. Of one that is due the engine
 * makes an empty one, 0, within seconds, for the clock of 32 bits comes round in 71 minutes.
 *
 * Cells have no keys. A source has two of them, by a keyed hash of its address or network, of what is limited and of the service;
 * the one that says less counts (a count-min sketch with conservative updates). So the memory is the same whatever comes, and no
 * source is pushed out by others. One that keeps its limits is refused when both of its cells are those of sources that do not: of
 * k such sources, with a probability of (2 k / ROOST_LIMIT_CELLS)^2: of 32, one in 65,536. What is refused fills no cell.
 *
 * Only what proves its source is counted: the end of a handshake, a segment that wakes, a connection that was accepted. Two processors
 * that count for the same source at once may count one. As long as clients are refused, SYNs are asked about as well, and those of
 * sources beyond their limits are dropped: what is refused costs as little as can be.
 *
 * Within its limits a source may still keep this thread busy for long, with all of its burst at once: what is further ahead than
 * ROOST_LIMIT_CROWD_US is done a little at a time, behind what others want.
 *
 * How many connections a source has is not a rate: of those that are awake or have a slot, cells of their own are counted up and down
 * (a count-min sketch), as many as keep what others add to a source's count small beside any limit. They are counted only where
 * there is such a limit: what begins to count counts all that are there.
 */
#ifndef ROOST_LIMIT_H
#define ROOST_LIMIT_H

#include "birth.h"
#include "record.h"
#include "table.h"

enum roost_limited {
    ROOST_LIMIT_BIRTHS,     /* handshakes that XDP ends */
    ROOST_LIMIT_HANDSHAKES, /* clients that are accepted */
    ROOST_LIMIT_WAKES,      /* segments of clients that wake their connections */
    ROOST_LIMITS_OF_SERVICES,
    ROOST_LIMIT_ATTACHES = ROOST_LIMITS_OF_SERVICES, /* connections at the addresses for attach */
    ROOST_LIMIT_AGENTS,                              /* connections of agents that have not said which they are */
    ROOST_LIMIT_RATES,
    ROOST_LIMIT_CONNECTIONS = ROOST_LIMIT_RATES, /* clients that are connected */
    ROOST_LIMITED,
    ROOST_LIMIT_QUESTIONS = ROOST_LIMITED /* about rows; refused as ROOST_LIMIT_WAKES */
};

enum roost_limit_of {
    ROOST_LIMIT_OF_ADDRESS,
    ROOST_LIMIT_OF_NETWORK,
    ROOST_LIMIT_LEVELS
};

#define ROOST_LIMIT_CELLS (1 << 14)
#define ROOST_LIMIT_SLACK_US 1000000 /* the engine's clock and XDP's differ by some ms */
#define ROOST_LIMIT_CROWD_US 10000
#define ROOST_LIMIT_TOLD_S 64 /* for so long after the last refusal SYNs are asked about, too */

struct roost_limits {
    __u64 secret[2];
    __u64 mask[2][ROOST_LIMIT_LEVELS][2]; /* of IPv4, of IPv6: what of 16 bytes is the source, network order */
    struct {
        __u64 count;
        __u64 last; /* which source was: the upper half of an IPv6 address, or 0xffff and an IPv4 one, network order */
    } refused[ROOST_LIMITED];
    __u32 burst_us;
    __u32 refused_s;     /* CLOCK_MONOTONIC, when a client was last */
    __u64 births_denied; /* acknowledgements, by policy: struct roost_class, refuses */
    __u32 births_gap_us[ROOST_BIRTH_RATES][ROOST_LIMIT_LEVELS]; /* by the number of a service */
    __u32 connections[ROOST_BIRTH_RATES][ROOST_LIMIT_LEVELS];   /* the same; 0: as many as come */
    __u32 counting; /* the entries of the map `connected`, a power of two; 0: connections are not counted */
    __u32 unused;
    __u32 due_us[ROOST_LIMIT_CELLS];
};

/* Where a service accepts clients: at an address, or at all of IPv4 or IPv6. */
struct roost_accepting_at {
    __u32 bits; /* of what follows */
    __be16 port;
    __u8 address[16];
    __u16 unused;
};

#define ROOST_ACCEPTING_BITS (16 + 128)

/* The limits that the engine keeps for the clients of a service, by its place. */
struct roost_accepting {
    __u32 service; /* its number */
    __u32 gap_us[ROOST_LIMIT_LEVELS];
    __u32 wakes_gap_us[ROOST_LIMIT_LEVELS];
};

#define ROOST_CONNECTED_ROWS 2

/* A pair of cells; each is of other sources. */
struct roost_connected {
    __u32 count[ROOST_CONNECTED_ROWS];
};

/* Where the cells of a source are. */
static inline __attribute__((always_inline)) __u64
roost_limit_cells(const struct roost_limits *l, __u32 what, __u32 service, __u32 level, const __u64 address[2]) {
    int v6 = address[0] || (__u32)address[1] != __builtin_bswap32(0xffff);
    const __u64 *mask = l->mask[v6][level];
    __u64 word[3] = {address[0] & mask[0], address[1] & mask[1], (__u64)what << 32 | level << 16 | service};
    return roost_siphash(l->secret, word, 3);
}

#define ROOST_LIMIT_CELL(cells, which) ((__u32)((which) ? (cells) >> 32 : (cells)) & (ROOST_LIMIT_CELLS - 1))

/* How far ahead of now the next one of these cells is due, in us. 0: at once; and of an empty cell. */
static inline __attribute__((always_inline)) __u32 roost_limit_ahead(const struct roost_limits *l, __u32 cell,
                                                                     __u32 now_us) {
    __u32 due_us = *(const volatile __u32 *)&l->due_us[cell], ahead = due_us - now_us;
    return due_us && ahead <= l->burst_us + ROOST_LIMIT_SLACK_US ? ahead : 0;
}

/* Whether another one from this address is in order; take: and it is counted. gap_us: of the limits of an address and of a network,
 * one in so long; 0: there is none. service: 0 where it is of none. burst_us: that of the limits, or a shorter one. */
static inline __attribute__((always_inline)) int roost_limit_allows(struct roost_limits *l,
                                                                    const __u32 gap_us[ROOST_LIMIT_LEVELS], __u32 what,
                                                                    __u32 service, const __u8 from[16], __u32 now_us,
                                                                    int take, __u32 burst_us) {
    __u64 address[2], cells[ROOST_LIMIT_LEVELS] = {0, 0};
    __u32 ahead[ROOST_LIMIT_LEVELS] = {0, 0};
    __builtin_memcpy(address, from, sizeof(address));
    for (int level = 0; level < ROOST_LIMIT_LEVELS; level++) {
        if (!gap_us[level])
            continue;
        cells[level] = roost_limit_cells(l, what, service, level, address);
        __u32 one = roost_limit_ahead(l, ROOST_LIMIT_CELL(cells[level], 0), now_us);
        __u32 other = roost_limit_ahead(l, ROOST_LIMIT_CELL(cells[level], 1), now_us);
        ahead[level] = (one < other ? one : other) + gap_us[level];
        if (ahead[level] > burst_us && ahead[level] > gap_us[level])
            return 0;
    }
    for (int level = 0; level < ROOST_LIMIT_LEVELS && take; level++) {
        if (!gap_us[level])
            continue;
        for (int which = 0; which < 2; which++) {
            __u32 cell = ROOST_LIMIT_CELL(cells[level], which);
            __u32 due_us = now_us + ahead[level];
            if (roost_limit_ahead(l, cell, now_us) < ahead[level])
                *(volatile __u32 *)&l->due_us[cell] = due_us - !due_us; /* 0 is an empty one */
        }
    }
    return 1;
}

/* Which entry of `connected` a source has its cell of a row in. */
static inline __attribute__((always_inline)) __u32 roost_connected_at(__u64 cells, int row, __u32 counting) {
    return (__u32)(row ? cells >> 32 : cells) & (counting - 1);
}

/* Whether a source has used up more than a moment of a limit of its own or its network's: others go first then. */
static inline __attribute__((always_inline)) int roost_limit_crowds(const struct roost_limits *l,
                                                                    const __u32 gap_us[ROOST_LIMIT_LEVELS], __u32 what,
                                                                    __u32 service, const __u8 from[16], __u32 now_us) {
    __u64 address[2];
    __builtin_memcpy(address, from, sizeof(address));
    for (int level = 0; level < ROOST_LIMIT_LEVELS; level++) {
        __u64 cells = gap_us[level] ? roost_limit_cells(l, what, service, level, address) : 0;
        __u32 one = gap_us[level] ? roost_limit_ahead(l, ROOST_LIMIT_CELL(cells, 0), now_us) : 0;
        __u32 other = gap_us[level] ? roost_limit_ahead(l, ROOST_LIMIT_CELL(cells, 1), now_us) : 0;
        if ((one < other ? one : other) > ROOST_LIMIT_CROWD_US + gap_us[level])
            return 1;
    }
    return 0;
}

static inline __attribute__((always_inline)) void roost_limit_refused(struct roost_limits *l, __u32 what,
                                                                      const __u8 from[16]) {
    __u64 address[2];
    __builtin_memcpy(address, from, sizeof(address));
    __sync_fetch_and_add(&l->refused[what].count, 1);
    *(volatile __u64 *)&l->refused[what].last = address[0] ? address[0] : address[1];
}

#endif
