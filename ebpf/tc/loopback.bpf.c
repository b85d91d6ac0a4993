// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * tc ingress of the loopback interface: the legs of servers that run on this machine itself.
 *
 * XDP would copy every packet of every program that talks to itself. This looks the 4-tuple up and hands what is for an
 * inactive leg to the engine, which judges it and answers keep-alives; everything else passes untouched. Packets here have
 * no checksum yet and are up to 64 KB long.
 */
#include "ebpf/lib/find.h"

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

/* A reservation has a constant size. Returns from the calling program. */
#define ROOST_HAND_OVER(size)                                                                                          \
    do {                                                                                                               \
        struct roost_frame *f = bpf_ringbuf_reserve(&ring, sizeof(*f) + (size), 0);                                    \
        if (!f) {                                                                                                      \
            count(ROOST_N_RING_FULL);                                                                                  \
            return TC_ACT_SHOT;                                                                                        \
        }                                                                                                              \
        f->key = key;                                                                                                  \
        f->ifindex = skb->ifindex;                                                                                     \
        f->queue = 0;                                                                                                  \
        f->why = ROOST_WHY_LOCAL;                                                                                      \
        f->l3 = ETH_HLEN;                                                                                              \
        f->length = length < ETH_HLEN || length > (size) || bpf_skb_load_bytes(skb, 0, f->data, length) ? 0 : length;  \
        bpf_ringbuf_submit(f, 0);                                                                                      \
        count(ROOST_N_HELD);                                                                                           \
        return TC_ACT_SHOT;                                                                                            \
    } while (0)

SEC("tc")
int roost_loopback(struct __sk_buff *skb) {
    struct roost_key key = {};
    __be16 ports[2];
    __u32 zero = 0, at = ETH_HLEN;
    int v6 = 0;
    const struct roost_config *cfg = bpf_map_lookup_elem(&config, &zero);
    if (!cfg)
        return TC_ACT_UNSPEC;
    if (skb->protocol == bpf_htons(ETH_P_IP)) {
        struct iphdr ip;
        if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
            bpf_skb_load_bytes(skb, at + ip.ihl * 4, ports, sizeof(ports)))
            return TC_ACT_UNSPEC;
        __builtin_memcpy(key.client + 12, &ip.saddr, 4);
        __builtin_memcpy(key.local + 12, &ip.daddr, 4);
        key.local[10] = key.local[11] = key.client[10] = key.client[11] = 0xff;
    } else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr ip; /* what the machine says to itself has no extension headers */
        if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP ||
            bpf_skb_load_bytes(skb, at + sizeof(ip), ports, sizeof(ports)))
            return TC_ACT_UNSPEC;
        __builtin_memcpy(key.client, &ip.saddr, 16);
        __builtin_memcpy(key.local, &ip.daddr, 16);
        v6 = 1;
    } else {
        return TC_ACT_UNSPEC;
    }
    struct found found;
    key.client_port = ports[0];
    key.local_port = ports[1];
    if (!find(cfg, &key, v6, &found))
        return TC_ACT_UNSPEC;

    __u32 length = skb->len;
    if (length <= ROOST_FRAME_SMALL)
        ROOST_HAND_OVER(ROOST_FRAME_SMALL);
    if (length <= ROOST_FRAME_MAX)
        ROOST_HAND_OVER(ROOST_FRAME_MAX);
    ROOST_HAND_OVER(ROOST_FRAME_LARGE);
}
