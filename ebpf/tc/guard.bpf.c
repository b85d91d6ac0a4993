// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * tc egress: no RST of the kernel's own leaves for a connection in the table.
 *
 * Such an RST means that a packet of a sleeping connection reached the stack: a reassembled fragment, a packet that
 * passed XDP just before the mark. The kernel takes the RST's sequence number from the packet's acknowledgement
 * (RFC 9293 3.10.7.1), so if it is exactly our snd_nxt, its sender sees the connection: wake it,
 * and the retransmission finds a socket.
 *
 * Nor does one leave for a candidate of the filter: where the number is right, the engine puts its connection back into the
 * table, and the retransmission is judged there. An RST that the stack sends without a socket has either no ACK or the sequence number 0; a
 * socket's own has both, and goes out (the key may be a false positive).
 */
#include "ebpf/lib/ctx_skb.h"
#include "ebpf/lib/packet.h"
#include "ebpf/lib/candidate.h"
#include "ebpf/lib/report.h"

#include <linux/pkt_cls.h>

char _license[] SEC("license") = "GPL";

SEC("tc")
int roost_guard(struct __sk_buff *skb) {
    struct packet p = {};
    union header header;
    __u32 zero = 0;
    const struct tcphdr *tcp = parse(skb, &p, &header);
    if (!tcp || !tcp->rst)
        return TC_ACT_OK;
    /* What is the source here is the destination of the packets that it is about. */
    struct roost_key key = {.client_port = p.key.local_port, .local_port = p.key.client_port};
    __builtin_memcpy(key.client, p.key.local, 16);
    __builtin_memcpy(key.local, p.key.client, 16);

    const struct roost_config *cfg = bpf_map_lookup_elem(&config, &zero);
    if (!cfg)
        return TC_ACT_OK;
    struct found found = {};
    if (!find(cfg, &key, p.v6, &found)) {
        if ((tcp->ack && tcp->seq) || filter_says(&found, key.local_port) == NO_CANDIDATE)
            return TC_ACT_OK;
        count(ROOST_N_RST_GUARDED);
        report(&key, bpf_ntohl(tcp->seq), ROOST_WHY_CANDIDATE);
        return TC_ACT_SHOT;
    }
    struct roost_ka *slot = found.slot;

    count(ROOST_N_RST_GUARDED);
    __u32 phase = ROOST_PHASE(slot->ctl);
    if ((phase == ROOST_IDLE || phase == ROOST_SLEEP) && bpf_ntohl(tcp->seq) == slot->snd_nxt &&
        report(&key, slot->snd_nxt, ROOST_WHY_GUARD))
        count(ROOST_N_GUARD_WOKEN);
    return TC_ACT_SHOT;
}
