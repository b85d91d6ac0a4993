/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for system calls that are the same for each of many sockets. The engine thread cuts a batch into slices, takes
 * slices itself, and goes on when all of it is done. So nothing that the engine owns changes while a batch is out, and a
 * batch of one slice costs no hand-over.
 */
#ifndef ROOST_CEXT_WORKERS_H
#define ROOST_CEXT_WORKERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define ROOST_WORKERS_MAX 63

/* One slice: items from..to-1. slice: its number in the batch. */
typedef void roost_slice_fn(void *context, uint32_t slice, uint32_t from, uint32_t to);

struct roost_workers {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t thread[ROOST_WORKERS_MAX];
    uint32_t threads;
    bool stop;
    /* The batch that is out; all of it guarded by lock. */
    roost_slice_fn *slice;
    void *context;
    uint32_t next, count, each; /* items: the next to be taken, how many, in a slice */
    uint32_t busy;              /* slices in work */
};

/* Starts so many threads (at most ROOST_WORKERS_MAX) in this thread's network namespace. 0 or -errno; on error those that
 * were started are there, and roost_workers_stop is due all the same. */
int roost_workers_start(struct roost_workers *w, uint32_t threads);
void roost_workers_stop(struct roost_workers *w);

/* Does a batch of count items in slices of at most each, and returns when it is done. One caller at a time. */
void roost_workers_run(struct roost_workers *w, roost_slice_fn *slice, void *context, uint32_t count, uint32_t each);

#endif
