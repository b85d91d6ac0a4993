// SPDX-License-Identifier: Apache-2.0
/*
 * Connections that freeze, sleep and thaw while packets come. XDP's program and the engine are as they are: a scenario
 * gives the engine commands, as the control plane does, and lets its loop take turns until it has nothing to do. What is
 * made for it is the kernel (machine.c), and the parts of the engine that move bytes (absent.c).
 *
 *     model [--deeper] [SCENARIO...]      explores these, or all, and prints a line for each; --deeper: with one more
 *                                         preemption
 *     model --list                        their names
 *
 * The claims:
 *
 *     no packet of a connection that lives, awake or asleep, comes to a stack that has no socket for it: that is an RST;
 *     only one that was put back from the store, or whose slot was moved, while the packet was on its way needs the guard
 *     to stop it
 *     what a socket took, or XDP held, comes to the server, once; and so does what the client says afterwards
 *     the engine makes no illegal transition, and rebuilds a socket from its own record alone
 *     an answer is made from one record, whole, of the packet's own connection, and of a moment while the packet was there
 *     a connection is in the table once at most; none that is asleep is missing there and in the filter, and none has a
 *     link; of a pair both legs are asleep, or neither is
 *     the engine may be killed anywhere: roost_table_adopt gives a consistent table, with every connection in it that was
 *     asleep and none whose socket lived
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/bpf.h>

#include "cext/table/filter.h"
#include "cext/table/table.h"
#include "ebpf/shared/frame.h"
#include "ebpf/shared/birth.h"
#include "ebpf/shared/sockets.h"
#include "../fuzz/host/kernel.h"
#include "../fuzz/reference.h"
#include "machine.h"
#include "scheduler.h"

int roost_inactive(struct xdp_md *ctx);
void put_birth(const struct roost_birth_place *place, const struct roost_birth *birth);
void give_product_maps(void);
void product_starts(void);
extern char births_gate, births_cookies, config, tables4, endpoints, classes, counters, filter,
    filter_gate; /* maps: only their addresses */

#define A (&legs[0])
#define B (&legs[1]) /* has A's tag and bucket */
#define C (&legs[2])
#define S (&legs[3]) /* the server of A, in pairs */

static struct roost_table *const table = &engine.table;
static struct roost_filter *const sleepers = &engine.filter;
static struct roost_config told SHARED; /* what XDP knows of the table */
static struct roost_bucket4 old_table[1] SHARED, new_table[1] SHARED;
static struct roost_endpoint endpoint[ENDPOINTS] SHARED;
static struct roost_class class[ROOST_CLASSES];
static struct roost_rest rests[RESTS] SHARED;
static struct roost_birth birth = {.mss = 1460};
static __u64 words[2] SHARED; /* of the filter */
static struct roost_filter_gate sleepers_gate SHARED;

static void describe_table(const void *at, char *text, size_t size) {
    const struct roost_bucket4 *b =
        (const char *)at < (const char *)(old_table + 1) && at >= (const void *)old_table ? old_table : new_table;
    const char *generation = b == old_table ? "" : "new table: ";
    size_t offset = (size_t)((const char *)at - (const char *)b);
    static const char *const field[] = {"far",       "port, endpoint", "ctl",   "snd_nxt", "rcv_nxt",
                                        "ts_offset", "ts_recent",      "heard", "window",  "rest"};
    if (offset < ROOST_BUCKET_SLOTS)
        snprintf(text, size, "%stag %zu", generation, offset);
    else if (offset < sizeof(b->head))
        snprintf(text, size, "%slock", generation);
    else
        snprintf(text, size, "%sslot %zu %s", generation, (offset - sizeof(b->head)) / sizeof(b->slot[0]),
                 field[(offset - sizeof(b->head)) % sizeof(b->slot[0]) / 4]);
}

static void describe_endpoint(const void *at, char *text, size_t size) {
    size_t offset = (size_t)((const char *)at - (const char *)endpoint);
    snprintf(text, size, "endpoint %zu + %zu", offset / sizeof(endpoint[0]), offset % sizeof(endpoint[0]));
}

static void describe_rest(const void *at, char *text, size_t size) {
    size_t offset = (size_t)((const char *)at - (const char *)rests);
    snprintf(text, size, "rest %zu + %zu", offset / sizeof(rests[0]), offset % sizeof(rests[0]));
}

