/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Born asleep: a handshake without a socket. XDP answers a SYN with a SYN cookie (RFC 4987 3.6) and forgets it. The
 * acknowledgement that brings the cookie back goes straight into the table, as an IDLE connection without a byte
 * sent on it; what the SYN said comes back with it, in the cookie (MSS) and in the echoed timestamp (window scale, SACK; RFC 7323
 * lets a clock stand still for a moment). Without timestamps neither of the two is agreed on.
 *
 * A cookie is a SipHash of the 4-tuple, the client's sequence number, what both agree on and the minute, with a secret of
 * its own:
 *
 *     | minute mod 4 : 2 | MSS class : 3 | hash : 27 |
 *
 * and is good for two minutes, but not beyond the end of its connection (cookies.h). Of guesses, one in 2^28 is good; with
 * timestamps one in 2^43, for the echoed one is our clock of the moment when the cookie was sent. Cookies count while some are sent
 * for their service, and of those without timestamps so many may be wrong in a tick.
 */
#ifndef ROOST_BORN_H
#define ROOST_BORN_H

#include "ebpf/shared/birth.h"
#include "ebpf/shared/cookies.h"
#include "ebpf/lib/insert.h"
#include "ebpf/lib/segment.h"
#include "ebpf/lib/socket.h"
#include "ebpf/lib/reply.h"
#include "ebpf/shared/sockets.h"
#include "limited.h"
#include "maps.h"
#include "way.h"

#define COOKIE_AHEAD_MS 4096
#define CLOCK_PERIOD 0xffffffff /* no period of a cookie */
#define COOKIE_HASH_BITS 27
#define COOKIE_HASH_MASK ((1u << COOKIE_HASH_BITS) - 1)

/* Of the lowest bits of the SYN-ACK's TSval. */
#define TS_WSCALE 0xfu /* 15: none */
#define TS_SACK 0x10u
#define TS_BITS 0x1fu
#define TS_AGREED 0x20u /* of what the cookie proves: that there are timestamps at all */

#define OUR_WSCALE 7u
#define OUR_WINDOW 65152u /* bytes: a multiple of 2^OUR_WSCALE that a SYN-ACK can say, where windows are not scaled */

/* Of a service, in a tick: how many SYNs came, to see a storm, and how many cookies that were wrong. */
struct birth_rate {
    __u16 tick;
    __u16 now, before; /* 65,535: or more */
    __u16 wrong;
};

#define WRONG_MAX 8192 /* in ROOST_BIRTH_TICK_MS, on one processor: 2^28 take an hour */

/* There is no room: no more cookies until the engine, which sees when there is some, opens the gate again. */
static __noinline int close_gate(void) {
    __u32 zero = 0;
    struct roost_births_gate *gate = bpf_map_lookup_elem(&births_gate, &zero);
    if (gate)
        gate->open_until_s = 0;
    return 0;
}

static __always_inline struct birth_rate *rate_of(const struct roost_birth *birth, __u64 now_ms) {
    __u32 service = birth->service;
    __u16 tick = now_ms / ROOST_BIRTH_TICK_MS;
    struct birth_rate *r = bpf_map_lookup_elem(&births_rate, &service);
    if (r && r->tick != tick) {
        r->before = (__u16)(r->tick + 1) == tick ? r->now : 0;
        r->now = r->wrong = 0;
        r->tick = tick;
    }
    return r;
}

static __always_inline int is_storm(const struct roost_birth *birth, __u64 now_ms) {
    if (!birth->rate)
        return 1;
    struct birth_rate *r = rate_of(birth, now_ms);
    if (!r)
        return 0;
    r->now += r->now != 0xffff;
    return r->now > birth->rate || r->before > birth->rate;
}

/* Of cookies without timestamps, of which another is wrong, or which are about to be looked at. 0: too many were. */
static __noinline int wrong_cookies(const struct roost_birth *birth, __u64 now_ms, int more) {
    struct birth_rate *r = rate_of(birth, now_ms);
    if (!r)
        return 0;
    r->wrong += more;
    return r->wrong < WRONG_MAX;
}

static __always_inline struct roost_cookies *all_cookies(void) {
    __u32 zero = 0;
    return bpf_map_lookup_elem(&births_cookies, &zero);
}

