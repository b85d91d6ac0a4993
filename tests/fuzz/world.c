// SPDX-License-Identifier: Apache-2.0
#include "world.h"

#include <stdlib.h>
#include <string.h>

#include <bpf/bpf_helpers.h>

#include "ebpf/shared/judge.h"
#include "host/kernel.h"
#include "reference.h"

#define ENDPOINTS 32
#define SERVICE 7

static const struct { /* few buckets: tags and buckets are shared */
    bool v4;
    uint32_t which, buckets;
} generations[] = {{true, 0, 1}, {false, 0, 1}, {true, 1, 2}, {false, 1, 2}};
#define PIECES ((int)(sizeof(generations) / sizeof(generations[0])))

static size_t size_of(int piece) {
    size_t bucket = generations[piece].v4 ? sizeof(struct roost_bucket4) : sizeof(struct roost_bucket6);
    return generations[piece].buckets * bucket;
}

void *world_memory(struct world *w, int piece, size_t *size) {
    void *memory = piece == PIECES
                       ? NULL
                       : (generations[piece].v4 ? w->table.gen4 : w->table.gen6)[generations[piece].which].memory;
    *size = memory ? size_of(piece) : 0;
    return memory;
}

static void *allocate(size_t size) {
    void *memory = calloc(1, size);
    if (!memory)
        abort();
    return memory;
}

static void open_table(struct roost_table *t) {
    static struct roost_rest *rest;
    static struct roost_endpoints endpoints;
    static struct roost_classes classes;
    if (!rest) {
        roost_classes_init(&classes, allocate(ROOST_CLASSES * sizeof(*classes.entry)));
        rest = allocate(CONNECTIONS * sizeof(*rest));
        if (roost_endpoints_init(&endpoints, allocate(ENDPOINTS * sizeof(*endpoints.entry)), ENDPOINTS) ||
            roost_hash_reserve(&endpoints.used, ENDPOINTS))
            abort();
    }
    memset(rest, 0, CONNECTIONS * sizeof(*rest));
    memset(endpoints.uses, 0, ENDPOINTS * sizeof(*endpoints.uses));
    roost_endpoints_settle(&endpoints);
    *t = (struct roost_table){.config = {{0x526f6f7374206572, 0x72616e6473203031}, {1, 2}, {0}, {0}},
                              .endpoints = endpoints,
                              .classes = classes,
                              .rest = rest,
                              .rest_slots = CONNECTIONS,
                              .rest_free = ROOST_NO_REST};
}

static void begin(struct roost_table *t, uint32_t which) {
    static void *memory[PIECES];
    for (int i = 0; i < PIECES; i++) {
        if (generations[i].which != which)
            continue;
        if (!memory[i])
            memory[i] = allocate(size_of(i));
        memset(memory[i], 0, size_of(i));
        roost_table_begin(t, generations[i].v4, which, memory[i], generations[i].buckets);
    }
}

void world_give_maps(struct world *w, const void *config, const void *tables4, const void *tables6,
                     const void *endpoints) {
    static void *outer4[ROOST_GENERATIONS], *outer6[ROOST_GENERATIONS];
    for (int i = 0; i < ROOST_GENERATIONS; i++) {
        struct roost_generation *g4 = &w->table.gen4[i], *g6 = &w->table.gen6[i];
        outer4[i] = g4->memory ? g4 : NULL;
        outer6[i] = g6->memory ? g6 : NULL;
        host_map_array(g4, g4->memory, g4->buckets, sizeof(*g4->bucket4));
        host_map_array(g6, g6->memory, g6->buckets, sizeof(*g6->bucket6));
    }
    host_map_array(config, &w->table.config, 1, sizeof(w->table.config));
    host_map_of_maps(tables4, outer4, ROOST_GENERATIONS);
    host_map_of_maps(tables6, outer6, ROOST_GENERATIONS);
    host_map_array(endpoints, w->table.endpoints.entry, w->table.endpoints.slots, sizeof(struct roost_endpoint));
}

void world_give_filter(struct world *w, const void *filter, const void *filter_gate, const void *strangers) {
    host_map_array(filter, w->words, sizeof(w->words) / sizeof(w->words[0]), sizeof(w->words[0]));
    host_map_array(filter_gate, &w->filter_gate, 1, sizeof(w->filter_gate));
    host_map_hash(strangers, CONNECTIONS, sizeof(__u64), sizeof(__u32));
    w->strangers = strangers;
}

