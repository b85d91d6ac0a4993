// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * XDP: the front door of inactive connections. Everything that is not TCP, not for a connection in the table, or not
 * understood goes on to the stack; what the stack makes of a packet of a sleeping connection that got past us
 * (more than two VLAN tags, exotic extension headers, fragments whose first one wakes nothing) is stopped by guard.bpf.c.
 */
#include "maps.h"
#include "outbox.h"
#include "ebpf/lib/segment.h"
#include "born.h"
#include "fast.h"
#include "fast_born.h"
#include "ebpf/shared/judge.h"
#include "ebpf/lib/candidate.h"
#include "ebpf/lib/report.h"
#include "ebpf/lib/reply.h"

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

char _license[] SEC("license") = "GPL";

/* Per CPU and tick of 512 ms, on top of one per connection and tick. Drawn anew for each tick, between half and one and
 * a half of this: a number that an outsider can count on is a side channel (CVE-2016-5696). */
#define CHALLENGES_PER_TICK 1024

struct challenge_budget {
    __u64 tick;
    __u64 left;
};

static __always_inline int may_challenge(struct roost_ka *slot, const struct roost_ka *ka, __u64 now_ms) {
    __u64 tick = now_ms / 512;
    if (ROOST_HEARD_TICK(ka->heard) == ROOST_TICK(now_ms))
        return 0;
    __u32 zero = 0;
    struct challenge_budget *b = bpf_map_lookup_elem(&challenges, &zero);
    if (!b)
        return 0;
    if (b->tick != tick) {
        b->tick = tick;
        b->left = CHALLENGES_PER_TICK / 2 + bpf_get_prandom_u32() % CHALLENGES_PER_TICK;
    }
    if (!b->left)
        return 0;
    b->left--;
    slot->heard = ROOST_HEARD(ka->heard >> ROOST_HEARD_SHIFT, ROOST_TICK(now_ms), ka->heard);
    return 1;
}

/* A probe that is answered between two sweeps must not count, however short the interval. */
static __always_inline void heard(struct roost_ka *slot, const struct roost_ka *ka, __u64 now_ms, int answered) {
    slot->heard = ROOST_HEARD(now_ms / 1000, ROOST_HEARD_TICK(ka->heard), 0);
    if (!(ROOST_FLAGS(ka->ctl) & ROOST_F_SERVER))
        count_silence(ka->class, ka->heard, now_ms, answered);
}

/* RFC 7323 4.3; a ts_recent of 0 is none yet. */
static __always_inline int newer_ts(const struct roost_ka *ka, const struct roost_segment *s) {
    return s->has_ts && (!ka->ts_recent || (__s32)(s->tsval - ka->ts_recent) > 0);
}

/* An ACK made from the record alone; as send_back() says, and 0 where there is no way for it. A segment that is challenged
 * may be forged: the answer must not go back to its sender. */
static __noinline int answer(struct xdp_md *ctx, const struct packet *p, const struct roost_ka *ka,
                             const struct roost_segment *s, int challenged) {
    __u64 now_ms = coarse_ms();
    struct reply r = {.seq = ka->snd_nxt, .ack = ka->rcv_nxt, .window = ka->window, .flags = ROOST_ACK};
    if (ROOST_FLAGS(ka->ctl) & ROOST_F_TIMESTAMPS) {
        r.options[0] = bpf_htonl(0x0101080a);
        r.options[1] = bpf_htonl((__u32)now_ms + ka->ts_offset);
        r.options[2] = bpf_htonl(newer_ts(ka, s) ? s->tsval : ka->ts_recent);
        r.options_length = 12;
    }
    return send_by(&r, way_back(ctx, p, now_ms), challenged) ? send_back(ctx, p, &r) : 0;
}

/* A place for the frame, which has a constant size, and the frame in it. */
#define INTO_RING(room)                                                                                                \
    do {                                                                                                               \
        f = bpf_ringbuf_reserve(&ring, sizeof(*f) + (room), 0);                                                        \
        if (!f)                                                                                                        \
            goto counts;                                                                                               \
        if (length < ETH_HLEN || length > (room) || bpf_xdp_load_bytes(ctx, 0, f->data, length))                       \
            length = 0;                                                                                                \
    } while (0)

