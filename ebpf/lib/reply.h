/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A frame turned around: what XDP answers in place of a socket. */
#ifndef ROOST_REPLY_H
#define ROOST_REPLY_H

#include "segment.h"

#define REPLY_OPTIONS 20 /* bytes, at most */

struct reply {
    __u32 seq, ack;
    __u16 window; /* as on the wire */
    __u8 flags;
    __u8 options_length; /* bytes, a multiple of 4 */
    __u8 routed;         /* mac says where to; else back to where the frame came from */
    __u16 mac[6];        /* as an Ethernet header has them */
    __be32 options[REPLY_OPTIONS / 4];
};

struct reply_tcp {
    struct tcphdr header;
    __be32 options[REPLY_OPTIONS / 4];
};

static __always_inline void fill_tcp(struct reply_tcp *tcp, const struct packet *p, const struct reply *r,
                                     __u32 l4_length) {
    tcp->header.source = p->key.local_port;
    tcp->header.dest = p->key.client_port;
    tcp->header.seq = bpf_htonl(r->seq);
    tcp->header.ack_seq = bpf_htonl(r->ack);
    tcp->header.doff = l4_length / 4;
    tcp->header.ack = 1;
    tcp->header.syn = r->flags & ROOST_SYN ? 1 : 0;
    tcp->header.window = bpf_htons(r->window);
    __builtin_memcpy(tcp->options, r->options, REPLY_OPTIONS); /* zero behind options_length, which sums to nothing */
    tcp->header.check = fold(bpf_csum_diff(0, 0, (__be32 *)tcp, sizeof(*tcp), pseudo_sum(&p->key, p->v6, l4_length)));
}

/* XDP_TX; 0: there is no room for the answer, and the frame is as it came. Not inlined, and all in one place: the stack of a
 * program is small. */
GLOBAL int send_back(struct xdp_md *ctx, const struct packet *p, const struct reply *r) {
    struct {
        __u16 l2[12];
        union {
            struct {
                struct iphdr ip;
                struct reply_tcp tcp;
            } v4;
            struct {
                struct ipv6hdr ip;
                struct reply_tcp tcp;
            } v6;
        };
    } reply = {};
    if (!p || !r)
        return 0;
    __u32 l3_length = p->v6 ? 40 : 20, options = r->options_length > REPLY_OPTIONS ? REPLY_OPTIONS : r->options_length;
    __u32 l4_length = 20 + options, l2 = p->l3;

    if (!WITHIN(l2, ETH_HLEN, sizeof(reply.l2)) || bpf_xdp_load_bytes(ctx, 0, reply.l2, l2))
        return 0;
    if (r->routed) {
        __builtin_memcpy(reply.l2, r->mac, 12);
    } else {
#pragma clang loop unroll(full)
        for (__u32 i = 0; i < 3; i++) { /* without room on the stack */
            __u16 half = reply.l2[i];
            reply.l2[i] = reply.l2[3 + i];
            reply.l2[3 + i] = half;
        }
    }

    if (p->v6) {
        struct ipv6hdr *ip = &reply.v6.ip;
        ip->version = 6;
        ip->payload_len = bpf_htons(l4_length);
        ip->nexthdr = 6;
        ip->hop_limit = 64;
        __builtin_memcpy(&ip->saddr, p->key.local, 16);
        __builtin_memcpy(&ip->daddr, p->key.client, 16);
        fill_tcp(&reply.v6.tcp, p, r, l4_length);
    } else {
        struct iphdr *ip = &reply.v4.ip;
        ip->version = 4;
        ip->ihl = 5;
        ip->tot_len = bpf_htons(20 + l4_length);
        ip->frag_off = bpf_htons(0x4000);
        ip->ttl = 64;
        ip->protocol = 6;
        __builtin_memcpy(&ip->saddr, p->key.local + 12, 4);
        __builtin_memcpy(&ip->daddr, p->key.client + 12, 4);
        ip->check = fold(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
        fill_tcp(&reply.v4.tcp, p, r, l4_length);
    }

    __s32 length = l2 + l3_length + l4_length;
    if (ctx_lengthen(ctx, length - (__s32)bpf_xdp_get_buff_len(ctx)))
        return 0;
    if (!WITHIN(l2, ETH_HLEN, sizeof(reply.l2)) || bpf_xdp_store_bytes(ctx, 0, reply.l2, l2))
        return XDP_DROP;
    __u32 rest = l3_length + l4_length;
    if (!WITHIN(rest, 40, sizeof(reply.v6)) || bpf_xdp_store_bytes(ctx, l2, &reply.v4, rest))
        return XDP_DROP;
    return XDP_TX;
}

#endif
