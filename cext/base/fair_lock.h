/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex for one thread that takes it again and again, and others that take it now and then. With a plain one the first
 * would have it back before a waiter has run.
 */
#ifndef ROOST_CEXT_FAIR_LOCK_H
#define ROOST_CEXT_FAIR_LOCK_H

#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

struct roost_fair_lock {
    pthread_mutex_t mutex;
    int waiters;    /* others that want it, or have it: a futex */
    bool gives_way; /* its owner waits until there are none */
};

static inline void roost_fair_lock(struct roost_fair_lock *lock) {
    __atomic_add_fetch(&lock->waiters, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&lock->mutex);
}

/* Its owner is woken when the lock is free: it may take this processor at once. */
static inline void roost_fair_unlock(struct roost_fair_lock *lock) {
    pthread_mutex_unlock(&lock->mutex);
    if (!__atomic_sub_fetch(&lock->waiters, 1, __ATOMIC_SEQ_CST) && __atomic_load_n(&lock->gives_way, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &lock->waiters, FUTEX_WAKE_PRIVATE, 1);
}

/* Of the one thread, which does not hold it: lets those who want it have it first, but waits no longer than `ns`. It sleeps
 * meanwhile: if it yielded, whatever else runs on its processor would go on for a slice of the scheduler's, 3 ms. */
static inline void roost_fair_give_way(struct roost_fair_lock *lock, uint64_t ns) {
    int waiters = __atomic_load_n(&lock->waiters, __ATOMIC_SEQ_CST);
    if (!waiters)
        return;
    const uint64_t until_ns = roost_monotonic_ns() + ns;
    __atomic_store_n(&lock->gives_way, true, __ATOMIC_SEQ_CST);
    while ((waiters = __atomic_load_n(&lock->waiters, __ATOMIC_SEQ_CST))) {
        uint64_t now_ns = roost_monotonic_ns();
        if (now_ns >= until_ns)
            break;
        const uint64_t left_ns = until_ns - now_ns;
        const struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000),
                                      .tv_nsec = (long)(left_ns % 1000000000)};
        syscall(SYS_futex, &lock->waiters, FUTEX_WAIT_PRIVATE, waiters, &left);
    }
    __atomic_store_n(&lock->gives_way, false, __ATOMIC_SEQ_CST);
}

#endif
