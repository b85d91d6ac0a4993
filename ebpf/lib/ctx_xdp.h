/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a program of XDP works on, for text that it shares with tc's (ctx_skb.h): include one of the two first. */
#ifndef ROOST_CTX
#define ROOST_CTX struct xdp_md

#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_helpers.h>

/* `size` bytes at an offset, where they lie. 0: the frame ends before. */
static __always_inline const void *ctx_bytes(struct xdp_md *ctx, __u32 at, void *room, __u32 size) {
    const void *bytes = (void *)(long)ctx->data + at;
    return bytes + size > (void *)(long)ctx->data_end ? 0 : bytes;
}

/* The EtherType behind the addresses. 0: none. */
static __always_inline __be16 ctx_protocol(struct xdp_md *ctx) {
    const struct ethhdr *eth = ctx_bytes(ctx, 0, 0, sizeof(*eth));
    return eth ? eth->h_proto : 0;
}

/* Makes the frame longer by so many bytes (shorter: less than 0), for a program that writes all of it anew: at its tail, or
 * at its head where a driver has no room behind the shortest frames, as veth. Not 0: impossible, and nothing is changed. */
static __always_inline int ctx_lengthen(struct xdp_md *ctx, int more) {
    return bpf_xdp_adjust_tail(ctx, more) && (more < 0 || bpf_xdp_adjust_head(ctx, -more));
}

#endif
