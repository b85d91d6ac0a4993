// SPDX-License-Identifier: Apache-2.0
/*
 * What goes down when something runs short, those of the lowest priority and quiet longest first.
 *
 * Of the awake: they stand in this order. Those that cannot go, because what was sent to them waits in vain, or one end has closed and
 * the other does not, are reset, the longest stuck first: they would keep all others from waking.
 *
 * From IDLE to SLEEP: nothing keeps them in order, so it is approximate. A sample says from when on a connection is among the
 * quietest, and then positions of the table are looked at, one after the other from a random one on, until enough of those are
 * found: some 35 for each where all are in IDLE, else as many times more as there are positions for one in IDLE; some thousand in a
 * turn.
 */
#include <errno.h>
#include <stdlib.h>

#include "life.h"

#define STUCK_MS 5000 /* a radio that changes its cell is back by then */
/* One of so many is moved before another sample is taken: 3 %, and 5 within what a sample may be wrong by. */
#define QUIETEST 35
#define LOOKS_A_TURN 4096 /* 0.2 ms */

_Static_assert(ROOST_PRIORITY_HIGH < 4, "two bits");

struct stuck {
    uint64_t ms;
    struct roost_conn *conn;
};
#define MOST_STUCK (ROOST_SCRATCH / sizeof(struct stuck)) /* what is beyond is looked at next time */

static int priority_of(const struct roost_engine *e, uint32_t class) {
    uint8_t priority = roost_class_of(e, class)->priority;
    return priority < ROOST_PRIORITY_HIGH ? priority : ROOST_PRIORITY_HIGH;
}

/* It goes down already, once its server has ended, or the grace period is over (and if not, it is asked later). */
static bool goes_down(const struct roost_conn *c) {
    return c->in_batch || (c->phase == ROOST_LIVE && c->want_freeze);
}

static int longest_first(const void *one, const void *other) {
    uint64_t a = ((const struct stuck *)one)->ms, b = ((const struct stuck *)other)->ms;
    return a < b ? 1 : a > b ? -1 : 0;
}

/* For how long it has been on its way to nothing, as far as one can see. A half-closed connection cannot be frozen: where the other
 * end says nothing more and does not close, it would be awake for ever. */
static uint64_t stuck_ms(const struct roost_engine *e, const struct roost_conn *c) {
    uint64_t ms = roost_conn_stuck_ms(c);
    if (!c->half_closed_ms || c->link != ROOST_LINKED)
        return ms;
    uint64_t since_ms = c->active_ms > c->half_closed_ms ? c->active_ms : c->half_closed_ms;
    return e->now_ms - since_ms > ms ? e->now_ms - since_ms : ms;
}

void roost_relieve(struct roost_engine *e, uint32_t count, enum roost_cause cause) {
    bool has[ROOST_PRIORITY_HIGH + 1] = {false};
    struct stuck *stuck = (struct stuck *)(void *)e->scratch;
    uint32_t found = 0, down = 0;
    for (int i = 0; i < e->listeners; i++)
        has[priority_of(e, e->listener[i].service.index)] = true;
    const struct roost_classes *classes = &e->table.classes;
    for (uint32_t i = ROOST_CLASS_SERVICES; i < ROOST_CLASSES; i++) /* rules give others than their services have */
        if (classes->uses[i])
            has[priority_of(e, i)] = true;
    for (int priority = ROOST_PRIORITY_LOW; priority <= ROOST_PRIORITY_HIGH; priority++) {
        for (struct roost_conn *c = has[priority] ? e->oldest : NULL, *next; c && found + down < count; c = next) {
            next = c->newer; /* freezing may drop c from the list */
            if (priority_of(e, c->class) != priority)
                continue;
            uint64_t ms = found < MOST_STUCK ? stuck_ms(e, c) : 0;
            /* Those that go down already count: the command comes again and again while they take their time, and would
             * at last end the links of clients that have just spoken. */
            if (ms >= STUCK_MS)
                stuck[found++] = (struct stuck){.ms = ms, .conn = c};
            else if (goes_down(c) || !roost_freeze(e, c, cause))
                down++;
        }
    }
    uint64_t stay = e->awake - down, room = roost_room_without_pressure(e);
    qsort(stuck, found, sizeof(*stuck), longest_first);
    for (uint32_t i = 0; i < found && stay > room; i++, stay--) {
        e->stat[ROOST_E_STUCK_RESET] += !stuck[i].conn->want_close;
        roost_conn_end(e, stuck[i].conn, cause, true);
    }
}

