// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * tc egress: no RST of the kernel's own leaves for a connection in the table.
 *
 * Such an RST means that a packet of a sleeping connection reached the stack: a reassembled fragment, a packet that
 * passed XDP just before the mark. The kernel takes the RST's sequence number from the packet's acknowledgement
 * (RFC 9293 3.10.7.1), so if it is exactly our snd_nxt, the packet came from somebody who sees the connection: wake it,
 * and the retransmission finds a socket.
 *
 * Nor does one leave for a connection that is perhaps asleep without a slot: the engine puts it back into the table, where
 * the retransmission is judged. An RST that answers a packet of nobody has either no ACK or the sequence number 0; what a
 * socket of ours sends when it is closed has both (one of somebody who is taken for a sleeper must go out).
 */
#include "ebpf/lib/perhaps.h"

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

/* Tells the engine; the frame itself was the stack's. */
static __noinline int tell(const struct roost_key *key, __u32 why) {
    struct roost_frame *f = bpf_ringbuf_reserve(&ring, sizeof(*f), 0);
    if (!f) {
        count(ROOST_N_RING_FULL);
        return 0;
    }
    __builtin_memset(f, 0, sizeof(*f));
    f->key = *key;
    f->why = why;
    bpf_ringbuf_submit(f, 0);
    return 1;
}

SEC("tc")
int roost_guard(struct __sk_buff *skb) {
    struct roost_key key = {};
    struct tcphdr tcp;
    __u32 zero = 0, l3 = ETH_HLEN;
    __be16 proto = skb->protocol;
    int v6 = 0;

    if (proto == bpf_htons(ETH_P_8021Q)) { /* a tag in the frame itself, not in the skb */
        if (bpf_skb_load_bytes(skb, 16, &proto, sizeof(proto)))
            return TC_ACT_OK;
        l3 += 4;
    }
    if (proto == bpf_htons(ETH_P_IP)) {
        struct iphdr ip;
        if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
            bpf_skb_load_bytes(skb, l3 + ip.ihl * 4, &tcp, sizeof(tcp)) || !tcp.rst)
            return TC_ACT_OK;
        __builtin_memcpy(key.local + 12, &ip.saddr, 4);
        __builtin_memcpy(key.client + 12, &ip.daddr, 4);
        key.local[10] = key.local[11] = key.client[10] = key.client[11] = 0xff;
    } else if (proto == bpf_htons(ETH_P_IPV6)) { /* the kernel's own RSTs carry no extension headers */
        struct ipv6hdr ip;
        if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP ||
            bpf_skb_load_bytes(skb, l3 + sizeof(ip), &tcp, sizeof(tcp)) || !tcp.rst)
            return TC_ACT_OK;
        v6 = 1;
        __builtin_memcpy(key.local, &ip.saddr, 16);
        __builtin_memcpy(key.client, &ip.daddr, 16);
    } else {
        return TC_ACT_OK;
    }
    key.local_port = tcp.source;
    key.client_port = tcp.dest;

    const struct roost_config *cfg = bpf_map_lookup_elem(&config, &zero);
    if (!cfg)
        return TC_ACT_OK;
    struct found found = {};
    if (!find(cfg, &key, v6, &found)) {
        if ((tcp.ack && tcp.seq) || perhaps_asleep(&found, key.local_port) == PERHAPS_NOT)
            return TC_ACT_OK;
        count(ROOST_N_RST_GUARDED);
        tell(&key, ROOST_WHY_PERHAPS);
        return TC_ACT_SHOT;
    }
    struct roost_ka *slot = found.slot;

    count(ROOST_N_RST_GUARDED);
    __u32 phase = ROOST_PHASE(slot->ctl);
    if ((phase == ROOST_IDLE || phase == ROOST_SLEEP) && bpf_ntohl(tcp.seq) == slot->snd_nxt &&
        tell(&key, ROOST_WHY_GUARD))
        count(ROOST_N_GUARD_WOKEN);
    return TC_ACT_SHOT;
}
