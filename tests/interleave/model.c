// SPDX-License-Identifier: Apache-2.0
/*
 * Connections that freeze, sleep and thaw while packets come: inactive.bpf.c, table.c and filter.c as they
 * are, and around them, as little as can be, the sockets. The engine's steps are those of life/freeze.c, life/thaw.c,
 * cext/commands.c and cext/life/perhaps.c, in their order.
 *
 *     model [--deeper] [SCENARIO...]      explores these, or all, and prints a line for each; --deeper: with one more
 *                                         preemption
 *     model --list                        their names
 *
 * The claims:
 *
 *     no packet of a connection that lives, awake or asleep, comes to a stack that has no socket for it: that is an RST;
 *     only one that was put back from the store while the packet was on its way needs the guard to stop it
 *     an answer is made from one record, whole, of the packet's own connection, and of a moment while the packet was there
 *     a connection is in the table once at most; none that is asleep is missing there and in the filter
 *     the engine may be killed anywhere: roost_table_adopt gives a consistent table, with every connection in it that was
 *     asleep and none whose socket lived
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "cext/table/filter.h"
#include "cext/table/table.h"
#include "ebpf/shared/frame.h"
#include "ebpf/shared/judge.h"
#include "ebpf/shared/birth.h"
#include "ebpf/shared/sockets.h"
#include "../fuzz/host/bpf/bpf_helpers.h"
#include "../fuzz/host/kernel.h"
#include "../fuzz/reference.h"
#include "scheduler.h"

#define ENDPOINTS 4
#define RESTS 8
#define RING 8
#define NOW_MS 3600000ull
#define BORN 14 /* the number of a record that its cookie made */
#define BORN_WINDOW 65152
#define ISN 0x50000000u

int roost_inactive(struct xdp_md *ctx);
int roost_guard(struct __sk_buff *skb);
__u32 cookie_for(const struct roost_births_gate *gate, const struct roost_key *key, __u32 isn, __u64 now_ms);
void give_product_maps(void);
extern char births, births_gate, config, tables4, endpoints, classes, counters, filter,
    filter_gate; /* maps: only their addresses */

enum socket {
    NO_SOCKET,
    LIVE,
    MUTE /* in repair mode, behind a filter that lets nothing in; its end is silent */
};

static struct conn {
    const char *name;
    struct roost_key key;
    struct roost_ka *slot;
    enum socket socket;
    int number;    /* of its present record: every sleep has other numbers */
    bool asleep;   /* the table is all that is left of it */
    bool closed;   /* both ends know that it is over */
    bool unborn;   /* the handshake is not over yet */
    bool filtered; /* its fingerprint is, without a slot: its row is what is left of it */
    bool late;     /* put back from the store while its packets come: nobody waits for those on their way */
    int got;       /* packets that its socket took */
} conns[3];
#define A (&conns[0])
#define B (&conns[1]) /* has A's tag and bucket */
#define C (&conns[2])

static struct roost_table table;
static struct roost_class class[ROOST_CLASSES];
static struct roost_config told; /* what XDP knows of the table */
static struct roost_bucket4 old_table[1], new_table[1];
static struct roost_endpoint endpoint[ENDPOINTS];
static struct roost_rest rests[RESTS];
static uint64_t counts[HOST_CPUS][ROOST_N_COUNT];
static struct roost_births_gate gate = {.secret = {3, 4}, .open_until_s = 0x7fffffff, .services = 1};
static struct roost_birth birth = {.mss = 1460};

static __u64 words[2]; /* of the filter */
static struct roost_filter sleepers;
static struct roost_filter_gate sleepers_gate;

static const struct conn *ring[RING];
static int held;

static bool flying[THREADS_MAX], waited_for[THREADS_MAX];

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

/* Records: every number of one tells whose it is and which. */

static uint32_t stamp(const struct conn *c, int number, uint32_t field) {
    return (uint32_t)(c - conns + 1) << 28 | (uint32_t)number << 24 | field << 16;
}

static struct roost_ka record_of(const struct conn *c, int number) {
    if (number == BORN)
        return (struct roost_ka){.snd_nxt = cookie_for(&gate, &c->key, ISN, NOW_MS) + 1,
                                 .rcv_nxt = ISN + 1,
                                 .window = BORN_WINDOW,
                                 .rest = ROOST_NO_REST};
    return (struct roost_ka){.snd_nxt = stamp(c, number, 1),
                             .rcv_nxt = stamp(c, number, 2),
                             .ts_offset = stamp(c, number, 3),
                             .heard = ROOST_HEARD(1, 0, 0),
                             .window = (uint16_t)(stamp(c, number, 4) >> 16),
                             .rest = ROOST_NO_REST};
}