/* Whether a cookie for this service may be on its way back. The clock reading of the processor that sent it may be a second ahead
 * of this one's. */
static __always_inline int cookies_count(const struct roost_birth *birth, __u32 now_s) {
    const struct roost_cookies *cookies = all_cookies();
    __u32 service = birth->service;
    if (!cookies || service >= ROOST_BIRTH_RATES)
        return 0;
    return (__u16)(now_s + 1 - *(const volatile __u16 *)&cookies->sent_s[service]) <= ROOST_COOKIE_LIFE_S + 1;
}

static __always_inline void note_cookie(const struct roost_birth *birth, __u32 now_s) {
    struct roost_cookies *cookies = all_cookies();
    __u32 service = birth->service;
    if (cookies && service < ROOST_BIRTH_RATES && cookies->sent_s[service] != (__u16)now_s)
        *(volatile __u16 *)&cookies->sent_s[service] = now_s;
    count(ROOST_N_COOKIES);
}

static __always_inline __u32 class_of_mss(__u32 mss) {
    __u32 class = 0;
#pragma clang loop unroll(full)
    for (__u32 i = 1; i < 8; i++)
        if (mss >= roost_mss_of_class(i))
            class = i;
    return class;
}

/* agreed: TS_AGREED and the lowest bits of the SYN-ACK's TSval, or 0 without timestamps; and the MSS class from bit 8 on. */
static __always_inline __u64 birth_hash4(const struct roost_births_gate *gate, __u32 client, __u32 local, __u32 ports,
                                         __u32 isn, __u32 period, __u32 agreed) {
    __u64 word[3] = {(__u64)client << 32 | local, (__u64)ports << 32 | isn, (__u64)agreed << 32 | period};
    return roost_siphash(gate->secret, word, 3);
}

/* Not inlined: it needs much stack. */
static __noinline __u64 birth_hash6(const struct roost_births_gate *gate, const struct roost_key *key, __u32 isn,
                                    __u32 period, __u32 agreed) {
    __u64 word[6];
    __builtin_memcpy(word, key->client, 16);
    __builtin_memcpy(word + 2, key->local, 16);
    word[4] = ((__u64)key->client_port << 48) | ((__u64)key->local_port << 32) | isn;
    word[5] = (__u64)agreed << 32 | period;
    return roost_siphash(gate->secret, word, 6);
}

#define PORTS(client, local) ((__u32)(client) << 16 | (local))

static __noinline __u64 birth_hash(const struct roost_births_gate *gate, const struct roost_key *key, __u32 isn,
                                   __u32 period, __u32 agreed) {
    __u64 high;
    __be32 middle;
    __builtin_memcpy(&high, key->client, 8);
    __builtin_memcpy(&middle, key->client + 8, 4);
    if (!high && middle == bpf_htonl(0xffff)) /* IPv4 (packet.h) */
        return birth_hash4(gate, low32(key->client), low32(key->local), PORTS(key->client_port, key->local_port), isn,
                           period, agreed);
    return birth_hash6(gate, key, isn, period, agreed);
}

/* The cookie of a hash. */
static __always_inline __u32 cookie_with(__u64 hash, __u32 period, __u32 class) {
    return (period & 3) << 30 | class << COOKIE_HASH_BITS | ((__u32)hash & COOKIE_HASH_MASK);
}

static __always_inline __u32 cookie_class(__u32 cookie) {
    return (cookie >> COOKIE_HASH_BITS) & 7;
}

static __always_inline __u32 cookie_of(const struct roost_births_gate *gate, const struct roost_key *key, __u32 isn,
                                       __u32 period, __u32 agreed, __u32 class) {
    return cookie_with(birth_hash(gate, key, isn, period, agreed | class << 8), period, class);
}

/* The clock of cookies and of newborns' TSvals is ahead of CLOCK_MONOTONIC by so much, ms: two machines that have one
 * secret agree on it, so that either ends a handshake that the other one began. */
static __always_inline __u64 births_ahead_ms(void) {
    __u32 zero = 0;
    const __u64 *ahead = bpf_map_lookup_elem(&births_ahead, &zero);
    return ahead ? *ahead : 0;
}

static __always_inline __u32 period_of(__u64 births_ms) {
    return (__u32)(births_ms / (ROOST_COOKIE_PERIOD_S * 1000));
}

