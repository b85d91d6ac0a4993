// SPDX-License-Identifier: Apache-2.0
#include "testing.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebpf/shared/judge.h"
#include "cext/path/datapath.h"
#include "cext/table/filter.h"
#include "cext/table/hosts.h"
#include "cext/table/interned.h"
#include "cext/inband/inband.h"
#include "cext/life/life.h"
#include "cext/socket/connect.h"
#include "cext/socket/proxy_header.h"
#include "cext/socket/repair.h"
#include "cext/socket/segment.h"
#include "cext/conn/servers.h"
#include "cext/socket/spares.h"
#include "testing_table.h"
#include "cext/base/hash.h"
#include "cext/base/wheel.h"
#include "cext/base/workers.h"

static bool begin(struct roost_table *t, bool v4, uint32_t which, uint32_t slots) {
    uint32_t buckets = (slots + ROOST_BUCKET_SLOTS - 1) / ROOST_BUCKET_SLOTS;
    if (!buckets)
        return true; /* a table without this family */
    void *memory = calloc(buckets, v4 ? sizeof(struct roost_bucket4) : sizeof(struct roost_bucket6));
    if (memory)
        roost_table_begin(t, v4, which, memory, buckets);
    return memory;
}

struct roost_table_handle *roost_testing_table(uint32_t slots4, uint32_t slots6, uint32_t rest_slots,
                                               uint32_t endpoint_slots) {
    struct roost_table_handle *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    struct roost_table *t = &h->table;
    t->config.seed[0] = 1;
    t->config.seed[1] = 2;
    t->rest = calloc((size_t)rest_slots + 1, sizeof(*t->rest));
    t->rest_slots = rest_slots;
    t->rest_free = ROOST_NO_REST;
    h->endpoints = calloc(endpoint_slots, sizeof(*h->endpoints));
    if (t->rest && h->endpoints && begin(t, true, 0, slots4) && begin(t, false, 0, slots6) &&
        !roost_endpoints_init(&t->endpoints, h->endpoints, endpoint_slots)) {
        roost_classes_init(&t->classes, h->classes);
        return h;
    }
    roost_testing_table_free(h);
    return NULL;
}

void roost_testing_table_free(struct roost_table_handle *h) {
    for (int i = 0; i < ROOST_GENERATIONS; i++) {
        free(h->table.gen4[i].memory);
        free(h->table.gen6[i].memory);
    }
    roost_endpoints_free(&h->table.endpoints);
    roost_classes_free(&h->table.classes);
    free(h->endpoints);
    free(h->table.rest);
    free(h);
}

struct roost_ka *roost_testing_insert(struct roost_table_handle *h, const struct roost_key *key,
                                      const struct roost_ka *ka, uint16_t service) {
    return roost_table_insert(&h->table, key, ka, service);
}

struct roost_ka *roost_testing_find(struct roost_table_handle *h, const struct roost_key *key) {
    return roost_table_find(&h->table, key);
}

void roost_testing_remove(struct roost_table_handle *h, struct roost_ka *slot) {
    roost_table_remove(&h->table, slot);
}

void roost_testing_place(struct roost_table_handle *h, const struct roost_key *key, uint32_t *buckets, uint8_t *tag,
                         uint8_t *home) {
    const struct roost_config *config = &h->table.config;
    struct roost_place place = roost_key_is_v4(key) ? roost_place_of(roost_hash4(config, key), config->v4.buckets[0])
                                                    : roost_place_of(roost_hash6(config, key), config->v6.buckets[0]);
    buckets[0] = place.bucket[0];
    buckets[1] = place.bucket[1];
    *tag = place.tag;
    *home = place.home;
}

int roost_testing_grow(struct roost_table_handle *h, int v4, uint32_t slots) {
    const struct roost_generations *told = v4 ? &h->table.config.v4 : &h->table.config.v6;
    return begin(&h->table, v4, (ROOST_CURRENT(told->in_use) + 1) % ROOST_GENERATIONS, slots);
}

void roost_testing_end_growth(struct roost_table_handle *h, int v4) {
    uint32_t which;
    free(roost_table_end_previous(&h->table, v4, &which));
}

