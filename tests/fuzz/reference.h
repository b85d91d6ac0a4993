/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a frame is, written a second time and as plainly as can be: the programs of ebpf/ are measured against it. Whole
 * TCP segments alone; a frame that is anything else has no tuple.
 */
#ifndef ROOST_FUZZ_REFERENCE_H
#define ROOST_FUZZ_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ebpf/shared/record.h"

struct tuple {
    struct roost_key key; /* client = source */
    size_t l3, l4;        /* offsets of the headers */
    size_t l4_length;     /* as IP says, bytes; may be more than there is */
    bool v6, ip;
    bool fragment; /* the first of several */
};

static inline uint32_t get16(const uint8_t *at) {
    return (uint32_t)at[0] << 8 | at[1];
}

static inline uint32_t get32(const uint8_t *at) {
    return get16(at) << 16 | get16(at + 2);
}

static inline void put16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void put32(uint8_t *at, uint32_t value) {
    put16(at, value >> 16);
    put16(at + 2, value);
}

/* RFC 1071: the checksum of what two pieces hold together; the first of even length. 0 when a right one is in it. */
static inline uint32_t reference_sum(const uint8_t *a, size_t a_length, const uint8_t *b, size_t b_length) {
    uint64_t sum = 0;
    for (size_t i = 0; i < a_length; i += 2)
        sum += get16(a + i);
    for (size_t i = 0; i < b_length; i++)
        sum += i & 1 ? b[i] : (uint32_t)b[i] << 8;
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return ~(uint32_t)sum & 0xffff;
}

/* Of the first `count` bytes of a TCP segment of `length` bytes, with its pseudo-header; addresses: 8 or 32 bytes. */
static inline uint32_t reference_part_sum(const uint8_t *addresses, size_t size, const uint8_t *tcp, size_t length,
                                          size_t count) {
    uint8_t pseudo[40] = {0};
    memcpy(pseudo, addresses, size);
    put32(pseudo + size, (uint32_t)length);
    put32(pseudo + size + 4, 6);
    return reference_sum(pseudo, size + 8, tcp, count);
}

/* Of a whole one. */
static inline uint32_t reference_tcp_sum(const uint8_t *addresses, size_t size, const uint8_t *tcp, size_t length) {
    return reference_part_sum(addresses, size, tcp, length, length);
}

/* Whether its checksum is good, or was left to the interface of its sender: then the sum of the pseudo-header is there. */
static inline bool reference_tcp_good(const uint8_t *addresses, size_t size, const uint8_t *tcp, size_t length) {
    return !reference_tcp_sum(addresses, size, tcp, length) ||
           get16(tcp + 16) + reference_part_sum(addresses, size, tcp, length, 0) == 0xffff;
}

/* Whether the frame is a TCP segment that XDP understands, or the first fragment of one: two VLAN tags at most, and at most
 * six of the extension headers that are known (ebpf/lib/packet.h). */
static inline bool reference_tuple_of_any(const uint8_t *f, size_t length, struct tuple *t) {
    memset(t, 0, sizeof(*t));
    t->ip = true;
    if (length < 14)
        return false;
    size_t at = 14;
    uint32_t type = get16(f + 12);
    for (int tags = 0; tags < 2 && (type == 0x8100 || type == 0x88a8); tags++, at += 4) {
        if (length < at + 4)
            return false;
        type = get16(f + at + 2);
    }
    t->l3 = at;
    if (type == 0x0800) {
        if (length < at + 20 || f[at] >> 4 != 4)
            return false;
        size_t header = (size_t)(f[at] & 15) * 4, total = get16(f + at + 2);
        if (header < 20 || f[at + 9] != 6 || get16(f + at + 6) & 0x1fff || total < header + 20)
            return false;
        t->fragment = get16(f + at + 6) & 0x2000;
        t->key.client[10] = t->key.client[11] = t->key.local[10] = t->key.local[11] = 0xff;
        memcpy(t->key.client + 12, f + at + 12, 4);
        memcpy(t->key.local + 12, f + at + 16, 4);
        t->l4 = at + header;
        t->l4_length = total - header;
    } else if (type == 0x86dd) {
        if (length < at + 40 || f[at] >> 4 != 6)
            return false;
        for (size_t end = at + 8; end <= at + 24; end += 16) /* IPv4-mapped addresses are IPv4's */
            if (!memcmp(f + end, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12))
                return false;
        t->v6 = true;
        memcpy(t->key.client, f + at + 8, 16);
        memcpy(t->key.local, f + at + 24, 16);
        size_t payload = get16(f + at + 4), skipped = 0;
        uint32_t next = f[at + 6];
        for (int i = 0; i < 6 && (next == 0 || next == 43 || next == 60 || next == 44); i++) {
            if (length < at + 40 + skipped + 8)
                return false;
            const uint8_t *header = f + at + 40 + skipped;
            if (next == 44 && get16(header + 2) & 0xfff8)
                return false;
            t->fragment |= next == 44;
            skipped += next == 44 ? 8 : ((size_t)header[1] + 1) * 8;
            next = header[0];
        }
        if (next != 6 || payload < skipped + 20)
            return false;
        t->l4 = at + 40 + skipped;
        t->l4_length = payload - skipped;
    } else {
        t->ip = false;
        return false;
    }
    if (length < t->l4 + 20)
        return false;
    memcpy(&t->key.client_port, f + t->l4, 2);
    memcpy(&t->key.local_port, f + t->l4 + 2, 2);
    return true;
}

/* Whether it is a whole one. */
static inline bool reference_tuple(const uint8_t *f, size_t length, struct tuple *t) {
    return reference_tuple_of_any(f, length, t) && !t->fragment;
}

#endif