/* Our clock for this connection: its offset is random to others (RFC 7323 7.1). Not of the minute, for it has to be
 * found again. */
static __always_inline __u32 birth_clock(const struct roost_births_gate *gate, const struct roost_key *key) {
    return (__u32)(birth_hash(gate, key, 0, CLOCK_PERIOD, 0) >> 32);
}

static __always_inline __u32 birth_clock4(const struct roost_births_gate *gate, __u32 client, __u32 local,
                                          __u32 ports) {
    return (__u32)(birth_hash4(gate, client, local, ports, 0, CLOCK_PERIOD, 0) >> 32);
}

/* Our TSval of now, or of a moment ago, with what it carries. */
static __always_inline __u32 carrying(__u32 now, __u32 carried) {
    __u32 tsval = (now & ~TS_BITS) | carried;
    return (__s32)(tsval - now) > 0 ? tsval - TS_BITS - 1 : tsval;
}

/* When a cookie was sent, by its clock, as its acknowledgement says it: by the echoed timestamp, which lies less than TS_BITS + 1 ms
 * before; else, at the earliest, when its period began. */
static __always_inline __u32 period_began_ms(__u32 period) {
    return period * (ROOST_COOKIE_PERIOD_S * 1000u);
}

/* Or of a moment that is still to come: another machine's clock, or ours before it was set, may be ahead. */
static __always_inline int is_of_its_time(__u32 sent_ms, __u64 births_ms) {
    return (__u32)births_ms + COOKIE_AHEAD_MS - sent_ms <= ROOST_COOKIE_LIFE_S * 1000 + TS_BITS + COOKIE_AHEAD_MS;
}

/* hash: of the key in the tables. */
static __noinline int is_spent(__u64 hash, __u32 sent_ms) {
    const struct roost_cookies *cookies = all_cookies();
    return !cookies || roost_cookie_is_spent(cookies, hash, sent_ms);
}

/* Puts it into the table, as insert4() says, and counts it for its source. */
static __always_inline int put_in(const struct roost_config *cfg, const struct newborn *n,
                                  const struct roost_birth *birth, int v6) {
    __u32 zero = 0;
    int there = v6 ? insert6(cfg, n) : insert4(cfg, n);
    const struct roost_limits *l = bpf_map_lookup_elem(&limits, &zero);
    if (there == PUT_IN && l)
        count_connected(l, birth->service, n->key.client);
    if (!there)
        close_gate();
    return there;
}

/* What is at hand when a packet comes that is for such a service. */
struct birth_ward {
    const struct roost_births_gate *gate;
    const struct roost_birth *birth;
    __u64 now_ms;
};

/* What a SYN offers. */
struct offer {
    __u8 buffer[64];
    __u32 at, header;
    __u32 tsval;
    __u16 mss;
    __u8 wscale; /* 15: none */
    __u8 sack, has_ts;
};

#define OFFER_LAST 58 /* where the last option of two bytes may begin; what is read of it lies within the buffer */

/* One option (RFC 9293 3.1); a callback of bpf_loop: 1 ends the walk. */
static long next_offer(__u32 i, struct offer **walk) {
    struct offer *o = *walk;
    __u32 at = o->at;
    if (at >= o->header)
        return 1;
    KEEP(at);
    if (at > OFFER_LAST)
        return 1;
    const __u8 *option = &o->buffer[at];
    if (option[0] == 0)
        return 1;
    if (option[0] == 1) {
        o->at = at + 1;
        return 0;
    }
    __u32 length = option[1];
    if (length < 2 || at + length > o->header)
        return 1;
    if (option[0] == 2 && length == 4) {
        o->mss = (__u16)option[2] << 8 | option[3];
    } else if (option[0] == 3 && length == 3) {
        o->wscale = option[2] > 14 ? 14 : option[2];
    } else if (option[0] == 4 && length == 2) {
        o->sack = 1;
    } else if (option[0] == 8 && length == 10) {
        o->tsval = (__u32)option[2] << 24 | (__u32)option[3] << 16 | (__u32)option[4] << 8 | option[5];
        o->has_ts = 1;
    }
    o->at = at + length;
    return 0;
}