int roost_testing_move(struct roost_table_handle *h, const struct roost_key *key) {
    struct roost_ka *slot = roost_table_find(&h->table, key);
    return slot && roost_table_is_previous(&h->table, slot) && roost_table_move(&h->table, key, slot, NULL);
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

uint32_t roost_testing_rest_alloc(struct roost_table_handle *h, int to_wake) {
    return roost_table_rest_alloc(&h->table, to_wake);
}

struct roost_rest *roost_testing_rest(struct roost_table_handle *h, uint32_t index) {
    return &h->table.rest[index];
}

void roost_testing_pair(struct roost_table_handle *h, uint32_t rest, const struct roost_ka *other) {
    roost_table_pair(&h->table, &h->table.rest[rest], other);
}

uint32_t roost_testing_name(struct roost_table_handle *h, const struct roost_ka *slot) {
    return roost_table_name(&h->table, slot);
}

uint32_t roost_testing_endpoints_used(struct roost_table_handle *h) {
    return (uint32_t)h->table.endpoints.used.used;
}

uint16_t roost_testing_service(struct roost_table_handle *h, const struct roost_ka *slot) {
    return roost_table_service(&h->table, slot);
}

int64_t roost_testing_adopt(struct roost_table_handle *h, uint64_t *max_id) {
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

void roost_testing_stamp(uint8_t *packet, uint32_t length, uint64_t now_ms) {
    roost_segment_stamp(packet, length, now_ms);
}

struct roost_probes_handle {
    struct roost_datapath path;
    struct roost_probe probes[ROOST_PROBES];
    struct roost_runs run;
};

struct roost_probes_handle *roost_testing_probes(void) {
    struct roost_probes_handle *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    h->path.probes = h->probes;
    h->path.runs = &h->run;
    h->path.raw4 = h->path.raw6 = -1;
    return h;
}

void roost_testing_probes_free(struct roost_probes_handle *h) {
    free(h);
}

int roost_testing_put_probe(struct roost_probes_handle *h, const struct roost_key *key, const struct roost_ka *ka) {
    struct roost_probe *probe = roost_datapath_probe(&h->path);
    if (probe)
        probe->length = (uint32_t)roost_segment_probe(key, ka, 0, (uint8_t *)probe->packet);
    return probe != NULL;
}

void roost_testing_take_probe(struct roost_probes_handle *h, uint32_t n) {
    h->probes[(h->path.second_half ? ROOST_PROBES / 2 : 0) + n].state = ROOST_PROBE_TAKEN;
}

void roost_testing_retract_probe(struct roost_probes_handle *h, const struct roost_key *key) {
    roost_datapath_retract_probe(&h->path, key);
}

uint32_t roost_testing_begin_probes(struct roost_probes_handle *h) {
    return roost_datapath_probes_begin(&h->path);
}

uint32_t roost_testing_probes_put(struct roost_probes_handle *h) {
    return h->path.probes_put;
}

uint32_t roost_testing_probes_room(void) {
    return ROOST_PROBES / 2;
}

struct roost_limits_handle {
    struct roost_limits limits;
};

struct roost_limits_handle *roost_testing_limits(const struct roost_bounds *bounds, uint64_t secret) {
    struct roost_limits_handle *h = calloc(1, sizeof(*h));
    if (h) {
        h->limits.secret[0] = secret;
        roost_limits_bound(&h->limits, bounds);
    }
    return h;
}

void roost_testing_limits_free(struct roost_limits_handle *h) {
    free(h);
}

uint32_t roost_testing_limits_take(struct roost_limits_handle *h, const uint32_t gap_us[2], uint32_t what,
                                   uint32_t service, const uint8_t from[16], uint32_t now_us, uint32_t count) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i < count; i++)
        taken += (uint32_t)roost_limit_allows(&h->limits, gap_us, what, service, from, now_us, 1, h->limits.burst_us);
    return taken;
}

void roost_testing_limits_clean(struct roost_limits_handle *h, uint32_t now_us) {
    for (uint32_t i = 0; i < ROOST_LIMIT_CELLS; i += ROOST_LIMIT_CLEANED)
        roost_limits_clean(&h->limits, i, now_us);
}

uint32_t roost_testing_limit_cells(void) {
    return ROOST_LIMIT_CELLS;
}

uint32_t roost_testing_silence_s(uint32_t heard, uint32_t now_s) {
    return roost_silence_s(heard, now_s);
}

uint32_t roost_testing_first_probe_s(uint32_t salt, uint32_t heard_s, uint32_t interval_s) {
    return roost_first_probe_s(salt, heard_s, interval_s);
}

