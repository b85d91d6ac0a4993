// SPDX-License-Identifier: Apache-2.0
/*
 * An engine without a thread, a data path or a socket, whose clock the test turns: its table is in plain memory, and what
 * depends on time and on many connections (growth.c, sweep.c, roost_list) is done when the test says so. At the end what a
 * test asks of an engine that runs.
 */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cext/loop.h"
#include "testing.h"
#include "testing_table.h"

#define EXPECTED 16 /* connections that are awake */
#define ENDPOINTS 64

struct still {
    struct roost_engine engine; /* first: it stands for the whole */
    struct roost_table_handle *table;
    struct roost_sockets sockets;
    struct roost_births_gate gate;
    struct roost_limits limits;
    struct roost_probe probes[ROOST_PROBES];
    struct roost_runs run;
};

roost_engine *roost_testing_engine(uint32_t slots4, uint32_t slots6, uint32_t rest_slots, uint64_t now_ms) {
    struct still *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    struct roost_engine *e = &s->engine;
    struct roost_datapath *d = &e->path;
    pthread_mutex_init(&e->lock.mutex, NULL);
    roost_mailbox_init(&e->box);
    for (int i = 0; i < ROOST_PINNED_MAPS; i++)
        d->map_fd[i] = -1;
    d->raw4 = d->raw6 = -1;
    d->births_sockets = &s->sockets;
    d->births_gate = &s->gate;
    d->limits = &s->limits;
    d->probes = s->probes;
    d->runs = &s->run;
    d->interfaces = 1;                  /* with native XDP */
    d->rests.parts = ROOST_RESTS_PARTS; /* no part more can be mapped, and none is */
    e->now_ms = e->swept_ms = e->sweep_ms = e->probe_room_ms = now_ms;
    e->growth.allowed = true;
    s->table = roost_testing_table(slots4, slots6, rest_slots, ENDPOINTS);
    if (s->table && !roost_conns_init(e, EXPECTED)) {
        e->table = s->table->table;
        roost_wheel_init(&e->wheel, now_ms);
        return e;
    }
    roost_testing_engine_free(e);
    return NULL;
}

void roost_testing_engine_free(roost_engine *e) {
    struct still *s = (struct still *)e;
    while (e->listings)
        roost_list_end(e, e->listings);
    roost_growth_stop(e);
    roost_rules_close(e);
    roost_tallies_free(e);
    roost_mailbox_destroy(&e->box);
    pthread_mutex_destroy(&e->lock.mutex);
    while (e->oldest)
        roost_conn_forget(e, e->oldest);
    roost_conns_free_dead(e);
    roost_hash_free(&e->by_id);
    roost_hash_free(&e->by_key);
    if (s->table) {
        if (e->table.rest)
            s->table->table = e->table;
        roost_testing_table_free(s->table);
    }
    free(s);
}

struct roost_ka *roost_testing_engine_insert(roost_engine *e, const struct roost_key *key, const struct roost_ka *ka,
                                             uint16_t service) {
    return roost_table_insert(&e->table, key, ka, service);
}

struct roost_rest *roost_testing_engine_rest(roost_engine *e, uint32_t *index) {
    *index = roost_table_rest_alloc(&e->table, true);
    return *index == ROOST_NO_REST ? NULL : &e->table.rest[*index];
}

struct roost_rest *roost_testing_rest_at(roost_engine *e, uint32_t index) {
    return &e->table.rest[index];
}

int roost_testing_engine_wake(roost_engine *e, const struct roost_key *key, uint64_t id) {
    struct roost_ka *slot = roost_table_find(&e->table, key);
    if (!roost_conn_new(e, key, id, 1, 1))
        return -ENOMEM;
    if (slot)
        roost_table_set_phase(slot, ROOST_WAKING);
    return 0;
}

