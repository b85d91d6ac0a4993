/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The short way for what nearly all packets of sleeping connections are: a keep-alive probe, or the answer to one, over
 * IPv4 without options, with timestamps where Linux and most others put them (RFC 7323 appendix A) or without any. It does
 * what the long way in inactive.bpf.c does, with direct access to the packet, one pass over the tags and no call but that
 * for the clock. Packets of connections that are not in the table, as those that are awake, go on from here, too. Whatever
 * is any different takes the long way.
 */
#ifndef ROOST_FAST_H
#define ROOST_FAST_H

#include "ebpf/lib/checksum.h"
#include "ebpf/shared/judge.h"
#include "ebpf/lib/find.h"
#include "outbox.h"
#include "ebpf/lib/segment.h"
#include "way.h"

#define FAST_LONG_WAY (-1)
#define FAST_SYN (-2)     /* it is one (ebpf/xdp/fast_born.h) */
#define FAST_BIRTH (-3)   /* an acknowledgement, of no key in the table: it may end a handshake */
#define FAST_UNKNOWN (-4) /* a segment, of no key in the table: nearly always of a connection awake */
#define FAST_CANDIDATES 3 /* slots with the right tag that are looked at */
#define TS_LAYOUT bpf_htonl(0x0101080a)

/* A slot's owner may change while its fields are read: ctl is read before and after them. Where the processor keeps loads
 * in order (x86) that needs no barrier. */
static __always_inline __u32 ordered_ctl(struct roost_ka *slot) {
#ifdef ROOST_LOADS_IN_ORDER
    asm volatile("" ::: "memory");
    __u32 ctl = *(volatile __u32 *)&slot->ctl;
    asm volatile("" ::: "memory");
    return ctl;
#else
    return ctl_of(slot);
#endif
}

/* The tags of a bucket that match, a bit each at 8 * (place in its word) + number of its word. */
static __always_inline __u64 fast_matching(const volatile __u64 *tags, __u8 tag) {
    __u64 mask = 0;
#pragma clang loop unroll(full)
    for (int i = 0; i < ROOST_BUCKET_SLOTS / 8; i++)
        mask |= roost_same_tags(tags[i], tag) >> (7 - i);
    return mask;
}

static __always_inline int fast_is(const struct roost_slot4 *s, __u32 ctl, const struct iphdr *ip,
                                   const struct tcphdr *tcp) {
    __u32 number = s->endpoint;
    const struct roost_endpoint *e = bpf_map_lookup_elem(&endpoints, &number);
    return e && s->far == ip->saddr && s->far_port == tcp->source && e->port == tcp->dest &&
           *(const __be32 *)(e->address + 12) == ip->daddr && !(ROOST_FLAGS(ctl) & ROOST_F_SERVER);
}

/* Looks where most keys are, and not at the tags: a slot that has another owner meanwhile, or none, has another ctl. */
static __always_inline struct roost_ka *fast_at_home(void *table, const struct roost_place *place,
                                                     const struct iphdr *ip, const struct tcphdr *tcp, __u32 *ctl) {
    __u32 index = place->bucket[0], home = place->home;
    struct roost_bucket4 *b = bpf_map_lookup_elem(table, &index);
    KEEP(home);
    if (!b || home > ROOST_BUCKET_SLOTS - ROOST_HOME_SLOTS)
        return 0;
    (void)*(const volatile __u64 *)b->head.tags; /* on its way while the home is read, should that not be enough */
    struct roost_slot4 *slot = &b->slot[home];
#pragma clang loop unroll(full)
    for (int i = 0; i < ROOST_HOME_SLOTS; i++) {
        struct roost_slot4 *s = slot + i;
        if (*(volatile __be32 *)&s->far != ip->saddr || s->far_port != tcp->source)
            continue;
        *ctl = ordered_ctl(&s->ka);
        if (ROOST_PHASE(*ctl) != ROOST_FREE && fast_is(s, *ctl, ip, tcp)) /* a free one keeps its last owner's end */
            return &s->ka;
    }
    return 0;
}

/* 0, and *sure says whether it is not there. */
static __always_inline struct roost_ka *fast_find(void *table, const struct roost_place *place, const struct iphdr *ip,
                                                  const struct tcphdr *tcp, __u32 *ctl, int *sure) {
    *sure = 0;
    for (int side = 0; side < 2; side++) {
        __u32 index = side ? place->bucket[1] : place->bucket[0];
        struct roost_bucket4 *b = bpf_map_lookup_elem(table, &index);
        if (!b)
            return 0;
        __u64 mask = fast_matching(b->head.tags, place->tag);
        for (int i = 0; i < FAST_CANDIDATES && mask; i++) {
            __u32 bit = lowest(mask);
            __u32 at = (bit & 7) * 8 + (bit >> 3);
            KEEP(at);
            if (at >= ROOST_BUCKET_SLOTS)
                return 0;
            struct roost_slot4 *s = &b->slot[at];
            *ctl = ordered_ctl(&s->ka);
            if (ROOST_FLAGS(*ctl) & ROOST_F_SERVER)
                return 0; /* its ends are the other way round */
            if (fast_is(s, *ctl, ip, tcp))
                return &s->ka;
            mask &= mask - 1;
        }
        if (mask)
            return 0;
    }
    *sure = 1;
    return 0;
}

static __always_inline __u64 fast_hash(const struct roost_config *cfg, const struct iphdr *ip,
                                       const struct tcphdr *tcp) {
    __u64 word[2] = {((__u64)ip->saddr << 32) | ip->daddr, ((__u64)tcp->source << 16) | tcp->dest};
    return roost_siphash(cfg->seed, word, 2);
}