uint32_t roost_testing_probe_interval_s(uint16_t least_s, uint16_t most_s, uint32_t rcv_nxt, uint32_t ts_recent) {
    const struct roost_class class = {.probe_interval_s = least_s, .most_probe_s = most_s};
    return roost_probe_interval_s(&class, rcv_nxt, ts_recent);
}

void roost_testing_silence_indexes(uint32_t silence_s, uint32_t index[2]) {
    index[0] = roost_silence_index(silence_s);
    index[1] = roost_answer_index(silence_s);
}

int roost_testing_snapshot(int fd, struct roost_ka *ka, struct roost_rest *rest) {
    return roost_repair_snapshot(fd, -1, ka, rest);
}

void roost_testing_undo(int fd) {
    roost_repair_undo(fd, -1);
}

int roost_testing_survey(const char *bpf_dir, int fd, const struct roost_key *key, struct roost_ka *ka,
                         struct roost_rest *rest, int *surveyed) {
    struct roost_survey survey;
    struct roost_taking leg = {.key = key, .fd = fd};
    int e = roost_survey_open(&survey, bpf_dir);
    if (!e) {
        roost_repair_snapshots(&survey, 0, -1, &leg, 1);
        e = leg.error;
        *ka = leg.ka;
        *rest = leg.rest;
        *surveyed = leg.surveyed;
    }
    roost_survey_close(&survey);
    return e;
}

int roost_testing_disconnect(int fd, const struct roost_key *key) {
    return roost_repair_disconnect(fd, key, false);
}

int roost_testing_reuse(int fd, int bound, const struct roost_key *key, const struct roost_ka *ka,
                        const struct roost_rest *rest) {
    int e = roost_repair_reuse(fd, bound, key, ka, rest);
    return e < 0 ? e : roost_repair_finish(e, false);
}

struct roost_spares_handle {
    struct roost_spares spares;
};

struct roost_spares_handle *roost_testing_spares(void) {
    return calloc(1, sizeof(struct roost_spares_handle));
}

void roost_testing_spares_free(struct roost_spares_handle *h) {
    roost_hash_free(&h->spares.by_local);
    free(h);
}

int roost_testing_spares_put(struct roost_spares_handle *h, const struct roost_key *key, int bound, int fd) {
    return roost_spares_put(&h->spares, key, bound, fd);
}

int roost_testing_spares_take(struct roost_spares_handle *h, const struct roost_key *key, int *bound) {
    bool is_bound = false;
    int fd = roost_spares_take(&h->spares, key, &is_bound);
    *bound = is_bound;
    return fd;
}

uint32_t roost_testing_spares_trim(struct roost_spares_handle *h, uint32_t most) {
    roost_spares_trim(&h->spares, most);
    return h->spares.count;
}

static void count_slice(void *context, uint32_t slice, uint32_t from, uint32_t to) {
    uint32_t *done = context;
    (void)slice;
    for (uint32_t i = from; i < to; i++)
        done[i]++;
}

int roost_testing_workers(uint32_t threads, uint32_t batches, uint32_t count, uint32_t each, uint32_t *done) {
    struct roost_workers workers;
    int e = roost_workers_start(&workers, threads);
    for (uint32_t i = 0; i < batches && !e; i++)
        roost_workers_run(&workers, count_slice, done, count, each);
    roost_workers_stop(&workers);
    return e;
}

#define TURN_NS 20000

struct fair {
    struct roost_fair_lock lock;
    uint64_t gives_way_ns;
    uint32_t turns;
    bool over;
};

static void *take_turns(void *context) {
    struct fair *f = context;
    while (!__atomic_load_n(&f->over, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&f->lock.mutex);
        __atomic_add_fetch(&f->turns, 1, __ATOMIC_RELAXED);
        for (uint64_t until_ns = roost_monotonic_ns() + TURN_NS; roost_monotonic_ns() < until_ns;)
            ;
        pthread_mutex_unlock(&f->lock.mutex);
        roost_fair_give_way(&f->lock, f->gives_way_ns);
    }
    return NULL;
}

