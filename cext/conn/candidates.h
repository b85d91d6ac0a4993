/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that sleep without a slot: all there is of them is a fingerprint in the filter (filter.h) and their row.
 *
 * They go there from SLEEP, where their service needs no keep-alives. They come back for a packet that the
 * filter takes for theirs, or for a command, which wait (life/recall.c) while the control plane looks for the row. With a
 * row they are in the table again, in SLEEP, and what waited is done as for any in SLEEP; the sweep removes the slot again
 * after a silence. Without a row the key is a stranger: its packets go to the stack, and the next ones pass XDP.
 */
#ifndef ROOST_CEXT_CANDIDATES_H
#define ROOST_CEXT_CANDIDATES_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/shared/frame.h"
#include "cext/base/hash.h"

struct roost_engine;
struct roost_command;
struct roost_event;

/* Why a key is remembered. */
enum roost_remembered {
    ROOST_R_ASKED, /* its question is on its way */
    ROOST_R_RESET, /* the question failed, and an RST is not repeated: it is asked again */
    ROOST_R_KNOWN, /* the row was read, and what had come was not its sleeper's. Nothing waits */
    ROOST_REMEMBERED
};

struct roost_recall {
    struct roost_hash by_key;            /* struct roost_asked_for */
    uint32_t remember[ROOST_REMEMBERED]; /* how many keys for each reason */
    uint32_t budget;                     /* of questions, until it is filled up */
    uint64_t filled_ms;
    uint64_t look_ms; /* when the questions are looked at next */
};

uint64_t roost_hash_of_key(const struct roost_engine *e, const struct roost_key *key);
/* Of a key that is in no table: whether it may be asleep. */
bool roost_is_candidate(const struct roost_engine *e, const struct roost_key *key);
/* Describes such a key as a connection in SLEEP. */
void roost_event_of_candidate(struct roost_engine *e, const struct roost_key *key, struct roost_event *event);

/* In SLEEP, its row committed: from now on in the filter, if its class has it so and there is room. The caller then
 * removes the slot, if there is one. again: it found no room before, or has come back; filter_full counts first
 * attempts. */
bool roost_sleep_without_slot(struct roost_engine *e, const struct roost_key *key, uint32_t ctl, uint32_t class,
                              bool again);

/* It is about to leave SLEEP, and its slot the table; its row is there until the control plane has removed it. After a
 * kill before that, the next daemon must not believe the row because another key has the same fingerprint: it would remove
 * that fingerprint. So a key that still hits the filter is a stranger from now on. */
void roost_candidate_left(struct roost_engine *e, const struct roost_key *key);

#endif