/* ---- from IDLE to SLEEP ---- */

static bool may_sleep(const struct roost_engine *e, const struct roost_ka *slot) {
    if (!slot || ROOST_PHASE(slot->ctl) != ROOST_IDLE || ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER ||
        !roost_table_has_rest(slot))
        return false;
    uint32_t asked_s = e->table.rest[slot->rest].sleep_asked_s;
    return !asked_s || (uint32_t)(e->now_ms / 1000) - asked_s >= ROOST_SLEEP_RETRY_S;
}

/* The lower, the sooner it goes. */
static uint64_t rank_of(const struct roost_engine *e, const struct roost_ka *slot) {
    return (uint64_t)priority_of(e, slot->class) << 62 | e->table.rest[slot->rest].active_ms;
}

/* Not for secrets: splitmix64. */
static uint64_t random_number(struct roost_descent *d) {
    uint64_t x = d->random += 0x9e3779b97f4a7c15ULL;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

static int lowest_first(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

/* Positions at random until the sample is whole, or as many were looked at as there are. */
static void sample(struct roost_engine *e, uint64_t positions) {
    struct roost_descent *d = &e->descent;
    struct roost_key key;
    for (int i = 0; i < LOOKS_A_TURN && d->sampled < ROOST_DESCENT_SAMPLE && d->tries < positions; i++, d->tries++) {
        const struct roost_ka *slot = roost_table_at(&e->table, random_number(d) % positions, &key);
        if (may_sleep(e, slot))
            d->rank[d->sampled++] = rank_of(e, slot);
    }
    if (d->sampled < ROOST_DESCENT_SAMPLE && d->tries < positions)
        return;
    qsort(d->rank, d->sampled, sizeof(d->rank[0]), lowest_first);
    bool all = !d->sampled || d->cause == ROOST_C_SHUTDOWN; /* the few that there are, or none is to stay */
    d->most = all ? UINT64_MAX : d->rank[d->sampled / QUIETEST];
    d->at = random_number(d) % positions;
    d->to_look_at = positions;
    d->moved = 0;
}

static void ask_to_sleep(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    struct roost_event event;
    roost_event_of_slot(e, key, slot, &event);
    event.type = ROOST_EV_SLEEP_DUE;
    event.cause = e->descent.cause;
    roost_mailbox_post(&e->box, &event);
    e->table.rest[slot->rest].sleep_asked_s = (uint32_t)(e->now_ms / 1000);
}

/* What is left of a look at all positions is looked at first: a sample of those that stay would lie beyond it. */
void roost_descend(struct roost_engine *e, uint32_t count, enum roost_cause cause) {
    e->descent.left = count;
    e->descent.cause = (uint8_t)cause;
    e->descent.random ^= e->now_ms;
}

bool roost_descent_busy(struct roost_engine *e) {
    return e->descent.left && !roost_mailbox_crowded(&e->box);
}

void roost_descent_turn(struct roost_engine *e) {
    struct roost_descent *d = &e->descent;
    uint64_t positions = roost_table_positions(&e->table);
    if (!roost_descent_busy(e))
        return;
    if (!d->to_look_at) {
        sample(e, positions);
        return;
    }
    for (int i = 0; i < LOOKS_A_TURN && d->left && d->to_look_at; i++, d->to_look_at--) {
        struct roost_key key;
        d->at = d->at + 1 < positions ? d->at + 1 : 0;
        struct roost_ka *slot = roost_table_at(&e->table, d->at, &key);
        if (slot && d->cause == ROOST_C_SHUTDOWN && ROOST_PHASE(slot->ctl) == ROOST_IDLE && ROOST_IS_BORN(slot->rest))
            roost_born_settle(e, &key, slot); /* no row without a number. No rest slot: in the next round */
        if (!may_sleep(e, slot) || rank_of(e, slot) > d->most)
            continue;
        ask_to_sleep(e, &key, slot);
        d->moved++;
        d->left--;
    }
    if (d->to_look_at)
        return;
    if (!d->moved)
        d->left = 0; /* what is there has been asked for */
    d->sampled = 0;
    d->tries = 0;
}
