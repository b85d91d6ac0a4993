/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The engine's way to send, by live-frame BPF_PROG_RUN.
 *
 * To the stack: each frame of a run takes the next item of the outbox, as received by the interface that the run names
 * (a held frame, coming home). It is of an experimental EtherType and carries a secret.
 *
 * To the wire, by the routing table: keep-alive probes. The engine offers as many as are due, and begins with a few frames of its
 * own. The answer to a probe, which is not needed once it was noted, becomes the next probe: a page less to be
 * allocated and one less to be freed, and no more probes are on their way than before.
 *
 * The pages of such a run come back as the last receiver left them, so nothing in a frame says what it is for: what does is where
 * it comes from, the loopback interface, and a length that is less than any packet's. That length is also what makes
 * the kernel look at the new one each time.
 *
 * The engine runs the very program that is attached to its interfaces. A program of its own would be tidier, but
 * BPF_PROG_RUN with more than one repetition puts the program into the kernel's XDP dispatcher and takes it out again,
 * with two RCU grace periods (30 ms measured) each time, unless it is there already because it is attached.
 */
#ifndef ROOST_OUTBOX_H
#define ROOST_OUTBOX_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ebpf/lib/ctx_xdp.h"
#include "ebpf/lib/socket.h"
#include "ebpf/lib/verifier.h"
#include "ebpf/shared/frame.h"
#include "ebpf/shared/stamp.h"
#include "ebpf/shared/table.h"
#include "maps.h"

/* Routes that were looked up in this second, by both ends: clients that share an address, or their NAT's, share them.
 * Each processor has its own: no locks. */
struct route {
    __be32 from[4], to[4];
    __u32 at_s; /* plus 1; 0: none yet */
    __u32 ifindex;
    __u16 mac[6]; /* as an Ethernet header has them */
};

/* The next item, its bytes in the frame, which the stack then gets. */
static __always_inline int to_stack(struct xdp_md *ctx) {
    __u32 zero = 0;
    struct roost_runs *run = bpf_map_lookup_elem(&runs, &zero);
    if (!run)
        return XDP_DROP;
    __u32 index = run->cursor++;
    struct roost_outbox_item *item = bpf_map_lookup_elem(&outbox, &index);
    if (!item)
        return XDP_DROP;
    __u32 length = item->length;
    if (length < ETH_HLEN || length > ROOST_FRAME_MAX)
        return XDP_DROP;
    if (bpf_xdp_adjust_tail(ctx, (int)length - (int)bpf_xdp_get_buff_len(ctx)))
        return XDP_DROP;
    if (bpf_xdp_store_bytes(ctx, 0, item->data, length))
        return XDP_DROP;
    item->failed = 0;
    return XDP_PASS;
}

/* The way between a route's ends by this interface. 0: there is none. */
GLOBAL int look_up_by(struct xdp_md *ctx, __u32 ifindex, int v6, struct route *route) {
    /* OUTPUT: as a host that sends, not as a router that forwards. Where forwarding is off it finds nothing even so. */
    struct bpf_fib_lookup fib = {.l4_protocol = IPPROTO_TCP, .tot_len = ROOST_PROBE_MAX, .ifindex = ifindex};
    if (!route)
        return 0;
    if (v6) {
        fib.family = FAMILY_INET6;
        __builtin_memcpy(fib.ipv6_src, route->from, 16);
        __builtin_memcpy(fib.ipv6_dst, route->to, 16);
    } else {
        fib.family = FAMILY_INET;
        fib.ipv4_src = route->from[0];
        fib.ipv4_dst = route->to[0];
    }
    if (bpf_fib_lookup(ctx, &fib, sizeof(fib), BPF_FIB_LOOKUP_OUTPUT) != BPF_FIB_LKUP_RET_SUCCESS)
        return 0;
    route->ifindex = fib.ifindex;
    __builtin_memcpy(route->mac, fib.dmac, 6);
    __builtin_memcpy(route->mac + 3, fib.smac, 6);
    return 1;
}

/* There must be one clients' interface that has a way. Should several have, which of them is right only the kernel knows,
 * when it sends by itself. */
static __noinline int look_up_route(struct xdp_md *ctx, const struct roost_runs *run, int v6, struct route *route) {
    int found = 0;
    route->at_s = 0;
    for (__u32 i = 0; i < ROOST_PROBE_INTERFACES && i < run->interfaces; i++)
        if (look_up_by(ctx, run->ifindex[i], v6, route) && found++)
            return 0;
    if (found)
        route->at_s = run->now_s + 1;
    return found;
}

