// SPDX-License-Identifier: Apache-2.0
#include "testing.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ebpf/judge.h"
#include "repair.h"
#include "segment.h"
#include "table.h"
#include "wheel.h"

struct roost_table_handle {
    struct roost_table table;
};

struct roost_table_handle *roost_testing_table(uint32_t slots4, uint32_t slots6, uint32_t rest_slots) {
    struct roost_table_handle *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    struct roost_table *t = &h->table;
    t->config.seed[0] = 1;
    t->config.seed[1] = 2;
    t->config.buckets4 = (slots4 + ROOST_BUCKET_SLOTS - 1) / ROOST_BUCKET_SLOTS;
    t->config.buckets6 = (slots6 + ROOST_BUCKET_SLOTS - 1) / ROOST_BUCKET_SLOTS;
    t->bucket4 = calloc(t->config.buckets4 + 1, sizeof(*t->bucket4));
    t->bucket6 = calloc(t->config.buckets6 + 1, sizeof(*t->bucket6));
    t->rest = calloc((size_t)rest_slots + 1, sizeof(*t->rest));
    t->rest_slots = rest_slots;
    t->rest_free = ROOST_NO_REST;
    if (t->bucket4 && t->bucket6 && t->rest)
        return h;
    roost_testing_table_free(h);
    return NULL;
}

void roost_testing_table_free(struct roost_table_handle *h) {
    free(h->table.bucket4);
    free(h->table.bucket6);
    free(h->table.rest);
    free(h);
}

struct roost_ka *roost_testing_insert(struct roost_table_handle *h, const struct roost_key *key,
                                      const struct roost_ka *ka) {
    return roost_table_insert(&h->table, key, ka);
}

struct roost_ka *roost_testing_find(struct roost_table_handle *h, const struct roost_key *key) {
    return roost_table_find(&h->table, key);
}

void roost_testing_remove(struct roost_table_handle *h, struct roost_ka *slot) {
    roost_table_remove(&h->table, slot);
}

void roost_testing_place(struct roost_table_handle *h, const struct roost_key *key, uint32_t *buckets, uint16_t *tag) {
    const struct roost_config *config = &h->table.config;
    struct roost_place place;
    if (roost_key_is_v4(key)) {
        struct roost_key4 narrow = {.client_port = key->client_port, .local_port = key->local_port};
        memcpy(&narrow.client, key->client + 12, 4);
        memcpy(&narrow.local, key->local + 12, 4);
        place = roost_place_of(roost_hash4(config, &narrow), config->buckets4);
    } else {
        place = roost_place_of(roost_hash6(config, key), config->buckets6);
    }
    buckets[0] = place.bucket[0];
    buckets[1] = place.bucket[1];
    *tag = place.tag;
}

uint32_t roost_testing_bucket_slots(void) {
    return ROOST_BUCKET_SLOTS;
}

uint32_t roost_testing_same_tag_max(void) {
    return ROOST_SAME_TAG_MAX;
}

void roost_testing_set_phase(struct roost_ka *slot, uint32_t phase) {
    roost_table_set_phase(slot, (enum roost_phase)phase);
}

uint32_t roost_testing_rest_alloc(struct roost_table_handle *h) {
    return roost_table_rest_alloc(&h->table);
}

struct roost_rest *roost_testing_rest(struct roost_table_handle *h, uint32_t index) {
    return &h->table.rest[index];
}

uint64_t roost_testing_adopt(struct roost_table_handle *h, uint64_t *max_id) {
    return roost_table_adopt(&h->table, max_id);
}

uint64_t roost_testing_used(struct roost_table_handle *h, uint64_t *used6, uint64_t *rest_used, uint64_t *refused) {
    *used6 = h->table.used6;
    *rest_used = h->table.rest_used;
    *refused = h->table.refused;
    return h->table.used4;
}

int roost_testing_judge(const struct roost_ka *ka, uint32_t seq, uint32_t ack, uint32_t payload, uint32_t flags,
                        int has_ts) {
    struct roost_segment s = {
        .seq = seq, .ack = ack, .payload = payload, .flags = (uint8_t)flags, .has_ts = (uint8_t)has_ts};
    return (int)roost_judge(ka, &s);
}

int roost_testing_checksums_good(const uint8_t *frame, uint32_t length, uint32_t l3) {
    return roost_segment_checksums_good(frame, length, l3);
}

int roost_testing_parse(const uint8_t *frame, uint32_t length, uint32_t l3, uint32_t *seq_ack_payload_tsval,
                        uint32_t *flags, int *has_ts) {
    struct roost_segment s;
    if (!roost_segment_parse(frame, length, l3, &s))
        return 0;
    seq_ack_payload_tsval[0] = s.seq;
    seq_ack_payload_tsval[1] = s.ack;
    seq_ack_payload_tsval[2] = s.payload;
    seq_ack_payload_tsval[3] = s.tsval;
    *flags = s.flags;
    *has_ts = s.has_ts;
    return 1;
}

uint32_t roost_testing_probe(const struct roost_key *key, const struct roost_ka *ka, uint64_t now_ms, uint8_t *packet) {
    return (uint32_t)roost_segment_probe(key, ka, now_ms, packet);
}

int roost_testing_snapshot(int fd, struct roost_ka *ka, struct roost_rest *rest) {
    return roost_repair_snapshot(fd, -1, ka, rest);
}

void roost_testing_undo(int fd) {
    roost_repair_undo(fd, -1);
}

int roost_testing_rebuild(const struct roost_key *key, const struct roost_ka *ka, const struct roost_rest *rest) {
    int fd = roost_repair_rebuild(key, ka, rest);
    int e = fd < 0 ? 0 : roost_repair_finish(fd);
    if (!e)
        return fd;
    close(fd);
    return e;
}

struct roost_wheel_handle {
    struct roost_wheel wheel;
    uint32_t count;
    struct roost_timer timer[];
};

struct roost_wheel_handle *roost_testing_wheel(uint64_t start_ms, uint32_t count) {
    struct roost_wheel_handle *h = calloc(1, sizeof(*h) + count * sizeof(h->timer[0]));
    if (!h)
        return NULL;
    h->count = count;
    roost_wheel_init(&h->wheel, start_ms);
    return h;
}

void roost_testing_wheel_free(struct roost_wheel_handle *h) {
    free(h);
}

void roost_testing_wheel_set(struct roost_wheel_handle *h, uint32_t timer, uint64_t due_ms) {
    roost_wheel_set(&h->wheel, &h->timer[timer], due_ms);
}

void roost_testing_wheel_cancel(struct roost_wheel_handle *h, uint32_t timer) {
    roost_wheel_cancel(&h->wheel, &h->timer[timer]);
}

uint32_t roost_testing_wheel_advance(struct roost_wheel_handle *h, uint64_t now_ms, uint32_t *timers) {
    uint32_t fired = 0;
    struct roost_timer *t = roost_wheel_advance(&h->wheel, now_ms);
    while (t) {
        struct roost_timer *next = t->next;
        t->next = NULL;
        timers[fired++] = (uint32_t)(t - h->timer);
        t = next;
    }
    return fired;
}

uint64_t roost_testing_wheel_armed(struct roost_wheel_handle *h) {
    return h->wheel.armed;
}

uint64_t roost_testing_wheel_horizon_ms(void) {
    return (uint64_t)(ROOST_WHEEL_SLOTS - 1) * ROOST_WHEEL_TICK_MS;
}

uint32_t roost_testing_wheel_tick_ms(void) {
    return ROOST_WHEEL_TICK_MS;
}
