/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that sleep without a slot: all there is of them is a fingerprint in the filter (filter.h) and their row.
 *
 * They go there from SLEEP, where their service needs no keep-alives. They come back when somebody wants them: a packet that
 * the filter takes for theirs, or a command. Whoever wants them waits here while the control plane looks for the row. With
 * it they are in the table again, in SLEEP, and what waited is done as for any that sleeps; then the sweep lets them go when
 * they have been silent. Without a row it was a stranger: its packets go to the stack, and the next ones pass XDP.
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

struct roost_perhaps {
    struct roost_hash by_key; /* struct roost_asked_for */
    uint32_t asked;           /* how many there are, without those that are kept for an RST */
    uint32_t kept;
    uint32_t budget; /* of questions, until it is filled up */
    uint64_t filled_ms;
    uint64_t look_ms; /* when those that wait are looked at next */
};

uint64_t roost_hash_of_key(const struct roost_engine *e, const struct roost_key *key);
/* Of a key that is in no table: whether it may be asleep. */
bool roost_is_perhaps_asleep(const struct roost_engine *e, const struct roost_key *key);
/* How such a key looks to whoever asks for it. */
void roost_event_of_perhaps(struct roost_engine *e, const struct roost_key *key, struct roost_event *event);

/* Whether those of a class keep their slot in SLEEP: their keep-alives are answered, they are probed, or the slot alone says
 * what they set in band. */
bool roost_class_needs_slot(const struct roost_engine *e, uint32_t class);
/* In SLEEP, its row committed: from now on in the filter, if its class has it so and there is room. The caller then
 * removes the slot, if there is one. again: it has found no room before, or has come back; filter_full counts those that
 * fell asleep. */
bool roost_sleep_without_slot(struct roost_engine *e, const struct roost_key *key, uint32_t ctl, uint32_t class,
                              bool again);

/* It is about to leave SLEEP, and its slot the table; its row is there until the control plane has removed it. Should we be
 * killed before that, a successor must not believe the row because of another's fingerprint: taken for asleep, it would
 * take that one away. So a key that the filter goes on taking for a member is a stranger's from now on. */
void roost_perhaps_left(struct roost_engine *e, const struct roost_key *key);

#endif
