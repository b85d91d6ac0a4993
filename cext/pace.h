/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many probes the engine may begin now. A veth's ring takes 256 frames and loses what is more without a word to us, and
 * whoever was sent to so is taken for silent. So what is on its way counts: frames that the engine began, less answers
 * that became no further probe (an answer that became one changes nothing).
 *
 * That count is exact while clients answer at once. A client far away, or one that is gone, holds no place in a ring,
 * and stands in the count all the same. So
 *   - where nothing waits to be sent, those that were on their way a slice ago already are counted no more;
 *   - while something waits, and fewer are answered in a slice than would be if every frame went round twice in it, an
 *     eighth of the count goes with each slice;
 *   - no more are near than were answered in the best slice of the last PACE_MEMORY_MS: after that long without any
 *     answer the count is nothing. A receiver that is late by less than that gets nothing on top of what is in its ring.
 * No sockets, no clocks.
 */
#ifndef ROOST_CEXT_PACE_H
#define ROOST_CEXT_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define ROOST_PACE_AT_ONCE 192 /* on their way: a veth's ring of 256, less what else may be in it */

struct roost_pace {
    uint32_t begun, ended;          /* as XDP counted them (struct roost_probe_run) */
    uint32_t on_way, on_way_before; /* now, and a slice ago */
    bool waited;                    /* something was left of the slice before */
    uint32_t answered_most;
    uint64_t answered_most_ms;
};

/* A slice is over: `taken` probes of its offer went out, `waiting` did not. */
void roost_pace_look(struct roost_pace *p, uint32_t begun, uint32_t ended, uint32_t taken, uint32_t waiting,
                     uint64_t now_ms);
/* How many may be begun, ROOST_PACE_AT_ONCE at most. */
uint32_t roost_pace_room(const struct roost_pace *p);

#endif