int roost_testing_fair_lock(uint32_t times, uint64_t gives_way_ns) {
    struct fair f = {.gives_way_ns = gives_way_ns};
    pthread_t thread;
    uint32_t most = 0;
    pthread_mutex_init(&f.lock.mutex, NULL);
    int e = -pthread_create(&thread, NULL, take_turns, &f);
    while (!e && !__atomic_load_n(&f.turns, __ATOMIC_RELAXED))
        sched_yield();
    for (uint32_t i = 0; i < times && !e; i++) {
        uint32_t before = __atomic_load_n(&f.turns, __ATOMIC_RELAXED);
        roost_fair_lock(&f.lock);
        uint32_t waited = __atomic_load_n(&f.turns, __ATOMIC_RELAXED) - before;
        roost_fair_unlock(&f.lock);
        most = waited > most ? waited : most;
    }
    if (!e) {
        __atomic_store_n(&f.over, true, __ATOMIC_RELAXED);
        pthread_join(thread, NULL);
    }
    pthread_mutex_destroy(&f.lock.mutex);
    return e ? e : (int)most;
}

uint64_t roost_testing_gives_way(uint64_t ns) {
    struct roost_fair_lock lock = {.waiters = 1};
    const uint64_t began_ns = roost_monotonic_ns();
    roost_fair_give_way(&lock, ns);
    return roost_monotonic_ns() - began_ns;
}

int roost_testing_rebuild(const struct roost_key *key, const struct roost_ka *ka, const struct roost_rest *rest) {
    int fd = roost_repair_rebuild(key, ka, rest);
    int e = fd < 0 ? 0 : roost_repair_finish(fd, false);
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

uint32_t roost_testing_proxy_header(const struct roost_key *key, int version, uint8_t *header) {
    return roost_proxy_header(key, version, header);
}

struct roost_hash_handle {
    struct roost_hash hash;
};

static bool is_number(const void *item, const void *number) {
    return item == number;
}

struct roost_hash_handle *roost_testing_hash(void) {
    return calloc(1, sizeof(struct roost_hash_handle));
}

void roost_testing_hash_free(struct roost_hash_handle *h) {
    roost_hash_free(&h->hash);
    free(h);
}

void roost_testing_hash_put(struct roost_hash_handle *h, uint64_t hash, uint64_t number) {
    roost_hash_put(&h->hash, hash, (void *)(uintptr_t)number);
}

void roost_testing_hash_drop(struct roost_hash_handle *h, uint64_t hash, uint64_t number) {
    roost_hash_drop(&h->hash, hash, (void *)(uintptr_t)number);
}

int roost_testing_hash_has(const struct roost_hash_handle *h, uint64_t hash, uint64_t number) {
    return roost_hash_find(&h->hash, hash, is_number, (void *)(uintptr_t)number) != NULL;
}

uint64_t roost_testing_hash_first(const struct roost_hash_handle *h, uint64_t hash) {
    return (uint64_t)(uintptr_t)roost_hash_find(&h->hash, hash, NULL, NULL);
}

uint32_t roost_testing_hash_walk(struct roost_hash_handle *h, uint64_t from, uint64_t to, uint64_t removed,
                                 uint64_t *numbers) {
    struct roost_hash_slot *slot;
    uint32_t found = 0;
    for (uint64_t step = 0; (slot = roost_hash_walk(&h->hash, from, to, &step));) {
        numbers[found++] = slot->number;
        if (removed && slot->number % removed == 0) {
            roost_hash_remove(&h->hash, slot);
            step--;
        }
    }
    return found;
}

uint64_t roost_testing_hash_size(const struct roost_hash_handle *h) {
    return h->hash.size;
}

uint64_t roost_testing_hash_used(const struct roost_hash_handle *h) {
    return h->hash.used;
}

uint32_t roost_testing_fnv1a(const uint8_t *bytes, uint32_t length) {
    return roost_fnv1a(bytes, length);
}

struct roost_hosts_handle {
    struct roost_hosts hosts;
};

struct roost_hosts_handle *roost_testing_hosts(void) {
    static const __u64 seed[2] = {1, 2};
    struct roost_hosts_handle *h = calloc(1, sizeof(*h));
    if (h && roost_hosts_open(&h->hosts, seed)) {
        free(h);
        return NULL;
    }
    return h;
}

void roost_testing_hosts_free(struct roost_hosts_handle *h) {
    roost_hosts_close(&h->hosts);
    free(h);
}

void roost_testing_hosts_add(struct roost_hosts_handle *h, const struct roost_key *key) {
    roost_hosts_add(&h->hosts, key);
}

void roost_testing_hosts_remove(struct roost_hosts_handle *h, const struct roost_key *key) {
    roost_hosts_remove(&h->hosts, key);
}

uint32_t roost_testing_hosts_find(struct roost_hosts_handle *h, const uint8_t *client, uint16_t *ports) {
    const struct roost_host *host = roost_hosts_find(&h->hosts, client);
    ports[0] = host ? host->client_port : 0;
    ports[1] = host ? host->local_port : 0;
    return host ? host->count : 0;
}

struct roost_filter_handle {
    struct roost_filter filter;
    struct roost_filter_gate gate;
    bool stop;
    uint64_t churned;
};

#define LOCAL_PORT 443 /* of every key */

static uint64_t hash_of(uint64_t key) {
    static const __u64 seed[2] = {1, 2};
    __u64 word = key;
    return roost_siphash(seed, &word, 1);
}

struct roost_filter_handle *roost_testing_filter(uint32_t connections) {
    struct roost_filter_handle *h = calloc(1, sizeof(*h));
    uint32_t buckets = roost_filter_buckets(connections);
    __u64 *bucket = calloc(buckets + 1, sizeof(*bucket));
    if (h && bucket) {
        roost_filter_begin(&h->filter, bucket, buckets, &h->gate);
        return h;
    }
    free(bucket);
    free(h);
    return NULL;
}

void roost_testing_filter_free(struct roost_filter_handle *h) {
    free(h->filter.bucket);
    free(h);
}

uint64_t roost_testing_filter_bytes(const struct roost_filter_handle *h) {
    return (uint64_t)h->filter.buckets * sizeof(*h->filter.bucket);
}

uint32_t roost_testing_filter_insert(struct roost_filter_handle *h, uint64_t first, uint32_t count) {
    uint32_t done = 0;
    while (done < count && roost_filter_insert(&h->filter, hash_of(first + done), LOCAL_PORT))
        done++;
    return done;
}

uint32_t roost_testing_filter_remove(struct roost_filter_handle *h, uint64_t first, uint32_t count) {
    uint32_t done = 0;
    for (uint32_t i = 0; i < count; i++)
        done += roost_filter_remove(&h->filter, hash_of(first + i));
    return done;
}

uint32_t roost_testing_filter_has(const struct roost_filter_handle *h, uint64_t first, uint32_t count) {
    return roost_testing_filter_has_at(h, LOCAL_PORT, first, count);
}

uint32_t roost_testing_filter_has_at(const struct roost_filter_handle *h, uint16_t port, uint64_t first,
                                     uint32_t count) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += roost_filter_has(&h->filter, hash_of(first + i), port);
    return found;
}