static __u64 hash_of(const struct world *w, const struct roost_key *key) {
    return roost_key_is_v4(key) ? roost_hash4(&w->table.config, key) : roost_hash6(&w->table.config, key);
}

void world_filter(struct world *w, struct input *in) {
    const struct roost_key *key = &w->key[take(in, 1) % CONNECTIONS];
    __u64 hash = hash_of(w, key);
    uint32_t how = take(in, 1);
    __u32 one = 1;
    if (how & 1)
        bpf_map_update_elem(w->strangers, &hash, &one, 0);
    else if (how & 2)
        roost_filter_remove(&w->filter, hash);
    else
        roost_filter_insert(&w->filter, hash, key->local_port);
}

bool world_candidate(struct world *w, const struct roost_key *key) {
    __u64 hash = hash_of(w, key);
    return roost_filter_has(&w->filter, hash, key->local_port) && !bpf_map_lookup_elem(w->strangers, &hash);
}

static void key_of(int i, struct roost_key *key) {
    memset(key, 0, sizeof(*key));
    if (i & 1) {
        memcpy(key->client, "\x20\x01\x0d\xb8", 4);
        memcpy(key->local, "\x20\x01\x0d\xb8\0\x01", 6);
        key->client[15] = (uint8_t)(16 + i);
        key->local[15] = 1;
    } else {
        key->client[10] = key->client[11] = key->local[10] = key->local[11] = 0xff;
        memcpy(key->client + 12, (const uint8_t[]){10, 0, 0, (uint8_t)(16 + i)}, 4);
        memcpy(key->local + 12, (const uint8_t[]){10, 0, 1, 1}, 4);
    }
    put16((uint8_t *)&key->client_port, 40000 + (uint32_t)i);
    put16((uint8_t *)&key->local_port, 443);
}

struct roost_ka *world_slot(struct world *w, int i) {
    return roost_table_find(&w->table, &w->key[i]);
}

uint64_t world_hash(const struct world *w, const struct roost_key *key) {
    return roost_key_is_v4(key) ? roost_hash4(&w->table.config, key) : roost_hash6(&w->table.config, key);
}

void world_insert(struct world *w, int i, enum roost_phase phase) {
    world_remove(w, i);
    bool timestamps = i & 2, scaled = i & 4, wraps = i & 8, server = i % 5 == 4;
    uint32_t flags = (timestamps ? ROOST_F_TIMESTAMPS : 0u) | (scaled ? ROOST_F_WSCALE : 0u) |
                     (server ? ROOST_F_SERVER | ROOST_F_PAIRED : 0u);
    struct roost_ka ka = {
        .ctl = phase | flags << 16 | (scaled ? 0x77000000u : 0),
        .snd_nxt = wraps ? 0xfffffffeu : 0x10000000u,
        .rcv_nxt = wraps ? 0x00000001u : 0x20000000u,
        .ts_offset = 0x01000000u * (uint32_t)i,
        .ts_recent = timestamps ? 1000 : 0,
        .heard = ROOST_HEARD(1, 0, 1),
        .window = (uint16_t)(i == 16  ? 0
                             : scaled ? 500
                                      : 60000),
        .rest = ROOST_NO_REST,
    };
    if (phase != ROOST_SLEEP) {
        ka.rest = roost_table_rest_alloc(&w->table, false);
        if (ka.rest == ROOST_NO_REST)
            abort();
        w->table.rest[ka.rest] = (struct roost_rest){.id = (uint64_t)i + 1};
    }
    claim(roost_table_insert(&w->table, &w->key[i], &ka, SERVICE) != NULL, "the table has no room for connection %d",
          i);
}

void world_remove(struct world *w, int i) {
    struct roost_ka *slot = world_slot(w, i);
    if (slot)
        roost_table_remove(&w->table, slot);
}

void world_fill(struct world *w, bool grows) {
    static const enum roost_phase phase[] = {ROOST_IDLE,   ROOST_IDLE,   ROOST_SLEEP,   ROOST_SLEEP,
                                             ROOST_WAKING, ROOST_THAWED, ROOST_FREEZING};
    open_table(&w->table);
    begin(&w->table, 0);
    memset(w->words, 0, sizeof(w->words));
    w->filter_gate = (struct roost_filter_gate){.interface = {3}};
    roost_filter_begin(&w->filter, w->words, sizeof(w->words) / sizeof(w->words[0]), &w->filter_gate);
    for (int i = 0; i < 2; i++) {
        struct roost_key key;
        key_of(i, &key);
        w->endpoint[i] = roost_endpoints_take(&w->table.endpoints, key.local, key.local_port, SERVICE);
        roost_endpoints_pin(&w->table.endpoints, w->endpoint[i]);
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        key_of(i, &w->key[i]);
        if (i == CONNECTIONS / 2 && grows)
            begin(&w->table, 1);
        if (i < CONNECTIONS - 2) /* the last two are strangers at first */
            world_insert(w, i, phase[(i / 2) % (int)(sizeof(phase) / sizeof(phase[0]))]);
    }
}

