/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many probes the engine may begin now. A veth's ring takes 256 frames and loses what is more without a word to us,
 * and a client whose probe is lost so is taken for silent. So what is on its way counts: frames that the engine began, less
 * answers that became no further probe (an answer that became one changes nothing).
 *
 * That count is exact while clients answer at once. A client far away, or one that is gone, holds no place in a ring,
 * and stands in the count all the same. So
 *   - where nothing waits to be sent, those that were on their way a slice ago already are counted no more;
 *   - while something waits, and in two slices on end fewer are answered than would be if every frame went round twice
 *     in each, an eighth of the count goes with each slice;
 *   - no more are near than were answered in the best slice of the last ROOST_PACE_MEMORY_MS, or up to twice that:
 *     after that long without any answer the count is nothing. A receiver that is late by less gets nothing on top of
 *     what is in its ring. A receiver that is later shows in what the interface drops: then few are begun at a time, until
 *     they get out again.
 * No sockets, no clocks.
 */
#ifndef ROOST_CEXT_PACE_H
#define ROOST_CEXT_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define ROOST_PACE_MEMORY_MS 10 /* a thread that is to receive seldom waits longer for its processor */
#define ROOST_PACE_AT_ONCE 192  /* on their way: a veth's ring of 256, less what else may be in it */

struct roost_pace {
    uint32_t begun, ended;          /* as XDP counted them (struct roost_probe_run) */
    uint32_t on_way, on_way_before; /* as counted: now, and a slice ago */
    bool waited;                    /* something was left of the slice before */
    bool slow;                      /* in the slice before, few were answered of those on their way */
    uint32_t answered_most;         /* in one slice, since memory_ms */
    uint32_t answered_before;       /* ... in the ROOST_PACE_MEMORY_MS before that */
    uint64_t memory_ms;
    uint64_t dropped; /* by the interfaces, when they were last asked */
    uint32_t begun_when_asked;
    bool shut; /* they drop what is sent */
};

/* A slice is over: `taken` probes of its offer went out, `waiting` did not. */
void roost_pace_look(struct roost_pace *p, uint32_t begun, uint32_t ended, uint32_t taken, uint32_t waiting,
                     uint64_t now_ms);
/* True if no answer has come for long: then, and before anything is begun, roost_pace_dropped() is to be told. */
bool roost_pace_is_silent(const struct roost_pace *p);
/* Frames that the interfaces have dropped so far instead of sending them. */
void roost_pace_dropped(struct roost_pace *p, uint64_t dropped, uint64_t now_ms);
/* How many may be begun, ROOST_PACE_AT_ONCE at most. */
uint32_t roost_pace_room(const struct roost_pace *p);

#endif