/* The engine's steps. */

static void mark(struct conn *c) {
    struct roost_ka ka = {.ctl = ROOST_FREEZING, .rest = ROOST_NO_REST};
    c->slot = roost_table_insert(&table, &c->key, &ka, 0);
    holds(c->slot != NULL, "there is no room for %s", c->name);
}

static bool all_landed(void) {
    for (int i = 0; i < THREADS_MAX; i++)
        if (waited_for[i] && flying[i])
            return false;
    return true;
}

/* membarrier: what was between XDP and TCP when it began has arrived when it ends. */
static void grace(void) {
    memcpy(waited_for, flying, sizeof(flying));
    await(all_landed, "waits for a grace period");
    memset(waited_for, 0, sizeof(waited_for));
}

static uint32_t new_rest(const struct conn *c) {
    uint32_t index = roost_table_rest_alloc(&table);
    holds(index != ROOST_NO_REST, "no rest slot");
    struct roost_rest rest = {.id = (uint64_t)(c - conns) + 1};
    memcpy(&table.rest[index], &rest, sizeof(rest));
    return index;
}

static void publish(struct conn *c) {
    step("reads the socket's numbers, which takes nothing in any more");
    c->socket = MUTE;
    struct roost_ka ka = record_of(c, ++c->number);
    ka.rest = new_rest(c);
    roost_table_publish(c->slot, &ka, ROOST_IDLE);
    c->asleep = true;
    step("closes the socket");
    c->socket = NO_SOCKET;
}

static void freeze(struct conn *c) {
    mark(c);
    grace();
    publish(c);
}

static void replay(struct conn *c) {
    int kept = 0;
    for (int i = 0; i < held; i++) {
        if (ring[i] == c)
            c->got++;
        else
            ring[kept++] = ring[i];
    }
    held = kept;
}

static void release(struct conn *c) {
    replay(c);
    roost_table_remove(&table, c->slot);
    c->slot = NULL;
    replay(c);
}

static void rebuild(struct conn *c) {
    step("rebuilds the socket");
    c->socket = MUTE;
    c->asleep = false;
    roost_table_set_phase(c->slot, ROOST_THAWED);
    step("lets the socket live");
    c->socket = LIVE;
    release(c);
}

static void thaw(struct conn *c) {
    roost_table_set_phase(c->slot, ROOST_WAKING);
    rebuild(c);
}

static void fall_asleep(struct conn *c) {
    roost_table_set_phase(c->slot, ROOST_SLEEP);
    uint32_t index = c->slot->rest;
    c->slot->rest = ROOST_NO_REST;
    roost_table_rest_release(&table, index);
}

static void restore(struct conn *c) {
    c->slot->rest = new_rest(c);
    roost_table_set_phase(c->slot, ROOST_WAKING);
    rebuild(c);
}

static uint64_t hash_of(const struct conn *c) {
    return roost_hash4(&table.config, &c->key);
}

/* In SLEEP, and no keep-alive is needed. */
static void leave_table(struct conn *c) {
    fall_asleep(c);
    c->filtered = true;
    holds(roost_filter_insert(&sleepers, hash_of(c), c->key.local_port), "there is no room for %s", c->name);
    roost_table_remove(&table, c->slot);
    c->slot = NULL;
}

static void come_back(struct conn *c) {
    struct roost_ka ka = record_of(c, c->number);
    ka.ctl |= ROOST_SLEEP;
    c->slot = roost_table_insert(&table, &c->key, &ka, 0);
    holds(c->slot != NULL, "there is no room for %s", c->name);
    holds(roost_filter_remove(&sleepers, hash_of(c)), "%s is not in the filter", c->name);
    c->filtered = false;
}

/* A sleeping client is dead, as its probes say. */
static void forget(struct conn *c) {
    c->asleep = false;
    c->closed = true;
    roost_table_remove(&table, c->slot);
    c->slot = NULL;
}

