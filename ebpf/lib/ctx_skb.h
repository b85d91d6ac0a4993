/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a program of tc works on, for text that it shares with XDP's (ctx_xdp.h): include one of the two first. */
#ifndef ROOST_CTX
#define ROOST_CTX struct __sk_buff

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* `size` bytes at an offset, copied into `room`: not all of an skb need be in one piece. 0: it ends before. */
static __always_inline const void *ctx_bytes(struct __sk_buff *skb, __u32 at, void *room, __u32 size) {
    return bpf_skb_load_bytes(skb, at, room, size) ? 0 : room;
}

/* The EtherType behind the addresses: that of a tag if it is in the frame itself, and not in the skb. */
static __always_inline __be16 ctx_protocol(struct __sk_buff *skb) {
    return skb->protocol;
}

#endif
