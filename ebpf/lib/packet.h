/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * From a frame to a 4-tuple and a segment, for XDP: Ethernet, at most one VLAN tag, IPv4 with options or IPv6 with
 * extension headers, TCP.
 */
#ifndef ROOST_PACKET_H
#define ROOST_PACKET_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "checksum.h"
#include "ebpf/shared/judge.h"

#define MAX_EXTENSION_HEADERS 6

/* Clang forgets where a number came from, and so keeps the comparisons that the verifier needs: it would leave out one
 * that parse() made superfluous, or turn two bounds into one comparison of a difference in another register. */
#define KEEP(n) asm volatile("" : "+r"(n))

struct packet {
    struct roost_key key; /* client = source, local = destination */
    __u32 l3;             /* offset of the IP header */
    __u32 l4;             /* offset of the TCP header */
    __u32 l4_length;      /* TCP header and payload, bytes, as IP says */
    __u8 v6;
    __u8 not_ip;
};

/* Sum of the pseudo-header (RFC 9293 3.1, RFC 8200 8.1). Direction does not matter to it. IPv4-mapped prefixes are
 * left out. */
static __always_inline __s64 pseudo_sum(const struct roost_key *key, int v6, __u32 l4_length) {
    __be32 tail[2] = {bpf_htonl(l4_length), bpf_htonl(IPPROTO_TCP)};
    __s64 sum = bpf_csum_diff(0, 0, tail, sizeof(tail), 0);
    if (v6)
        return bpf_csum_diff(0, 0, (__be32 *)key, 32, sum);
    __be32 address[2];
    __builtin_memcpy(&address[0], key->client + 12, 4);
    __builtin_memcpy(&address[1], key->local + 12, 4);
    return bpf_csum_diff(0, 0, address, sizeof(address), sum);
}

/* 1 and p filled for a whole TCP segment, else 0: not ours to judge. */
static __always_inline int parse(struct xdp_md *ctx, struct packet *p) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    if ((void *)(eth + 1) > end)
        return 0;
    __be16 proto = eth->h_proto;
    void *at = eth + 1;
    p->l3 = sizeof(*eth);
    if (proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD)) {
        __be16 *tag = at;
        if ((void *)(tag + 2) > end)
            return 0;
        proto = tag[1];
        at = tag + 2;
        p->l3 += 4;
    }
    if (proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = at;
        if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5 || ip->protocol != IPPROTO_TCP)
            return 0;
        if (ip->frag_off & bpf_htons(0x3fff)) /* MF or an offset */
            return 0;
        __u32 header = ip->ihl * 4, total = bpf_ntohs(ip->tot_len);
        if (total < header + sizeof(struct tcphdr))
            return 0;
        __u32 mapped = bpf_htonl(0xffff);
        __builtin_memcpy(p->key.client + 8, &mapped, 4);
        __builtin_memcpy(p->key.client + 12, &ip->saddr, 4);
        __builtin_memcpy(p->key.local + 8, &mapped, 4);
        __builtin_memcpy(p->key.local + 12, &ip->daddr, 4);
        p->l4 = p->l3 + header;
        p->l4_length = total - header;
        at += header;
    } else if (proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = at;
        if ((void *)(ip + 1) > end || ip->version != 6)
            return 0;
        p->v6 = 1;
        __builtin_memcpy(p->key.client, &ip->saddr, 16);
        __builtin_memcpy(p->key.local, &ip->daddr, 16);
        __u32 next = ip->nexthdr, length = bpf_ntohs(ip->payload_len), skipped = 0;
        at = ip + 1;
#pragma clang loop unroll(full)
        for (int i = 0; i < MAX_EXTENSION_HEADERS; i++) {
            if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS)
                break;
            __u8 *header = at;
            if ((void *)(header + 8) > end)
                return 0;
            next = header[0];
            __u32 size = (header[1] + 1) * 8;
            at += size;
            skipped += size;
        }
        if (next != IPPROTO_TCP || length < skipped + sizeof(struct tcphdr))
            return 0;
        p->l4 = p->l3 + 40 + skipped;
        p->l4_length = length - skipped;
    } else {
        p->not_ip = 1;
        return 0;
    }
    struct tcphdr *tcp = at;
    if ((void *)(tcp + 1) > end)
        return 0;
    p->key.client_port = tcp->source;
    p->key.local_port = tcp->dest;
    return 1;
}