static void begin_new_table(void) {
    roost_table_begin(&table, true, 1, new_table, sizeof(new_table) / sizeof(new_table[0]));
    memcpy(&told, &table.config, sizeof(told));
    grace(); /* as a change to a map of maps waits */
}

/* Packets. */

enum kind {
    DATA,
    PROBE,
    BIRTH /* the acknowledgement that ends a handshake */
};

static size_t make_frame(const struct conn *c, uint32_t seq, uint32_t ack, size_t payload, uint8_t *f) {
    size_t length = 54 + payload;
    memset(f, 0, length);
    put16(f + 12, 0x0800);
    f[14] = 0x45;
    put16(f + 16, (uint32_t)(40 + payload));
    f[22] = 64;
    f[23] = 6;
    memcpy(f + 26, c->key.client + 12, 4);
    memcpy(f + 30, c->key.local + 12, 4);
    put16(f + 24, reference_sum(f + 14, 20, NULL, 0));
    memcpy(f + 34, &c->key.client_port, 2);
    memcpy(f + 36, &c->key.local_port, 2);
    put32(f + 38, seq);
    put32(f + 42, ack);
    f[46] = 0x50;
    f[47] = ROOST_ACK;
    put16(f + 50, reference_tcp_sum(f + 26, 8, f + 34, 20 + payload));
    return length;
}

static void check_answer(const struct conn *c, const uint8_t *f, size_t length, int from) {
    struct tuple t;
    holds(reference_tuple(f, length, &t) && t.key.local_port == c->key.client_port,
          "an answer to somebody else than %s's client", c->name);
    const uint8_t *tcp = f + t.l4;
    for (int number = from; number <= (c->unborn ? BORN : c->number); number++) {
        struct roost_ka ka = record_of(c, number);
        if (get32(tcp + 4) == ka.snd_nxt && get32(tcp + 8) == ka.rcv_nxt && get16(tcp + 14) == ka.window &&
            (t.l4_length == 20 || get32(tcp + 24) == (uint32_t)NOW_MS + ka.ts_offset))
            return;
    }
    holds(false, "an answer for %s from no record of its own: seq %08x ack %08x window %04x", c->name, get32(tcp + 4),
          get32(tcp + 8), get16(tcp + 14));
}

/* The stack's answer to a packet that there is no socket for, on its way out. */
static bool is_guarded(const struct conn *c, uint32_t ack) {
    struct conn other = {.key = {.client_port = c->key.local_port, .local_port = c->key.client_port}};
    struct __sk_buff skb;
    uint8_t rst[64];
    size_t length;
    memcpy(other.key.client, c->key.local, 16);
    memcpy(other.key.local, c->key.client, 16);
    length = make_frame(&other, ack, 0, 0, rst);
    rst[47] = ROOST_RST;
    host_begin_skb(&skb, rst, length);
    bool stopped = roost_guard(&skb) == TC_ACT_SHOT;
    host_frame(&length);
    return stopped;
}

/* Runs XDP; what it passes comes to the stack a moment later. Returns whether somebody has it: a socket, or the ring. */
static bool packet(struct conn *c, enum kind kind) {
    static uint8_t frames[THREADS_MAX + 1][128];
    uint8_t *frame = frames[running() + 1];
    struct roost_ka ka = record_of(c, c->unborn ? BORN : c->number ? c->number : 1);
    int from = c->number;
    struct xdp_md ctx;
    size_t payload = kind == DATA ? 5 : kind == PROBE && c == A; /* a probe with a byte in it takes XDP's long way */
    size_t length = make_frame(c, ka.rcv_nxt - (kind == PROBE), ka.snd_nxt, payload, frame);
    host_begin_xdp(&ctx, frame, length);
    int verdict = roost_inactive(&ctx);
    const uint8_t *after = host_frame(&length);
    if (verdict == XDP_TX)
        check_answer(c, after, length, from);
    if (host.records) {
        const struct roost_frame *f = host.record[0].data;
        holds(!memcmp(&f->key, &c->key, sizeof(f->key)), "a packet of %s was handed over as somebody else's", c->name);
        holds(held < RING, "the ring is too short for this scenario");
        ring[held++] = c;
        return true;
    }
    if (verdict != XDP_PASS)
        return false;
    if (running() >= 0)
        step("hands the packet to the stack");
    holds(c->socket != NO_SOCKET || c->closed || (c->late && is_guarded(c, ka.snd_nxt)),
          "a packet of %s came to the stack, and there is no socket: RST", c->name);
    if (c->socket != LIVE)
        return false;
    c->got++;
    return true;
}