static void describe_config(const void *at, char *text, size_t size) {
    snprintf(text, size, "config + %zu", (size_t)((const char *)at - (const char *)&told));
}

static void describe_words(const void *at, char *text, size_t size) {
    snprintf(text, size, "filter + %zu", (size_t)((const char *)at - (const char *)words));
}

static void describe_sleepers_gate(const void *at, char *text, size_t size) {
    snprintf(text, size, "filter gate + %zu", (size_t)((const char *)at - (const char *)&sleepers_gate));
}

static struct roost_ka *slot_of(const struct leg *l) {
    return roost_table_find(table, &l->key);
}

static uint64_t hash_of(const struct leg *l) {
    return roost_hash4(&table->config, &l->key);
}

/* The data path's share in growth. A change to a map of maps waits for a grace period. */

static void *const memory_of[ROOST_GENERATIONS] = {old_table, new_table};
static void *generations[ROOST_GENERATIONS] SHARED; /* what XDP can look into */

static const uint32_t *generation(uint32_t which) {
    return (const uint32_t *)&generations[which];
}

static void describe_generation(const void *at, char *text, size_t size) {
    snprintf(text, size, "generation %zu", (size_t)((void *const *)at - generations));
}

void *__real_bpf_map_lookup_elem(const void *map, const void *key);
void *__wrap_bpf_map_lookup_elem(const void *map, const void *key);
void *__wrap_bpf_map_lookup_elem(const void *map, const void *key) {
    if (map == &tables4)
        use(generation(*(const uint32_t *)key), false, "looks for the table");
    return __real_bpf_map_lookup_elem(map, key);
}

int roost_datapath_use_generation(struct roost_datapath *d, struct roost_table *t, bool v4, uint32_t which, int fd,
                                  uint32_t buckets, struct roost_reason *why) {
    roost_table_begin(t, v4, which, memory_of[which], buckets);
    memcpy(&told, &t->config, sizeof(told));
    grace();
    return 0;
}

void roost_datapath_end_previous(struct roost_datapath *d, struct roost_table *t, bool v4) {
    uint32_t which;
    roost_table_end_previous(t, v4, &which);
    memcpy(&told, &t->config, sizeof(told));
    use(generation(which), true, "ends the table");
    generations[which] = NULL;
    grace();
}

/* As the data path finds what a predecessor left. */
static void open_table(void) {
    uint32_t previous = ROOST_PREVIOUS(told.v4.in_use), current = ROOST_CURRENT(told.v4.in_use);
    memset(table->gen4, 0, sizeof(table->gen4));
    table->config = (struct roost_config){.seed = {told.seed[0], told.seed[1]}};
    if (previous)
        roost_table_begin(table, true, previous - 1, memory_of[previous - 1], 1);
    roost_table_begin(table, true, current, memory_of[current], 1);
}

/* Packets. */

enum kind {
    DATA,
    PROBE,
    BIRTH /* the acknowledgement that ends a handshake */
};

static size_t make_frame(const struct leg *l, uint32_t seq, uint32_t ack, size_t payload, uint8_t *f) {
    size_t length = 54 + payload;
    memset(f, 0, length);
    put16(f + 12, 0x0800);
    f[14] = 0x45;
    put16(f + 16, (uint32_t)(40 + payload));
    f[22] = 64;
    f[23] = 6;
    memcpy(f + 26, l->key.client + 12, 4);
    memcpy(f + 30, l->key.local + 12, 4);
    put16(f + 24, reference_sum(f + 14, 20, NULL, 0));
    memcpy(f + 34, &l->key.client_port, 2);
    memcpy(f + 36, &l->key.local_port, 2);
    put32(f + 38, seq);
    put32(f + 42, ack);
    f[46] = 0x50;
    f[47] = ROOST_ACK;
    put16(f + 50, reference_tcp_sum(f + 26, 8, f + 34, 20 + payload));
    return length;
}