static __always_inline long load_ack(struct xdp_md *ctx, const struct packet *p, __be32 *ack) {
    return bpf_xdp_load_bytes(ctx, p->l4 + __builtin_offsetof(struct tcphdr, ack_seq), ack, sizeof(*ack));
}

/* Hands the frame to the engine. What is damaged, or forged with the right numbers, takes no room in the ring. A full ring
 * costs the sender a retransmission, nothing else: no state was changed. */
GLOBAL int hand_over(struct xdp_md *ctx, const struct packet *p, __u32 why) {
    if (!p)
        return XDP_DROP;
    __u32 length = bpf_xdp_get_buff_len(ctx), what = ROOST_N_BAD_CHECKSUM;
    struct roost_frame *f;
    if (!sums_up(ctx, p))
        goto counts;
    what = ROOST_N_RING_FULL;
    if (length <= ROOST_FRAME_SMALL || length > ROOST_FRAME_LARGE)
        INTO_RING(ROOST_FRAME_SMALL);
    else if (length <= ROOST_FRAME_MAX)
        INTO_RING(ROOST_FRAME_MAX);
    else if (length <= ROOST_FRAME_JUMBO)
        INTO_RING(ROOST_FRAME_JUMBO);
    else
        INTO_RING(ROOST_FRAME_LARGE);
    f->key = p->key;
    f->ifindex = ctx->ingress_ifindex;
    f->queue = ctx->rx_queue_index;
    f->length = length;
    if (!length) {
        __be32 ack;
        count(ROOST_N_OVERSIZE);
        f->ack = load_ack(ctx, p, &ack) ? 0 : bpf_ntohl(ack);
    }
    f->why = why;
    f->l3 = p->l3;
    bpf_ringbuf_submit(f, 0);
    what = why == ROOST_WHY_WAKE ? ROOST_N_WOKEN : why == ROOST_WHY_CANDIDATE ? ROOST_N_CANDIDATES : ROOST_N_HELD;
counts:
    count(what);
    return XDP_DROP;
}

static __always_inline __u64 key_hash(const struct roost_config *cfg, const struct roost_key *key, int v6) {
    return v6 ? hash_of6(cfg, key) : hash_of4(cfg, key);
}

/* What leaves is counted. Where it cannot leave from here, the engine answers. */
static __always_inline int counted(struct xdp_md *ctx, const struct packet *p, int verdict, __u32 what) {
    if (!verdict)
        return hand_over(ctx, p, ROOST_WHY_ANSWER);
    count(verdict == XDP_TX ? what : ROOST_N_DROPPED);
    return verdict;
}

/* Puts a connection that has just been born into the table; as insert4() says. */
static __noinline int settle_in(const struct roost_config *cfg, const struct packet *p, struct newborn *n,
                                const struct roost_birth *birth) {
    n->key = p->key;
    n->in_use = *(volatile const __u32 *)(p->v6 ? &cfg->v6.in_use : &cfg->v4.in_use);
    n->endpoint = birth->endpoint;
    if (ROOST_PREVIOUS(n->in_use)) {
        int there = p->v6 ? in_old6(cfg, n) : in_old4(cfg, n);
        if (there)
            return there;
    }
    return put_in(cfg, n, birth, p->v6);
}

#define SPEAKS (-1)
#define FLAGS_AT 13 /* in a header of TCP (RFC 9293 3.1) */

/* A packet whose key is not in the tables: it may be of a handshake that ends in the table. A verdict, or SPEAKS: the
 * connection is in the table now, and this packet is more than the end of its handshake. */
