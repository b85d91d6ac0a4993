// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * XDP: the front door of inactive connections. Everything that is not TCP, not for a connection in the table, or not
 * understood goes on to the stack; what the stack makes of a packet of a sleeping connection that got past us
 * (fragments, more than one VLAN tag, exotic extension headers) is stopped and noticed by guard.bpf.c.
 */
#include "maps.h"
#include "outbox.h"
#include "packet.h"
#include "judge.h"

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

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct challenge_budget);
} challenges SEC(".maps");

static __always_inline int may_challenge(struct roost_ka *slot, const struct roost_ka *ka, __u64 now_ms) {
    __u64 tick = now_ms / 512;
    if (ROOST_HEARD_TICK(ka->heard) == (__u8)tick)
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
    slot->heard = ROOST_HEARD(ka->heard >> ROOST_HEARD_SHIFT, tick, ka->heard);
    return 1;
}

/* A probe that is answered between two sweeps must not count, however short the interval. */
static __always_inline void heard(struct roost_ka *slot, const struct roost_ka *ka, __u64 now_ms) {
    slot->heard = ROOST_HEARD(now_ms / 1000, ROOST_HEARD_TICK(ka->heard), 0);
}

/* RFC 7323 4.3; a ts_recent of 0 is none yet. */
static __always_inline int newer_ts(const struct roost_ka *ka, const struct roost_segment *s) {
    return s->has_ts && (!ka->ts_recent || (__s32)(s->tsval - ka->ts_recent) > 0);
}

/* Turns the frame around into an ACK made from the record alone. */
static __noinline int answer(struct xdp_md *ctx, const struct packet *p, const struct roost_ka *ka,
                             const struct roost_segment *s, __u64 now_ms) {
    struct {
        __u8 l2[18];
        __u8 rest[40 + 32];
    } reply = {};
    __u32 l3_length = p->v6 ? 40 : 20;
    __u32 l4_length = ROOST_FLAGS(ka->ctl) & ROOST_F_TIMESTAMPS ? 32 : 20;
    __u32 l2 = p->l3 == 18 ? 18 : 14;

    if (l2 == 18) {
        if (bpf_xdp_load_bytes(ctx, 0, reply.l2, 18))
            return XDP_DROP;
    } else {
        if (bpf_xdp_load_bytes(ctx, 0, reply.l2, 14))
            return XDP_DROP;
    }
    __u8 mac[6];
    __builtin_memcpy(mac, reply.l2, 6);
    __builtin_memcpy(reply.l2, reply.l2 + 6, 6);
    __builtin_memcpy(reply.l2 + 6, mac, 6);

    struct tcphdr tcp = {};
    struct {
        __u8 nop[2], kind, length;
        __be32 tsval, tsecr;
    } __attribute__((packed)) ts = {{1, 1}, 8, 10, 0, 0};
    tcp.source = p->key.local_port;
    tcp.dest = p->key.client_port;
    tcp.seq = bpf_htonl(ka->snd_nxt);
    tcp.ack_seq = bpf_htonl(ka->rcv_nxt);
    tcp.doff = l4_length / 4;
    tcp.ack = 1;
    tcp.window = bpf_htons(ka->window);
    if (l4_length == 32) {
        ts.tsval = bpf_htonl((__u32)now_ms + ka->ts_offset);
        ts.tsecr = bpf_htonl(newer_ts(ka, s) ? s->tsval : ka->ts_recent);
    }
    __s64 sum = pseudo_sum(&p->key, p->v6, l4_length);
    sum = bpf_csum_diff(0, 0, (__be32 *)&tcp, sizeof(tcp), sum);
    if (l4_length == 32)
        sum = bpf_csum_diff(0, 0, (__be32 *)&ts, sizeof(ts), sum);
    tcp.check = fold(sum);

    if (p->v6) {
        struct ipv6hdr ip = {};
        ip.version = 6;
        ip.payload_len = bpf_htons(l4_length);
        ip.nexthdr = 6;
        ip.hop_limit = 64;
        __builtin_memcpy(&ip.saddr, p->key.local, 16);
        __builtin_memcpy(&ip.daddr, p->key.client, 16);
        __builtin_memcpy(reply.rest, &ip, 40);
        __builtin_memcpy(reply.rest + 40, &tcp, 20);
        __builtin_memcpy(reply.rest + 60, &ts, 12);
    } else {
        struct iphdr ip = {};
        ip.version = 4;
        ip.ihl = 5;
        ip.tot_len = bpf_htons(20 + l4_length);
        ip.frag_off = bpf_htons(0x4000);
        ip.ttl = 64;
        ip.protocol = 6;
        __builtin_memcpy(&ip.saddr, p->key.local + 12, 4);
        __builtin_memcpy(&ip.daddr, p->key.client + 12, 4);
        ip.check = fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0));
        __builtin_memcpy(reply.rest, &ip, 20);
        __builtin_memcpy(reply.rest + 20, &tcp, 20);
        __builtin_memcpy(reply.rest + 40, &ts, 12);
    }

    __s32 length = l2 + l3_length + l4_length;
    if (bpf_xdp_adjust_tail(ctx, length - (__s32)bpf_xdp_get_buff_len(ctx)))
        return XDP_DROP;
    if (l2 == 18 ? bpf_xdp_store_bytes(ctx, 0, reply.l2, 18) : bpf_xdp_store_bytes(ctx, 0, reply.l2, 14))
        return XDP_DROP;
    __u32 rest = l3_length + l4_length;
    if (rest > sizeof(reply.rest) || bpf_xdp_store_bytes(ctx, l2, reply.rest, rest))
        return XDP_DROP;
    return XDP_TX;
}

