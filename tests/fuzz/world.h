/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table with connections in it, and frames that are for them or nearly: what targets that run programs of ebpf/ have
 * in common. The real table (cext/table/table.c) is filled; the programs look into it as they do in the kernel.
 */
#ifndef ROOST_FUZZ_WORLD_H
#define ROOST_FUZZ_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/table/filter.h"
#include "cext/table/table.h"
#include "input.h"

#define CONNECTIONS 24
#define FRAME_MAX 3500

/* A table; in one that grows, each family has two generations, with connections in both. */
struct world {
    struct roost_table table;
    struct roost_key key[CONNECTIONS];
    uint32_t endpoint[2]; /* of the address and port that all IPv4, all IPv6 clients connect to */
    struct roost_filter filter;
    struct roost_filter_gate filter_gate;
    __u64 words[4];        /* of the filter */
    const void *strangers; /* the programs' map */
};

/* The whole of the table's memory, piece by piece; NULL: no more. */
void *world_memory(struct world *w, int piece, size_t *size);

/* Empties the table and puts connections into it: even ones IPv4, odd ones IPv6; each in a phase of its own, with and
 * without timestamps and window scaling, with sequence numbers about to wrap and not, clients' and servers' legs. */
void world_fill(struct world *w, bool grows);
/* Gives the programs' maps of the table, which they all have, to the host's kernel. */
void world_give_maps(struct world *w, const void *config, const void *tables4, const void *tables6,
                     const void *endpoints);

void world_give_filter(struct world *w, const void *filter, const void *filter_gate, const void *strangers);

/* As the input says: a connection sleeps without a slot from now on, or not; or it is known for a stranger. */
void world_filter(struct world *w, struct input *in);
/* Whether a key that is in no table is to be taken for a sleeper's. */
bool world_candidate(struct world *w, const struct roost_key *key);

uint64_t world_hash(const struct world *w, const struct roost_key *key);

void world_insert(struct world *w, int i, enum roost_phase phase);
void world_remove(struct world *w, int i);

struct roost_ka *world_slot(struct world *w, int i); /* NULL: it is not in the table */

/* A frame as the input describes it (seeds.py names the fields). Returns its length, 14 to FRAME_MAX. */
size_t world_frame(struct world *w, struct input *in, uint8_t *frame);

#endif
