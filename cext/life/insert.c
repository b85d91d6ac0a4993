// SPDX-License-Identifier: Apache-2.0
/* Records of the store that go into the table: in SLEEP, or, both legs of a pair, in IDLE. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cext/base/address.h"
#include "cext/base/face.h"
#include "life.h"

#define AT_ONCE 64                              /* while the lock is held */
#define AHEAD_MAX_S 86400                       /* more is a silence of days, of which a row has no more bits */
#define KA_OF_ROW (sizeof(struct roost_ka) + 4) /* control/store/schema.py: KA_BYTES */

/* As the slot has it: no probe of ours is under way. Not later than now, or it would be taken for a silence of days, and probed
 * at once: a clock that is behind since the reboot says so of those that were heard just before. */
static uint32_t heard_of_row(const struct roost_engine *e, uint32_t heard) {
    const uint32_t now_s = (uint32_t)(e->now_ms / 1000);
    const uint32_t ahead_s = (((heard >> ROOST_HEARD_SHIFT) - now_s) << ROOST_HEARD_SHIFT) >> ROOST_HEARD_SHIFT;
    return ahead_s && ahead_s <= AHEAD_MAX_S ? ROOST_HEARD(now_s, 0, 0) : heard & ~0xfu;
}

/* A slot out of a record, IDLE; NULL: no room. */
static struct roost_ka *insert_idle(struct roost_engine *e, const struct roost_record *record, uint16_t class) {
    struct roost_ka ka = record->ka;
    ka.ctl = (ka.ctl & ~0xffu) | ROOST_IDLE;
    ka.class = class;
    ka.heard = heard_of_row(e, ka.heard);
    ka.rest = roost_table_rest_alloc(&e->table, false);
    if (ka.rest == ROOST_NO_REST)
        return NULL;
    e->table.rest[ka.rest] = record->rest;
    if (record->rest.active_ms > e->now_ms) /* of an earlier boot, whose clock was ahead */
        e->table.rest[ka.rest].active_ms = e->now_ms;
    e->table.rest[ka.rest].sleep_asked_s = e->table.rest[ka.rest].sleep_wanted = 0; /* of another daemon's time */
    struct roost_ka *slot = roost_table_insert(&e->table, &record->key, &ka, record->service);
    if (!slot)
        roost_table_rest_release(&e->table, ka.rest);
    return slot;
}

/* Both legs of a pair: IDLE, for each must know where the other is, and the store does not. */
static struct roost_ka *insert_pair(struct roost_engine *e, const struct roost_command *command) {
    const struct roost_key *key = &command->record.key, *leg = &command->peer.key;
    uint16_t service = command->record.service;
    uint16_t leg_class = roost_address_is_ours(leg->client) ? ROOST_CLASS_NONE : roost_class_of_service(service);
    struct roost_ka *server = insert_idle(e, &command->peer, leg_class);
    struct roost_ka *client = server ? insert_idle(e, &command->record, roost_class_for(e, key, service)) : NULL;
    if (client) {
        roost_table_pair(&e->table, &e->table.rest[server->rest], client);
        roost_table_pair(&e->table, &e->table.rest[client->rest], server);
    } else if (server) {
        roost_table_remove(&e->table, server);
    }
    return client;
}

struct roost_ka *roost_insert_sleeping(struct roost_engine *e, const struct roost_record *record) {
    struct roost_ka ka = record->ka;
    ka.ctl = (ka.ctl & ~0xffu) | ROOST_SLEEP;
    ka.class = roost_class_for(e, &record->key, record->service);
    ka.rest = ROOST_ROW_OF(record->ka.rest);
    ka.heard = heard_of_row(e, ka.heard);
    return roost_table_insert(&e->table, &record->key, &ka, record->service);
}

static void shift(struct roost_ka *ka, const struct roost_clock *by) {
    const int64_t seconds = by->ms / 1000 - (by->ms % 1000 < 0); /* rounded down */
    const uint32_t kept = ka->heard & ((1u << ROOST_HEARD_SHIFT) - 1);
    ka->ts_offset -= (uint32_t)by->timestamps_ms;
    ka->heard = ((ka->heard >> ROOST_HEARD_SHIFT) + (uint32_t)seconds) << ROOST_HEARD_SHIFT | kept;
}

static void forget(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    roost_hosts_remove(&e->hosts, key);
    roost_table_remove(&e->table, slot);
}

/* The connection of this number, whatever has become of it since. */
static bool has_number(const struct roost_engine *e, const struct roost_holder *h, uint64_t id) {
    if (h->by == ROOST_BY_CONN)
        return h->conn->id == id || (!h->conn->id && h->conn->row == ROOST_ROW(id));
    if (h->by != ROOST_BY_SLOT)
        return false;
    return h->slot->rest == ROOST_ROW(id) || (roost_table_has_rest(h->slot) && e->table.rest[h->slot->rest].id == id);
}

/* 0 or an errno. */
static int put_back(struct roost_engine *e, const struct roost_record *record, uint64_t id) {
    struct roost_holder h = roost_whose(e, &record->key);
    if (!e->started && h.by == ROOST_BY_SLOT) {
        forget(e, &record->key, h.slot); /* of an earlier row */
        h.by = ROOST_BY_NONE;
    }
    if (has_number(e, &h, id))
        return 0; /* of a daemon before this one, of this boot, which did not get as far as to say so */
    if (h.by != ROOST_BY_NONE)
        return EEXIST;
    if (ROOST_FLAGS(record->ka.ctl) & ROOST_F_PAIRED)
        return EOPNOTSUPP;
    if (ROOST_ROW_OF(record->ka.rest) == ROOST_NO_REST)
        return ESTALE;
    const struct roost_ka *slot = roost_insert_sleeping(e, record);
    if (!slot)
        return ENOSPC;
    roost_hosts_add(&e->hosts, &record->key);
    if (e->started)
        roost_tally(e, slot->class, ROOST_ST_NONE, ROOST_ST_SLEEP, ROOST_C_RESTORE, 0, 0);
    return 0;
}