/* Runs XDP; what it passes comes to the stack a moment later. Returns whether a socket or the ring has it. */
static bool packet(struct leg *l, enum kind kind) {
    static uint8_t frames[THREADS_MAX + 1][128];
    uint8_t *frame = frames[running() + 1];
    struct roost_ka ka = record_of(l, l->unborn ? BORN : l->number ? l->number : 1);
    int from = l->number;
    struct xdp_md ctx;
    size_t payload = kind == DATA ? 5 : kind == PROBE && l == A; /* a probe with a byte in it takes XDP's long way */
    size_t length = make_frame(l, ka.rcv_nxt - (kind == PROBE), ka.snd_nxt, payload, frame);
    host_begin_xdp(&ctx, frame, length);
    int verdict = roost_inactive(&ctx);
    const uint8_t *after = host_frame(&length);
    if (verdict == XDP_TX)
        check_answer(l, after + 14, length - 14, from, l->unborn ? BORN : l->number);
    if (host.records) {
        const struct roost_frame *f = host.record[0].data;
        holds(!memcmp(&f->key, &l->key, sizeof(f->key)), "a packet of %s was handed over as somebody else's", l->name);
        hold_frame(f, host.record[0].size);
        l->sent += kind == DATA;
        return true;
    }
    if (verdict != XDP_PASS)
        return false;
    bool taken = deliver(l, after, length, "hands the packet to the stack");
    l->sent += taken && kind == DATA;
    return taken;
}

static void fly(struct leg *l, enum kind kind) {
    flying[running()] = true;
    packet(l, kind);
    flying[running()] = false;
}

static void data_for_a(void) {
    fly(A, DATA);
}

static void probe_for_a(void) {
    fly(A, PROBE);
}

static void probe_for_b(void) {
    fly(B, PROBE);
}

static void data_for_s(void) {
    fly(S, DATA);
}

static void probe_for_s(void) {
    fly(S, PROBE);
}

static void birth_of_c(void) {
    fly(C, BIRTH);
}

static void data_of_c(void) {
    fly(C, DATA);
}

/* Before and after each run. */

/* What is counted of classes stays all zeros: no connection has one of its own. */
static void table_starts(void) {
    struct roost_classes *classes = &table->classes;
    memset(table, 0, offsetof(struct roost_table, classes));
    memset((char *)(classes + 1), 0, sizeof(*table) - offsetof(struct roost_table, classes) - sizeof(*classes));
    memset(&classes->used, 0, sizeof(classes->used));
    table->config.seed[0] = 1;
    table->config.seed[1] = 2;
    table->rest = rests;
    table->rest_slots = RESTS;
    table->rest_free = ROOST_NO_REST;
    holds(!roost_endpoints_init(&table->endpoints, endpoint, ENDPOINTS), "no memory");
    for (uint16_t service = PLAIN; service <= PERSISTENT; service++)
        class[service] = (struct roost_class){.service = service};
}

/* awake: legs, as bits; the others have no socket, and are named nowhere yet. */
static void begin_with(unsigned awake) {
    memset(old_table, 0, sizeof(old_table));
    memset(new_table, 0, sizeof(new_table));
    memset(rests, 0, sizeof(rests));
    memset(words, 0, sizeof(words));
    memset(&sleepers_gate, 0, sizeof(sleepers_gate));
    roost_filter_begin(sleepers, words, sizeof(words) / sizeof(words[0]), &sleepers_gate);
    memset(endpoint, 0, sizeof(endpoint));
    machine_starts();
    product_starts();
    table_starts();
    roost_table_begin(table, true, 0, old_table, sizeof(old_table) / sizeof(old_table[0]));
    told = table->config;
    memcpy(generations, memory_of, sizeof(generations));
    memset(counts, 0, sizeof(counts));
    gate.services = 0;
    cookies = (struct roost_cookies){.sent_s = {[0 ... ROOST_BIRTH_RATES - 1] = NOW_MS / 1000}};
    engine_starts();
    for (struct leg *l = legs; l < legs + CONNS; l++) {
        *l = (struct leg){.name = l->name, .key = l->key, .id = (uint64_t)(l - legs) + 1, .closed = true};
        if (awake & 1u << (l - legs))
            leg_opens(l, NULL);
    }
}

static void begin(void) {
    begin_with(7);
}

static void begin_with_a_pair(void) {
    begin_with(0);
    leg_opens(A, S);
}

static void begin_with_a_pair_to_be_kept(void) {
    begin_with_a_pair();
    S->unacked = true;
}

static void begin_with_a_sleeping_pair(void) {
    begin_with_a_pair();
    command(ROOST_OP_IDLE, A);
    work();
}

static void begin_with_two_to_freeze(void) {
    begin();
    B->unacked = true;
}