static __noinline int unknown(struct xdp_md *ctx, const struct roost_config *cfg, const struct packet *p) {
    __u32 zero = 0;
    const struct roost_births_gate *gate = bpf_map_lookup_elem(&births_gate, &zero);
    if (!gate || !gate->services)
        return XDP_PASS;
    struct roost_birth_place place = {.port = p->key.local_port};
    __builtin_memcpy(place.address, p->key.local, 16);
    const struct roost_birth *birth = bpf_map_lookup_elem(&births, &place);
    if (!birth)
        return XDP_PASS;
    struct birth_notes *notes = bpf_map_lookup_elem(&births_notes, &zero);
    struct birth_ward ward = {gate, birth, coarse_ms()};
    if (!notes || read_segment(ctx, p, &notes->segment) <= 0)
        return XDP_PASS; /* the stack counts what is wrong with it */
    int flags = notes->segment.flags & (ROOST_FIN | ROOST_SYN | ROOST_RST | ROOST_ACK);
    __u64 hash = notes->born.hash = key_hash(cfg, &p->key, p->v6);
    if (flags == ROOST_SYN) {
        /* A handshake that was begun may end, whatever the gate says by then. */
        __u32 now_s = ward.now_ms / 1000;
        int verdict = 0;
        if ((__s32)(gate->open_until_s - now_s) >= 0 && is_storm(birth, ward.now_ms))
            verdict = answer_syn(ctx, p, notes, &ward);
        if (verdict)
            return verdict;
        struct roost_sockets *sockets = bpf_map_lookup_elem(&births_sockets, &zero);
        if (sockets)
            roost_socket_note(sockets, hash, now_s);
        return XDP_PASS;
    }
    int wary = !notes->segment.has_ts;
    if ((flags & ~ROOST_FIN) != ROOST_ACK || !cookies_count(birth, ward.now_ms / 1000) ||
        (wary && !wrong_cookies(birth, ward.now_ms, 0)))
        return XDP_PASS;
    int ended = end_handshake(ctx, p, notes, &ward);
    if (!ended) {
        if (wary && !has_socket(ctx, &p->key, p->v6))
            wrong_cookies(birth, ward.now_ms, 1);
        return XDP_PASS;
    }
    if (is_denied(notes->born.ka.class) || !may_be_born(birth, p->key.client, ward.now_ms, 0))
        return XDP_PASS; /* the stack answers with an RST */
    int there = settle_in(cfg, p, &notes->born, birth);
    if (there > 0)
        return ended == 2 ? SPEAKS : XDP_DROP;
    count(ROOST_N_BORN_REFUSED);
    return there ? XDP_DROP
                 : XDP_PASS; /* its next packet brings the cookie, too; without room the stack answers with an RST */
}

/* A packet of a connection in the table. */
static __noinline int known(struct xdp_md *ctx, const struct packet *p, const struct found *found) {
    struct roost_ka *slot = found->slot;
    struct roost_ka ka;
    if (!snapshot(found, &ka))
        return hand_over(ctx, p, ROOST_WHY_HOLD); /* the slot changed owners just now: the engine looks again */

    struct roost_segment s = {};
    int good = read_segment(ctx, p, &s);
    if (good <= 0) {
        count(good < 0 ? ROOST_N_BAD_CHECKSUM : ROOST_N_MALFORMED);
        return XDP_DROP;
    }

    __u64 now_ms = coarse_ms(); /* one clock for all that goes out of a sleeping connection: a TSval never goes back */
    /* What answers no probe lets no further one out, however often it comes. */
    int asked = ROOST_HEARD_PROBES(ka.heard) != 0;
    switch (roost_judge(&ka, &s)) {
    case ROOST_V_HOLD:
        return hand_over(ctx, p, ROOST_WHY_HOLD);
    case ROOST_V_WAKE:
        return hand_over(ctx, p, ROOST_WHY_WAKE);
    case ROOST_V_ANSWER:
        heard(slot, &ka, now_ms, 0);
        if (newer_ts(&ka, &s))
            slot->ts_recent = s.tsval;
        return counted(ctx, p, answer(ctx, p, &ka, &s, 0), ROOST_N_ANSWERED);
    case ROOST_V_HEARD:
        heard(slot, &ka, now_ms, asked);
        count(ROOST_N_HEARD);
        return asked && p->l3 == ETH_HLEN ? next_probe(ctx) : XDP_DROP; /* a probe has no VLAN tag */
    case ROOST_V_CHALLENGE:
        if (!may_challenge(slot, &ka, now_ms)) {
            count(ROOST_N_CHALLENGE_LIMITED);
            return XDP_DROP;
        }
        s.has_ts = 0; /* never echo a timestamp of a segment that was not accepted */
        return counted(ctx, p, answer(ctx, p, &ka, &s, 1), ROOST_N_CHALLENGED);
    default:
        count(ROOST_N_DROPPED);
        return XDP_DROP;
    }
}

