// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * tc ingress of the loopback interface: the legs of servers that run on this machine itself.
 *
 * XDP would copy every packet of every program that talks to itself. This looks the 4-tuple up and hands what is for an
 * inactive leg to the engine, which judges it and answers keep-alives; everything else passes untouched. Packets here leave
 * their checksums to the interface and are up to 64 KB long.
 *
 * A SYN with the mark that socket/local_connect.bpf.c gives a socket is for a client, and a door takes it.
 */
#include "ebpf/lib/ctx_skb.h"
#include "ebpf/lib/find.h"
#include "ebpf/lib/packet.h"
#include "ebpf/shared/steer.h"

#include <linux/pkt_cls.h>

char _license[] SEC("license") = "GPL";

ROOST_LOOPBACK_MAPS(ROOST_DEFINE_MAP)

/* A reservation has a constant size. Returns from the calling program. */
#define ROOST_HAND_OVER(size)                                                                                          \
    do {                                                                                                               \
        struct roost_frame *f = bpf_ringbuf_reserve(&ring, sizeof(*f) + (size), 0);                                    \
        if (!f) {                                                                                                      \
            count(ROOST_N_RING_FULL);                                                                                  \
            return TC_ACT_SHOT;                                                                                        \
        }                                                                                                              \
        f->key = p.key;                                                                                                \
        f->ifindex = skb->ifindex;                                                                                     \
        f->queue = 0;                                                                                                  \
        f->why = ROOST_WHY_LOCAL;                                                                                      \
        f->l3 = ETH_HLEN;                                                                                              \
        f->length = length < ETH_HLEN || length > (size) || bpf_skb_load_bytes(skb, 0, f->data, length) ? 0 : length;  \
        bpf_ringbuf_submit(f, 0);                                                                                      \
        count(ROOST_N_HELD);                                                                                           \
        return TC_ACT_SHOT;                                                                                            \
    } while (0)

/* Without cookies, which a door sends where its queue of half-open connections is full: here a handshake ends in the call
 * that began it. */
static __always_inline int enter(struct __sk_buff *skb, int v6) {
    __u32 door = v6 ? ROOST_DOOR_IPV6 : ROOST_DOOR_IPV4;
    struct bpf_sock *sk = bpf_map_lookup_elem(&local_doors, &door);
    if (!sk)
        return TC_ACT_SHOT; /* a listener of this machine at that port must not answer as the client */
    int error = bpf_sk_assign(skb, sk, 0);
    bpf_sk_release(sk);
    return error ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

SEC("tc")
int roost_loopback(struct __sk_buff *skb) {
    struct packet p = {};
    union header header;
    struct found found;
    __u32 zero = 0;
    const struct roost_config *cfg = bpf_map_lookup_elem(&config, &zero);
    const struct tcphdr *tcp = cfg ? parse(skb, &p, &header) : 0;
    if (!tcp || p.l3 != ETH_HLEN)
        return TC_ACT_UNSPEC;
    if (tcp->syn && !tcp->ack && (skb->mark & ROOST_MARK_MASK) == ROOST_MARK)
        return enter(skb, p.v6);
    if (!find(cfg, &p.key, p.v6, &found))
        return TC_ACT_UNSPEC;

    __u32 length = skb->len;
    if (length <= ROOST_FRAME_SMALL)
        ROOST_HAND_OVER(ROOST_FRAME_SMALL);
    if (length <= ROOST_FRAME_MAX)
        ROOST_HAND_OVER(ROOST_FRAME_MAX);
    ROOST_HAND_OVER(ROOST_FRAME_LARGE);
}