void roost_testing_filter_read(const struct roost_filter_handle *h, uint64_t *values) {
    values[0] = h->gate.members;
    values[1] = h->filter.refused;
    values[2] = h->filter.moves;
    values[3] = h->gate.buckets;
    values[4] = h->gate.moved;
    values[5] = 0;
    for (uint32_t i = 0; i < ROOST_FILTER_PORTS; i++)
        values[5] += (uint64_t)__builtin_popcount(h->gate.port[i]);
}

void roost_testing_filter_adopt(struct roost_filter_handle *h) {
    roost_filter_begin(&h->filter, h->filter.bucket, h->filter.buckets, &h->gate);
}

void roost_testing_filter_place(const struct roost_filter_handle *h, uint64_t key, uint32_t *place) {
    struct roost_filter_place of = roost_filter_place_of(hash_of(key), h->filter.buckets);
    place[0] = of.bucket[0];
    place[1] = of.bucket[1];
    place[2] = of.fingerprint;
}

/* Full, and then others in their place, again and again: every insertion has to make room. */
static void *churn(void *context) {
    struct roost_filter_handle *h = context;
    uint64_t next = h->churned, oldest = next;
    while (!__atomic_load_n(&h->stop, __ATOMIC_ACQUIRE)) {
        if (roost_filter_insert(&h->filter, hash_of(next), LOCAL_PORT)) {
            next++;
            continue;
        }
        for (uint64_t until = oldest + (next - oldest) / 8 + 1; oldest < until && oldest < next; oldest++)
            roost_filter_remove(&h->filter, hash_of(oldest));
    }
    return NULL;
}