/* What would be too much for the stack of a program. */
struct birth_notes {
    struct roost_segment segment;
    struct offer offer;
    struct reply reply;
    struct newborn born;
};

static __noinline int has_socket(struct xdp_md *ctx, const struct roost_key *key, int v6) {
    return is_connected(ctx, key, v6);
}

/* Whether the kernel would take a packet from this address to that one at all (RFC 1122 3.2.1.3, RFC 4291 2.7). One with a
 * link-local address is the kernel's alone: it means something on one link. */
static __always_inline int can_be_client(const struct packet *p) {
    __u64 from[2], to[2];
    __builtin_memcpy(from, p->key.client, 16);
    __builtin_memcpy(to, p->key.local, 16);
    if (from[0] == to[0] && from[1] == to[1])
        return 0;
    if (p->v6) /* nor a multicast one, the unspecified, the loopback's, or an IPv4-mapped one */
        return from[0] && p->key.client[0] != 0xff && (p->key.client[0] != 0xfe || p->key.client[1] >> 6 != 2);
    return p->key.client[12] && p->key.client[12] != 127 && p->key.client[12] < 224;
}

static __noinline int may_answer(struct xdp_md *ctx, const struct packet *p) {
    __u8 to; /* several, if the lowest bit is set */
    if (!can_be_client(p) || bpf_xdp_load_bytes(ctx, 0, &to, 1) || to & 1)
        return 0;
    return !has_socket(ctx, &p->key, p->v6);
}

/* Answers a SYN with a cookie; 0: the stack has it. One beyond a limit is not answered, as by a full listen queue: it is said again. */
static __noinline int answer_syn(struct xdp_md *ctx, const struct packet *p, struct birth_notes *notes,
                                 const struct birth_ward *ward) {
    const struct roost_segment *s = &notes->segment;
    struct offer *o = &notes->offer;
    struct reply *r = &notes->reply;
    if (s->payload || !may_answer(ctx, p))
        return 0;
    if (!may_be_born(ward->birth, p->key.client, ward->now_ms, 1))
        return XDP_DROP;
    __builtin_memset(o, 0, sizeof(*o));
    __builtin_memset(r, 0, sizeof(*r));
    o->at = 20;
    o->wscale = 15;
    o->mss = p->v6 ? 1220 : 536;
    o->header = p->l4_length;
    __u32 header = p->l4_length;
    KEEP(header);
    if (header < 20)
        return 0;
    KEEP(header);
    if (header > 60 || bpf_xdp_load_bytes(ctx, p->l4, o->buffer, header))
        return 0;
    bpf_loop(40, next_offer, &o, 0); /* what it is given must lie on the stack */
    if (o->mss < 536)
        return 0;

    __u64 births_ms = ward->now_ms + births_ahead_ms();
    __u32 period = period_of(births_ms);
    __u32 carried = o->wscale | (o->sack ? TS_SACK : 0), agreed = o->has_ts ? carried | TS_AGREED : 0;
    __u32 clock = o->has_ts ? birth_clock(ward->gate, &p->key) : 0;
    __u32 tsval = carrying((__u32)births_ms + clock, carried);
    if (is_spent(notes->born.hash, o->has_ts ? tsval - clock : period_began_ms(period)))
        return 0; /* its acknowledgement would be taken for one that came before */
    r->seq = cookie_of(ward->gate, &p->key, s->seq, period, agreed, class_of_mss(o->mss));
    r->ack = s->seq + 1;
    r->window = OUR_WINDOW;
    r->flags = ROOST_SYN | ROOST_ACK;
    r->options[0] = bpf_htonl(0x02040000 | ward->birth->mss);
    r->options_length = 4;
    if (o->has_ts) {
        r->options[1] = bpf_htonl(o->sack ? 0x0402080a : 0x0101080a);
        r->options[2] = bpf_htonl(tsval);
        r->options[3] = bpf_htonl(o->tsval);
        r->options_length = 16;
        if (o->wscale != 15) {
            r->options[4] = bpf_htonl(0x01030300 | OUR_WSCALE);
            r->options_length = 20;
        }
    }
    int verdict = send_by(r, way_back(ctx, p, ward->now_ms), 1) ? send_back(ctx, p, r) : 0;
    if (verdict == XDP_TX)
        note_cookie(ward->birth, ward->now_ms / 1000);
    return verdict;
}

