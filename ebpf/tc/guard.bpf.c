// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * tc egress: no RST of the kernel's own leaves for a connection in the table.
 *
 * Such an RST means that a packet of a sleeping connection reached the stack: a reassembled fragment, a packet that
 * passed XDP just before the mark. The kernel takes the RST's sequence number from the packet's acknowledgement
 * (RFC 9293 3.10.7.1), and nothing in it tells of the packet's own: it proves too little to wake.
 *
 * Nor does one leave for a candidate of the filter: where the number is right, the engine puts its connection back into the
 * table, and what comes next is judged there. An RST that the stack sends without a socket has either no ACK or the sequence number 0; a
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
    count(ROOST_N_RST_GUARDED);
    return TC_ACT_SHOT;
}
