// SPDX-License-Identifier: Apache-2.0
/*
 * What the connections of each policy class do: their transitions and probes since they were last asked for, and how many are in
 * each state. Of both there is nothing per connection: transitions are counted where they are told, states by a look at every slot.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conn.h"

#define PLACES 256         /* of the awake: ranges of the hashes of their keys */
#define BUCKETS_A_PART 256 /* some 0.2 ms */

static uint32_t base_of(const struct roost_engine *e, uint32_t class) {
    return roost_classes_base(&e->table.classes, class) % ROOST_CLASSES;
}

static struct roost_tally *tally_of(struct roost_engine *e, uint32_t class, uint8_t from, uint8_t to, uint8_t cause) {
    const uint64_t hash = roost_hash_of_number(1 + ((uint64_t) class << 24 | from << 16 | to << 8 | cause));
    struct roost_tally *tally = roost_hash_find(&e->tallies, hash, NULL, NULL);
    if (tally || e->tallies.used == ROOST_TALLIES)
        return tally;
    tally = calloc(1, sizeof(*tally));
    if (!tally || !roost_hash_put(&e->tallies, hash, tally)) {
        free(tally);
        return NULL;
    }
    *tally = (struct roost_tally){.class = (uint16_t) class,
                                  .service = e->table.classes.entry[class].service,
                                  .from_state = from,
                                  .to_state = to,
                                  .cause = cause};
    return tally;
}

void roost_tally(struct roost_engine *e, uint32_t class, uint8_t from, uint8_t to, uint8_t cause, uint64_t rx,
                 uint64_t tx) {
    struct roost_tally *tally = tally_of(e, base_of(e, class), from, to, cause);
    if (!tally) {
        e->stat[ROOST_E_UNTALLIED]++;
        return;
    }
    tally->count++;
    tally->rx_bytes += rx;
    tally->tx_bytes += tx;
}

int roost_tallies_take(roost_engine *e, struct roost_tally *tallies) {
    const struct roost_hash_slot *slot;
    uint64_t step = 0;
    int count = 0;
    roost_lock(e);
    struct roost_hash taken = e->tallies;
    memset(&e->tallies, 0, sizeof(e->tallies));
    roost_unlock(e);
    while ((slot = roost_hash_walk(&taken, 0, UINT64_MAX, &step))) {
        tallies[count++] = *(struct roost_tally *)slot->item;
        free(slot->item);
    }
    roost_hash_free(&taken);
    return count;
}

void roost_tallies_free(struct roost_engine *e) {
    const struct roost_hash_slot *slot;
    uint64_t step = 0;
    while ((slot = roost_hash_walk(&e->tallies, 0, UINT64_MAX, &step)))
        free(slot->item);
    roost_hash_free(&e->tallies);
    free(e->silences);
}

void roost_tally_silence(struct roost_engine *e, uint32_t class, uint32_t silence_s, bool lost) {
    const uint32_t place = roost_silence_place(class);
    if (!e->silences || place >= ROOST_SILENCE_PLACES)
        return;
    if (lost)
        e->silences[place].answered[roost_answer_index(silence_s)]++;
    else
        e->silences[place].spoke[roost_silence_index(silence_s)]++;
}

/* Adds what the engine and XDP know of one class to what is told of its base. */
static void add_silences(struct roost_silence_counts *to, const struct roost_silences *engines,
                         const struct roost_silences *xdps) {
    _Static_assert(sizeof(to->spoke) == sizeof(engines->spoke) && sizeof(to->lost) == sizeof(engines->answered),
                   "types.h has as many places");
    _Static_assert((int)ROOST_SILENCE_COUNTS == ROOST_SILENCE_PLACES, "one for each at most");
    for (int i = 0; i < ROOST_SILENCES; i++)
        to->spoke[i] += engines->spoke[i] + xdps->spoke[i];
    for (int i = 0; i < ROOST_ANSWERS; i++) {
        to->answered[i] += xdps->answered[i];
        to->lost[i] += engines->answered[i];
    }
}

