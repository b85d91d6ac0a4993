/* SPDX-License-Identifier: Apache-2.0 */
/* Scheduling of the threads that a client waits for when it wakes: the engine thread and its workers. */
#ifndef ROOST_CEXT_PRIORITY_H
#define ROOST_CEXT_PRIORITY_H

#include <sched.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#define ROOST_NICE (-10)

/* With one processor, a thread that stays runnable keeps it from the tasks that it waits for. */
static inline bool roost_has_several_processors(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof(allowed), &allowed) || CPU_COUNT(&allowed) > 1; /* fails with very many */
}

/* Puts the calling thread in front of what else runs on the box, the control plane included. real_time: always, and at
 * once; otherwise by its share, so that it may have to wait for a slice of another, 3 ms. Without the privilege, or where a
 * control group allows no real time, less or nothing changes, and that is no failure. The threads that it starts are
 * ordinary ones. */
static inline void roost_run_first(bool real_time) {
    const struct sched_param priority = {.sched_priority = real_time ? 1 : 0};
    setpriority(PRIO_PROCESS, (id_t)gettid(), ROOST_NICE);
    sched_setscheduler(0, (real_time ? SCHED_FIFO : SCHED_OTHER) | SCHED_RESET_ON_FORK, &priority);
}

#endif