/* Whether this acknowledgement brings a cookie of ours back; isn: the sequence number that its SYN had; agreed: of
 * birth_hash. */
static __always_inline int cookie_good(const struct roost_births_gate *gate, const struct roost_key *key, __u32 cookie,
                                       __u32 isn, __u32 agreed, __u64 births_ms) {
    __u32 now = period_of(births_ms), age = (now - (cookie >> 30)) & 3;
    if (age > 1)
        return 0;
    return cookie_of(gate, key, isn, now - age, agreed, cookie_class(cookie)) == cookie;
}

/* What the SYN-ACK's timestamp has carried there and back. */
static __always_inline void agree(struct roost_ka *ka, __u32 tsecr) {
    __u32 wscale = tsecr & TS_WSCALE;
    ka->ctl |= ROOST_F_TIMESTAMPS << 16 | (tsecr & TS_SACK ? ROOST_F_SACK << 16 : 0);
    if (wscale != 15) {
        ka->ctl |= ROOST_F_WSCALE << 16 | wscale << 24 | OUR_WSCALE << 28;
        ka->window = OUR_WINDOW >> OUR_WSCALE;
    }
}

/* Of a client that is born at this service. */
static __always_inline __u16 class_of_newborn(const struct roost_births_gate *gate, const struct roost_birth *birth,
                                              const __u8 client[16]) {
    struct roost_rule_key key = {.bits = ROOST_RULE_BITS + 128, .service = birth->service};
    if (!gate->ruled)
        return birth->class;
    __builtin_memcpy(key.network, client, sizeof(key.network));
    const __u32 *class = bpf_map_lookup_elem(&rules, &key);
    return class ? (__u16) * class : birth->class;
}

/* A record in notes->born.ka out of the acknowledgement that ends a handshake (its key's hash is in notes->born): 1; 2: its packet is more than that; 0: it ends
 * none, and is the stack's. */
static __noinline int end_handshake(struct xdp_md *ctx, const struct packet *p, struct birth_notes *notes,
                                    const struct birth_ward *ward) {
    const struct roost_segment *s = &notes->segment;
    struct roost_ka *ka = &notes->born.ka;
    const struct roost_births_gate *gate = ward->gate;
    __u64 now_ms = ward->now_ms, ahead_ms = births_ahead_ms(), births_ms = now_ms + ahead_ms;
    __u32 cookie = s->ack - 1, isn = s->seq - 1, agreed = s->has_ts ? (s->tsecr & TS_BITS) | TS_AGREED : 0;
    int late = 0;
    __builtin_memset(ka, 0, sizeof(*ka));
    ka->snd_nxt = s->ack;
    ka->rcv_nxt = s->seq;
    ka->window = OUR_WINDOW;
    if (!cookie_good(gate, &p->key, cookie, isn, agreed, births_ms)) {
        /* The acknowledgement was lost, and a keep-alive probe comes instead. */
        if (s->payload > 1 || !cookie_good(gate, &p->key, cookie, s->seq, agreed, births_ms))
            return 0;
        ka->rcv_nxt++;
        late = 1;
    }
    __u32 clock = s->has_ts ? birth_clock(gate, &p->key) : 0, period = period_of(births_ms);
    __u32 sent_ms = s->has_ts ? s->tsecr - clock : period_began_ms(period - ((period - (cookie >> 30)) & 3));
    if (!is_of_its_time(sent_ms, births_ms) || is_spent(notes->born.hash, sent_ms) || has_socket(ctx, &p->key, p->v6))
        return 0;
    ka->ctl = ROOST_IDLE;
    if (s->has_ts) {
        agree(ka, s->tsecr);
        ka->ts_offset = clock + (__u32)ahead_ms;
        ka->ts_recent = s->tsval;
    }
    notes->born.now_s = now_ms / 1000;
    ka->heard = ROOST_HEARD(notes->born.now_s, 0, 0);
    ka->class = class_of_newborn(gate, ward->birth, p->key.client);
    ka->rest = ROOST_BORN(cookie_class(cookie), notes->born.now_s, s->window);
    return late || s->payload || s->flags & ROOST_FIN ? 2 : 1;
}

#endif
