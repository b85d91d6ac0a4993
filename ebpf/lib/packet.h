/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * From a frame to a 4-tuple, for XDP and for tc: Ethernet, at most two VLAN tags, IPv4 with options or IPv6 with extension
 * headers, TCP. ctx_xdp.h or ctx_skb.h, included before, says how bytes are read.
 */
#ifndef ROOST_PACKET_H
#define ROOST_PACKET_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>

#include "ebpf/shared/record.h"
#include "verifier.h"

#ifndef ROOST_CTX
#error "include ctx_xdp.h or ctx_skb.h first"
#endif

#define MAX_TAGS 2 /* IEEE 802.1ad: the provider's and the customer's */
#define MAX_EXTENSION_HEADERS 6
#define HEADERS_END 16383 /* behind six of the longest */

enum fragment {
    FRAGMENT_NONE, /* a whole datagram */
    FRAGMENT_FIRST,
    FRAGMENT_LATER, /* what IP carries begins in another one */
};

struct packet {
    struct roost_key key; /* client = source, local = destination */
    __u32 ifindex;        /* XDP's to say: the interface it came by, or its VLAN's device; 0: it is in none of ours */
    __u32 l3;             /* offset of the IP header */
    __u32 l4;             /* offset of what IP carries */
    __u32 l4_length;      /* bytes of that, as IP says; less than 0 if IP contradicts itself */
    __be32 fragment_id;
    __u8 v6;
    __u8 not_ip;
    __u8 protocol; /* IPPROTO_... of what IP carries */
    __u8 fragment; /* enum fragment */
};

/* Room for what tc copies out of an skb. */
union header {
    struct iphdr v4;
    struct ipv6hdr v6;
    __u8 extension[8];
    __be16 words[2];
    struct tcphdr tcp;
};

static __always_inline void set_addresses4(struct roost_key *key, __be32 client, __be32 local) {
    __builtin_memset(key->client, 0, 32);
    key->client[10] = key->client[11] = key->local[10] = key->local[11] = 0xff;
    __builtin_memcpy(key->client + 12, &client, 4);
    __builtin_memcpy(key->local + 12, &local, 4);
}

static __always_inline int parse_ip4(ROOST_CTX *ctx, struct packet *p, union header *room) {
    const struct iphdr *ip = ctx_bytes(ctx, p->l3, room, sizeof(*ip));
    if (!ip || ip->version != 4 || ip->ihl < 5)
        return 0;
    __u32 header = ip->ihl * 4;
    set_addresses4(&p->key, ip->saddr, ip->daddr);
    p->protocol = ip->protocol;
    p->fragment_id = ip->id;
    p->fragment = ip->frag_off & bpf_htons(0x1fff)   ? FRAGMENT_LATER
                  : ip->frag_off & bpf_htons(0x2000) ? FRAGMENT_FIRST
                                                     : FRAGMENT_NONE;
    p->l4 = p->l3 + header;
    p->l4_length = bpf_ntohs(ip->tot_len) - header;
    return 1;
}

/* In a key, such an address is an IPv4 packet's. The kernel's IPv6 does not take it from a packet either (ip6_rcv_core). */
static __always_inline int is_mapped(const struct in6_addr *address) {
    const __be32 *word = address->s6_addr32;
    return !(word[0] | word[1] | (word[2] ^ bpf_htonl(0xffff)));
}

static __always_inline int parse_ip6(ROOST_CTX *ctx, struct packet *p, union header *room) {
    const struct ipv6hdr *ip = ctx_bytes(ctx, p->l3, room, sizeof(*ip));
    if (!ip || ip->version != 6 || is_mapped(&ip->saddr) || is_mapped(&ip->daddr))
        return 0;
    const __u32 whole = bpf_ntohs(ip->payload_len);
    __u32 at = p->l3 + sizeof(*ip), length = whole;
    __u8 next = ip->nexthdr;
    __builtin_memcpy(p->key.client, &ip->saddr, 32);
    p->v6 = 1;
    for (int i = 0; i < MAX_EXTENSION_HEADERS; i++) {
        if ((next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
             next != IPPROTO_FRAGMENT) ||
            p->fragment == FRAGMENT_LATER)
            break;
        const __u8 *header = at > HEADERS_END ? 0 : ctx_bytes(ctx, at, room, 8);
        if (!header)
            return 0;
        __u32 size = (header[1] + 1) * 8;
        if (next == IPPROTO_FRAGMENT) { /* RFC 8200 4.5 */
            p->fragment = header[2] || header[3] & 0xf8 ? FRAGMENT_LATER : FRAGMENT_FIRST;
            __builtin_memcpy(&p->fragment_id, header + 4, 4);
            size = 8;
        }
        next = header[0];
        at += size;
        length -= size;
        FORGET(at, whole);
        FORGET(length, whole);
    }
    p->protocol = next;
    p->l4 = at;
    p->l4_length = length;
    return 1;
}

/* p, all zero before, filled as far as the frame is understood; the TCP header, if there is one. */
static __always_inline const struct tcphdr *parse(ROOST_CTX *ctx, struct packet *p, union header *room) {
    __be16 proto = ctx_protocol(ctx);
    p->l3 = ETH_HLEN;
    for (int i = 0; i < MAX_TAGS && (proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD)); i++) {
        const __be16 *tag = ctx_bytes(ctx, p->l3, room, 4);
        if (!tag)
            return 0;
        proto = tag[1];
        p->l3 += 4;
    }
    if (proto == bpf_htons(ETH_P_IP)) {
        if (!parse_ip4(ctx, p, room))
            return 0;
    } else if (proto == bpf_htons(ETH_P_IPV6)) {
        if (!parse_ip6(ctx, p, room))
            return 0;
    } else {
        p->not_ip = 1;
        return 0;
    }
    if (p->protocol != IPPROTO_TCP || p->fragment == FRAGMENT_LATER)
        return 0;
    const struct tcphdr *tcp = p->l4 > HEADERS_END ? 0 : ctx_bytes(ctx, p->l4, room, sizeof(*tcp));
    if (!tcp)
        return 0;
    p->key.client_port = tcp->source;
    p->key.local_port = tcp->dest;
    return tcp;
}

#endif
