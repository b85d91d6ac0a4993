// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "workers.h"

#include <string.h>

#include "priority.h"

/* Takes slices until none is left. The lock is held, except while a slice is worked on. */
static void take_slices(struct roost_workers *w) {
    while (w->next < w->count) {
        uint32_t from = w->next, to = w->count - from > w->each ? from + w->each : w->count;
        w->next = to;
        w->busy++;
        pthread_mutex_unlock(&w->lock);
        w->slice(w->context, from / w->each, from, to);
        pthread_mutex_lock(&w->lock);
        w->busy--;
    }
}

static void *worker_thread(void *context) {
    struct roost_workers *w = context;
    roost_run_first(false); /* as the engine thread, which waits for it */
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (w->next < w->count) {
            take_slices(w);
            if (!w->busy)
                pthread_cond_signal(&w->done);
        } else {
            pthread_cond_wait(&w->work, &w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int roost_workers_start(struct roost_workers *w, uint32_t threads) {
    int error = 0;
    memset(w, 0, sizeof(*w));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->done, NULL);
    while (!error && w->threads < threads && w->threads < ROOST_WORKERS_MAX) {
        error = -pthread_create(&w->thread[w->threads], NULL, worker_thread, w);
        if (!error)
            pthread_setname_np(w->thread[w->threads++], "roost-worker");
    }
    return error;
}

void roost_workers_stop(struct roost_workers *w) {
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    while (w->threads)
        pthread_join(w->thread[--w->threads], NULL);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
}

void roost_workers_run(struct roost_workers *w, roost_slice_fn *slice, void *context, uint32_t count, uint32_t each) {
    if (!w->threads || count <= each) { /* nothing to share */
        for (uint32_t from = 0; from < count; from += each)
            slice(context, from / each, from, count - from > each ? from + each : count);
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->slice = slice;
    w->context = context;
    w->next = 0;
    w->count = count;
    w->each = each;
    pthread_cond_broadcast(&w->work);
    take_slices(w);
    while (w->busy)
        pthread_cond_wait(&w->done, &w->lock);
    pthread_mutex_unlock(&w->lock);
}