static bool is_nothing(const struct roost_silences *s) {
    static const struct roost_silences nothing;
    return !memcmp(s, &nothing, sizeof(nothing));
}

int roost_silences_read(roost_engine *e, struct roost_silence_counts *counts) {
    uint16_t told[ROOST_CLASSES]; /* where a base is, counted from 1 */
    int used = 0;
    memset(told, 0, sizeof(told));
    for (uint32_t place = 1; place < ROOST_SILENCE_PLACES; place++) {
        const uint32_t class = roost_silence_class(place);
        struct roost_silences engines = {0}, xdps;
        if (!e->table.classes.entry[class].service)
            continue;
        roost_datapath_silences(&e->path, place, &xdps);
        roost_lock(e);
        const uint32_t base = base_of(e, class);
        if (e->silences)
            engines = e->silences[place];
        const uint16_t service = e->table.classes.entry[base].service;
        roost_unlock(e);
        if (is_nothing(&engines) && is_nothing(&xdps))
            continue;
        if (!told[base]) {
            counts[used] = (struct roost_silence_counts){.class = (uint16_t)base, .service = service};
            told[base] = (uint16_t)++used;
        }
        add_silences(&counts[told[base] - 1], &engines, &xdps);
    }
    return used;
}

static struct roost_census *census_of(const struct roost_engine *e, uint32_t class, struct roost_census *counts) {
    const uint32_t base = base_of(e, class);
    counts[base].service = e->table.classes.entry[base].service;
    return &counts[base];
}

/* Of one whose record is being asked for, its slot is counted. */
static void count_awake(const struct roost_engine *e, uint64_t place, struct roost_census *counts) {
    const uint64_t width = UINT64_MAX / PLACES + 1, from = place * width;
    const struct roost_hash_slot *slot;
    uint64_t step = 0;
    while ((slot = roost_hash_walk(&e->by_key, from, from + width - 1, &step))) {
        const struct roost_conn *c = slot->item;
        if (c->phase != ROOST_ASKED)
            census_of(e, c->class, counts)->in_state[c->state]++;
    }
}

static void count_slot(const struct roost_engine *e, const struct roost_ka *slot, struct roost_census *counts) {
    const uint32_t phase = ROOST_PHASE(slot->ctl);
    if ((phase != ROOST_IDLE && phase != ROOST_SLEEP) || ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER)
        return;
    struct roost_census *of = census_of(e, slot->class, counts);
    if (ROOST_IS_BORN(slot->rest))
        of->born++;
    else
        of->in_state[phase == ROOST_SLEEP ? ROOST_ST_SLEEP : ROOST_ST_IDLE]++;
}

static uint64_t count_buckets(const struct roost_engine *e, uint64_t first, struct roost_census *counts) {
    const struct roost_stretch s = roost_table_stretch(&e->table, first);
    const uint64_t buckets = s.buckets < BUCKETS_A_PART ? s.buckets : BUCKETS_A_PART;
    char *at = s.first;
    for (uint64_t n = 0; n < buckets; n++, at += s.bucket_size) {
        for (uint32_t i = 0; i < ROOST_BUCKET_SLOTS; i++) {
            const struct roost_ka *slot = roost_table_slot((struct roost_bucket_head *)at, s.v4, i);
            if (slot)
                count_slot(e, slot, counts);
        }
    }
    return buckets;
}

int roost_census(roost_engine *e, uint64_t *at, struct roost_census *counts) {
    roost_lock(e);
    const uint64_t buckets = roost_table_buckets(&e->table), end = PLACES + buckets;
    int more = -EAGAIN;
    if (!at[0])
        at[1] = buckets;
    if (at[1] == buckets) {
        if (at[0] < PLACES)
            count_awake(e, at[0]++, counts);
        else if (at[0] < end)
            at[0] += count_buckets(e, at[0] - PLACES, counts);
        more = at[0] < end;
    }
    roost_unlock(e);
    return more;
}
