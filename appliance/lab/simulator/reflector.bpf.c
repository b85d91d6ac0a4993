// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * A bare XDP_TX reflector: the least that can answer the client simulator, as a yardstick for the appliance, and a
 * server with any fault that is wanted, to prove that the simulator sees it.
 *
 * It keeps nothing. A SYN becomes its SYN-ACK and a bare ACK (a keep-alive probe) its answer, by exchanging addresses,
 * ports, sequence numbers and timestamps in place. Its initial sequence number is the client's: thereby a probe, whose
 * number is one less than what it acknowledges, is known from any other ACK. It knows only the header layouts of the
 * simulator with timestamps, and clients that have said nothing yet.
 *
 * With memory, it reads and writes one cache line of each client's before it answers, as anything must that remembers
 * clients: what is left of its pace then is the machine's limit for a table of that size.
 */
#include "reflector.h"

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ebpf/lib/checksum.h"
#include "ebpf/lib/define_map.h"

char _license[] SEC("license") = "GPL";

#define SYN 2
#define ACK 16
#define SERVER_TSVAL 0x20000000u
#define ANOTHER 0x01000000u /* enough to be wrong, whichever number it is added to */

struct line {
    __u64 word[8];
};

/* clang-format off */
ROOST_DEFINE_MAP(faults, ARRAY, INDEXED(struct reflector_settings), 1, FIXED,      OWN, MAPPED)
ROOST_DEFINE_MAP(memory, ARRAY, INDEXED(struct line),               1, CONFIGURED, OWN, PLAIN)
/* clang-format on */

/* Whether the client's line says so; it always does, but the answer has to wait for it. The lines of clients that follow
 * each other lie as far apart as those of a keyed hash: one product alone would bring them back into the same pages, in
 * steps of a few pages each time round. */
static __always_inline int remembered(__u32 lines, __u32 address, __u32 port) {
    __u64 hash = ((__u64)address << 16 | port) * 0x9e3779b97f4a7c15ULL;
    hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93ULL;
    __u32 index = ((hash >> 32) * lines) >> 32;
    struct line *line = bpf_map_lookup_elem(&memory, &index);
    return line && line->word[0]++ < 1ULL << 60;
}

struct timestamps {
    __be32 layout, tsval, tsecr;
};

static __always_inline void exchange(void *a, void *b, int size) {
    __u8 kept[16];
    __builtin_memcpy(kept, a, size);
    __builtin_memmove(a, b, size);
    __builtin_memcpy(b, kept, size);
}

static __always_inline void spoil(struct tcphdr *tcp, struct timestamps *ts, __u32 fault) {
    switch (fault) {
    case REFLECTOR_SEQ:
        tcp->seq = bpf_htonl(bpf_ntohl(tcp->seq) + 1);
        break;
    case REFLECTOR_ACK:
        tcp->ack_seq = bpf_htonl(bpf_ntohl(tcp->ack_seq) + 1);
        break;
    case REFLECTOR_TSVAL:
        ts->tsval = bpf_htonl(bpf_ntohl(ts->tsval) - 1);
        break;
    case REFLECTOR_TSECR:
        ts->tsecr = bpf_htonl(bpf_ntohl(ts->tsecr) + ANOTHER);
        break;
    case REFLECTOR_ZERO_TSECR:
        ts->tsecr = 0;
        break;
    case REFLECTOR_FLAGS:
        tcp->syn = 1;
        break;
    case REFLECTOR_PORT:
        tcp->source = bpf_htons(bpf_ntohs(tcp->source) + 1);
        break;
    case REFLECTOR_NO_TIMESTAMP:
        ts->layout = bpf_htonl(0x01010101);
        ts->tsval = ts->tsecr = ts->layout;
        break;
    case REFLECTOR_RESET:
        tcp->seq = bpf_htonl(bpf_ntohl(tcp->seq) + 1);
        tcp->rst = 1;
        break;
    }
}

/* The segment, turned round. What is not changed sums up with what was there before to zero, since that was right. */
static __always_inline void turn(struct tcphdr *tcp, struct timestamps *ts, int syn, __u32 fault) {
    __u64 before = words((__u32 *)tcp, 5) + words((__u32 *)ts, 3);
    __be32 seq = tcp->seq, tsval = ts->tsval;
    exchange(&tcp->source, &tcp->dest, 2);
    tcp->seq = syn ? seq : tcp->ack_seq;
    tcp->ack_seq = bpf_htonl(bpf_ntohl(seq) + 1);
    tcp->ack = 1;
    ts->tsval = syn ? bpf_htonl(SERVER_TSVAL) : ts->tsecr;
    ts->tsecr = tsval;
    if (fault)
        spoil(tcp, ts, fault);
    tcp->check = 0;
    tcp->check = fold(words((__u32 *)tcp, 5) + words((__u32 *)ts, 3) + fold(before));
    if (fault == REFLECTOR_CHECKSUM)
        tcp->check++;
}

static __always_inline int reflect(struct xdp_md *ctx, struct tcphdr *tcp, __u32 fault) {
    void *end = (void *)(long)ctx->data_end;
    struct timestamps *ts;
    if ((void *)(tcp + 1) > end)
        return XDP_DROP;
    __u8 flags = ((__u8 *)tcp)[13];
    if (flags == SYN && tcp->doff == 10) {
        ts = (void *)(tcp + 1) + 4;
        if ((void *)(ts + 1) + 4 > end || (ts->layout & bpf_htonl(0xffff)) != bpf_htonl(0x080a))
            return XDP_DROP;
        turn(tcp, ts, 1, fault);
        return XDP_TX;
    }
    ts = (void *)(tcp + 1);
    if (flags != ACK || tcp->doff != 8 || (void *)(ts + 1) > end || ts->layout != bpf_htonl(0x0101080a) ||
        bpf_ntohl(tcp->seq) + 1 != bpf_ntohl(tcp->ack_seq))
        return XDP_DROP;
    turn(tcp, ts, 0, fault);
    return XDP_TX;
}

SEC("xdp")
int roost_reflector(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    __u32 zero = 0;
    const struct reflector_settings *settings = bpf_map_lookup_elem(&faults, &zero);
    if (!settings || (void *)(eth + 1) > end)
        return XDP_PASS;
    int verdict = XDP_PASS;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || *(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_TCP)
            return XDP_PASS;
        struct tcphdr *tcp = (void *)(ip + 1);
        if (settings->lines && ((void *)(tcp + 1) > end || !remembered(settings->lines, ip->saddr, tcp->source)))
            return XDP_DROP;
        verdict = reflect(ctx, tcp, settings->fault);
        exchange(&ip->saddr, &ip->daddr, 4);
        if (settings->fault == REFLECTOR_IP_CHECKSUM)
            ip->check++;
    } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
            return XDP_PASS;
        verdict = reflect(ctx, (void *)(ip + 1), settings->fault);
        exchange(&ip->saddr, &ip->daddr, 16);
    }
    if (verdict == XDP_TX)
        exchange(eth->h_dest, eth->h_source, 6);
    return verdict;
}