/* The first of several fragments, of a connection in the table. Its numbers say whether the segment wakes, as those of a
 * whole one would; its checksum is not looked at, for that is about all fragments. What wakes, or comes while a socket is
 * being made or taken away, is dropped, lest the stack get the segment together without a socket, and its RST meet a
 * guard that has no slot any more. The retransmission finds the socket. */
static __noinline int first_fragment(struct xdp_md *ctx, const struct packet *p, const struct found *found) {
    struct roost_ka ka;
    struct roost_segment s = {};
    if (!snapshot(found, &ka) || read_segment(ctx, p, &s) <= 0 || s.flags & ROOST_RST)
        return XDP_PASS;
    switch (roost_judge(&ka, &s)) {
    case ROOST_V_HOLD:
        return XDP_DROP;
    case ROOST_V_WAKE:
        if (report(&p->key, s.ack, ROOST_WHY_FRAGMENT))
            count(ROOST_N_FRAGMENT_WOKEN);
        return XDP_DROP;
    default:
        return XDP_PASS;
    }
}

static __noinline int is_syn_in_vain(struct xdp_md *ctx, const struct packet *p) {
    __u8 flags = 0;
    bpf_xdp_load_bytes(ctx, p->l4 + FLAGS_AT, &flags, 1);
    return (flags & (ROOST_FIN | ROOST_SYN | ROOST_RST | ROOST_ACK)) == ROOST_SYN && is_beyond(&p->key, coarse_ms(), 0);
}

/* What is done with a packet of TCP. */
GLOBAL int of_tcp(struct xdp_md *ctx, const struct roost_config *cfg, const struct packet *p) {
    if (!cfg || !p)
        return XDP_PASS;
    struct found found = {};
    int candidate = LOOK_AGAIN;
    for (int i = 0; i < 2 && candidate == LOOK_AGAIN; i++) {
        if (find(cfg, &p->key, p->v6, &found))
            return p->fragment ? first_fragment(ctx, p, &found) : known(ctx, p, &found);
        candidate = filter_says(&found, p->key.local_port);
    }
    if (candidate != NO_CANDIDATE && is_beyond(&p->key, coarse_ms(), 1))
        return XDP_DROP;
    if (p->fragment) {
        __be32 ack;
        if (candidate != NO_CANDIDATE && !load_ack(ctx, p, &ack))
            report(&p->key, bpf_ntohl(ack), ROOST_WHY_CANDIDATE);
        return XDP_PASS;
    }
    if (candidate != NO_CANDIDATE)
        return hand_over(ctx, p, ROOST_WHY_CANDIDATE);
    int verdict = unknown(ctx, cfg, p);
    if (verdict == SPEAKS) /* it did more than end its handshake: the engine judges that */
        return hand_over(ctx, p, ROOST_WHY_HOLD);
    return verdict == XDP_PASS && is_syn_in_vain(ctx, p) ? XDP_DROP : verdict;
}

static __noinline int long_way(struct xdp_md *ctx, const struct roost_config *cfg) {
    struct packet p = {};
    union header nowhere;
    if (!parse(ctx, &p, &nowhere) || (__s32)p.l4_length < (int)sizeof(struct tcphdr))
        return outbox_or_pass(ctx, cfg, p.not_ip);
    p.ifindex = came_by(ctx, &p);
    return p.ifindex ? of_tcp(ctx, cfg, &p) : XDP_PASS;
}

SEC("xdp")
int roost_inactive(struct xdp_md *ctx) {
    __u32 zero = 0;
    const struct roost_config *cfg = bpf_map_lookup_elem(&config, &zero);
    if (!cfg)
        return XDP_PASS;
    struct found sought = {};
    int verdict = fast(ctx, cfg, &sought);
    if (verdict == FAST_SYN)
        verdict = fast_syn(ctx, cfg);
    else if (verdict == FAST_BIRTH)
        verdict = fast_birth(ctx, cfg, &sought);
    if (verdict == FAST_UNKNOWN)
        verdict = fast_unknown(ctx, &sought);
    return verdict == FAST_LONG_WAY ? long_way(ctx, cfg) : verdict;
}