/* Hands the frame to the engine. A full ring costs the sender a retransmission, nothing else: no state was changed. */
static __noinline int hand_over(struct xdp_md *ctx, const struct packet *p, __u32 why) {
    __u32 length = bpf_xdp_get_buff_len(ctx);
    struct roost_frame *f;
    if (length <= ROOST_FRAME_SMALL) {
        f = bpf_ringbuf_reserve(&ring, sizeof(*f) + ROOST_FRAME_SMALL, 0);
        if (!f)
            goto full;
        if (length < 14 || bpf_xdp_load_bytes(ctx, 0, f->data, length))
            length = 0;
    } else {
        f = bpf_ringbuf_reserve(&ring, sizeof(*f) + ROOST_FRAME_MAX, 0);
        if (!f)
            goto full;
        if (length > ROOST_FRAME_MAX) {
            count(ROOST_N_OVERSIZE);
            length = 0;
        } else if (bpf_xdp_load_bytes(ctx, 0, f->data, length)) {
            length = 0;
        }
    }
    f->key = p->key;
    f->ifindex = ctx->ingress_ifindex;
    f->queue = ctx->rx_queue_index;
    f->length = length;
    f->why = why;
    f->l3 = p->l3;
    bpf_ringbuf_submit(f, 0);
    count(why == ROOST_WHY_WAKE ? ROOST_N_WOKEN : ROOST_N_HELD);
    return XDP_DROP;
full:
    count(ROOST_N_RING_FULL);
    return XDP_DROP;
}

SEC("xdp")
int roost_inactive(struct xdp_md *ctx) {
    struct packet p = {};
    __u32 zero = 0;
    const struct roost_config *cfg = bpf_map_lookup_elem(&config, &zero);
    if (!cfg)
        return XDP_PASS;
    if (!parse(ctx, &p))
        return p.not_ip ? outbox_or_pass(ctx, cfg) : XDP_PASS;
    struct found found = {};
    if (!find(cfg, &p.key, p.v6, &found))
        return XDP_PASS;
    struct roost_ka *slot = found.slot;

    struct roost_ka ka;
    if (!snapshot(&found, &ka))
        return hand_over(ctx, &p, ROOST_WHY_HOLD); /* the slot changed hands just now: the engine knows more */

    struct roost_segment s = {};
    int good = read_segment(ctx, &p, &s);
    if (good <= 0) {
        count(good < 0 ? ROOST_N_BAD_CHECKSUM : ROOST_N_MALFORMED);
        return XDP_DROP;
    }

    __u64 now_ms = bpf_ktime_get_ns() / 1000000;
    switch (roost_judge(&ka, &s)) {
    case ROOST_V_HOLD:
        return hand_over(ctx, &p, ROOST_WHY_HOLD);
    case ROOST_V_WAKE:
        return hand_over(ctx, &p, ROOST_WHY_WAKE);
    case ROOST_V_ANSWER:
        heard(slot, &ka, now_ms);
        if (newer_ts(&ka, &s))
            slot->ts_recent = s.tsval;
        count(ROOST_N_ANSWERED);
        return answer(ctx, &p, &ka, &s, now_ms);
    case ROOST_V_HEARD:
        heard(slot, &ka, now_ms);
        count(ROOST_N_HEARD);
        return XDP_DROP;
    case ROOST_V_CHALLENGE:
        if (!may_challenge(slot, &ka, now_ms)) {
            count(ROOST_N_CHALLENGE_LIMITED);
            return XDP_DROP;
        }
        count(ROOST_N_CHALLENGED);
        s.has_ts = 0; /* never echo a timestamp of a segment that was not accepted */
        return answer(ctx, &p, &ka, &s, now_ms);
    default:
        count(ROOST_N_DROPPED);
        return XDP_DROP;
    }
}