void roost_testing_engine_thaw(roost_engine *e, const struct roost_key *key, int failed) {
    struct roost_ka *slot = roost_table_find(&e->table, key);
    if (!failed) {
        roost_table_remove(&e->table, slot);
        return;
    }
    roost_table_set_phase(slot, ROOST_SLEEP);
    roost_conn_forget(e, roost_conn_by_key(e, key));
    roost_conns_free_dead(e);
}

void roost_testing_engine_back(roost_engine *e, const struct roost_key *key, const struct roost_ka *ka) {
    roost_listings_back(e, key, roost_table_insert(&e->table, key, ka, 1));
}

/* In the order of freeze.c: its slot is there before it is no more among the awake. */
void roost_testing_engine_end(roost_engine *e, const struct roost_key *key, const struct roost_ka *ka) {
    if (ka)
        roost_table_insert(&e->table, key, ka, 1);
    roost_conn_forget(e, roost_conn_by_key(e, key));
    roost_conns_free_dead(e);
}

uint32_t roost_testing_engine_many(roost_engine *e, const struct roost_key *first, const struct roost_ka *ka,
                                   uint16_t service, uint32_t count, int rests) {
    struct roost_key key = *first;
    struct roost_ka one = *ka;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t address = htonl(0x0a000000 + i / 50000);
        memcpy(key.client + 12, &address, sizeof(address));
        key.client_port = htons((uint16_t)(1024 + i % 50000));
        if (rests) {
            one.rest = roost_table_rest_alloc(&e->table, true);
            if (one.rest == ROOST_NO_REST)
                return i;
            e->table.rest[one.rest] = (struct roost_rest){.id = i + 1, .active_ms = e->now_ms};
        }
        if (!roost_table_insert(&e->table, &key, &one, service))
            return i;
    }
    return count;
}

/* ---- growth ---- */

static void fill(struct roost_engine *e, int part, uint64_t percent) {
    if (part == ROOST_PART_IPV4)
        e->table.used4 = roost_table_slots(&e->table, true) * percent / 100;
    else if (part == ROOST_PART_IPV6)
        e->table.used6 = roost_table_slots(&e->table, false) * percent / 100;
    else
        e->table.rest_used = e->table.rest_slots * percent / 100;
}

void roost_testing_fill(roost_engine *e, int part) {
    fill(e, part, 100);
}

/* Which part is being made. */
static int made(const struct roost_growth *g) {
    if (g->step != ROOST_GROWTH_MAKING)
        return ROOST_PART_NONE;
    return g->rests ? ROOST_PART_RESTS : g->v4 ? ROOST_PART_IPV4 : ROOST_PART_IPV6;
}

int roost_testing_growth(roost_engine *e, uint64_t now_ms, int refused) {
    struct roost_growth *g = &e->growth;
    e->now_ms = now_ms;
    roost_growth_turn(e);
    int part = made(g);
    if (part != ROOST_PART_NONE && !(refused & part)) {
        roost_growth_stop(e);
        fill(e, part, 50);
    }
    if (made(g) == ROOST_PART_NONE)
        return part;
    while (!__atomic_load_n(&g->made, __ATOMIC_ACQUIRE))
        sched_yield();
    if (g->fd >= 0)
        close(g->fd);
    g->fd = -ENOMEM;
    roost_growth_turn(e);
    return part;
}

uint64_t roost_testing_growths_failed(const roost_engine *e) {
    return e->stat[ROOST_E_GROWTH_FAILED];
}

uint64_t roost_testing_memory_available(void) {
    return roost_growth_available();
}

/* ---- the sweep ---- */

void roost_testing_change(roost_engine *e, uint16_t service, const struct roost_class *policy) {
    struct roost_service s = {.index = service, .policy = *policy};
    roost_class_change(e, &s);
}

/* And XDP takes none of it. */
void roost_testing_fill_offer(roost_engine *e) {
    struct roost_datapath *d = &e->path;
    while (roost_datapath_probe(d))
        ;
    d->probes_live = 0;
}