static void put_to_sleep(struct leg *l, enum roost_phase phase) {
    struct roost_ka ka = record_of(l, ++l->number);
    ka.ctl |= phase;
    ka.class = PLAIN;
    if (phase == ROOST_IDLE) {
        ka.rest = roost_table_rest_alloc(table, false);
        rests[ka.rest].id = l->id;
    }
    roost_table_insert(table, &l->key, &ka, PLAIN);
    l->asleep = true;
    l->closed = false;
}

/* Its probes were not answered: the next sweep ends it. */
static void be_silent(const struct leg *l) {
    struct roost_ka *slot = slot_of(l);
    slot->heard = ROOST_HEARD(1, 0, 15);
    class[PLAIN].probe_interval_s = class[PLAIN].probe_retry_s = 1;
}

static void begin_with_a_asleep(void) {
    begin_with(6);
    put_to_sleep(A, ROOST_IDLE);
}

/* Those that sleep need no keep-alives, and so no slot. */
static void leave_table(struct leg *l) {
    class[PLAIN].no_keepalives = 1;
    command(ROOST_OP_SLEEP, l);
    work();
}

static void begin_with_a_filtered(void) {
    begin_with_a_asleep();
    leave_table(A);
}

/* Its packet waits for the engine, and wakes no connection. */
static void begin_with_a_probing(void) {
    begin_with_a_filtered();
    packet(A, PROBE);
}

/* So many others, each with this bucket alone. */
static void crowd(uint32_t bucket, int others) {
    uint32_t taken = roost_filter_place_of(hash_of(A), 2).fingerprint;
    for (uint32_t fingerprint = 1; others; fingerprint++) {
        if (fingerprint == taken || roost_filter_other(bucket, fingerprint, 2) != bucket)
            continue;
        holds(roost_filter_insert(sleepers, (uint64_t)bucket << 63 | fingerprint, A->key.local_port),
              "there is no room for others");
        others--;
    }
}

/* In the second of its buckets, which is full of those that cannot move: A goes where a reader has looked already. */
static void begin_with_a_in_the_way(void) {
    begin_with_a_asleep();
    struct roost_filter_place home = roost_filter_place_of(hash_of(A), 2);
    holds(home.bucket[0] != home.bucket[1], "A's two buckets are one");
    crowd(home.bucket[0], 1);
    leave_table(A);
    crowd(home.bucket[1], ROOST_FILTER_PLACES - 1);
}

static void begin_with_a_unmade(void) {
    begin_with_a_asleep();
    A->unmade = true;
}

static void begin_with_a_silent(void) {
    begin_with_a_asleep();
    be_silent(A);
}

/* Put back from the store, as A was: until then, it is unknown. */
static void begin_without_b(void) {
    begin_with(4);
    put_to_sleep(A, ROOST_SLEEP);
    be_silent(A);
    B->late = true;
}

/* Clients may be born asleep, and C is about to be. */
static void expect_c(void) {
    struct roost_birth_place place = {.port = A->key.local_port};
    memcpy(place.address, A->key.local, 16);
    birth.endpoint = roost_endpoints_take(&table->endpoints, place.address, place.port, PLAIN);
    birth.service = PLAIN;
    roost_endpoints_pin(&table->endpoints, birth.endpoint);
    put_birth(&place, &birth);
    gate.services = 1;
    C->unborn = true;
}

static void begin_births(void) {
    begin_with(3);
    expect_c();
}

static void begin_births_with_a_asleep(void) {
    begin_with(2);
    put_to_sleep(A, ROOST_IDLE);
    expect_c();
}

static void begin_births_with_a_silent(void) {
    begin_births_with_a_asleep();
    be_silent(A);
}

/* The slot of each leg, and how many there are. */
static uint64_t find_slots(struct roost_ka *found[CONNS]) {
    uint64_t slots = 0;
    struct roost_key key;
    memset(found, 0, CONNS * sizeof(*found));
    for (uint64_t p = 0, positions = roost_table_positions(table); p < positions; p++) {
        struct roost_ka *slot = roost_table_at(table, p, &key);
        if (!slot)
            continue;
        const struct leg *l = leg_of(&key);
        holds(!found[l - legs], "%s is in the table twice", l->name);
        found[l - legs] = slot;
        slots++;
    }
    return slots;
}

