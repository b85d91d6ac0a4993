/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The clock of a probe (struct roost_probe), put in when it is sent: by XDP, or by the engine where it sends by itself.
 * In an offer a probe may have waited while its connection was answered with a later TSval, and none may be older than
 * one before it (RFC 7323 5.3).
 */
#ifndef ROOST_STAMP_H
#define ROOST_STAMP_H

#include <linux/types.h>

#include <bpf/bpf_endian.h>

/* Adds now_ms to the TSval of a packet with timestamps, and brings the checksum up to date (RFC 1624, eqn. 3). tcp:
 * the TCP header, to be followed by the options' 12 bytes. The engine includes this, and not ebpf/lib/checksum.h. */
static inline __attribute__((always_inline)) void roost_probe_stamp(__be32 *tcp, __u32 now_ms) {
    __be32 old = tcp[6], stamped = bpf_htonl(bpf_ntohl(old) + now_ms);
    __u16 check[2]; /* and the urgent pointer */
    __builtin_memcpy(check, tcp + 4, sizeof(check));
    __u64 sum = (__u64)(__u16)~check[0] + (__u32)~old + stamped;
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    check[0] = (__u16) ~((sum & 0xffff) + (sum >> 16));
    __builtin_memcpy(tcp + 4, check, sizeof(check));
    tcp[6] = stamped;
}

#endif