/* A verdict, or one of the others above with nothing changed; sought: the key that was not found. */
static __noinline int fast(struct xdp_md *ctx, const struct roost_config *cfg, struct found *sought) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);
    struct tcphdr *tcp = (void *)(ip + 1);
    __be32 *options = (void *)(tcp + 1);
    if ((void *)(tcp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || *(__u8 *)ip != 0x45 ||
        ip->protocol != IPPROTO_TCP || (ip->frag_off & bpf_htons(0x3fff)))
        return FAST_LONG_WAY;
    int timestamps = tcp->doff == 8;
    __u32 flags = ((__u8 *)tcp)[13] & (ROOST_FIN | ROOST_SYN | ROOST_RST | ROOST_ACK | ROOST_URG);
    if (flags == ROOST_SYN)
        return FAST_SYN;
    if ((flags & ~ROOST_FIN) != ROOST_ACK)
        return FAST_LONG_WAY;
    int bare = flags == ROOST_ACK &&
               (timestamps ? ip->tot_len == bpf_htons(52) : tcp->doff == 5 && ip->tot_len == bpf_htons(40));
    if (timestamps && ((void *)(options + 3) > end || options[0] != TS_LAYOUT))
        return FAST_LONG_WAY;
    sought->moved = moves();
    __u32 in_use = *(volatile const __u32 *)&cfg->v4.in_use;
    if (ROOST_PREVIOUS(in_use))
        return FAST_LONG_WAY;

    __u32 generation = ROOST_CURRENT(in_use) % ROOST_GENERATIONS, ctl;
    void *table = bpf_map_lookup_elem(&tables4, &generation);
    if (!table)
        return FAST_LONG_WAY;
    sought->hash = fast_hash(cfg, ip, tcp);
    struct roost_place place = roost_place_of(sought->hash, buckets_of(&cfg->v4, generation));
    int absent;
    struct roost_ka *slot = bare ? fast_at_home(table, &place, ip, tcp, &ctl) : 0;
    if (!slot)
        slot = fast_find(table, &place, ip, tcp, &ctl, &absent);
    if (!slot)
        return !absent ? FAST_LONG_WAY : bare && timestamps ? FAST_BIRTH : FAST_UNKNOWN;
    if (!bare)
        return FAST_LONG_WAY;
    __u32 snd_nxt = slot->snd_nxt, rcv_nxt = slot->rcv_nxt, ts_offset = slot->ts_offset, ts_recent = slot->ts_recent;
    __u32 heard = slot->heard, window = slot->window, phase = ROOST_PHASE(ctl);
    if (ordered_ctl(slot) != ctl || (phase != ROOST_IDLE && phase != ROOST_SLEEP) || bpf_ntohl(tcp->ack_seq) != snd_nxt)
        return FAST_LONG_WAY;
    __u32 behind = rcv_nxt - bpf_ntohl(tcp->seq); /* 1: a probe; 0: an answer to ours */
    int stamped = !!(ROOST_FLAGS(ctl) & ROOST_F_TIMESTAMPS);
    if (behind > 1 || (behind && stamped != timestamps))
        return FAST_LONG_WAY;

    __u64 ends = (__u64)ip->saddr + ip->daddr;
    __u64 pseudo = ends + bpf_htons(IPPROTO_TCP) + bpf_htons(timestamps ? 32 : 20);
    __u64 sum = pseudo + words((__be32 *)tcp, 5) + (timestamps ? words(options, 3) : 0);
    if (fold_words(words((__be32 *)ip, 5)) != 0xffff || fold_words(sum) != 0xffff)
        return FAST_LONG_WAY; /* which counts it */

    __u64 now_ms = coarse_ms();
    const struct way *way = behind ? way_back4(ctx, ip->daddr, ip->saddr, now_ms) : 0;
    if (way && way->is == WAY_ELSEWHERE)
        return FAST_LONG_WAY;
    if (timestamps) {
        __u32 tsval = bpf_ntohl(options[1]);
        if (!ts_recent || (__s32)(tsval - ts_recent) > 0) {
            ts_recent = tsval;
            if (behind)
                slot->ts_recent = tsval;
        }
    }
    slot->heard = ROOST_HEARD(now_ms / 1000, ROOST_HEARD_TICK(heard), 0);
    int asked = !behind && ROOST_HEARD_PROBES(heard);
    count_silence(slot->class, heard, now_ms, asked);
    if (!behind) {
        count(ROOST_N_HEARD);
        return asked ? next_probe(ctx) : XDP_DROP;
    }

    turn((void *)eth, way);
    __be32 *ip_words = (void *)ip, *tcp_words = (void *)tcp;
    ip_words[0] = bpf_htonl(0x45000000 | (timestamps ? 52 : 40));
    ip_words[1] = bpf_htonl(0x4000); /* don't fragment */
    __be32 address = ip->saddr;
    ip->saddr = ip->daddr;
    ip->daddr = address;
    ip_words[2] = bpf_htonl(64 << 24 | IPPROTO_TCP << 16);
    ip->check = ~fold_words(words(ip_words, 3) + ends);

    __be16 port = tcp->source;
    tcp->source = tcp->dest;
    tcp->dest = port;
    tcp_words[1] = bpf_htonl(snd_nxt);
    tcp_words[2] = bpf_htonl(rcv_nxt);
    tcp_words[3] = bpf_htonl((timestamps ? 0x80100000 : 0x50100000) | window);
    tcp_words[4] = 0;
    sum = pseudo + words(tcp_words, 4);
    if (timestamps) {
        options[1] = bpf_htonl((__u32)now_ms + ts_offset);
        options[2] = bpf_htonl(ts_recent);
        sum += words(options, 3);
    }
    tcp->check = ~fold_words(sum);
    count(ROOST_N_ANSWERED);
    return XDP_TX;
}

#endif