/* As the BPF programs do (ebpf/lib/maps.h), on another thread's words. */
static bool seen(struct roost_filter_handle *h, uint64_t hash) {
    uint32_t before = __atomic_load_n(&h->gate.moved, __ATOMIC_SEQ_CST);
    uint32_t buckets = __atomic_load_n(&h->gate.buckets, __ATOMIC_SEQ_CST);
    struct roost_filter_place place = roost_filter_place_of(hash, buckets);
    for (int side = 0; side < 2 && buckets; side++)
        if (roost_filter_word_has(__atomic_load_n(&h->filter.bucket[place.bucket[side]], __ATOMIC_SEQ_CST),
                                  place.fingerprint))
            return true;
    return __atomic_load_n(&h->gate.moved, __ATOMIC_SEQ_CST) != before;
}

int64_t roost_testing_filter_race(struct roost_filter_handle *h, uint32_t kept, uint64_t churned, uint32_t ms,
                                  uint64_t *looked, uint64_t *churns) {
    pthread_t writer;
    uint64_t until = roost_monotonic_ms() + ms;
    int64_t missed = 0;
    *looked = 0;
    h->stop = false;
    h->churned = churned;
    if (pthread_create(&writer, NULL, churn, h))
        return -1;
    while (roost_monotonic_ms() < until)
        for (uint32_t i = 0; i < kept; i++, ++*looked)
            missed += !seen(h, hash_of(i));
    __atomic_store_n(&h->stop, true, __ATOMIC_RELEASE);
    pthread_join(writer, NULL);
    *churns = h->filter.moves;
    return missed;
}

struct roost_pool_handle {
    struct roost_pool pool;
};

struct roost_pool_handle *roost_testing_pool(void) {
    return calloc(1, sizeof(struct roost_pool_handle));
}

void roost_testing_pool_free(struct roost_pool_handle *h) {
    free(h);
}

int roost_testing_pool_set(struct roost_pool_handle *h, const struct roost_service *service) {
    return roost_pool_set(&h->pool, service);
}

int roost_testing_pool_read(const struct roost_pool_handle *h, struct roost_server_status *servers) {
    return roost_pool_read(&h->pool, servers, ROOST_PLACES);
}

void roost_testing_pool_mark(struct roost_pool_handle *h, const struct roost_server *server, int up) {
    roost_pool_mark(&h->pool, roost_pool_find(&h->pool, server), up);
}

int roost_testing_pool_begin(struct roost_pool_handle *h, const uint8_t *client, uint64_t tried,
                             struct roost_server *chosen) {
    int place = roost_pool_choose(&h->pool, client, tried);
    if (place != ROOST_NO_PLACE) {
        roost_pool_enter(&h->pool, place);
        *chosen = h->pool.place[place].server;
    }
    return place;
}

int roost_testing_pool_end(struct roost_pool_handle *h, int place, int linked) {
    bool down = false;
    if (linked > 0)
        roost_pool_linked(&h->pool, place);
    else if (!linked)
        down = roost_pool_failed(&h->pool, place);
    if (linked <= 0)
        roost_pool_leave(&h->pool, place);
    return down;
}

struct roost_inband_handle {
    struct roost_inband filter;
    char *manager;
};

struct roost_inband_handle *roost_testing_inband(const char *manager) {
    struct roost_inband_handle *h = calloc(1, sizeof(*h));
    if (h)
        h->manager = strdup(manager);
    return h;
}

void roost_testing_inband_free(struct roost_inband_handle *h) {
    uint8_t held[ROOST_INBAND_MAX];
    roost_inband_flush(&h->filter, held);
    free(h->manager);
    free(h);
}

int roost_testing_inband_next(struct roost_inband_handle *h, const uint8_t **data, size_t *length, const uint8_t **span,
                              size_t *span_length, uint32_t *request, char *name) {
    struct roost_inband_item item;
    int found = roost_inband_next(&h->filter, h->manager, data, length, &item);
    if (found <= ROOST_INBAND_END)
        return found;
    *span = item.data;
    *span_length = item.length;
    if (found == ROOST_INBAND_REQUEST) {
        const struct roost_inband_request *r = &item.request;
        const uint32_t fields[] = {r->verb,  r->number,      r->answer,      r->forward,     r->on,
                                   r->given, r->quiet_ms[0], r->quiet_ms[1], r->quiet_ms[2], r->interval_ms};
        memcpy(request, fields, sizeof(fields));
        memcpy(name, r->name, sizeof(r->name));
    }
    return found;
}

size_t roost_testing_inband_flush(struct roost_inband_handle *h, uint8_t *payload) {
    return roost_inband_flush(&h->filter, payload);
}