static void check_sleeper(const struct leg *l, const struct roost_ka *slot) {
    struct roost_ka ka = record_of(l, l->number);
    enum roost_phase phase = ROOST_PHASE(slot->ctl);
    holds(phase == ROOST_IDLE || phase == ROOST_SLEEP, "%s is asleep in phase %d", l->name, phase);
    holds(slot->snd_nxt == ka.snd_nxt && slot->rcv_nxt == ka.rcv_nxt && slot->ts_offset == ka.ts_offset &&
              slot->window == ka.window,
          "the record of %s is not what it was", l->name);
    if (phase == ROOST_IDLE && !ROOST_IS_BORN(slot->rest))
        holds(slot->rest < RESTS && rests[slot->rest].id == l->id, "the rest of %s is lost", l->name);
}

static uint64_t born(void) {
    uint64_t sum = 0;
    for (int i = 0; i < HOST_CPUS; i++)
        sum += counts[i][ROOST_N_BORN4];
    return sum;
}

/* What is left of a leg. */
static void check_leg(struct leg *l, const struct roost_ka *slot, bool killed) {
    if (l->unborn && slot) {
        l->number = BORN;
        l->asleep = true;
        l->closed = l->unborn = false;
    }
    if (killed && l->socket == LIVE)
        holds(!slot, "%s's socket died with the engine, and its record lives on", l->name);
    bool filtered = roost_filter_has(sleepers, hash_of(l), l->key.local_port);
    holds(!l->asleep || slot || filtered, "%s is lost: it was asleep, and is not in the table", l->name);
    if (slot && (l->asleep || killed))
        check_sleeper(l, slot);
    if (killed && !slot && !filtered)
        l->closed = true; /* killed between the snapshot and the record: its client learns it when it speaks */
}

/* Its client is heard by a server, whatever the connection's state. */
static void check_speech(struct leg *l) {
    int got = l->got;
    packet(l, DATA);
    work();
    holds(l->closed || l->got == got + 1, "%s can not be reached any more", l->name);
}

static void end(bool killed) {
    struct roost_ka *slot[CONNS];
    uint64_t max_id, counted_before = 0;
    uint32_t uses = 0;
    if (killed) {
        open_table();
        roost_filter_begin(sleepers, words, sizeof(words) / sizeof(words[0]), &sleepers_gate);
        holds(roost_table_adopt(table, &max_id) >= 0, "the table could not be adopted");
        counted_before = born();
    }
    uint64_t slots = find_slots(slot);
    for (struct leg *l = legs; l < legs + CONNS; l++)
        check_leg(l, slot[l - legs], killed);
    holds(!A->peer || !slot[A - legs] == !slot[S - legs], "of a pair one leg is asleep, and the other is not");
    holds(table->used4 + born() - counted_before == slots, "%llu slots are taken, and %llu counted",
          (unsigned long long)slots, (unsigned long long)(table->used4 + born() - counted_before));
    for (uint32_t i = 0; i < ENDPOINTS; i++)
        uses += table->endpoints.uses[i];
    holds(gate.services || uses == slots, "%u uses of near ends, by %llu slots", uses, (unsigned long long)slots);
    holds(!old_table[0].head.lock && !new_table[0].head.lock, "a bucket is locked, and nobody holds the lock");
    if (killed) {
        legs_die();
        engine_starts();
    }
    work();
    for (struct leg *l = legs; l < legs + CONNS; l++) {
        holds(killed || l->number > 1 || l->got == l->sent || (l->lost && l->got < l->sent),
              "%d packets of %s were taken, and %d came to its server", l->sent, l->name, l->got);
        check_speech(l);
    }
    engine.growth.retry_ms = 0; /* what was busy is not any more */
    work();
    holds(engine.growth.step == ROOST_GROWTH_NONE, "the table grows, and there is nothing to move");
}

/* Whether what is born while a table is adopted is counted, is not known. */
static void end_of_adoption(bool killed) {
    struct roost_ka *slot[CONNS];
    table->used4 = find_slots(slot);
    memset(counts, 0, sizeof(counts));
    end(killed);
}

/* Scenarios. */

static void freeze(struct leg *l) {
    command(ROOST_OP_IDLE, l);
    work();
}

static void wake(struct leg *l) {
    command(ROOST_OP_WAKE, l);
    work();
}

