// SPDX-License-Identifier: Apache-2.0
/*
 * The list of what exists, taken in parts while it moves: first the awake, by the hash of their key, then the slots of
 * the table. A connection that wakes behind the list's place would be missed, one that freezes ahead of it listed twice. So a
 * listing is told of each connection that wakes or ceases to be awake; it records the keys that concern it, passes over
 * them, and looks up the missed ones at the end.
 */
#include <stdlib.h>
#include <string.h>

#include "conn.h"

#define PLACES 4096            /* of the awake: ranges of the hashes of their keys */
#define POSITIONS_A_PART 16384 /* the engine's thread stands still for some 0.3 ms */
#define LATE_COST 16           /* of a look-up, in positions */
#define NUMBER_COST 4          /* of a position whose connection's number is looked for: its record, and a search */
#define EMPTY_COST 8           /* so many positions of empty buckets cost as much as one in use */
#define TOLD_MAX (1u << 20)    /* a reader that sleeps in the midst of its list takes no more memory than for these */

struct told {
    struct told *next;
    struct roost_key key;
    bool late; /* not listed yet: looked for at the end */
};

struct roost_listing {
    struct roost_listing *next;
    struct roost_sought sought;
    uint64_t at;              /* places of the awake, then positions of the table */
    struct roost_hash by_key; /* struct told */
    struct told *first, **last;
    struct told *late; /* the next to be looked at, once it is through */
    bool through;      /* all positions: every key is listed or recorded, and none is recorded any more */
    bool done;
};

static bool has_key(const void *told, const void *key) {
    return !memcmp(&((const struct told *)told)->key, key, sizeof(struct roost_key));
}

static bool is_told(const struct roost_engine *e, const struct roost_listing *l, const struct roost_key *key) {
    return l->first && roost_hash_find(&l->by_key, roost_hash6(&e->table.config, key), has_key, key);
}

/* Past TOLD_MAX, and without memory, a connection that moves may be missed or listed twice. */
static void tell(const struct roost_engine *e, struct roost_listing *l, const struct roost_key *key, bool late) {
    if (l->by_key.used == TOLD_MAX || is_told(e, l, key))
        return;
    struct told *told = malloc(sizeof(*told));
    if (!told || !roost_hash_put(&l->by_key, roost_hash6(&e->table.config, key), told)) {
        free(told);
        return;
    }
    *told = (struct told){.key = *key, .late = late};
    *l->last = told;
    l->last = &told->next;
}

static bool is_in(const struct roost_listing *l, uint32_t state) {
    return !l->sought.states || l->sought.states & 1u << state;
}

/* Of a slot whose connection is not awake. */
static bool is_wanted(const struct roost_listing *l, const struct roost_ka *slot) {
    return !(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) && (l->sought.born || !ROOST_IS_BORN(slot->rest)) &&
           ((ROOST_PHASE(slot->ctl) == ROOST_IDLE && is_in(l, ROOST_ST_IDLE)) ||
            (ROOST_PHASE(slot->ctl) == ROOST_SLEEP && is_in(l, ROOST_ST_SLEEP)));
}

static bool lies_in_network(const struct roost_sought *s, const struct roost_key *key) {
    uint32_t whole = s->bits / 8, rest = s->bits % 8;
    return !memcmp(s->network, key->client, whole) && !(rest && (s->network[whole] ^ key->client[whole]) >> (8 - rest));
}

static bool has_class(const struct roost_engine *e, const struct roost_sought *s, uint32_t class) {
    _Static_assert(sizeof(s->classes) * 8 == ROOST_CLASSES, "a bit for each class");
    uint32_t base = s->by_class ? roost_classes_base(&e->table.classes, class) % ROOST_CLASSES : 0;
    return !s->by_class || s->classes[base / 64] >> base % 64 & 1;
}

