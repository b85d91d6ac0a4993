/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of the inactive table (table.h says how it is laid out) and of the rest slots. XDP reads at any
 * moment, and puts in what is born asleep; all else is written by one thread. A pointer to a slot stays good until the
 * slot is removed, by roost_table_remove or, while the table grows, by roost_table_move.
 */
#ifndef ROOST_CEXT_TABLE_H
#define ROOST_CEXT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ebpf/shared/table.h"
#include "connected.h"
#include "endpoints.h"
#include "interned.h"

/* One generation of the table of one family. */
struct roost_generation {
    union {
        struct roost_bucket4 *bucket4; /* memory-mapped BPF arrays, or plain memory in unit tests */
        struct roost_bucket6 *bucket6;
        void *memory; /* NULL: not in use */
    };
    uint32_t buckets;
};

struct roost_table {
    struct roost_config config;
    struct roost_generation gen4[ROOST_GENERATIONS], gen6[ROOST_GENERATIONS];
    struct roost_endpoints endpoints;
    struct roost_classes classes;
    struct roost_rest *rest;
    uint32_t rest_slots;
    uint32_t rest_free;  /* first free rest slot, ROOST_NO_REST = none */
    uint32_t rest_fresh; /* slots from here on have never been used: they are not linked into the free list, so that
                            their pages stay untouched */
    uint64_t used4, used6, rest_used; /* without what XDP put in since the last roost_table_adopt */
    uint64_t born;                    /* of them: born asleep and silent since; likewise */
    uint64_t refused;                 /* inserts refused because both buckets, or the endpoints, were full */
    struct roost_counted counted;     /* clients of a source */
};

bool roost_key_is_v4(const struct roost_key *key);

/* Lets the table of a family have this memory as its generation `which`: the only one, or with the one until now as the
 * previous. The caller tells XDP what t->config then says. */
void roost_table_begin(struct roost_table *t, bool v4, uint32_t which, void *memory, uint32_t buckets);

/* Counts what an adopted table holds and finds the free rest slots. A slot whose class is not its service's (an earlier
 * layout had something else in its place) gets its service's default. Slots that no process can own any more (FREEZING,
 * THAWED) are removed, and so are servers' legs without their clients' and what no look-up finds; WAKING ones go back to IDLE or SLEEP. Returns how
 * many were removed; *max_id: the largest id. -ENOMEM: no memory to do it in. */
int64_t roost_table_adopt(struct roost_table *t, uint64_t *max_id);

struct roost_ka *roost_table_find(struct roost_table *t, const struct roost_key *key);
/* Lets the caches begin with what looking for it will need. */
void roost_table_prefetch(struct roost_table *t, const struct roost_key *key);

/* A new slot holding *ka with a version of its own; NULL when there is no room. The key must not be there. */
struct roost_ka *roost_table_insert(struct roost_table *t, const struct roost_key *key, const struct roost_ka *ka,
                                    uint16_t service);

/* The slots in use where this key may lie; how many. */
#define ROOST_PLACES_OF_KEY (2 * ROOST_BUCKET_SLOTS)
uint32_t roost_table_places(struct roost_table *t, const struct roost_key *key,
                            struct roost_ka *slots[ROOST_PLACES_OF_KEY]);

/* Removes the slot, and its rest slot if it has one. */
void roost_table_remove(struct roost_table *t, struct roost_ka *slot);

/* Whether a slot is in a generation that the table is growing out of. */
bool roost_table_is_previous(const struct roost_table *t, const struct roost_ka *slot);
/* Moves an IDLE or SLEEP slot from there into the current one; NULL: no room. peer: of the other leg, where that names this
 * one; or NULL. */
struct roost_ka *roost_table_move(struct roost_table *t, const struct roost_key *key, struct roost_ka *slot,
                                  struct roost_rest *peer);
/* Whether the previous generation is empty, and no insert into it is under way. */
bool roost_table_previous_is_empty(struct roost_table *t, bool v4);
/* The table has no previous generation any more; the memory of the one that it had. */
void *roost_table_end_previous(struct roost_table *t, bool v4, uint32_t *which);
uint64_t roost_table_buckets_max(void); /* that a slot's name can tell apart */

