/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timing wheel for the awake connections: one timer each, O(1) to set and to move, 16 ms a tick. A deadline past the
 * horizon (65 s) fires early: its handler looks at the clock and sets it again. The same goes for activity: it
 * moves no timer, the timer finds the connection busy when it fires and is set anew.
 */
#ifndef ROOST_CEXT_WHEEL_H
#define ROOST_CEXT_WHEEL_H

#include <stdint.h>

#define ROOST_WHEEL_TICK_MS 16
#define ROOST_WHEEL_SLOTS 4096

struct roost_timer {
    struct roost_timer *next, **previous; /* previous == NULL: not set */
};

struct roost_wheel {
    struct roost_timer *slot[ROOST_WHEEL_SLOTS];
    uint64_t tick; /* the next tick to fire */
    uint64_t armed;
};

void roost_wheel_init(struct roost_wheel *w, uint64_t now_ms);
void roost_wheel_set(struct roost_wheel *w, struct roost_timer *t, uint64_t due_ms);
void roost_wheel_cancel(struct roost_wheel *w, struct roost_timer *t);
/* Unlinks every timer that is due and returns them as a list (by next); they are not set any more. */
struct roost_timer *roost_wheel_advance(struct roost_wheel *w, uint64_t now_ms);

#endif
