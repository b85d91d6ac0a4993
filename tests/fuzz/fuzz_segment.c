// SPDX-License-Identifier: Apache-2.0
/*
 * cext/socket/segment.c: frames as strangers made them, and the engine's own packets. The claims:
 *
 *     nothing is read outside the frame, whatever it says of its own lengths
 *     what is parsed lies within the frame; checksums are good exactly where a plain second calculation says so
 *     a frame whose checksum was left to an interface is given one, and other frames stay as they are
 *     a packet made from a record reads as what it was made from
 */
#include "cext/base/address.h"
#include "cext/socket/segment.h"

#include "input.h"
#include "reference.h"
#include "world.h"

static void foreign(const uint8_t *bytes, size_t length, size_t l3) {
    struct roost_segment s;
    uint8_t *frame = malloc(length ? length : 1), *summed = malloc(length ? length : 1);
    claim(frame && summed, "no memory");
    memcpy(frame, bytes, length);
    memcpy(summed, bytes, length);
    bool whole = roost_segment_parse(frame, length, l3, &s), good = roost_segment_checksums_good(frame, length, l3);
    claim(!whole || length >= l3 + 40 + s.payload, "a segment that is longer than its frame");

    struct tuple t;
    if (l3 >= 14 && reference_tuple(frame, length, &t) && t.l3 == l3 && t.l4 + t.l4_length <= length) {
        const uint8_t *ip = frame + l3, *tcp = frame + t.l4;
        bool header = t.v6 || !reference_sum(ip, t.l4 - l3, NULL, 0);
        const uint8_t *addresses = ip + (t.v6 ? 8 : 12);
        size_t size = t.v6 ? 32 : 8;
        bool sum = reference_tcp_good(addresses, size, tcp, t.l4_length);
        claim(good == (header && sum), "the checksums are %s", good ? "bad" : "good");
        size_t options = (size_t)(tcp[12] >> 4) * 4;
        claim(whole == (options >= 20 && options <= t.l4_length), "a segment was %staken", whole ? "" : "not ");
        if (whole)
            claim(s.seq == get32(tcp + 4) && s.ack == get32(tcp + 8) && s.flags == tcp[13] &&
                      s.payload == t.l4_length - options,
                  "a segment was read wrongly");
        roost_segment_complete(summed, length, l3);
        claim(sum == !reference_tcp_sum(addresses, size, summed + t.l4, t.l4_length), "the checksum is %s",
              sum ? "bad still" : "good now");
        claim(sum || !memcmp(summed, frame, length), "a bad checksum was changed");
    }
    roost_segment_complete(summed, length, l3);
    size_t changed = 0;
    while (changed < length && summed[changed] == frame[changed])
        changed++;
    for (size_t i = changed + 2; i < length; i++)
        claim(summed[i] == frame[i], "more than a checksum was written");
    free(frame);
    free(summed);
}

/* What a frame is cut into says what it says, in order, and is good whatever the frame's checksums were. */
static void pieces(const uint8_t *frame, size_t length, size_t l3) {
    struct roost_segment s, part;
    uint8_t out[400]; /* some headers alone are longer: such a frame is not cut */
    size_t taken;
    if (!roost_segment_parse(frame, length, l3, &s))
        return;
    for (size_t at = 0; at < s.payload; at += taken) {
        size_t size = roost_segment_cut(frame, length, l3, at, out, sizeof(out), &taken);
        if (!size)
            return;
        claim(!(s.flags & (ROOST_SYN | ROOST_RST)), "a segment was cut that ends or begins a connection");
        claim(size <= sizeof(out) && roost_segment_parse(out, size, l3, &part) &&
                  roost_segment_checksums_good(out, size, l3),
              "a piece that is no good segment");
        claim(taken && part.payload == taken && part.seq == s.seq + (uint32_t)at && part.ack == s.ack &&
                  part.tsval == s.tsval && part.has_ts == s.has_ts,
              "a piece with other numbers");
        claim(!memcmp(out + size - taken, frame + size - taken + at, taken), "a piece with other bytes");
        claim((part.flags & ROOST_FIN) == (at + taken == s.payload ? s.flags & ROOST_FIN : 0),
              "a piece that ends the stream, or does not");
    }
}

static void own(struct input *in) {
    struct roost_ka ka = {.ctl = ROOST_IDLE | take(in, 1) << 16 | take(in, 1) << 24,
                          .snd_nxt = take(in, 4),
                          .rcv_nxt = take(in, 4),
                          .ts_offset = take(in, 4),
                          .ts_recent = take(in, 4),
                          .window = (uint16_t)take(in, 2)};
    uint32_t seq = take(in, 4);
    uint64_t now_ms = take(in, 4);
    bool v4 = take(in, 1) & 1, probe = take(in, 1) & 1;
    struct roost_key key = {.client_port = (uint16_t)take(in, 2), .local_port = (uint16_t)take(in, 2)};
    size_t got;
    const uint8_t *from = take_bytes(in, 32, &got);
    memcpy(&key, from, got);
    if (v4) {
        memset(key.client, 0, 12);
        memset(key.local, 0, 12);
        key.client[10] = key.client[11] = key.local[10] = key.local[11] = 0xff;
    }
    if (roost_address_is_v4(key.client) != roost_address_is_v4(key.local)) /* no connection has such a key */
        return;
    uint8_t *packet = malloc(72), frame[14 + 72] = {[12] = 0x08};
    claim(packet != NULL, "no memory");
    size_t length =
        probe ? roost_segment_probe(&key, &ka, now_ms, packet) : roost_segment_ack(&key, &ka, now_ms, seq, packet);
    claim(length <= 72, "a packet of %zu bytes", length);
    v4 = roost_key_is_v4(&key);
    put16(frame + 12, v4 ? 0x0800 : 0x86dd);
    memcpy(frame + 14, packet, length);
    free(packet);

    struct tuple t;
    struct roost_segment s;
    claim(reference_tuple(frame, 14 + length, &t), "a packet that is no TCP segment");
    claim(!memcmp(t.key.client, key.local, 16) && !memcmp(t.key.local, key.client, 16) &&
              t.key.client_port == key.local_port && t.key.local_port == key.client_port,
          "a packet with other addresses or ports");
    claim(roost_segment_checksums_good(frame, 14 + length, 14), "a packet with bad checksums");
    claim(roost_segment_parse(frame, 14 + length, 14, &s), "a packet that the engine would not read");
    claim(s.seq == (probe ? ka.snd_nxt - 1 : seq) && s.ack == ka.rcv_nxt && s.flags == ROOST_ACK && !s.payload,
          "a packet with other numbers");
    claim(s.has_ts == !!(ROOST_FLAGS(ka.ctl) & ROOST_F_TIMESTAMPS), "timestamps that were not negotiated, or none");
    claim(!s.has_ts || s.tsval == (uint32_t)now_ms + ka.ts_offset, "a packet with another clock");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t frame[FRAME_MAX];
    static struct world world;
    struct input in = {data, data + size};
    size_t got, l3;
    switch (take(&in, 1) % 3) {
    case 0:
        l3 = take(&in, 1);
        const uint8_t *raw = take_bytes(&in, size, &got);
        foreign(raw, got, l3);
        pieces(raw, got, l3);
        break;
    case 1:
        world_fill(&world, true);
        got = world_frame(&world, &in, frame);
        l3 = get16(frame + 12) == 0x8100 || get16(frame + 12) == 0x88a8 ? 18 : 14;
        foreign(frame, got, l3);
        pieces(frame, got, l3);
        break;
    case 2:
        own(&in);
        break;
    }
    return 0;
}