struct option_walk {
    __u8 buffer[64] __attribute__((aligned(8)));
    __u32 at, header;
    __u32 tsval, tsecr;
    __u8 has_ts;
};

/* One TCP option (RFC 9293 3.1) in search of the timestamps; a callback of bpf_loop: 1 ends the walk. */
static long next_option(__u32 i, struct option_walk *walk) {
    __u32 at = walk->at;
    if (at + 10 > walk->header || at > 50)
        return 1;
    const __u8 *option = &walk->buffer[at];
    if (option[0] == 0)
        return 1;
    if (option[0] == 1) {
        walk->at = at + 1;
        return 0;
    }
    if (option[1] < 2)
        return 1;
    if (option[0] == 8 && option[1] == 10) {
        walk->tsval = (__u32)option[2] << 24 | (__u32)option[3] << 16 | (__u32)option[4] << 8 | option[5];
        walk->tsecr = (__u32)option[6] << 24 | (__u32)option[7] << 16 | (__u32)option[8] << 8 | option[9];
        walk->has_ts = 1;
        return 1;
    }
    walk->at = at + option[1];
    return 0;
}

/* Whether the IPv4 header sums to zero; IPv6 has no checksum. buffer: 64 bytes for its use, all zero. */
static __always_inline int header_good(struct xdp_md *ctx, const struct packet *p, __u8 *buffer) {
    __u32 size = p->l4 - p->l3;
    if (p->v6)
        return 1;
    KEEP(size);
    if (size < sizeof(struct iphdr))
        return 0;
    KEEP(size);
    if (size > 60 || bpf_xdp_load_bytes(ctx, p->l3, buffer, size))
        return 0;
    return !fold(bpf_csum_diff(0, 0, (__be32 *)buffer, 64, 0));
}

/* The segment: 1 good, 0 malformed (truncated, impossible header length), -1 bad checksum. Only what is short enough
 * to be answered from the record is summed here; the engine sums what it is handed before it believes it. */
static __noinline int read_segment(struct xdp_md *ctx, const struct packet *p, struct roost_segment *s) {
    struct option_walk walk = {.at = sizeof(struct tcphdr)}; /* its buffer is all that the stack has room for */
    __u32 frame = bpf_xdp_get_buff_len(ctx);
    if (p->l4 + p->l4_length > frame || p->l4 > 512)
        return 0;
    int good = header_good(ctx, p, walk.buffer);
    __builtin_memset(walk.buffer, 0, sizeof(walk.buffer));
    __u32 size = p->l4_length > 61 ? 61 : p->l4_length;
    KEEP(size);
    if (size < sizeof(struct tcphdr))
        return 0;
    KEEP(size);
    if (size > 61 || bpf_xdp_load_bytes(ctx, p->l4, walk.buffer, size))
        return 0;
    struct tcphdr *tcp = (void *)walk.buffer;
    walk.header = tcp->doff * 4;
    if (walk.header < sizeof(*tcp) || walk.header > p->l4_length)
        return 0;
    s->seq = bpf_ntohl(tcp->seq);
    s->ack = bpf_ntohl(tcp->ack_seq);
    s->payload = p->l4_length - walk.header;
    s->window = bpf_ntohs(tcp->window);
    s->flags = walk.buffer[13];
    if (!good)
        return -1;
    if (p->l4_length <= 61) {
        __s64 sum = pseudo_sum(&p->key, p->v6, p->l4_length);
        sum = bpf_csum_diff(0, 0, (__be32 *)walk.buffer, sizeof(walk.buffer), sum);
        if (fold(sum))
            return -1;
    }
    if (walk.header >= 32 && *(__be32 *)(walk.buffer + 20) == bpf_htonl(0x0101080a)) /* RFC 7323 appendix A */
        walk.at = 22;
    bpf_loop(40, next_option, &walk, 0);
    s->tsval = walk.tsval;
    s->tsecr = walk.tsecr;
    s->has_ts = walk.has_ts;
    return 1;
}

#endif
