/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The engine's way to send, by live-frame BPF_PROG_RUN: each run takes the next item of the outbox.
 * To the stack: as received by the interface that the run names (a held frame, coming home).
 * To the wire: by the routing table (a keep-alive probe made from a record).
 *
 * The engine runs the very program that is attached to its interfaces, on a frame of an experimental EtherType that
 * carries a secret. A program of its own would be tidier, but BPF_PROG_RUN with more than one repetition puts the
 * program into the kernel's XDP dispatcher and takes it out again, with two RCU grace periods (30 ms measured) each
 * time, unless it is there already because it is attached.
 */
#ifndef ROOST_OUTBOX_H
#define ROOST_OUTBOX_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "frame.h"
#include "table.h"

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, ROOST_OUTBOX_ITEMS);
    __type(key, __u32);
    __type(value, struct roost_outbox_item);
} outbox SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} cursor SEC(".maps");

/* The next item, its bytes in the frame; NULL when something does not fit. */
static __always_inline struct roost_outbox_item *next_item(struct xdp_md *ctx) {
    __u32 zero = 0;
    __u32 *at = bpf_map_lookup_elem(&cursor, &zero);
    if (!at)
        return 0;
    __u32 index = (*at)++;
    struct roost_outbox_item *item = bpf_map_lookup_elem(&outbox, &index);
    if (!item)
        return 0;
    __u32 length = item->length;
    if (length < ETH_HLEN || length > ROOST_FRAME_MAX)
        return 0;
    if (bpf_xdp_adjust_tail(ctx, (int)length - (int)bpf_xdp_get_buff_len(ctx)))
        return 0;
    if (bpf_xdp_store_bytes(ctx, 0, item->data, length))
        return 0;
    return item;
}

static __always_inline int to_stack(struct xdp_md *ctx) {
    struct roost_outbox_item *item = next_item(ctx);
    if (!item)
        return XDP_DROP;
    item->failed = 0;
    return XDP_PASS;
}

static __always_inline int to_wire(struct xdp_md *ctx) {
    struct roost_outbox_item *item = next_item(ctx);
    if (!item)
        return XDP_DROP;
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct bpf_fib_lookup fib = {.ifindex = ctx->ingress_ifindex};
    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    struct iphdr *ip = (void *)(eth + 1);
    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (ip->version == 4) {
        fib.family = AF_INET;
        fib.l4_protocol = 6;
        fib.tot_len = bpf_ntohs(ip->tot_len);
        fib.ipv4_src = ip->saddr;
        fib.ipv4_dst = ip->daddr;
        eth->h_proto = bpf_htons(ETH_P_IP);
    } else {
        struct ipv6hdr *ip6 = (void *)(eth + 1);
        if ((void *)(ip6 + 1) > end)
            return XDP_DROP;
        fib.family = AF_INET6;
        fib.l4_protocol = 6;
        fib.tot_len = bpf_ntohs(ip6->payload_len) + 40;
        __builtin_memcpy(fib.ipv6_src, &ip6->saddr, 16);
        __builtin_memcpy(fib.ipv6_dst, &ip6->daddr, 16);
        eth->h_proto = bpf_htons(ETH_P_IPV6);
    }
    /* OUTPUT: route as a host that sends, not as a router that forwards (forwarding may be off). */
    if (bpf_fib_lookup(ctx, &fib, sizeof(fib), BPF_FIB_LOOKUP_OUTPUT) != BPF_FIB_LKUP_RET_SUCCESS)
        return XDP_DROP;
    __builtin_memcpy(eth->h_dest, fib.dmac, 6);
    __builtin_memcpy(eth->h_source, fib.smac, 6);
    item->failed = 0;
    return bpf_redirect(fib.ifindex, 0);
}

/* A frame that is not IP: the engine's own, or none of our business. */
static __noinline int outbox_or_pass(struct xdp_md *ctx, const struct roost_config *cfg) {
    struct roost_errand errand;
    if (bpf_xdp_load_bytes(ctx, 0, &errand, sizeof(errand)) || errand.ethertype != bpf_htons(ROOST_ERRAND_ETHERTYPE) ||
        errand.secret[0] != cfg->secret[0] || errand.secret[1] != cfg->secret[1])
        return XDP_PASS;
    return errand.to_wire ? to_wire(ctx) : to_stack(ctx);
}

#endif