/* Sets the phase, after every write to the other fields has become visible. */
void roost_table_set_phase(struct roost_ka *slot, enum roost_phase phase);

/* Fills all of a FREEZING slot but its class and publishes it under the given phase. */
void roost_table_publish(struct roost_ka *slot, const struct roost_ka *ka, enum roost_phase phase);

/* Gives a slot another class, with the use of it that the caller took; it is looked at next. */
void roost_table_set_class(struct roost_table *t, struct roost_ka *slot, uint32_t class);

/* Whether it has a rest slot: neither asleep in the database nor born asleep. */
bool roost_table_has_rest(const struct roost_ka *slot);

/* A rest slot's index, or ROOST_NO_REST when all are in use that it may have. to_wake: it is given back within
 * milliseconds. One of ROOST_REST_WAKERS is for those alone: clients wake however many are IDLE. */
#define ROOST_REST_WAKERS 32
uint32_t roost_table_rest_alloc(struct roost_table *t, bool to_wake);
void roost_table_rest_release(struct roost_table *t, uint32_t index);

/* The index of the service that a slot's endpoint belongs to. */
uint16_t roost_table_service(const struct roost_table *t, const struct roost_ka *slot);

/* All slot positions, used or not, count from 0 to roost_table_positions; NULL = not in use. They change their meaning
 * when the table grows. */
uint64_t roost_table_positions(const struct roost_table *t);
struct roost_ka *roost_table_at(struct roost_table *t, uint64_t position, struct roost_key *key);
/* The next slot in use from position *p on, which becomes the one behind it; NULL: none before `end`, which *p is then.
 * Empty buckets cost a look at their heads. */
struct roost_ka *roost_table_walk(struct roost_table *t, uint64_t *p, uint64_t end, struct roost_key *key);
uint64_t roost_table_position(const struct roost_table *t,
                              const struct roost_ka *slot); /* where roost_table_at finds it */

/* The buckets of all generations count from 0, too; bucket n has the positions from n * ROOST_BUCKET_SLOTS on. */
uint64_t roost_table_buckets(const struct roost_table *t);
struct roost_bucket_head *roost_table_bucket(const struct roost_table *t, uint64_t n);
/* The bucket is to be looked at by then. */
void roost_table_due(struct roost_bucket_head *head, uint32_t due_s);

/* Buckets of one generation, one behind the other. */
struct roost_stretch {
    char *first;
    size_t bucket_size;
    uint64_t buckets;
    bool v4;
};
/* All that lie from bucket n to the end of its generation. n < roost_table_buckets. */
struct roost_stretch roost_table_stretch(const struct roost_table *t, uint64_t n);
/* Slot i of a bucket of a stretch; NULL: not in use. */
struct roost_ka *roost_table_slot(struct roost_bucket_head *bucket, bool v4, uint32_t i);
/* The key of a slot in use. */
void roost_table_key(const struct roost_table *t, const struct roost_ka *slot, bool v4, struct roost_key *key);

/* How many slots the current table of a family has. */
uint64_t roost_table_slots(const struct roost_table *t, bool v4);

/* A slot's name, the same for as long as it is there. */
uint32_t roost_table_name(const struct roost_table *t, const struct roost_ka *slot);
struct roost_ka *roost_table_named(struct roost_table *t, uint32_t name, struct roost_key *key);

/* The other leg of a pair and its key; NULL when it is not there any more. slot must have its rest at hand. */
struct roost_ka *roost_table_peer(struct roost_table *t, const struct roost_ka *slot, struct roost_key *key);

/* Lets one leg's rest name the other's slot. */
void roost_table_pair(struct roost_table *t, struct roost_rest *rest, const struct roost_ka *other);

/* Whether a slot is a server's leg whose client is not there any more, or has another. */
bool roost_table_orphan(struct roost_table *t, const struct roost_ka *slot);

#endif