static void freeze_a(void) {
    freeze(A);
}

static void thaw_a(void) {
    wake(A);
}

static void freeze_and_thaw_a(void) {
    freeze(A);
    wake(A);
}

static void freeze_a_and_b(void) {
    command(ROOST_OP_IDLE, A);
    freeze(B);
}

static void cancel_a(void) {
    A->unacked = true;
    freeze(A);
}

static void sleep_and_wake_a(void) {
    command(ROOST_OP_SLEEP, A);
    work();
    wake(A);
}

static void forget_a_freeze_b(void) {
    sweep();
    freeze(B);
}

static void forget_a_put_back_b(void) {
    sweep();
    B->number++;
    command(ROOST_OP_INSERT, B);
    work();
}

static void again_a(void) {
    wake(A);
    freeze(A);
}

static void begin_new_table(void) {
    roost_datapath_use_generation(&engine.path, table, true, 1, -1, 1, NULL);
}

static void grow_and_freeze_b(void) {
    begin_new_table();
    freeze(B);
}

static void adopt(void) {
    uint64_t max_id;
    holds(!roost_table_adopt(table, &max_id), "a slot was removed that is somebody's");
}

/* A larger table was made; the guard has what comes for those whose slots move. */
static void grow(void) {
    for (struct leg *l = legs; l < legs + CONNS; l++)
        l->late = l->asleep;
    engine.growth = (struct roost_growth){
        .step = ROOST_GROWTH_MAKING, .made = 1, .v4 = true, .which = 1, .buckets = 1, .engine = &engine};
    take_turn();
    work();
}

static void leave_table_a(void) {
    leave_table(A);
}

static void make_room(void) {
    uint64_t moves = sleepers->moves;
    crowd(roost_filter_place_of(hash_of(A), 2).bucket[1], 1);
    holds(sleepers->moves == moves + 1, "nobody has moved");
}

#define PACKETS                                                                                                        \
    { "engine", "packet", "packet 2" }
