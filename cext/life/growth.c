// SPDX-License-Identifier: Apache-2.0
/*
 * A table grows by a generation (table.h). XDP looks into the old one first, and a slot is in the new one before it
 * leaves the old: at no moment is it in neither. What XDP notes of a client while its slot is being copied is lost, which
 * costs nothing. A slot that the engine is about to change stays until that is done.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cext/life/life.h"

#define GROW_PERCENT 92 /* of the slots in use */
#define GROWTH_PERCENT 40
#define MOVES_A_TURN 1024 /* positions; some 100 us */
#define RETRY_MS 30000
#define MEMORY_SPARED 4 /* this part of the machine's memory stays available */

static const struct roost_generations *told(const struct roost_engine *e, bool v4) {
    return v4 ? &e->table.config.v4 : &e->table.config.v6;
}

static void *make(void *context) {
    struct roost_growth *g = context;
    g->fd = g->rests ? roost_rests_make(&g->engine->path.rests, g->slots)
                     : roost_datapath_make_generation(&g->engine->path, g->v4, g->buckets, NULL);
    __atomic_store_n(&g->made, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void fail(struct roost_engine *e, int error) {
    struct roost_growth *g = &e->growth;
    uint32_t version = g->v4 ? 4 : 6;
    struct roost_event event = {
        .type = ROOST_EV_NOT_GROWN, .error = error, .count = g->rests ? 0 : version, .at_ms = roost_realtime_ms()};
    g->step = ROOST_GROWTH_NONE;
    *(g->rests ? &g->rests_retry_ms : &g->table_retry_ms[g->v4]) = e->now_ms + RETRY_MS;
    e->stat[ROOST_E_GROWTH_FAILED]++;
    roost_mailbox_post(&e->box, &event);
}

uint64_t roost_growth_available(void) {
    unsigned long long kib;
    char line[128];
    bool found = false;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && !found && fgets(line, sizeof(line), f))
        found = sscanf(line, "MemAvailable: %llu", &kib) == 1;
    if (f)
        fclose(f);
    /* Otherwise what is free: without what files take, which the kernel would give up. */
    return found ? (uint64_t)kib * 1024 : (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Lets a thread make what growth says, which takes so much memory; possible: it can be so large. */
static void begin(struct roost_engine *e, uint64_t bytes, bool possible) {
    struct roost_growth *g = &e->growth;
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    g->engine = e;
    g->made = 0;
    int error = !possible                                                  ? EFBIG
                : roost_growth_available() < bytes + total / MEMORY_SPARED ? ENOBUFS
                                                                           : pthread_create(&g->thread, NULL, make, g);
    if (error)
        fail(e, error);
    else
        g->step = ROOST_GROWTH_MAKING;
}

static void begin_table(struct roost_engine *e, bool v4) {
    struct roost_growth *g = &e->growth;
    uint64_t now = told(e, v4)->buckets[ROOST_CURRENT(told(e, v4)->in_use)];
    uint64_t buckets = now + now * GROWTH_PERCENT / 100 + 1;
    g->rests = false;
    g->v4 = v4;
    g->buckets = (uint32_t)buckets;
    g->which = (ROOST_CURRENT(told(e, v4)->in_use) + 1) % ROOST_GENERATIONS;
    begin(e, buckets * (v4 ? sizeof(struct roost_bucket4) : sizeof(struct roost_bucket6)),
          buckets <= roost_table_buckets_max());
}

static void begin_rests(struct roost_engine *e) {
    e->growth.rests = true;
    e->growth.slots = e->table.rest_slots / 100 * GROWTH_PERCENT + 1;
    begin(e, (uint64_t)e->growth.slots * sizeof(struct roost_rest), true);
}

static void start_moving(struct roost_engine *e) {
    struct roost_growth *g = &e->growth;
    g->at = g->left = 0;
    g->legs_moved = false;
    g->step = ROOST_GROWTH_MOVING;
    roost_sweep_restart(e); /* buckets have other numbers now */
}

/* What was made is there. */
static void use(struct roost_engine *e) {
    struct roost_growth *g = &e->growth;
    pthread_join(g->thread, NULL);
    int error = g->fd < 0 ? g->fd
                : g->rests
                    ? roost_datapath_add_rests(&e->path, &e->table, g->fd)
                    : roost_datapath_use_generation(&e->path, &e->table, g->v4, g->which, g->fd, g->buckets, NULL);
    if (error) {
        fail(e, -error);
    } else if (g->rests) {
        g->step = ROOST_GROWTH_NONE;
        e->stat[ROOST_E_GROWN]++;
    } else {
        start_moving(e);
    }
}

static bool is_in_old(const struct roost_engine *e, const struct roost_ka *slot) {
    return roost_table_is_previous(&e->table, slot);
}

/* Neither the engine nor a worker has to do with it now. */
static bool is_quiet(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot) {
    uint32_t phase = ROOST_PHASE(slot->ctl);
    return (phase == ROOST_IDLE || phase == ROOST_SLEEP) && !roost_conn_by_key(e, key);
}

/* The larger table has no place for this client: births have filled it while slots moved. The next growth cannot begin
 * before this one ends, so the client gets a socket, and a slot again when it is frozen. */
static void make_way(struct roost_engine *e, const struct roost_key *client) {
    int error;
    roost_wake(e, client, ROOST_C_COMMAND, &error); /* refused: the next pass asks again */
}

static bool move_alone(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    roost_class_renew_slot(e, key, slot);
    bool moved = roost_table_move(&e->table, key, slot, NULL);
    if (!moved)
        make_way(e, key);
    return moved;
}

/* Both legs of a pair, for each names the other's slot. False: not now. */
static bool move_pair(struct roost_engine *e, const struct roost_key *key, struct roost_ka *leg) {
    struct roost_key client_key;
    struct roost_ka *client = roost_table_peer(&e->table, leg, &client_key);
    if (!client)
        return true; /* an orphan: the sweep ends it */
    if (!is_in_old(e, leg) && !is_in_old(e, client))
        return true;
    if (!is_quiet(e, &client_key, client) || ROOST_PHASE(leg->ctl) != ROOST_IDLE)
        return false;
    struct roost_rest *rest = e->table.rest;
    roost_class_renew_slot(e, &client_key, client);
    if (is_in_old(e, client))
        client = roost_table_move(&e->table, &client_key, client, &rest[leg->rest]);
    if (client && is_in_old(e, leg))
        leg = roost_table_move(&e->table, key, leg, roost_table_has_rest(client) ? &rest[client->rest] : NULL);
    if (!client || !leg)
        make_way(e, &client_key);
    return client && leg;
}

/* A pair's client. In SLEEP only its server's leg knows that they belong together: it is moved with that. One that is
 * still there after all legs have been looked at has lost its leg, and its session with it, or fell asleep just now: to
 * be woken is right for the one, and does the other no harm. */
static bool move_client_of_pair(struct roost_engine *e, const struct roost_key *key, struct roost_ka *client) {
    struct roost_key leg_key;
    int error;
    if (!is_quiet(e, key, client))
        return false;
    if (!roost_table_has_rest(client)) {
        if (e->growth.legs_moved)
            roost_wake(e, key, ROOST_C_COMMAND, &error);
        return false;
    }
    struct roost_ka *leg = roost_table_peer(&e->table, client, &leg_key);
    return leg ? move_pair(e, &leg_key, leg) : move_alone(e, key, client);
}

/* True: it is where it belongs. */
static bool move(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER)
        return move_pair(e, key, slot);
    if (!is_in_old(e, slot))
        return true;
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_PAIRED)
        return move_client_of_pair(e, key, slot);
    return is_quiet(e, key, slot) && move_alone(e, key, slot);
}

static void end(struct roost_engine *e) {
    roost_datapath_end_previous(&e->path, &e->table, e->growth.v4);
    e->growth.step = ROOST_GROWTH_NONE;
    roost_sweep_restart(e);
    e->stat[ROOST_E_GROWN]++;
}

static void move_some(struct roost_engine *e) {
    struct roost_growth *g = &e->growth;
    uint64_t positions = roost_table_positions(&e->table), until = g->at + MOVES_A_TURN;
    for (; g->at < until && g->at < positions; g->at++) {
        struct roost_key key;
        struct roost_ka *slot = roost_table_at(&e->table, g->at, &key);
        if (slot && !move(e, &key, slot))
            g->left++;
    }
    if (g->at < positions)
        return;
    if (!g->left && roost_table_previous_is_empty(&e->table, g->v4)) {
        end(e);
        return;
    }
    g->legs_moved = true;
    g->at = g->left = 0;
    g->retry_ms = e->now_ms + 100; /* what is busy now will not be for long */
}

static bool is_full(uint64_t used, uint64_t slots) {
    return used * 100 >= slots * GROW_PERCENT;
}

void roost_growth_turn(struct roost_engine *e) {
    struct roost_growth *g = &e->growth;
    uint64_t used4, used6;
    if (g->step == ROOST_GROWTH_MAKING) {
        if (__atomic_load_n(&g->made, __ATOMIC_ACQUIRE))
            use(e);
        return;
    }
    if (g->step == ROOST_GROWTH_MOVING) {
        if (e->now_ms >= g->retry_ms)
            move_some(e);
        return;
    }
    if (!g->allowed || e->now_ms < g->retry_ms)
        return;
    g->retry_ms = e->now_ms + 50;
    roost_table_used(e, &used4, &used6);
    if (e->now_ms >= g->table_retry_ms[true] && is_full(used4, roost_table_slots(&e->table, true)))
        begin_table(e, true);
    else if (e->now_ms >= g->table_retry_ms[false] && is_full(used6, roost_table_slots(&e->table, false)))
        begin_table(e, false);
    else if (e->now_ms >= g->rests_retry_ms && is_full(e->table.rest_used, e->table.rest_slots))
        begin_rests(e);
}

bool roost_growth_due(struct roost_engine *e, bool v4) {
    uint64_t used4, used6;
    const struct roost_growth *g = &e->growth;
    if (g->step != ROOST_GROWTH_NONE || !g->allowed || e->now_ms < g->table_retry_ms[v4])
        return g->step != ROOST_GROWTH_NONE;
    roost_table_used(e, &used4, &used6);
    return is_full(v4 ? used4 : used6, roost_table_slots(&e->table, v4));
}

bool roost_growth_busy(const struct roost_engine *e) {
    return e->growth.step == ROOST_GROWTH_MOVING && e->now_ms >= e->growth.retry_ms;
}

void roost_growth_resume(struct roost_engine *e) {
    bool six = ROOST_PREVIOUS(told(e, false)->in_use);
    if (!six && !ROOST_PREVIOUS(told(e, true)->in_use))
        return;
    e->growth.v4 = !six;
    start_moving(e);
}

void roost_growth_stop(struct roost_engine *e) {
    struct roost_growth *g = &e->growth;
    if (g->step != ROOST_GROWTH_MAKING)
        return;
    pthread_join(g->thread, NULL);
    if (g->fd >= 0)
        close(g->fd);
    g->step = ROOST_GROWTH_NONE;
}