/* What begins with a number. */
static int ascending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Of rows, as they are. */
struct page {
    const struct roost_key *keys;
    const uint8_t *kas;
    const uint64_t *ids, *clocks;
    const struct roost_clock *known;
    uint32_t known_count;
};

/* A part of it, while the lock is held. How many; fewer: no room. */
static uint32_t put_back_some(struct roost_engine *e, const struct page *p, uint32_t from, uint32_t count,
                              uint8_t *errors, uint32_t *more) {
    const uint64_t used = e->table.used4 + e->table.used6;
    const struct roost_clock *clock = NULL;
    uint32_t i;
    for (i = from; i < from + count; i++)
        roost_table_prefetch(&e->table, &p->keys[i]);
    for (i = from; i < from + count; i++) {
        struct roost_record record = {.key = p->keys[i]};
        const uint8_t *ka = p->kas + (size_t)i * KA_OF_ROW;
        int error = ESTALE;
        if (!clock || clock->number != p->clocks[i])
            clock = bsearch(&p->clocks[i], p->known, p->known_count, sizeof(*clock), ascending);
        if (clock) {
            memcpy(&record.ka, ka, sizeof(record.ka));
            memcpy(&record.service, ka + sizeof(record.ka), sizeof(record.service));
            shift(&record.ka, clock);
            error = put_back(e, &record, p->ids[i]);
        }
        if (error == ENOSPC)
            break;
        errors[i] = (uint8_t)error;
    }
    *more += (uint32_t)(e->table.used4 + e->table.used6 - used);
    return i - from;
}

uint32_t roost_put_back(roost_engine *e, const struct roost_key *keys, const uint8_t *kas, const uint64_t *ids,
                        const uint64_t *clocks, uint32_t count, const struct roost_clock *known, uint32_t known_count,
                        uint8_t *errors) {
    const struct page page = {keys, kas, ids, clocks, known, known_count};
    struct roost_event event = {.type = ROOST_EV_PUT_BACK};
    uint32_t done = 0, part = 0, took = 0;
    do {
        part = count - done < AT_ONCE ? count - done : AT_ONCE;
        roost_lock(e);
        if (!e->started) { /* nothing else makes room */
            e->now_ms = roost_monotonic_ms();
            roost_growth_turn(e);
        }
        took = roost_growth_due(e, roost_key_is_v4(&keys[done]))
                   ? 0
                   : put_back_some(e, &page, done, part, errors, &event.count);
        roost_unlock(e);
        done += took;
    } while ((took == part || (!e->started && roost_growth_busy(e))) && done < count);
    if (event.count && e->started) {
        roost_lock(e);
        roost_mailbox_post(&e->box, &event);
        roost_mailbox_flush(&e->box);
        roost_unlock(e);
    }
    return done;
}

/* ids: ascending. By the low bits of its number, a slot has no others. */
static bool is_among(const uint64_t *ids, uint32_t count, uint32_t row) {
    const uint64_t low = (1u << ROOST_ROW_BITS) - 1;
    uint64_t first = count ? ids[0] & ~low : 1, last = count ? ids[count - 1] & ~low : 0;
    for (uint64_t epoch = first; epoch <= last; epoch += low + 1) {
        const uint64_t id = epoch | (row & low);
        if (bsearch(&id, ids, count, sizeof(*ids), ascending))
            return true;
    }
    return false;
}

uint32_t roost_retain(roost_engine *e, const uint64_t *ids, uint32_t count) {
    struct roost_key key;
    struct roost_ka *slot;
    uint64_t p = 0;
    uint32_t removed = 0;
    roost_lock(e);
    while ((slot = roost_table_walk(&e->table, &p, UINT64_MAX, &key))) {
        if (!is_among(ids, count, slot->rest)) {
            forget(e, &key, slot);
            removed++;
        }
    }
    roost_unlock(e);
    return removed;
}

int roost_insert(struct roost_engine *e, const struct roost_command *command) {
    bool pair = command->peer.rest.id;
    if (roost_whose(e, &command->record.key).by != ROOST_BY_NONE ||
        (pair && roost_whose(e, &command->peer.key).by != ROOST_BY_NONE))
        return EEXIST;
    if (!roost_is_legal(ROOST_ST_NONE, pair ? ROOST_ST_IDLE : ROOST_ST_SLEEP, command->cause))
        return EINVAL;
    const struct roost_record *record = &command->record;
    uint16_t class = roost_class_for(e, &record->key, record->service);
    bool by_key = ROOST_ROW_OF(record->ka.rest) == ROOST_NO_REST;
    bool without_slot = !pair && by_key && roost_sleep_without_slot(e, &record->key, record->ka.ctl, class, false);
    const struct roost_ka *slot = without_slot ? NULL
                                  : pair       ? insert_pair(e, command)
                                               : roost_insert_sleeping(e, record);
    if (!slot && !without_slot)
        return ENOSPC;
    roost_hosts_add(&e->hosts, &command->record.key);
    struct roost_event event;
    if (slot)
        roost_event_of_slot(e, &command->record.key, slot, &event);
    else
        roost_event_of_candidate(e, &command->record.key, &event);
    event.record.service = record->service;
    event.id = command->id;
    roost_post_transition(e, &event, class, ROOST_ST_NONE, (enum roost_state)event.to_state,
                          (enum roost_cause)command->cause, command->token);
    return 0;
}
