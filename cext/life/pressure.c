// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets run short. The least recently active connections of the lowest priority go down; those that cannot, because what
 * was sent to them waits in vain, are reset, the longest stuck first: they would keep all others from waking.
 */
#include <errno.h>
#include <stdlib.h>

#include "life.h"

#define STUCK_MS 5000 /* a radio that changes its cell is back by then */

struct stuck {
    uint64_t ms;
    struct roost_conn *conn;
};
#define MOST_STUCK (ROOST_SCRATCH / sizeof(struct stuck)) /* what is beyond is looked at next time */

static int priority_of(const struct roost_engine *e, uint32_t class) {
    uint8_t priority = roost_class_of(e, class)->priority;
    return priority < ROOST_PRIORITY_HIGH ? priority : ROOST_PRIORITY_HIGH;
}

/* It goes down already, once its server has ended, or the grace period is over (and if not, it is asked later). */
static bool goes_down(const struct roost_conn *c) {
    return c->in_batch || (c->phase == ROOST_LIVE && c->want_freeze);
}

static int longest_first(const void *one, const void *other) {
    uint64_t a = ((const struct stuck *)one)->ms, b = ((const struct stuck *)other)->ms;
    return a < b ? 1 : a > b ? -1 : 0;
}

void roost_relieve(struct roost_engine *e, uint32_t count, enum roost_cause cause) {
    bool has[ROOST_PRIORITY_HIGH + 1] = {false};
    struct stuck *stuck = (struct stuck *)(void *)e->scratch;
    uint32_t found = 0, down = 0;
    for (int i = 0; i < e->listeners; i++)
        has[priority_of(e, e->listener[i].service.index)] = true;
    for (int priority = ROOST_PRIORITY_LOW; priority <= ROOST_PRIORITY_HIGH; priority++) {
        for (struct roost_conn *c = has[priority] ? e->oldest : NULL, *next; c && found + down < count; c = next) {
            next = c->newer; /* freezing may drop c from the list */
            if (priority_of(e, c->class) != priority)
                continue;
            uint64_t ms = found < MOST_STUCK ? roost_conn_stuck_ms(c) : 0;
            /* Those that go down already count: the command comes again and again while they take their time, and would
             * at last end the links of clients that have just spoken. */
            if (ms >= STUCK_MS)
                stuck[found++] = (struct stuck){.ms = ms, .conn = c};
            else if (goes_down(c) || !roost_freeze(e, c, cause))
                down++;
        }
    }
    uint64_t stay = e->awake - down, room = roost_room_without_pressure(e);
    qsort(stuck, found, sizeof(*stuck), longest_first);
    for (uint32_t i = 0; i < found && stay > room; i++, stay--) {
        e->stat[ROOST_E_STUCK_RESET] += !stuck[i].conn->want_close;
        roost_conn_end(e, stuck[i].conn, cause, true);
    }
}