static const struct scenario scenarios[] = {
    {"data while freezing", 2, PACKETS, begin, {freeze_a, data_for_a}, end, 3, true},
    {"a probe while freezing", 2, PACKETS, begin, {freeze_a, probe_for_a}, end, 2, false},
    {"two packets while freezing", 3, PACKETS, begin, {freeze_a, data_for_a, probe_for_a}, end, 2, false},
    {"data while a freeze is cancelled", 2, PACKETS, begin, {cancel_a, data_for_a}, end, 3, true},
    {"data while thawing", 2, PACKETS, begin_with_a_asleep, {thaw_a, data_for_a}, end, 3, true},
    {"two packets while thawing", 3, PACKETS, begin_with_a_asleep, {thaw_a, data_for_a, probe_for_a}, end, 3, false},
    {"data while freezing and thawing", 2, PACKETS, begin, {freeze_and_thaw_a, data_for_a}, end, 3, true},
    {"data while one of two freezes is cancelled",
     2,
     PACKETS,
     begin_with_two_to_freeze,
     {freeze_a_and_b, data_for_a},
     end,
     2,
     false},
    {"data while a thaw fails", 2, PACKETS, begin_with_a_unmade, {thaw_a, data_for_a}, end, 3, true},
    {"data while a pair freezes", 2, PACKETS, begin_with_a_pair, {freeze_a, data_for_a}, end, 2, true},
    {"data of the server while a pair freezes", 2, PACKETS, begin_with_a_pair, {freeze_a, data_for_s}, end, 2, true},
    {"data while the freeze of a pair is cancelled",
     2,
     PACKETS,
     begin_with_a_pair_to_be_kept,
     {freeze_a, data_for_a},
     end,
     2,
     true},
    {"data of both while a pair thaws",
     3,
     PACKETS,
     begin_with_a_sleeping_pair,
     {thaw_a, data_for_a, data_for_s},
     end,
     2,
     true},
    {"a probe of the server while a pair thaws",
     2,
     PACKETS,
     begin_with_a_sleeping_pair,
     {thaw_a, probe_for_s},
     end,
     3,
     true},
    {"a probe while thawing and freezing", 2, PACKETS, begin_with_a_asleep, {again_a, probe_for_a}, end, 2, true},
    {"data while falling asleep and waking",
     2,
     PACKETS,
     begin_with_a_asleep,
     {sleep_and_wake_a, data_for_a},
     end,
     3,
     true},
    {"a probe while falling asleep and waking",
     2,
     PACKETS,
     begin_with_a_asleep,
     {sleep_and_wake_a, probe_for_a},
     end,
     3,
     false},
    {"a probe while the slot gets another owner",
     2,
     PACKETS,
     begin_with_a_silent,
     {forget_a_freeze_b, probe_for_a},
     end,
     2,
     true},
    {"a probe of the slot's next owner",
     2,
     PACKETS,
     begin_with_a_silent,
     {forget_a_freeze_b, probe_for_b},
     end,
     2,
     false},
    {"a probe while the slot is given to somebody put back",
     2,
     PACKETS,
     begin_without_b,
     {forget_a_put_back_b, probe_for_a},
     end,
     2,
     true},
    {"a probe of somebody put back", 2, PACKETS, begin_without_b, {forget_a_put_back_b, probe_for_b}, end, 3, false},
    {"data while a new table begins", 2, PACKETS, begin_with_a_asleep, {grow_and_freeze_b, data_for_a}, end, 3, true},
    {"a probe for whom the new table takes in",
     2,
     PACKETS,
     begin_with_a_asleep,
     {grow_and_freeze_b, probe_for_b},
     end,
     3,
     false},
    {"two acknowledgements of one birth",
     2,
     {"packet", "packet 2"},
     begin_births,
     {birth_of_c, birth_of_c},
     end,
     3,
     false},
    {"a birth while another falls asleep", 2, PACKETS, begin_births, {freeze_a, birth_of_c}, end, 2, true},
    {"a birth while a slot is left", 2, PACKETS, begin_births_with_a_silent, {sweep, birth_of_c}, end, 3, true},
    {"who is born speaks at once", 2, PACKETS, begin_births, {serve, data_of_c}, end, 3, true},
    {"who is born speaks, and the acknowledgement comes late",
     3,
     PACKETS,
     begin_births,
     {serve, data_of_c, birth_of_c},
     end,
     2,
     false},
    {"a birth while the table is adopted",
     2,
     PACKETS,
     begin_births_with_a_asleep,
     {adopt, birth_of_c},
     end_of_adoption,
     3,
     false},
    {"data while its slot is moved", 2, PACKETS, begin_with_a_asleep, {grow, data_for_a}, end, 3, true},
    {"a probe while its slot is moved", 2, PACKETS, begin_with_a_asleep, {grow, probe_for_a}, end, 3, true},
    {"data of both while the slots of a pair are moved",
     3,
     PACKETS,
     begin_with_a_sleeping_pair,
     {grow, data_for_a, data_for_s},
     end,
     2,
     true},
    {"a birth while slots are moved", 2, PACKETS, begin_births_with_a_asleep, {grow, birth_of_c}, end, 2, true},
    {"two acknowledgements while a new table begins",
     3,
     PACKETS,
     begin_births,
     {begin_new_table, birth_of_c, birth_of_c},
     end,
     2,
     false},
};

/* The filter is shared memory in these alone: every packet reads its gate, and nothing writes it in the others. */
static const struct scenario filter_scenarios[] = {
    {"data while its slot is left for the filter",
     2,
     PACKETS,
     begin_with_a_asleep,
     {leave_table_a, data_for_a},
     end,
     3,
     true},
    {"data while it comes back from the filter", 2, PACKETS, begin_with_a_probing, {work, data_for_a}, end, 2, true},
    {"data while it comes back and wakes", 2, PACKETS, begin_with_a_filtered, {thaw_a, data_for_a}, end, 2, true},
    {"data while another takes its place in the filter",
     2,
     PACKETS,
     begin_with_a_in_the_way,
     {make_room, data_for_a},
     end,
     3,
     true},
};

/* Clients until all have one home and the second one has the first one's tag: there is one bucket alone. */
static void choose_keys(void) {
    struct roost_config seed = {.seed = {1, 2}};
    uint32_t client = 0x0a000001;
    const char *const names[] = {"A", "B", "C", "S"};
    for (int i = 0; i < CONNS; i++) {
        struct roost_key *key = &legs[i].key;
        legs[i].name = names[i];
        key->client[10] = key->client[11] = key->local[10] = key->local[11] = 0xff;
        put32(key->local + 12, 0x0a000101);
        put16((uint8_t *)&key->client_port, 40000 + (uint32_t)i);
        put16((uint8_t *)&key->local_port, i == 3 ? 20000 : 443);
        struct roost_place first, place;
        do {
            put32(key->client + 12, client++);
            first = roost_place_of(roost_hash4(&seed, &legs[0].key), 1);
            place = roost_place_of(roost_hash4(&seed, key), 1);
        } while (place.home != first.home || (i == 1 && place.tag != first.tag));
    }
}