void roost_testing_take_offer(roost_engine *e) {
    struct roost_datapath *d = &e->path;
    for (uint32_t i = 0; i < ROOST_PROBES; i++)
        d->probes[i].state = ROOST_PROBE_TAKEN;
}

void roost_testing_sweep(roost_engine *e, uint64_t now_ms) {
    e->now_ms = now_ms;
    roost_sweep_turn(e);
}

void roost_testing_tally(roost_engine *e, uint32_t class, uint8_t from, uint8_t to, uint8_t cause, uint64_t rx,
                         uint64_t tx) {
    roost_tally(e, class, from, to, cause, rx, tx);
}

uint64_t roost_testing_probes_sent(const roost_engine *e) {
    return e->stat[ROOST_E_PROBES];
}

/* ---- an engine that runs ---- */

struct roost_class *roost_testing_class(roost_engine *e, uint32_t class) {
    return &e->table.classes.entry[class];
}

uint32_t roost_testing_class_uses(roost_engine *e, uint32_t class) {
    roost_lock(e);
    uint32_t uses = e->table.classes.uses[class];
    roost_unlock(e);
    return uses;
}

void roost_testing_descend(roost_engine *e, uint32_t count) {
    roost_descend(e, count, ROOST_C_PRESSURE);
}

int roost_testing_descent(roost_engine *e, uint64_t now_ms) {
    e->now_ms = now_ms;
    roost_descent_turn(e);
    return roost_descent_busy(e);
}

void roost_testing_set_own(roost_engine *e, struct roost_ka *slot, const struct roost_overrides *own) {
    struct roost_classes *classes = &e->table.classes;
    roost_table_set_class(&e->table, slot, roost_classes_take(classes, roost_classes_base(classes, slot->class), own));
}

void roost_testing_hold_up(roost_engine *e, uint32_t us) {
    roost_lock(e);
    usleep(us);
    roost_unlock(e);
}

int roost_testing_rush(roost_engine *e) {
    roost_lock(e);
    bool rush = e->rush;
    roost_unlock(e);
    return rush;
}

/* roost_inject, which refuses frames of one EtherType as if the processor's queue were full for them. A descriptor or
 * -errno. */
static int load_refusing(uint16_t ethertype) {
    const struct bpf_insn insns[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_6, .src_reg = BPF_REG_1},
        {.code = BPF_LD | BPF_ABS | BPF_H, .imm = 12},
        {.code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = BPF_REG_0, .off = 2, .imm = ethertype},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = ENOBUFS},
        {.code = BPF_JMP | BPF_EXIT},
        {.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_1, .src_reg = BPF_REG_6},
        {.code = BPF_LDX | BPF_MEM | BPF_W,
         .dst_reg = BPF_REG_2,
         .src_reg = BPF_REG_6,
         .off = offsetof(struct __sk_buff, ifindex)},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = BPF_F_INGRESS},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_clone_redirect},
        {.code = BPF_JMP | BPF_EXIT},
    };
    int fd = bpf_prog_load(BPF_PROG_TYPE_SCHED_CLS, "refusing", "GPL", insns, sizeof(insns) / sizeof(insns[0]), NULL);
    return fd < 0 ? -errno : fd;
}

int roost_testing_replay(roost_engine *e, const uint8_t *frames, uint32_t length, uint32_t count, uint32_t ifindex,
                         uint32_t queue, uint16_t refused) {
    int fd = load_refusing(refused);
    if (fd < 0)
        return fd;
    roost_lock(e);
    for (uint32_t i = 0; i < count; i++) {
        e->path.out[i].length = length;
        memcpy(e->path.out[i].data, frames + (size_t)i * length, length);
    }
    int inject_fd = e->path.inject_fd;
    e->path.inject_fd = fd;
    uint32_t replayed = roost_datapath_replay(&e->path, count, ifindex, queue);
    e->path.inject_fd = inject_fd;
    roost_unlock(e);
    close(fd);
    return (int)replayed;
}
