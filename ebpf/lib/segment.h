/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* From a packet that XDP has parsed to a segment for the judge: the TCP header's numbers, timestamps, checksums. */
#ifndef ROOST_SEGMENT_H
#define ROOST_SEGMENT_H

#include "checksum.h"
#include "ctx_xdp.h"
#include "verifier.h"
#include "ebpf/shared/judge.h"
#include "packet.h"

/* Sum of the pseudo-header (RFC 9293 3.1, RFC 8200 8.1). Direction does not matter to it. IPv4-mapped prefixes are
 * left out. */
static __noinline __s64 pseudo_sum(const struct roost_key *key, int v6, __u32 l4_length) {
    __be32 tail[2] = {bpf_htonl(l4_length), bpf_htonl(IPPROTO_TCP)};
    __s64 sum = bpf_csum_diff(0, 0, tail, sizeof(tail), 0);
    if (v6)
        return bpf_csum_diff(0, 0, (__be32 *)key, 32, sum);
    __be32 address[2];
    __builtin_memcpy(&address[0], key->client + 12, 4);
    __builtin_memcpy(&address[1], key->local + 12, 4);
    return bpf_csum_diff(0, 0, address, sizeof(address), sum);
}

struct option_walk {
    __u8 buffer[64] __attribute__((aligned(8)));
    __u32 at, header;
    __u32 tsval, tsecr;
    __u8 has_ts;
};

/* One TCP option (RFC 9293 3.1) in search of the timestamps; a callback of bpf_loop: 1 ends the walk. */
static long next_option(__u32 i, struct option_walk *walk) {
    __u32 at = walk->at;
    if (at + 10 > walk->header)
        return 1;
    KEEP(at);
    if (at > 50)
        return 1;
    const __u8 *option = &walk->buffer[at];
    if (option[0] == 0)
        return 1;
    if (option[0] == 1) {
        walk->at = at + 1;
        return 0;
    }
    if (option[1] < 2)
        return 1;
    if (option[0] == 8 && option[1] == 10) {
        walk->tsval = (__u32)option[2] << 24 | (__u32)option[3] << 16 | (__u32)option[4] << 8 | option[5];
        walk->tsecr = (__u32)option[6] << 24 | (__u32)option[7] << 16 | (__u32)option[8] << 8 | option[9];
        walk->has_ts = 1;
        return 1;
    }
    walk->at = at + option[1];
    return 0;
}

/* Whether the IPv4 header sums to zero; IPv6 has no checksum. buffer: 64 bytes for its use, all zero. */
static __always_inline int header_good(struct xdp_md *ctx, const struct packet *p, __u8 *buffer) {
    __u32 size = p->l4 - p->l3;
    if (p->v6)
        return 1;
    KEEP(size);
    if (size < sizeof(struct iphdr))
        return 0;
    KEEP(size);
    if (size > 60 || bpf_xdp_load_bytes(ctx, p->l3, buffer, size))
        return 0;
    return !fold(bpf_csum_diff(0, 0, (__be32 *)buffer, 64, 0));
}

struct sum_walk {
    struct xdp_md *ctx;
    __u32 at, left;
    __s64 sum;
};

/* The next 64 bytes of a segment, or what is left of it; a callback of bpf_loop: 1 ends the walk. */
static long sum_next(__u32 i, struct sum_walk *walk) {
    __be32 piece[16] = {};
    __u32 last = (walk->left < sizeof(piece) ? walk->left : sizeof(piece)) - 1; /* byte; none: of nothing */
    KEEP(last);
    __u32 size = last + 1; /* not 0, as the verifier of 6.1 sees by `last` alone */
    if (last >= sizeof(piece) || bpf_xdp_load_bytes(walk->ctx, walk->at, piece, size))
        return 1;
    walk->sum = bpf_csum_diff(0, 0, piece, sizeof(piece), walk->sum);
    walk->at += size;
    walk->left -= size;
    return 0;
}

/* Whether all of a segment is there, and its checksum right. */
GLOBAL int sums_up(struct xdp_md *ctx, const struct packet *p) {
    __u16 check;
    if (!p || bpf_xdp_load_bytes(ctx, p->l4 + __builtin_offsetof(struct tcphdr, check), &check, sizeof(check)))
        return 0;
    __s64 pseudo = pseudo_sum(&p->key, p->v6, p->l4_length);
    struct sum_walk walk = {ctx, p->l4, p->l4_length, pseudo};
    bpf_loop((1 << 16) / 64, sum_next, &walk, 0);
    return !walk.left && (!fold(walk.sum) || is_left_to_interface(check, pseudo));
}

/* The segment, or what the first of its fragments has of it: 1 good, 0 malformed (truncated, impossible header length),
 * -1 bad checksum. Only what is short enough to be answered from the record, and whole, is summed here; sums_up()
 * tells of the rest. */
GLOBAL int read_segment(struct xdp_md *ctx, const struct packet *p, struct roost_segment *s) {
    struct option_walk walk = {}; /* its buffer is all that the stack has room for */
    __u32 frame = bpf_xdp_get_buff_len(ctx);
    if (!p || !s || p->l4 + p->l4_length > frame || p->l4 > 512)
        return 0;
    int good = header_good(ctx, p, walk.buffer);
    __builtin_memset(walk.buffer, 0, sizeof(walk.buffer));
    __u32 size = p->l4_length > 61 ? 61 : p->l4_length;
    KEEP(size);
    if (size < sizeof(struct tcphdr))
        return 0;
    KEEP(size);
    if (size > 61 || bpf_xdp_load_bytes(ctx, p->l4, walk.buffer, size))
        return 0;
    struct tcphdr *tcp = (void *)walk.buffer;
    walk.header = tcp->doff * 4;
    if (walk.header < sizeof(*tcp) || walk.header > p->l4_length)
        return 0;
    s->seq = bpf_ntohl(tcp->seq);
    s->ack = bpf_ntohl(tcp->ack_seq);
    s->payload = p->l4_length - walk.header;
    s->window = bpf_ntohs(tcp->window);
    s->flags = walk.buffer[13];
    if (!good)
        return -1;
    if (p->l4_length <= 61 && !p->fragment) {
        __s64 pseudo = pseudo_sum(&p->key, p->v6, p->l4_length);
        __s64 sum = bpf_csum_diff(0, 0, (__be32 *)walk.buffer, sizeof(walk.buffer), pseudo);
        if (fold(sum) && !is_left_to_interface(tcp->check, pseudo))
            return -1;
    }
    __u32 at = sizeof(*tcp);
    if (walk.header >= 32 && *(__be32 *)(walk.buffer + 20) == bpf_htonl(0x0101080a)) /* RFC 7323 appendix A */
        at += 2;
    FORGET(at, frame);
    walk.at = at;
    bpf_loop(40, next_option, &walk, 0);
    s->tsval = walk.tsval;
    s->tsecr = walk.tsecr;
    s->has_ts = walk.has_ts;
    return 1;
}

#endif
