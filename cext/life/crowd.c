// SPDX-License-Identifier: Apache-2.0
/*
 * A table that is full of clients which were born and never spoke: where one network has a quarter of the slots, one of its births
 * makes room for each client of another network that is to sleep. Else one source could keep all others out, for as long as it answers
 * probes. Nothing is counted for it: a sample of the slots says which network that is.
 */
#include <stdlib.h>
#include <string.h>

#include "cext/base/address.h"
#include "cext/base/hash.h"
#include "life.h"

#define SAMPLE 256
#define SAMPLE_TRIES (16 * SAMPLE) /* the other table may be the larger one */
#define SAMPLE_MS 500
#define QUARTER 4

static uint64_t network_of(const struct roost_engine *e, const struct roost_key *key) {
    __u64 address[2];
    memcpy(address, key->client, sizeof(address));
    return roost_limit_cells(e->path.limits, 0, 0, ROOST_LIMIT_OF_NETWORK, address);
}

/* One at random, NULL: none there. */
static struct roost_ka *some_slot(struct roost_engine *e, bool v4, struct roost_key *key) {
    uint64_t at = roost_hash_of_number(e->crowd.random++) % roost_table_positions(&e->table);
    struct roost_ka *slot = roost_table_at(&e->table, at, key);
    return slot && roost_address_is_v4(key->client) == v4 && !(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) ? slot : NULL;
}

static bool is_unspoken(const struct roost_ka *slot) {
    return ROOST_PHASE(slot->ctl) == ROOST_IDLE && ROOST_IS_BORN(slot->rest);
}

static int ascending(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

/* The network whose births have a quarter of the slots, 0: there is none. */
static uint64_t find_crowd(struct roost_engine *e, bool v4) {
    uint64_t network[SAMPLE], found = 0;
    uint32_t slots = 0, births = 0, most = 0, run = 0;
    for (int i = 0; i < SAMPLE_TRIES && slots < SAMPLE; i++) {
        struct roost_key key;
        const struct roost_ka *slot = some_slot(e, v4, &key);
        if (slot && is_unspoken(slot))
            network[births++] = network_of(e, &key);
        slots += slot != NULL;
    }
    qsort(network, births, sizeof(network[0]), ascending);
    for (uint32_t i = 0; i < births; i++) {
        run = i && network[i] == network[i - 1] ? run + 1 : 1;
        if (run > most) {
            most = run;
            found = network[i];
        }
    }
    return most * QUARTER >= slots ? found : 0;
}

bool roost_crowd_gives_way(struct roost_engine *e, const struct roost_key *key) {
    bool v4 = roost_address_is_v4(key->client);
    struct roost_crowd *crowd = &e->crowd;
    if (!e->path.births_gate->services)
        return false;
    if (crowd->v4 != v4 || e->now_ms - crowd->at_ms >= SAMPLE_MS) {
        crowd->network = roost_births_have_room(e, v4) ? 0 : find_crowd(e, v4);
        crowd->v4 = v4;
        crowd->at_ms = e->now_ms;
    }
    if (!crowd->network || network_of(e, key) == crowd->network)
        return false;
    struct roost_ka *slot[ROOST_PLACES_OF_KEY];
    uint32_t taken = roost_table_places(&e->table, key, slot);
    for (uint32_t i = 0; i < taken; i++) {
        struct roost_key one;
        roost_table_key(&e->table, slot[i], v4, &one);
        if (!(ROOST_FLAGS(slot[i]->ctl) & ROOST_F_SERVER) && is_unspoken(slot[i]) &&
            network_of(e, &one) == crowd->network) {
            roost_births_expire(e, &one, slot[i]);
            return true;
        }
    }
    return false;
}
