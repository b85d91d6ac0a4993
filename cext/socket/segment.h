/* SPDX-License-Identifier: Apache-2.0 */
/* Packets as bytes: the checksums of what came in, and the keep-alive probes that go out. No sockets, no clocks. */
#ifndef ROOST_CEXT_SEGMENT_H
#define ROOST_CEXT_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ebpf/shared/judge.h"
#include "ebpf/shared/record.h"

/* Whether the IPv4 header checksum and the TCP checksum of a frame are right, or the latter was left to the sender's
 * interface (ebpf/lib/checksum.h); false when it is no whole TCP segment without fragmentation. l3: offset of the IP
 * header. */
bool roost_segment_checksums_good(const uint8_t *frame, size_t length, size_t l3);

/* Writes the TCP checksum of a frame that left it to the sender's interface; other frames stay as they are. */
void roost_segment_complete(uint8_t *frame, size_t length, size_t l3);

/* Writes into out, which has room for more than any headers, a frame with the payload of this one from byte `at` on, as
 * much as there is room for: a segment with numbers and checksums of its own, as TCP segmentation offload makes them.
 * *taken: bytes of payload. Returns its length; 0: not of this frame (no whole segment, or one with SYN or RST). */
size_t roost_segment_cut(const uint8_t *frame, size_t length, size_t l3, size_t at, uint8_t *out, size_t room,
                         size_t *taken);

/* The segment of a frame for roost_judge; false when it is no whole TCP segment or its options are broken. */
bool roost_segment_parse(const uint8_t *frame, size_t length, size_t l3, struct roost_segment *segment);

/* An ACK with the given sequence number, made from the record, as an IP packet; returns its length (<= 72). */
size_t roost_segment_ack(const struct roost_key *key, const struct roost_ka *ka, uint64_t now_ms, uint32_t seq,
                         uint8_t *packet);

/* A keep-alive probe (RFC 9293 3.8.4: seq = snd_nxt - 1, no payload) as an IP packet; returns its length (<= 72). */
size_t roost_segment_probe(const struct roost_key *key, const struct roost_ka *ka, uint64_t now_ms, uint8_t *packet);

/* Gives a packet of either kind that was made with a clock of 0 the clock of now, if it has timestamps at all. */
void roost_segment_stamp(uint8_t *packet, size_t length, uint64_t now_ms);

#endif