static __always_inline struct route *route_of(struct xdp_md *ctx, const struct roost_runs *run, const __be32 *packet) {
    __be32 from[4] = {packet[3], 0, 0, 0}, to[4] = {packet[4], 0, 0, 0};
    int v6 = *(const __u8 *)packet >> 4 != 4;
    if (v6) {
        __builtin_memcpy(from, packet + 2, 16);
        __builtin_memcpy(to, packet + 6, 16);
    }
    __u32 index = ((to[0] ^ to[1] ^ to[2] ^ to[3]) * 0x9e3779b9u) >> 23;
    struct route *route = bpf_map_lookup_elem(&routes, &index);
    if (!route)
        return 0;
    if (route->at_s == run->now_s + 1 && roost_same_address((__u8 *)route->to, (__u8 *)to) &&
        roost_same_address((__u8 *)route->from, (__u8 *)from))
        return route;
    __builtin_memcpy(route->from, from, 16);
    __builtin_memcpy(route->to, to, 16);
    return look_up_route(ctx, run, v6, route) ? route : 0;
}

/* Words from one place to the other. */
#define COPY(to, from, first, behind)                                                                                  \
    _Pragma("clang loop unroll(full)") for (int w = first; w < behind; w++)(to)[w] = (from)[w]

/* Lets the frame be this probe. 0: there is no way for it, or no room in the frame. */
static __noinline int become(struct xdp_md *ctx, const struct roost_runs *run, const struct roost_probe *probe) {
    __u32 length = probe->length;
    const struct route *route = route_of(ctx, run, probe->packet);
    if (!route || length < 40 || length > ROOST_PROBE_MAX)
        return 0;
    int longer = ETH_HLEN + (int)length - (int)(ctx->data_end - ctx->data);
    if (longer && ctx_lengthen(ctx, longer))
        return 0;
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    __u16 *mac = data;
    __be32 *packet = (void *)(eth + 1);
    if ((void *)(packet + 10) > end)
        return 0;
    COPY(mac, route->mac, 0, 6);
    eth->h_proto = *(const __u8 *)probe->packet >> 4 == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
    COPY(packet, probe->packet, 0, 10);
    if ((void *)(packet + 13) <= end)
        COPY(packet, probe->packet, 10, 13);
    if ((void *)(packet + 15) <= end)
        COPY(packet, probe->packet, 13, 15);
    if ((void *)(packet + 18) <= end)
        COPY(packet, probe->packet, 15, 18);
    if (length == 52 && (void *)(packet + 13) <= end)
        roost_probe_stamp(packet + 5, (__u32)coarse_ms());
    else if (length == 72 && (void *)(packet + 18) <= end)
        roost_probe_stamp(packet + 10, (__u32)coarse_ms());
    return route->ifindex;
}

/* The frame becomes the next probe, if one is offered. */
static __always_inline int become_next(struct xdp_md *ctx, struct roost_runs *run) {
    __u32 count = *(volatile __u32 *)&run->count;
    if (*(volatile __u32 *)&run->next >= count)
        return XDP_DROP;
    __u32 index = __sync_fetch_and_add(&run->next, 1);
    if (index >= count)
        return XDP_DROP;
    struct roost_probe *probe = bpf_map_lookup_elem(&probes, &index);
    if (!probe || __sync_val_compare_and_swap(&probe->state, ROOST_PROBE_WAITS, ROOST_PROBE_TAKEN))
        return XDP_DROP;
    __u32 ifindex = become(ctx, run, probe);
    if (!ifindex) {
        *(volatile __u32 *)&probe->state = ROOST_PROBE_NO_WAY;
        return XDP_DROP;
    }
    return ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(ifindex, 0);
}

/* A frame of the engine's own, or an answer that was noted and is needed no more. */
static __always_inline int next_probe(struct xdp_md *ctx) {
    __u32 zero = 0;
    struct roost_runs *run = bpf_map_lookup_elem(&runs, &zero);
    return run ? become_next(ctx, run) : XDP_DROP;
}

/* A frame that has no TCP segment in it: the engine's own, or the stack's. */
static __noinline int outbox_or_pass(struct xdp_md *ctx, const struct roost_config *cfg, int not_ip) {
    struct roost_errand errand;
    if (ctx->ingress_ifindex == ROOST_PROBE_IFINDEX && ctx->data_end - ctx->data == ROOST_PROBE_FRAME)
        return next_probe(ctx);
    if (!not_ip)
        return XDP_PASS;
    if (bpf_xdp_load_bytes(ctx, 0, &errand, sizeof(errand)) || errand.ethertype != bpf_htons(ROOST_ERRAND_ETHERTYPE) ||
        errand.secret[0] != cfg->secret[0] || errand.secret[1] != cfg->secret[1])
        return XDP_PASS;
    return to_stack(ctx);
}

#endif
