// SPDX-License-Identifier: Apache-2.0
#include "segment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "ebpf/shared/stamp.h"
#include "cext/table/table.h"

#define TCP_HEADER 20
#define TCP_PUSH 8
#define STAMPED_TCP_HEADER 32

/* RFC 1071, in whichever order the processor has its bytes: the folded sum is right as it lies in memory. An odd last byte
 * counts as the first one of a word. */
static uint64_t sum_words(const uint8_t *data, size_t length, uint64_t sum) {
    uint32_t word;
    for (; length >= 4; data += 4, length -= 4) {
        memcpy(&word, data, 4);
        sum += word;
    }
    word = 0;
    memcpy(&word, data, length);
    return sum + word;
}

/* The complement of the sum, as it goes on the wire. */
static uint16_t fold(uint64_t sum) {
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* Where the TCP segment of a frame lies. */
struct span {
    const uint8_t *ip, *tcp;
    size_t length; /* TCP header and payload */
    bool v4;
};

static bool locate(const uint8_t *frame, size_t length, size_t l3, struct span *s) {
    if (length < l3 + 20)
        return false;
    const uint8_t *ip = frame + l3;
    size_t rest = length - l3;
    s->ip = ip;
    s->v4 = ip[0] >> 4 == 4;
    if (s->v4) {
        size_t header = (size_t)(ip[0] & 15) * 4, total = (size_t)ip[2] << 8 | ip[3];
        if (header < 20 || total < header + TCP_HEADER || total > rest || ip[9] != IPPROTO_TCP || (ip[6] & 0x3f) ||
            ip[7])
            return false;
        s->tcp = ip + header;
        s->length = total - header;
        return true;
    }
    if (ip[0] >> 4 != 6 || rest < 40)
        return false;
    size_t end = 40 + ((size_t)ip[4] << 8 | ip[5]), at = 40;
    uint8_t next = ip[6];
    while (next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS) {
        if (at + 8 > rest)
            return false;
        next = ip[at];
        at += ((size_t)ip[at + 1] + 1) * 8;
    }
    if (next != IPPROTO_TCP || end > rest || at + TCP_HEADER > end)
        return false;
    s->tcp = ip + at;
    s->length = end - at;
    return true;
}

static uint64_t pseudo_sum(const struct span *s) {
    uint64_t sum = (uint64_t)htonl(IPPROTO_TCP) + htonl((uint32_t)s->length);
    return s->v4 ? sum_words(s->ip + 12, 8, sum) : sum_words(s->ip + 8, 32, sum);
}

/* As is_left_to_interface() of ebpf/lib/checksum.h says. */
static bool is_left_to_interface(const struct span *s) {
    uint16_t check;
    memcpy(&check, s->tcp + 16, sizeof(check));
    return check + fold(pseudo_sum(s)) == 0xffff;
}

bool roost_segment_checksums_good(const uint8_t *frame, size_t length, size_t l3) {
    struct span s;
    if (!locate(frame, length, l3, &s) || (s.v4 && fold(sum_words(s.ip, (size_t)(s.tcp - s.ip), 0))))
        return false;
    return is_left_to_interface(&s) || !fold(sum_words(s.tcp, s.length, pseudo_sum(&s)));
}

void roost_segment_complete(uint8_t *frame, size_t length, size_t l3) {
    struct span s;
    if (!locate(frame, length, l3, &s) || !is_left_to_interface(&s))
        return;
    uint16_t sum = fold(sum_words(s.tcp, s.length, 0)); /* the pseudo-header's is in it */
    memcpy(frame + (s.tcp - frame) + 16, &sum, sizeof(sum));
}

static uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

bool roost_segment_parse(const uint8_t *frame, size_t length, size_t l3, struct roost_segment *segment) {
    struct span s;
    if (!locate(frame, length, l3, &s))
        return false;
    size_t header = (size_t)(s.tcp[12] >> 4) * 4;
    if (header < TCP_HEADER || header > s.length)
        return false;
    memset(segment, 0, sizeof(*segment));
    segment->seq = get32(s.tcp + 4);
    segment->ack = get32(s.tcp + 8);
    segment->flags = s.tcp[13];
    segment->payload = (uint32_t)(s.length - header);
    for (size_t at = TCP_HEADER; at < header;) {
        if (s.tcp[at] == 0)
            break;
        if (s.tcp[at] == 1) {
            at++;
            continue;
        }
        if (at + 1 >= header || s.tcp[at + 1] < 2 || at + s.tcp[at + 1] > header)
            break;
        if (s.tcp[at] == 8 && s.tcp[at + 1] == 10) {
            segment->tsval = get32(s.tcp + at + 2);
            segment->has_ts = 1;
            break;
        }
        at += s.tcp[at + 1];
    }
    return true;
}

static void put32(uint8_t *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static void put16(uint8_t *at, size_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

size_t roost_segment_cut(const uint8_t *frame, size_t length, size_t l3, size_t at, uint8_t *out, size_t room,
                         size_t *taken) {
    struct roost_segment whole;
    struct span s;
    if (!roost_segment_parse(frame, length, l3, &whole) || whole.flags & (ROOST_SYN | ROOST_RST) ||
        at > whole.payload || !locate(frame, length, l3, &s))
        return 0;
    size_t headers = (size_t)(s.tcp - frame) + s.length - whole.payload;
    if (headers >= room)
        return 0;
    size_t left = whole.payload - at, urgent = (size_t)s.tcp[18] << 8 | s.tcp[19];
    *taken = left < room - headers ? left : room - headers;
    memcpy(out, frame, headers);
    memcpy(out + headers, frame + headers + at, *taken);

    uint8_t *ip = out + l3, *tcp = out + (s.tcp - frame);
    put32(tcp + 4, whole.seq + (uint32_t)at);
    if (*taken < left)
        tcp[13] &= (uint8_t) ~(ROOST_FIN | TCP_PUSH);
    if (urgent <= at)
        tcp[13] &= (uint8_t)~ROOST_URG;
    else
        put16(tcp + 18, urgent - at);
    put16(ip + (s.v4 ? 2 : 4), headers + *taken - l3 - (s.v4 ? 0 : 40));
    if (s.v4) {
        memset(ip + 10, 0, 2);
        uint16_t check = fold(sum_words(ip, (size_t)(tcp - ip), 0));
        memcpy(ip + 10, &check, 2);
    }
    struct span cut = {.ip = ip, .tcp = tcp, .length = s.length - whole.payload + *taken, .v4 = s.v4};
    memset(tcp + 16, 0, 2);
    uint16_t check = fold(sum_words(tcp, cut.length, pseudo_sum(&cut)));
    memcpy(tcp + 16, &check, 2);
    return headers + *taken;
}

size_t roost_segment_probe(const struct roost_key *key, const struct roost_ka *ka, uint64_t now_ms, uint8_t *packet) {
    return roost_segment_ack(key, ka, now_ms, ka->snd_nxt - 1, packet);
}

size_t roost_segment_ack(const struct roost_key *key, const struct roost_ka *ka, uint64_t now_ms, uint32_t seq,
                         uint8_t *packet) {
    bool v4 = roost_key_is_v4(key);
    size_t header = v4 ? 20 : 40,
           tcp_length = ROOST_FLAGS(ka->ctl) & ROOST_F_TIMESTAMPS ? STAMPED_TCP_HEADER : TCP_HEADER;
    uint8_t *tcp = packet + header;
    memset(packet, 0, header + tcp_length);

    memcpy(tcp, &key->local_port, 2);
    memcpy(tcp + 2, &key->client_port, 2);
    put32(tcp + 4, seq);
    put32(tcp + 8, ka->rcv_nxt);
    tcp[12] = (uint8_t)(tcp_length / 4 << 4);
    tcp[13] = 0x10; /* ACK */
    tcp[14] = (uint8_t)(ka->window >> 8);
    tcp[15] = (uint8_t)ka->window;
    if (tcp_length > TCP_HEADER) {
        put32(tcp + 20, 0x0101080a);
        put32(tcp + 24, (uint32_t)now_ms + ka->ts_offset);
        put32(tcp + 28, ka->ts_recent);
    }
    if (v4) {
        packet[0] = 0x45;
        packet[3] = (uint8_t)(header + tcp_length);
        packet[6] = 0x40; /* DF */
        packet[8] = 64;
        packet[9] = IPPROTO_TCP;
        memcpy(packet + 12, key->local + 12, 4);
        memcpy(packet + 16, key->client + 12, 4);
        uint16_t check = fold(sum_words(packet, header, 0));
        memcpy(packet + 10, &check, 2);
    } else {
        packet[0] = 0x60;
        packet[5] = (uint8_t)tcp_length;
        packet[6] = IPPROTO_TCP;
        packet[7] = 64;
        memcpy(packet + 8, key->local, 16);
        memcpy(packet + 24, key->client, 16);
    }
    struct span span = {.ip = packet, .tcp = tcp, .length = tcp_length, .v4 = v4};
    uint16_t check = fold(sum_words(tcp, tcp_length, pseudo_sum(&span)));
    memcpy(tcp + 16, &check, 2);
    return header + tcp_length;
}

void roost_segment_stamp(uint8_t *packet, size_t length, uint64_t now_ms) {
    size_t header = packet[0] >> 4 == 4 ? 20 : 40;
    __be32 tcp[STAMPED_TCP_HEADER / 4];
    if (length != header + sizeof(tcp))
        return;
    memcpy(tcp, packet + header, sizeof(tcp));
    roost_probe_stamp(tcp, (uint32_t)now_ms);
    memcpy(packet + header, tcp, sizeof(tcp));
}