enum { /* links of world_frame */
    LINK_PLAIN,
    LINK_VLAN,
    LINK_PROVIDER_VLAN,
    LINK_TWO_VLANS,
    LINK_PRIORITY,
    LINKS,
    LINK_MAPPED = 0x80 /* beside one of them: an IPv4 connection's frame as IPv6, with IPv4-mapped addresses */
};

enum { /* TCP options of world_frame */
    OPTIONS_NONE,
    OPTIONS_TIMESTAMPS,       /* in the usual layout */
    OPTIONS_TIMESTAMPS_MOVED, /* behind others */
    OPTIONS_FREE,
    OPTIONS_OF_SYN, /* what Linux offers */
    OPTIONS
};

enum { /* what is wrong with a frame of world_frame: a mask */
    WRONG_TCP_SUM = 1,
    WRONG_IP_SUM = 2,
    WRONG_IP_LENGTH = 4,
    WRONG_DATA_OFFSET = 8,
    WRONG_ADDRESS = 16,
    WRONG_PORT = 32,
    WRONG_CUT = 64,
    WRONG_BYTES = 128,
    LEFT_TO_INTERFACE = WRONG_TCP_SUM | WRONG_IP_SUM /* not wrong: the TCP checksum */
};

/* Sequence numbers are asked for relative to the record: near ones in one signed byte, others whole. */
static uint32_t near_or_far(struct input *in, uint32_t base) {
    uint32_t how = take(in, 1);
    if (how == 0x80)
        return base + take(in, 4);
    return base + (uint32_t)(int32_t)(int8_t)how;
}

static size_t put_options(struct input *in, uint8_t *at, uint32_t ts_recent) {
    size_t length = 0, got;
    uint32_t kind = take(in, 1) % OPTIONS;
    if (kind == OPTIONS_TIMESTAMPS || kind == OPTIONS_TIMESTAMPS_MOVED) {
        if (kind == OPTIONS_TIMESTAMPS_MOVED) { /* a selective acknowledgement first */
            memcpy(at, "\x05\x0a\0\0\0\1\0\0\0\2", 10);
            length = 10;
        } else {
            memcpy(at, "\1\1", 2);
            length = 2;
        }
        memcpy(at + length, "\x08\x0a", 2);
        put32(at + length + 2, near_or_far(in, ts_recent));
        put32(at + length + 6, 0);
        length += 10;
    } else if (kind == OPTIONS_OF_SYN) {
        memcpy(at, "\x02\x04\0\0\x04\x02\x08\x0a\0\0\0\0\0\0\0\0\x01\x03\x03\0", 20);
        put16(at + 2, take(in, 2));
        put32(at + 8, take(in, 4));
        at[19] = (uint8_t)take(in, 1);
        length = 20;
    } else if (kind == OPTIONS_FREE) {
        const uint8_t *from = take_bytes(in, take(in, 1) % 41, &got);
        memcpy(at, from, got);
        length = got;
    }
    while (length & 3)
        at[length++] = 0;
    return length;
}

