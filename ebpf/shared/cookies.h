/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which SYN cookies (ebpf/xdp/born.h) are worth anything: of services that some were sent for, less those of connections that have
 * ended since: a recording of the end of a handshake, and of what followed it, must not begin another connection.
 *
 * A key has two cells, by 24 bits of its hash. A cell says when a connection of one of its keys ended last: a cookie is spent
 * when it was sent before that, by both. So an ended connection is never forgotten, and a client is wrongly taken for one when
 * others end in its two cells between our SYN-ACK and its acknowledgement. It connects again.
 */
#ifndef ROOST_COOKIES_H
#define ROOST_COOKIES_H

#include "birth.h"

#define ROOST_COOKIE_PERIOD_S 64
#define ROOST_COOKIE_LIFE_S (2 * ROOST_COOKIE_PERIOD_S)
#define ROOST_COOKIE_CELLS (1 << 12)

struct roost_cookies {
    __u32 ended_ms[ROOST_COOKIE_CELLS]; /* by the clock of cookies, the low 32 bits; 0: none has */
    __u16
        sent_s[ROOST_BIRTH_RATES]; /* by a service's number: when the last one was, CLOCK_MONOTONIC, the low 16 bits */
    __u32 running;                 /* an engine that has not ended by itself */
    __u32 reserved;
};

/* MSS classes, ascending: a client is sent segments of the largest that does not exceed its option. */
static inline __attribute__((always_inline)) __u32 roost_mss_of_class(__u32 class) {
    return class < 4 ? (class < 2 ? (class ? 1220 : 536) : (class == 2 ? 1300 : 1360))
                     : (class < 6 ? (class == 4 ? 1400 : 1420) : (class == 6 ? 1440 : 1460));
}

/* Of a rest that ROOST_BORN made. */
static inline __attribute__((always_inline)) __u32 roost_born_mss(__u32 rest) {
    return rest >> 30 == 3 ? roost_mss_of_class(rest >> 27 & 7) : rest >> 16 & 0x7fff;
}

/* How long ago it was born, give or take a unit. 0: of an earlier layout, which does not say it. It may be born a unit
 * ahead of now_s, as its turn of the engine's may have been long. */
static inline __attribute__((always_inline)) __u32 roost_born_age_s(__u32 rest, __u32 now_s) {
    __u32 next = now_s / ROOST_BORN_UNIT_S + 1, born = rest >> 16 & 0x7ff;
    __u32 units = (next + ROOST_BORN_UNITS - born) % ROOST_BORN_UNITS;
    return rest >> 30 == 3 && units ? (units - 1) * ROOST_BORN_UNIT_S : 0;
}

#define ROOST_COOKIE_CELL(hash, which) ((hash) >> ((which) ? 40 : 52) & (ROOST_COOKIE_CELLS - 1))

static inline __attribute__((always_inline)) void roost_cookie_ends(struct roost_cookies *c, __u64 hash, __u32 now_ms) {
    now_ms += !now_ms;
    *(volatile __u32 *)&c->ended_ms[ROOST_COOKIE_CELL(hash, 0)] = now_ms;
    *(volatile __u32 *)&c->ended_ms[ROOST_COOKIE_CELL(hash, 1)] = now_ms;
}

/* sent_ms: when it was sent, or may have been at the earliest. */
static inline __attribute__((always_inline)) int roost_cookie_is_spent(const struct roost_cookies *c, __u64 hash,
                                                                       __u32 sent_ms) {
    __u32 first = *(const volatile __u32 *)&c->ended_ms[ROOST_COOKIE_CELL(hash, 0)];
    __u32 second = *(const volatile __u32 *)&c->ended_ms[ROOST_COOKIE_CELL(hash, 1)];
    return first && second && first - sent_ms <= ROOST_COOKIE_LIFE_S * 1000 &&
           second - sent_ms <= ROOST_COOKIE_LIFE_S * 1000;
}

#endif
