/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which interface a frame came by, and where the kernel would send what XDP answers: not merely back to the sender. A
 * neighbour on the link may speak in a client's name, and the way to a client may be another than the one that it comes by.
 *
 * A way is looked up once a second for the same two ends. Where forwarding is off, and where the next hop has no neighbour
 * entry, the look-up says nothing.
 */
#ifndef ROOST_WAY_H
#define ROOST_WAY_H

#include <linux/bpf.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ebpf/lib/packet.h"
#include "ebpf/lib/reply.h"
#include "ebpf/lib/socket.h"
#include "ebpf/shared/table.h"
#include "maps.h"

enum way_is {
    WAY_UNKNOWN,   /* nothing is said */
    WAY_HERE,      /* by the interface that the frame came by, or its VLAN's device */
    WAY_ELSEWHERE, /* by another one; or there is none */
};

struct ends {
    __be32 near[4], far[4]; /* IPv4: the first word */
    __u32 v6;
    __u32 now_s;
    __u32 ifindex; /* that the frame came by */
};

/* Ways that were looked up in this second. Each processor has its own: no locks. */
struct way {
    struct ends ends; /* now_s plus 1; 0: none yet */
    __u32 is;         /* enum way_is */
    __u16 mac[6];     /* of a way that is here, as an Ethernet header has them */
};

/* The index of the interface that a frame came by; of a tagged one, that of its VLAN's device, which may be on another one's. 0: there
 * is no such device, and the kernel drops it. A tag with the id 0 is one of priority alone (IEEE 802.1Q 6.8). */
static __noinline __u32 came_by(struct xdp_md *ctx, const struct packet *p) {
    __u32 ifindex = ctx->ingress_ifindex;
    for (__u32 i = 0, at = ETH_HLEN - 2; i < MAX_TAGS && at + 2 < p->l3; i++, at += 4) {
        __be16 tag[2]; /* protocol, and what is in it */
        if (bpf_xdp_load_bytes(ctx, at, tag, sizeof(tag)))
            return 0;
        struct roost_vlan vlan = {ROOST_VLAN_BITS, ifindex, tag[0], tag[1] & bpf_htons(ROOST_VLAN_ID)};
        const __u32 *device = bpf_map_lookup_elem(&vlans, &vlan);
        if (!device && vlan.id)
            return 0;
        ifindex = device ? *device : ifindex;
    }
    return ifindex;
}

GLOBAL int way_look_up(struct xdp_md *ctx, struct way *way) {
    struct bpf_fib_lookup fib = {.l4_protocol = IPPROTO_TCP};
    if (!way)
        return WAY_UNKNOWN;
    fib.ifindex = way->ends.ifindex;
    if (way->ends.v6) {
        fib.family = FAMILY_INET6;
        __builtin_memcpy(fib.ipv6_src, way->ends.near, 16);
        __builtin_memcpy(fib.ipv6_dst, way->ends.far, 16);
    } else {
        fib.family = FAMILY_INET;
        fib.ipv4_src = way->ends.near[0];
        fib.ipv4_dst = way->ends.far[0];
    }
    switch (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0)) {
    case BPF_FIB_LKUP_RET_SUCCESS:
        __builtin_memcpy(way->mac, fib.dmac, 6);
        __builtin_memcpy(way->mac + 3, fib.smac, 6);
        return fib.ifindex == way->ends.ifindex ? WAY_HERE : WAY_ELSEWHERE;
    case BPF_FIB_LKUP_RET_BLACKHOLE:
    case BPF_FIB_LKUP_RET_UNREACHABLE:
    case BPF_FIB_LKUP_RET_PROHIBIT:
    case BPF_FIB_LKUP_RET_NOT_FWDED:
        return WAY_ELSEWHERE;
    default:
        return WAY_UNKNOWN;
    }
}

static __always_inline __u32 way_index(__u32 far) {
    return (far * 0x9e3779b9u) >> 23; /* less than ROUTES */
}

/* From the near end to the far end. 0: nothing is said. */
static __noinline const struct way *way_of(struct xdp_md *ctx, const struct ends *ends) {
    __u32 index = way_index(ends->far[0] ^ ends->far[1] ^ ends->far[2] ^ ends->far[3]);
    struct way *way = bpf_map_lookup_elem(&ways_back, &index);
    if (!way)
        return 0;
    if (way->ends.now_s == ends->now_s + 1 && way->ends.v6 == ends->v6 && way->ends.ifindex == ends->ifindex &&
        roost_same_address((const __u8 *)way->ends.far, (const __u8 *)ends->far) &&
        roost_same_address((const __u8 *)way->ends.near, (const __u8 *)ends->near))
        return way;
    way->ends = *ends;
    way->ends.now_s++;
    way->is = way_look_up(ctx, way);
    return way;
}

static __noinline const struct way *way_back(struct xdp_md *ctx, const struct packet *p, __u64 now_ms) {
    struct ends ends = {.v6 = p->v6, .now_s = now_ms / 1000, .ifindex = p->ifindex};
    if (p->v6) {
        __builtin_memcpy(ends.near, p->key.local, 16);
        __builtin_memcpy(ends.far, p->key.client, 16);
    } else {
        __builtin_memcpy(ends.near, p->key.local + 12, 4);
        __builtin_memcpy(ends.far, p->key.client + 12, 4);
    }
    return way_of(ctx, &ends);
}

static __noinline const struct way *way_anew4(struct xdp_md *ctx, __be32 near, __be32 far, __u32 now_s) {
    struct ends ends = {.near = {near}, .far = {far}, .now_s = now_s, .ifindex = ctx->ingress_ifindex};
    return way_of(ctx, &ends);
}

/* The same over IPv4. Nearly always it is known: a look at one cache line. */
static __always_inline const struct way *way_back4(struct xdp_md *ctx, __be32 near, __be32 far, __u64 now_ms) {
    __u32 now_s = now_ms / 1000, index = way_index(far);
    const struct way *way = bpf_map_lookup_elem(&ways_back, &index);
    if (way && way->ends.now_s == now_s + 1 && !way->ends.v6 && way->ends.far[0] == far && way->ends.near[0] == near &&
        way->ends.ifindex == ctx->ingress_ifindex)
        return way;
    return way_anew4(ctx, near, far, now_s);
}

/* Turns a frame around, which goes that way, or back to where it came from. */
static __always_inline void turn(__u16 *mac, const struct way *way) {
    if (way && way->is == WAY_HERE) {
        for (int i = 0; i < 6; i++)
            mac[i] = way->mac[i];
    } else {
        for (int i = 0; i < 3; i++) {
            __u16 near = mac[i];
            mac[i] = mac[i + 3];
            mac[i + 3] = near;
        }
    }
}

/* Lets an answer go that way. `blind`: to a segment that anybody can make, so that it must not go back to who did. 0: the
 * way is not by this interface, or not known. */
static __always_inline int send_by(struct reply *r, const struct way *way, int blind) {
    __u32 is = way ? way->is : WAY_UNKNOWN;
    if (is == WAY_ELSEWHERE || (blind && is != WAY_HERE))
        return 0;
    r->routed = is == WAY_HERE;
    if (way && r->routed)
        __builtin_memcpy(r->mac, way->mac, 12);
    return 1;
}

#endif
