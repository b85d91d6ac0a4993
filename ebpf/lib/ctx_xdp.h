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

#endif
