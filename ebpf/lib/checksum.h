/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Internet checksums (RFC 1071): sums of 32-bit words as they lie in memory, folded at the end. */
#ifndef ROOST_CHECKSUM_H
#define ROOST_CHECKSUM_H

#include <linux/types.h>

#include <bpf/bpf_helpers.h>

static __always_inline __u64 words(const __be32 *at, int count) {
    __u64 sum = 0;
#pragma clang loop unroll(full)
    for (int i = 0; i < count; i++)
        sum += at[i];
    return sum;
}

/* 16 bits: 0xffff when what was summed has a right checksum in it. */
static __always_inline __u32 fold_words(__u64 sum) {
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

/* Whether a TCP checksum was left to the sender's interface (CHECKSUM_PARTIAL: veth, virtual machines, what GRO merged): its
 * field holds the sum of the pseudo-header, not complemented. The kernel, which knows, takes such a frame for whole; to
 * XDP the field alone tells. Of 65,536 damaged frames two are taken for whole thereby, and not one. */
static __always_inline int is_left_to_interface(__u16 check, __u64 pseudo) {
    return check == fold_words(pseudo);
}

/* The checksum itself: 0 when there is a right one in what was summed. */
static __always_inline __u16 fold(__u64 sum) {
    return ~fold_words(sum);
}

#endif
