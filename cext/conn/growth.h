/* SPDX-License-Identifier: Apache-2.0 */
/* The table grows: a larger generation is made while the engine goes on, and the slots move into it a few at a time. So do
 * the rest slots, by a part more (rests.h). */
#ifndef ROOST_CEXT_GROWTH_H
#define ROOST_CEXT_GROWTH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct roost_engine;

enum roost_growth_step {
    ROOST_GROWTH_NONE,
    ROOST_GROWTH_MAKING, /* a thread of its own makes the map: the kernel clears its memory, which takes a while */
    ROOST_GROWTH_MOVING
};

struct roost_growth {
    enum roost_growth_step step;
    bool allowed;
    bool rests;      /* it is they that grow */
    bool v4;         /* which table */
    bool legs_moved; /* every server's leg has been looked at once */
    uint32_t which, buckets;
    uint32_t slots;                                       /* of the rests: more */
    int fd;                                               /* of the map; -errno: it could not be made */
    int made;                                             /* atomic: the thread is done */
    uint64_t at;                                          /* the position to be moved next */
    uint64_t left;                                        /* slots that this pass had to leave where they are */
    uint64_t retry_ms, table_retry_ms[2], rests_retry_ms; /* the next look; of those that could not grow */
    pthread_t thread;
    struct roost_engine *engine;
};

/* In each turn. */
void roost_growth_turn(struct roost_engine *e);
/* Whether turns should follow each other at once. */
bool roost_growth_busy(const struct roost_engine *e);
/* The engine has been started; a predecessor may have been killed while a table grew. */
void roost_growth_resume(struct roost_engine *e);
void roost_growth_stop(struct roost_engine *e);
/* Bytes of memory that the machine could give: free, or taken by files alone. */
uint64_t roost_growth_available(void);

#endif