static int compare_numbers(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static bool has_number(const struct roost_sought *s, uint64_t number) {
    return !s->number_count || bsearch(&number, s->numbers, s->number_count, sizeof(number), compare_numbers);
}

static bool fits(const struct roost_engine *e, const struct roost_listing *l, const struct roost_conn *c) {
    const struct roost_sought *s = &l->sought;
    return is_in(l, c->state) && !s->silence_s && (!s->service || s->service == c->service) &&
           lies_in_network(s, &c->key) && has_class(e, s, c->class) &&
           e->now_ms >= c->active_ms + s->quiet_s * 1000ULL && has_number(s, c->id);
}

/* Of a slot that is wanted: by what lies nearest, since most do not fit where it matters, and the engine stands still. */
static bool slot_fits(struct roost_engine *e, const struct roost_listing *l, const struct roost_key *key,
                      const struct roost_ka *slot) {
    const struct roost_sought *s = &l->sought;
    if (!lies_in_network(s, key) || !has_class(e, s, slot->class) ||
        (s->silence_s && roost_silence_s(slot->heard, (uint32_t)(e->now_ms / 1000)) < s->silence_s))
        return false;
    if (s->service && s->service != roost_table_service(&e->table, slot))
        return false;
    if (s->number_count && !(roost_table_has_rest(slot) && has_number(s, e->table.rest[slot->rest].id)))
        return false;
    return !s->quiet_s || ROOST_PHASE(slot->ctl) == ROOST_SLEEP || roost_slot_quiet_ms(e, slot) >= s->quiet_s * 1000ULL;
}

static bool has_passed(const struct roost_engine *e, const struct roost_listing *l, const struct roost_ka *slot) {
    return l->at > PLACES + roost_table_position(&e->table, slot);
}

/* Whether a listing has looked at the place of the awake where this key belongs. */
static bool has_passed_key(const struct roost_engine *e, const struct roost_listing *l, const struct roost_key *key) {
    return l->at > roost_hash6(&e->table.config, key) / (UINT64_MAX / PLACES + 1);
}

/* Without a listing nothing is looked up. */
static const struct roost_ka *slot_to_tell_of(struct roost_engine *e, const struct roost_key *key) {
    return e->listings ? roost_table_find(&e->table, key) : NULL;
}

void roost_listings_awake(struct roost_engine *e, const struct roost_key *key) {
    const struct roost_ka *slot = slot_to_tell_of(e, key);
    for (struct roost_listing *l = e->listings; l; l = l->next)
        if (!l->through && has_passed_key(e, l, key) && !(slot && has_passed(e, l, slot) && is_wanted(l, slot)))
            tell(e, l, key, true);
}

void roost_listings_asleep(struct roost_engine *e, const struct roost_key *key) {
    const struct roost_ka *slot = slot_to_tell_of(e, key);
    for (struct roost_listing *l = e->listings; l; l = l->next)
        if (slot && !l->through && has_passed_key(e, l, key) && !has_passed(e, l, slot))
            tell(e, l, key, false);
}

void roost_listings_back(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot) {
    for (struct roost_listing *l = e->listings; l; l = l->next)
        if (!l->through && has_passed(e, l, slot))
            tell(e, l, key, true);
}

roost_listing *roost_list_begin(roost_engine *e, const struct roost_sought *sought) {
    struct roost_listing *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    if (sought)
        l->sought = *sought;
    if (l->sought.bits > 128)
        l->sought.bits = 128;
    l->at = l->sought.after;
    l->last = &l->first;
    roost_lock(e);
    l->next = e->listings;
    e->listings = l;
    roost_unlock(e);
    return l;
}

/* false: there is no room. */
static bool list_awake(struct roost_engine *e, struct roost_listing *l, struct roost_event *events, uint32_t max,
                       uint32_t *count) {
    uint64_t width = UINT64_MAX / PLACES + 1, from = l->at * width, step = 0;
    const struct roost_hash_slot *slot;
    uint32_t listed = *count;
    while ((slot = roost_hash_walk(&e->by_key, from, from + width - 1, &step))) {
        if (!fits(e, l, slot->item))
            continue;
        if (listed == max)
            return false;
        roost_event_of_conn(e, slot->item, &events[listed++]);
    }
    *count = listed;
    return true;
}

/* The next slot, if any is in use before position `end` of the table: how many positions the listing is on. room: false, it is
 * to be listed, and there is none. */
static uint64_t list_slot(struct roost_engine *e, struct roost_listing *l, uint64_t end, struct roost_event *events,
                          uint32_t max, uint32_t *count, bool *room) {
    struct roost_key key;
    uint64_t first = l->at - PLACES, p = first;
    struct roost_ka *slot = roost_table_walk(&e->table, &p, end, &key);
    if (!slot || !is_wanted(l, slot) || !slot_fits(e, l, &key, slot) || roost_conn_by_key(e, &key) ||
        is_told(e, l, &key))
        return p - first;
    *room = *count < max;
    if (*room)
        roost_event_of_slot(e, &key, slot, &events[(*count)++]);
    return p - first - !*room;
}

static bool list_late(struct roost_engine *e, const struct roost_listing *l, const struct told *told,
                      struct roost_event *events, uint32_t max, uint32_t *count) {
    struct roost_holder h = roost_whose(e, &told->key);
    bool listed = h.by == ROOST_BY_CONN   ? fits(e, l, h.conn)
                  : h.by != ROOST_BY_NONE ? is_wanted(l, h.slot) && slot_fits(e, l, &told->key, h.slot)
                                          : false;
    if (!listed)
        return true;
    if (*count == max)
        return false;
    roost_event_of_holder(e, &told->key, &h, &events[(*count)++]);
    return true;
}

int roost_list(roost_engine *e, roost_listing *l, struct roost_event *events, uint32_t max) {
    uint32_t count = 0, looked_at = 0, cost = l->sought.number_count ? NUMBER_COST : 1;
    bool room = true;
    roost_lock(e);
    uint64_t positions = roost_table_positions(&e->table), end = PLACES + positions;
    while (!l->through && room && l->at < end && looked_at < POSITIONS_A_PART) {
        uint64_t on;
        if (l->at < PLACES) {
            room = list_awake(e, l, events, max, &count);
            on = room;
        } else {
            uint64_t most = l->at - PLACES + (uint64_t)(POSITIONS_A_PART - looked_at) * EMPTY_COST;
            on = list_slot(e, l, most < positions ? most : positions, events, max, &count, &room);
        }
        l->at += on;
        looked_at += (1 + (uint32_t)(on / EMPTY_COST)) * cost;
    }
    if (!l->through && l->at >= end) {
        l->through = true;
        l->late = l->first;
    }
    for (; l->late && room && looked_at < POSITIONS_A_PART; l->late = room ? l->late->next : l->late) {
        looked_at += l->late->late ? LATE_COST : 1;
        room = !l->late->late || list_late(e, l, l->late, events, max, &count);
    }
    l->done = l->through && !l->late;
    roost_unlock(e);
    return (int)count;
}

int roost_list_done(const roost_listing *l) {
    return l->done;
}

uint64_t roost_list_at(const roost_listing *l) {
    return l->at;
}

void roost_list_end(roost_engine *e, roost_listing *l) {
    roost_lock(e);
    struct roost_listing **at = &e->listings;
    while (*at && *at != l)
        at = &(*at)->next;
    if (*at)
        *at = l->next;
    roost_unlock(e);
    while (l->first) {
        struct told *told = l->first;
        l->first = told->next;
        free(told);
    }
    roost_hash_free(&l->by_key);
    free(l);
}