static void fly(struct conn *c, enum kind kind) {
    flying[running()] = true;
    packet(c, kind);
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

static void birth_of_c(void) {
    fly(C, BIRTH);
}

static void data_of_c(void) {
    fly(C, DATA);
}

/* Before and after each run. */

static void begin(void) {
    memset(old_table, 0, sizeof(old_table));
    memset(new_table, 0, sizeof(new_table));
    memset(rests, 0, sizeof(rests));
    memset(flying, 0, sizeof(flying));
    memset(waited_for, 0, sizeof(waited_for));
    memset(words, 0, sizeof(words));
    memset(&sleepers_gate, 0, sizeof(sleepers_gate));
    roost_filter_begin(&sleepers, words, sizeof(words) / sizeof(words[0]), &sleepers_gate);
    memset(table.endpoints.uses, 0, ENDPOINTS * sizeof(*table.endpoints.uses));
    memset(endpoint, 0, sizeof(endpoint));
    roost_endpoints_settle(&table.endpoints);
    struct roost_endpoints near = table.endpoints;
    struct roost_classes policies = table.classes;
    table = (struct roost_table){.config = {.seed = {1, 2}},
                                 .endpoints = near,
                                 .classes = policies,
                                 .rest = rests,
                                 .rest_slots = RESTS,
                                 .rest_free = ROOST_NO_REST};
    roost_table_begin(&table, true, 0, old_table, sizeof(old_table) / sizeof(old_table[0]));
    told = table.config;
    held = 0;
    memset(counts, 0, sizeof(counts));
    gate.services = 0;
    for (struct conn *c = conns; c < conns + 3; c++) {
        c->slot = NULL;
        c->socket = LIVE;
        c->number = c->got = 0;
        c->asleep = c->closed = c->unborn = c->late = c->filtered = false;
    }
}

static void put_to_sleep(struct conn *c) {
    struct roost_ka ka = record_of(c, ++c->number);
    ka.ctl |= ROOST_IDLE;
    ka.rest = new_rest(c);
    c->slot = roost_table_insert(&table, &c->key, &ka, 0);
    c->socket = NO_SOCKET;
    c->asleep = true;
    c->closed = false;
}

static void begin_with_a_asleep(void) {
    begin();
    put_to_sleep(A);
}

static void begin_with_a_filtered(void) {
    begin_with_a_asleep();
    leave_table(A);
}

/* So many others, each with this bucket alone. */
static void crowd(uint32_t bucket, int others) {
    uint32_t taken = roost_filter_place_of(hash_of(A), 2).fingerprint;
    for (uint32_t fingerprint = 1; others; fingerprint++) {
        if (fingerprint == taken || roost_filter_other(bucket, fingerprint, 2) != bucket)
            continue;
        holds(roost_filter_insert(&sleepers, (uint64_t)bucket << 63 | fingerprint, A->key.local_port),
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

static void begin_without_b(void) {
    begin_with_a_asleep();
    B->socket = NO_SOCKET; /* put back from the store: until then, nobody knows it */
    B->closed = B->late = true;
}

/* Clients may be born asleep, and C is about to be. */
static void expect_c(void) {
    struct roost_birth_place place = {.port = A->key.local_port};
    memcpy(place.address, A->key.local, 16);
    birth.endpoint = roost_endpoints_take(&table.endpoints, place.address, place.port, 0);
    roost_endpoints_pin(&table.endpoints, birth.endpoint);
    bpf_map_update_elem(&births, &place, &birth, 0);
    gate.services = 1;
    C->socket = NO_SOCKET;
    C->closed = C->unborn = true;
}

static void begin_births(void) {
    begin();
    expect_c();
}

static void begin_births_with_a_asleep(void) {
    begin_with_a_asleep();
    expect_c();
}

static struct roost_ka *only_slot(const struct conn *c) {
    struct roost_ka *found = NULL;
    struct roost_key key;
    for (uint64_t p = 0, positions = roost_table_positions(&table); p < positions; p++) {
        struct roost_ka *slot = roost_table_at(&table, p, &key);
        if (!slot || memcmp(&key, &c->key, sizeof(key)))
            continue;
        holds(!found, "%s is in the table twice", c->name);
        found = slot;
    }
    return found;
}

static void check_sleeper(const struct conn *c, const struct roost_ka *slot) {
    struct roost_ka ka = record_of(c, c->number);
    enum roost_phase phase = ROOST_PHASE(slot->ctl);
    holds(phase == ROOST_IDLE || phase == ROOST_SLEEP, "%s is asleep in phase %d", c->name, phase);
    holds(slot->snd_nxt == ka.snd_nxt && slot->rcv_nxt == ka.rcv_nxt && slot->ts_offset == ka.ts_offset &&
              slot->window == ka.window,
          "the record of %s is not what it was", c->name);
    if (phase == ROOST_IDLE && !ROOST_IS_BORN(slot->rest))
        holds(slot->rest < RESTS && rests[slot->rest].id == (uint64_t)(c - conns) + 1, "the rest of %s is lost",
              c->name);
}

static uint64_t born(void) {
    uint64_t sum = 0;
    for (int i = 0; i < HOST_CPUS; i++)
        sum += counts[i][ROOST_N_BORN4];
    return sum;
}

static void end(bool killed) {
    uint64_t slots = 0, max_id, counted_before = 0;
    uint32_t uses = 0;
    if (killed) {
        roost_filter_begin(&sleepers, words, sizeof(words) / sizeof(words[0]), &sleepers_gate);
        holds(roost_table_adopt(&table, &max_id) >= 0, "the table could not be adopted");
        counted_before = born();
    }
    for (struct conn *c = conns; c < conns + 3; c++) {
        struct roost_ka *slot = only_slot(c);
        slots += slot != NULL;
        if (c->unborn && slot) {
            c->number = BORN;
            c->asleep = true;
            c->closed = c->unborn = false;
        }
        if (killed && c->socket == LIVE) {
            holds(!slot, "%s's socket died with the engine, and its record lives on", c->name);
            c->closed = true;
        }
        bool filtered = c->filtered && roost_filter_has(&sleepers, hash_of(c), c->key.local_port);
        holds(!c->asleep || slot || filtered, "%s is lost: it was asleep, and is not in the table", c->name);
        if (slot && (c->asleep || killed))
            check_sleeper(c, slot);
        if (killed && !slot && !filtered)
            c->closed = true; /* killed between the snapshot and the record: its client learns it when it speaks */
        else if (killed)
            c->socket = NO_SOCKET;
        holds(c->closed || packet(c, DATA), "%s can not be reached any more", c->name);
    }
    holds(table.used4 + born() - counted_before == slots, "%llu slots are taken, and %llu counted",
          (unsigned long long)slots, (unsigned long long)(table.used4 + born() - counted_before));
    for (uint32_t i = 0; i < ENDPOINTS; i++)
        uses += table.endpoints.uses[i];
    holds(gate.services || uses == slots, "%u uses of near ends, by %llu slots", uses, (unsigned long long)slots);
    holds(!old_table[0].head.lock && !new_table[0].head.lock, "a bucket is locked, and nobody holds the lock");
}

/* Whether what is born while a table is adopted is counted, is not known. */
static void end_of_adoption(bool killed) {
    table.used4 = 0;
    for (struct conn *c = conns; c < conns + 3; c++)
        table.used4 += only_slot(c) != NULL;
    memset(counts, 0, sizeof(counts));
    end(killed);
}

/* Scenarios. */

static void freeze_a(void) {
    freeze(A);
}

static void thaw_a(void) {
    thaw(A);
}

static void freeze_and_thaw_a(void) {
    freeze(A);
    thaw(A);
}

static void cancel_a(void) {
    mark(A);
    grace();
    release(A);
}

static void sleep_and_wake_a(void) {
    fall_asleep(A);
    restore(A);
}

static void forget_a_freeze_b(void) {
    forget(A);
    freeze(B);
}

static void forget_a_put_back_b(void) {
    forget(A);
    put_to_sleep(B);
}

static void again_a(void) {
    thaw(A);
    freeze(A);
}

static void grow_and_freeze_b(void) {
    begin_new_table();
    freeze(B);
}

static bool c_speaks(void) {
    for (int n = 0; n < held; n++)
        if (ring[n] == C)
            return true;
    return others_are_done(); /* a lock was not to be had: its client will say it again */
}

/* As cext/life/births.c and cext/life/thaw.c have it. */
static void wake_c(void) {
    await(c_speaks, "waits until C speaks");
    struct roost_ka *slot = roost_table_find(&table, &C->key);
    if (!slot)
        return;
    uint32_t index = new_rest(C);
    __atomic_store_n(&slot->rest, index, __ATOMIC_RELEASE);
    C->slot = slot;
    C->number = BORN;
    C->closed = C->unborn = false;
    C->asleep = true;
    thaw(C);
}

static void forget_a(void) {
    forget(A);
}

static void adopt(void) {
    uint64_t max_id;
    holds(!roost_table_adopt(&table, &max_id), "a slot was removed that is somebody's");
}

static void grow_and_move_a(void) {
    begin_new_table();
    A->late = true;
    A->slot = roost_table_move(&table, &A->key, A->slot);
    holds(A->slot != NULL, "there is no room for A in the new table");
}

static void leave_table_a(void) {
    leave_table(A);
}

static void come_back_a(void) {
    come_back(A);
}

static void come_back_and_wake_a(void) {
    come_back(A);
    restore(A);
}

static void make_room(void) {
    uint64_t moves = sleepers.moves;
    crowd(roost_filter_place_of(hash_of(A), 2).bucket[1], 1);
    holds(sleepers.moves == moves + 1, "nobody has moved");
}

#define PACKETS                                                                                                        \
    { "engine", "packet", "packet 2" }
static const struct scenario scenarios[] = {
    {"data while freezing", 2, PACKETS, begin, {freeze_a, data_for_a}, end, 2, true},
    {"a probe while freezing", 2, PACKETS, begin, {freeze_a, probe_for_a}, end, 2, false},
    {"two packets while freezing", 3, PACKETS, begin, {freeze_a, data_for_a, probe_for_a}, end, 2, false},
    {"data while a freeze is cancelled", 2, PACKETS, begin, {cancel_a, data_for_a}, end, 2, true},
    {"data while thawing", 2, PACKETS, begin_with_a_asleep, {thaw_a, data_for_a}, end, 2, true},
    {"two packets while thawing", 3, PACKETS, begin_with_a_asleep, {thaw_a, data_for_a, probe_for_a}, end, 2, false},
    {"data while freezing and thawing", 2, PACKETS, begin, {freeze_and_thaw_a, data_for_a}, end, 2, true},
    {"a probe while thawing and freezing", 2, PACKETS, begin_with_a_asleep, {again_a, probe_for_a}, end, 2, true},
    {"data while falling asleep and waking",
     2,
     PACKETS,
     begin_with_a_asleep,
     {sleep_and_wake_a, data_for_a},
     end,
     2,
     true},
    {"a probe while falling asleep and waking",
     2,
     PACKETS,
     begin_with_a_asleep,
     {sleep_and_wake_a, probe_for_a},
     end,
     2,
     false},
    {"a probe while the slot gets another owner",
     2,
     PACKETS,
     begin_with_a_asleep,
     {forget_a_freeze_b, probe_for_a},
     end,
     2,
     true},
    {"a probe of the slot's next owner",
     2,
     PACKETS,
     begin_with_a_asleep,
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
    {"a probe of somebody put back", 2, PACKETS, begin_without_b, {forget_a_put_back_b, probe_for_b}, end, 2, false},
    {"data while a new table begins", 2, PACKETS, begin_with_a_asleep, {grow_and_freeze_b, data_for_a}, end, 2, true},
    {"a probe for whom the new table takes in",
     2,
     PACKETS,
     begin_with_a_asleep,
     {grow_and_freeze_b, probe_for_b},
     end,
     2,
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
    {"a birth while a slot is left", 2, PACKETS, begin_births_with_a_asleep, {forget_a, birth_of_c}, end, 3, true},
    {"who is born speaks at once", 2, PACKETS, begin_births, {wake_c, data_of_c}, end, 3, true},
    {"who is born speaks, and the acknowledgement comes late",
     3,
     PACKETS,
     begin_births,
     {wake_c, data_of_c, birth_of_c},
     end,
     2,
     false},
    {"a birth while the table is adopted",
     2,
     PACKETS,
     begin_births_with_a_asleep,
     {adopt, birth_of_c},
     end_of_adoption,
     2,
     false},
    {"data while its slot is moved", 2, PACKETS, begin_with_a_asleep, {grow_and_move_a, data_for_a}, end, 2, true},
    {"a probe while its slot is moved", 2, PACKETS, begin_with_a_asleep, {grow_and_move_a, probe_for_a}, end, 2, true},
    {"two acknowledgements while a new table begins",
     3,
     PACKETS,
     begin_births,
     {begin_new_table, birth_of_c, birth_of_c},
     end,
     2,
     false},
};

/* The filter is shared memory in these alone: every packet reads its gate, and nobody writes it in the others. */
static const struct scenario filter_scenarios[] = {
    {"data while its slot is left for the filter",
     2,
     PACKETS,
     begin_with_a_asleep,
     {leave_table_a, data_for_a},
     end,
     2,
     true},
    {"data while it comes back from the filter",
     2,
     PACKETS,
     begin_with_a_filtered,
     {come_back_a, data_for_a},
     end,
     2,
     true},
    {"data while it comes back and wakes",
     2,
     PACKETS,
     begin_with_a_filtered,
     {come_back_and_wake_a, data_for_a},
     end,
     2,
     true},
    {"data while another takes its place in the filter",
     2,
     PACKETS,
     begin_with_a_in_the_way,
     {make_room, data_for_a},
     end,
     2,
     true},
};

/* Clients until all have one home and the second one has the first one's tag: there is one bucket alone. */
static void choose_keys(void) {
    struct roost_config seed = {.seed = {1, 2}};
    uint32_t client = 0x0a000001;
    const char *const names[] = {"A", "B", "C"};
    for (int i = 0; i < 3; i++) {
        struct roost_key *key = &conns[i].key;
        conns[i].name = names[i];
        key->client[10] = key->client[11] = key->local[10] = key->local[11] = 0xff;
        put32(key->local + 12, 0x0a000101);
        put16((uint8_t *)&key->client_port, 40000 + (uint32_t)i);
        put16((uint8_t *)&key->local_port, 443);
        struct roost_place first, place;
        do {
            put32(key->client + 12, client++);
            first = roost_place_of(roost_hash4(&seed, &conns[0].key), 1);
            place = roost_place_of(roost_hash4(&seed, key), 1);
        } while (place.home != first.home || (i == 1 && place.tag != first.tag));
    }
}

static void give_maps(void) {
    static void *generations[ROOST_GENERATIONS] = {old_table, new_table};
    give_product_maps();
    host_map_array(old_table, old_table, sizeof(old_table) / sizeof(old_table[0]), sizeof(old_table[0]));
    host_map_array(new_table, new_table, sizeof(new_table) / sizeof(new_table[0]), sizeof(new_table[0]));
    host_map_array(&config, &told, 1, sizeof(told));
    host_map_of_maps(&tables4, generations, ROOST_GENERATIONS);
    host_map_array(&endpoints, endpoint, ENDPOINTS, sizeof(endpoint[0]));
    host_map_array(&classes, class, ROOST_CLASSES, sizeof(class[0]));
    host_map_percpu(&counters, counts, ROOST_N_COUNT, sizeof(counts[0][0]));
    host_map_array(&births_gate, &gate, 1, sizeof(gate));
    host_map_array(&filter, words, sizeof(words) / sizeof(words[0]), sizeof(words[0]));
    host_map_array(&filter_gate, &sleepers_gate, 1, sizeof(sleepers_gate));
}

static enum host_socket find_socket(const struct bpf_sock_tuple *tuple, bool v4);

static void use_cpu_of(int thread) {
    host_on_cpu(thread);
    host.now_ns = NOW_MS * 1000000;
    host.find_socket = find_socket;
}

static enum host_socket find_socket(const struct bpf_sock_tuple *tuple, bool v4) {
    step("looks for a socket");
    for (const struct conn *c = conns; c < conns + 3 && v4; c++)
        if (tuple->ipv4.sport == c->key.client_port && !memcmp(&tuple->ipv4.saddr, c->key.client + 12, 4))
            return c->socket == NO_SOCKET ? HOST_NO_SOCKET : HOST_CONNECTION;
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
    if (roost_endpoints_init(&table.endpoints, endpoint, ENDPOINTS))
        return 2;
    roost_classes_init(&table.classes, class);
    choose_keys();
    give_maps();
    share(old_table, sizeof(old_table), describe_table);
    share(new_table, sizeof(new_table), describe_table);
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