size_t world_frame(struct world *w, struct input *in, uint8_t *f) {
    int i = (int)(take(in, 1) % CONNECTIONS);
    const struct roost_key *key = &w->key[i];
    const struct roost_ka *slot = world_slot(w, i);
    struct roost_ka ka = slot ? *slot : (struct roost_ka){.rcv_nxt = 1, .snd_nxt = 1};
    uint32_t link = take(in, 1);
    bool v4 = roost_key_is_v4(key) && !(link & LINK_MAPPED);
    link %= LINKS;
    uint32_t extensions = take(in, 1) % 11, wrong = take(in, 1);
    size_t at = 12, got;

    memcpy(f, "\x02\0\0\0\0\1\x02\0\0\0\0\2", 12);
    if (link != LINK_PLAIN) {
        put16(f + at, link == LINK_PROVIDER_VLAN ? 0x88a8 : 0x8100);
        put16(f + at + 2, link == LINK_PRIORITY ? 0xe000 : 7);
        at += 4;
    }
    if (link == LINK_TWO_VLANS) {
        put16(f + at, 0x8100);
        put16(f + at + 2, 8);
        at += 4;
    }
    put16(f + at, v4 ? 0x0800 : 0x86dd);
    size_t l3 = at + 2;
    uint8_t *ip = f + l3;
    uint32_t fragment = take(in, 1);
    size_t header = v4 ? 20 + extensions * 4 : 40;
    memset(ip, 0, header);
    if (v4) {
        ip[0] = (uint8_t)(0x40 | header / 4);
        ip[8] = 64;
        ip[9] = 6;
        put16(ip + 6, fragment & 1 ? 0x2000 : fragment & 2 ? 0x0001 : 0x4000);
        memcpy(ip + 12, key->client + 12, 4);
        memcpy(ip + 16, key->local + 12, 4);
        memset(ip + 20, 1, header - 20);
    } else {
        static const uint8_t kinds[] = {0, 60, 43, 60, 44, 51};
        ip[0] = 0x60;
        ip[7] = 64;
        memcpy(ip + 8, key->client, 16);
        memcpy(ip + 24, key->local, 16);
        uint8_t *next = ip + 6;
        for (uint32_t n = 0; n < extensions; n++) {
            uint32_t choice = take(in, 1);
            *next = kinds[choice % sizeof(kinds)];
            next = ip + header;
            size_t size = (1 + (choice >> 4) % 4) * 8;
            memset(next, 0, size);
            next[1] = (uint8_t)(size / 8 - 1);
            header += size;
        }
        *next = 6;
    }

    uint8_t *tcp = ip + header;
    memset(tcp, 0, 20);
    memcpy(tcp, &key->client_port, 2);
    memcpy(tcp + 2, &key->local_port, 2);
    put32(tcp + 4, near_or_far(in, ka.rcv_nxt));
    put32(tcp + 8, near_or_far(in, ka.snd_nxt));
    tcp[13] = (uint8_t)take(in, 1);
    put16(tcp + 14, 1000);
    size_t tcp_length = 20 + put_options(in, tcp + 20, ka.ts_recent);
    tcp[12] = (uint8_t)(tcp_length / 4 << 4);
    size_t payload = take(in, 1);
    if (payload == 255)
        payload = take(in, 2) % (FRAME_MAX - 1000);
    memset(tcp + tcp_length, 'x', payload);
    tcp_length += payload;

    if (wrong & WRONG_ADDRESS)
        ip[v4 ? 12 + take(in, 1) % 8 : 8 + take(in, 1) % 32] ^= (uint8_t)(1 + take(in, 1));
    if (wrong & WRONG_PORT)
        tcp[take(in, 1) % 4] ^= (uint8_t)(1 + take(in, 1));
    if (wrong & WRONG_DATA_OFFSET)
        tcp[12] = (uint8_t)take(in, 1);
    size_t total = v4 ? header + tcp_length : header - 40 + tcp_length;
    bool left = (wrong & LEFT_TO_INTERFACE) == LEFT_TO_INTERFACE;
    if (left)
        wrong &= ~LEFT_TO_INTERFACE;
    put16(ip + (v4 ? 2 : 4), (uint32_t)total + (wrong & WRONG_IP_LENGTH ? near_or_far(in, 0) : 0));
    if (v4)
        put16(ip + 10, reference_sum(ip, header, NULL, 0) ^ (wrong & WRONG_IP_SUM ? 1 + take(in, 1) : 0));
    put16(tcp + 16, left ? ~reference_part_sum(ip + (v4 ? 12 : 8), v4 ? 8 : 32, tcp, tcp_length, 0)
                         : reference_tcp_sum(ip + (v4 ? 12 : 8), v4 ? 8 : 32, tcp, tcp_length) ^
                               (wrong & WRONG_TCP_SUM ? 1 + take(in, 1) : 0));
    size_t length = l3 + header + tcp_length;
    if (wrong & WRONG_CUT) {
        uint32_t cut = take(in, 1);
        if (cut & 0x80) { /* padding of Ethernet, not of IP */
            got = 1 + (cut & 0x7f);
            memset(f + length, 0, got);
            length += got;
        } else {
            length -= cut < length - 14 ? cut : length - 14;
        }
    }
    if (wrong & WRONG_BYTES)
        for (uint32_t n = 1 + take(in, 1) % 4; n; n--) {
            uint32_t where = take(in, 1);
            f[where % length] = (uint8_t)take(in, 1);
        }
    return length;
}