size_t roost_testing_inband_held(const struct roost_inband_handle *h, size_t *allocated, uint32_t *patience_ms) {
    *allocated = roost_inband_memory(&h->filter);
    *patience_ms = roost_inband_patience_ms(&h->filter);
    return roost_inband_held(&h->filter);
}

size_t roost_testing_inband_answer(uint8_t *frame, char to, uint16_t number, uint32_t result) {
    return roost_inband_answer(frame, to, number, (enum roost_inband_result)result, NULL);
}

size_t roost_testing_inband_status(uint8_t *frame, char to, uint16_t number, uint32_t state, const uint32_t *quiet_ms,
                                   const char *name, uint64_t rx_bytes, uint64_t tx_bytes) {
    struct roost_inband_status status = {
        (enum roost_state)state, {quiet_ms[0], quiet_ms[1], quiet_ms[2]}, *name ? name : NULL, rx_bytes, tx_bytes};
    return roost_inband_answer(frame, to, number, ROOST_INBAND_R_OK, &status);
}

size_t roost_testing_inband_stay(uint8_t *frame) {
    return roost_inband_stay(frame);
}

int roost_testing_is_legal(uint8_t from, uint8_t to, uint8_t cause) {
    return roost_is_legal(from, to, cause);
}

/* ---- policy classes ---- */

struct roost_classes_handle {
    struct roost_classes classes;
    struct roost_class entry[ROOST_CLASSES];
};

struct roost_classes_handle *roost_testing_classes(void) {
    struct roost_classes_handle *h = calloc(1, sizeof(*h));
    if (h)
        roost_classes_init(&h->classes, h->entry);
    return h;
}

void roost_testing_classes_free(struct roost_classes_handle *h) {
    roost_classes_free(&h->classes);
    free(h);
}

uint32_t roost_testing_own_classes(int in_band) {
    return in_band ? ROOST_IN_BAND_CLASSES : ROOST_OWN_CLASSES;
}

int64_t roost_testing_classes_take(struct roost_classes_handle *h, uint16_t service,
                                   const struct roost_overrides *own) {
    uint32_t class = roost_classes_take(&h->classes, service, own);
    return class == ROOST_CLASS_FULL ? -1 : (int64_t) class;
}

void roost_testing_classes_hold(struct roost_classes_handle *h, uint32_t class) {
    roost_classes_hold(&h->classes, class);
}

void roost_testing_classes_drop(struct roost_classes_handle *h, uint32_t class) {
    roost_classes_drop(&h->classes, class);
}

int roost_testing_classes_change(struct roost_classes_handle *h, uint16_t service, const struct roost_class *policy) {
    return roost_classes_change(&h->classes, service, policy);
}

const struct roost_class *roost_testing_classes_at(const struct roost_classes_handle *h, uint32_t class) {
    return &h->entry[class];
}

uint32_t roost_testing_classes_interned(const struct roost_classes_handle *h) {
    return roost_classes_interned(&h->classes);
}

int roost_testing_classes_rule(struct roost_classes_handle *h, const struct roost_class *policy, uint32_t count,
                               uint32_t *class) {
    return roost_classes_rule(&h->classes, policy, count, class);
}

void roost_testing_classes_retired_end(struct roost_classes_handle *h) {
    roost_classes_retired_end(&h->classes);
}

int roost_testing_rules_find(struct roost_rule *rule, uint32_t count, uint16_t service, const uint8_t local[16],
                             uint8_t group, const uint8_t *clients, uint32_t clients_count, uint32_t *found) {
    struct roost_rules rules;
    int error = roost_rules_sort(rule, count);
    if (!error)
        error = roost_rules_make(&rules, rule, count);
    if (error)
        return error;
    for (uint32_t i = 0; i < clients_count; i++) {
        struct roost_key key = {0};
        memcpy(key.local, local, sizeof(key.local));
        memcpy(key.client, clients + 16 * i, sizeof(key.client));
        found[i] = roost_rules_find(&rules, &key, service, group);
    }
    roost_rules_free(&rules);
    return 0;
}

int roost_testing_connect_undo(int fd) {
    return roost_connect_undo(fd);
}

void roost_testing_classes_adopt(struct roost_classes_handle *h, const uint32_t *holders, uint32_t count) {
    roost_classes_free(&h->classes);
    roost_classes_init(&h->classes, h->entry);
    for (uint32_t i = 0; i < count; i++)
        roost_classes_hold(&h->classes, holders[i]);
    roost_classes_settle(&h->classes);
}