static void give_maps(void) {
    give_product_maps();
    host_map_array(old_table, old_table, sizeof(old_table) / sizeof(old_table[0]), sizeof(old_table[0]));
    host_map_array(new_table, new_table, sizeof(new_table) / sizeof(new_table[0]), sizeof(new_table[0]));
    host_map_array(&config, &told, 1, sizeof(told));
    host_map_of_maps(&tables4, generations, ROOST_GENERATIONS);
    host_map_array(&endpoints, endpoint, ENDPOINTS, sizeof(endpoint[0]));
    host_map_array(&classes, class, ROOST_CLASSES, sizeof(class[0]));
    host_map_percpu(&counters, counts, ROOST_N_COUNT, sizeof(counts[0][0]));
    host_map_array(&births_gate, &gate, 1, sizeof(gate));
    host_map_array(&births_cookies, &cookies, 1, sizeof(cookies));
    host_map_array(&filter, words, sizeof(words) / sizeof(words[0]), sizeof(words[0]));
    host_map_array(&filter_gate, &sleepers_gate, 1, sizeof(sleepers_gate));
}

static enum host_socket find_socket(const struct bpf_sock_tuple *tuple, bool v4);

static void use_cpu_of(int thread) {
    host_on_cpu(thread);
    host.now_ns = NOW_MS * 1000000;
    host.find_socket = find_socket;
    host.fib_ifindex = 3; /* the way back, of all that comes by this interface (host_begin_xdp) */
}

static enum host_socket find_socket(const struct bpf_sock_tuple *tuple, bool v4) {
    for (const struct leg *l = legs; l < legs + CONNS && v4; l++)
        if (tuple->ipv4.sport == l->key.client_port && !memcmp(&tuple->ipv4.saddr, l->key.client + 12, 4))
            return socket_of(l, "looks for a socket") == NO_SOCKET ? HOST_NO_SOCKET : HOST_CONNECTION;
    return HOST_NO_SOCKET;
}

static bool wanted(const struct scenario *s, int argc, char **argv) {
    bool all = argc < 2;
    for (int i = 1; i < argc; i++)
        all |= !strcmp(argv[i], s->name);
    return all;
}

static void explore_all(const struct scenario *from, size_t count, bool list, int more, int argc, char **argv) {
    for (const struct scenario *s = from; s < from + count; s++) {
        if (list) {
            printf("%s\n", s->name);
        } else if (wanted(s, argc, argv)) {
            struct scenario deeper = *s;
            deeper.preemptions += more;
            struct explored e = explore(&deeper);
            printf("%s: %llu schedules, at most %d preemptions, up to %zu choices\n", s->name,
                   (unsigned long long)e.schedules, deeper.preemptions, e.longest);
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv) {
    bool list = argc > 1 && !strcmp(argv[1], "--list");
    int more = argc > 1 && !strcmp(argv[1], "--deeper");
    argc -= list || more;
    argv += list || more;
    roost_classes_init(&table->classes, class);
    choose_keys();
    give_maps();
    machine_begins();
    share(old_table, sizeof(old_table), describe_table);
    share(new_table, sizeof(new_table), describe_table);
    share(generations, sizeof(generations), describe_generation);
    share(endpoint, sizeof(endpoint), describe_endpoint);
    share(rests, sizeof(rests), describe_rest);
    share(&told, sizeof(told), describe_config);
    on_switch = use_cpu_of;
    use_cpu_of(0);
    explore_all(scenarios, sizeof(scenarios) / sizeof(scenarios[0]), list, more, argc, argv);
    share(words, sizeof(words), describe_words);
    share(&sleepers_gate, sizeof(sleepers_gate), describe_sleepers_gate);
    explore_all(filter_scenarios, sizeof(filter_scenarios) / sizeof(filter_scenarios[0]), list, more, argc, argv);
    return 0;
}
