// SPDX-License-Identifier: Apache-2.0
/*
 * Freezing, in batches: mark (XDP holds from now on), one grace period for all that gathered, then snapshot, publish,
 * close. The grace period (some 10 ms) is waited for by a thread of its own, so that the engine goes on; what it gives
 * is that no packet is on its way between XDP and TCP any more. It only saves retransmissions: correctness rests on the
 * socket filter that roost_repair_snapshot puts in place before it reads.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "repair.h"

#define WITHOUT_MEMBARRIER_US 50000 /* what is on its way to TCP has arrived long before */
#define SNAPSHOTS_A_TURN 64         /* about a millisecond: others wait to be woken */

static void *grace_thread(void *context) {
    struct roost_grace *g = context;
    uint64_t one = 1;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        while (!g->wanted && !g->stop)
            pthread_cond_wait(&g->cond, &g->lock);
        if (g->stop)
            break;
        g->wanted = false;
        pthread_mutex_unlock(&g->lock);
        if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0)) /* a nohz_full kernel refuses it */
            usleep(WITHOUT_MEMBARRIER_US);
        if (write(g->event_fd, &one, sizeof(one)) != sizeof(one)) {
            /* an eventfd refuses only at 2^64-1 */
        }
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

int roost_grace_start(struct roost_engine *e) {
    struct roost_grace *g = &e->grace;
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->event_fd < 0)
        return -errno;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->cond, NULL);
    return -pthread_create(&g->thread, NULL, grace_thread, g);
}

void roost_grace_stop(struct roost_engine *e) {
    struct roost_grace *g = &e->grace;
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    pthread_cond_signal(&g->cond);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    close(g->event_fd);
}

/* Such an address means something on one link alone, and the record has no place for the link. */
static bool is_link_local(const uint8_t ip[16]) {
    return ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80;
}

int roost_freeze(struct roost_engine *e, struct roost_conn *c, bool keep_link, enum roost_cause cause) {
    if (c->dead || c->phase != ROOST_LIVE)
        return -EALREADY;
    if (c->in_batch) /* of a freeze that was cancelled; its grace period is not over */
        return -EAGAIN;
    if (!keep_link && c->link != ROOST_UNLINKED) {
        int error = roost_link_end(e, c, cause);
        if (error || c->dead)
            return error;
        if (c->link != ROOST_UNLINKED) {
            c->want_freeze = true;
            c->freeze_cause = (uint8_t)cause;
            return 0;
        }
    }
    if (keep_link && (c->link != ROOST_LINKED || c->server.eof || c->server.shut || c->server.readable))
        return -EAGAIN;
    if (c->client.eof || c->client.shut || c->client.pending || c->server.pending || c->attach_fd >= 0)
        return -EBUSY;
    if (is_link_local(c->key.local) || is_link_local(c->key.client))
        return -EOPNOTSUPP;
    struct roost_ka mark = {.ctl = ROOST_FREEZING, .service = c->service, .rest = ROOST_NO_REST};
    c->slot = roost_table_insert(&e->table, &c->key, &mark);
    if (!c->slot) {
        e->stat[ROOST_E_TABLE_FULL]++;
        return -ENOSPC;
    }
    c->phase = ROOST_MARKED;
    c->keep_link = keep_link;
    c->freeze_cause = (uint8_t)cause;
    c->next_frozen = e->gathering;
    e->gathering = c;
    c->in_batch = true;
    c->queued++;
    roost_wheel_cancel(&e->wheel, &c->timer);
    return 0;
}

void roost_freeze_cancel(struct roost_engine *e, struct roost_conn *c, int error) {
    uint64_t token = c->token;
    e->stat[ROOST_E_FREEZE_CANCELLED]++;
    roost_refuse(e, c->keep_link ? ROOST_OP_FREEZE_HELD : ROOST_OP_IDLE, token, c->id, &c->key, error);
    c->token = 0;
    c->told_quiet_ms = e->now_ms; /* not at once again */
    roost_hold_release(e, c);
    roost_awake(e, c);
}

static void fill_policy(struct roost_engine *e, struct roost_conn *c, struct roost_ka *ka, struct roost_rest *rest) {
    const struct roost_service *s = roost_service_of(e, c->service);
    ka->service = c->service;
    ka->heard_s = (uint32_t)(e->now_ms / 1000);
    ka->probe_interval_s = s->probe_interval_s;
    rest->id = c->id;
    rest->active_ms = c->active_ms;
    rest->sleep_due_s = s->sleep_quiet_ms ? (uint32_t)((c->active_ms + s->sleep_quiet_ms + 999) / 1000) : 0;
}

static void finish(struct roost_engine *e, struct roost_conn *c) {
    struct roost_ka ka;
    struct roost_rest rest;
    if (c->dead || c->phase != ROOST_MARKED)
        return;
    if (c->attach_fd >= 0 || c->want_close || (c->keep_link && (c->server.readable || c->server.eof))) {
        roost_freeze_cancel(e, c, EAGAIN);
        return;
    }
    uint32_t index = roost_table_rest_alloc(&e->table);
    if (index == ROOST_NO_REST) {
        e->stat[ROOST_E_TABLE_FULL]++;
        roost_freeze_cancel(e, c, ENOSPC);
        return;
    }
    int error = roost_repair_snapshot(c->client.fd, e->path.closed_fd, &ka, &rest);
    if (error) {
        roost_table_rest_release(&e->table, index);
        roost_freeze_cancel(e, c, -error);
        return;
    }
    bool probed = false;
    for (const struct roost_held *h = c->held; h; h = h->next) {
        enum roost_verdict verdict = roost_judge_held(h, &ka);
        probed |= verdict == ROOST_V_ANSWER;
        if (verdict == ROOST_V_WAKE) {
            roost_repair_undo(c->client.fd, e->path.closed_fd);
            roost_table_rest_release(&e->table, index);
            roost_freeze_cancel(e, c, EAGAIN);
            return;
        }
    }
    roost_drop_held(c); /* nothing that the kernel would act on */
    fill_policy(e, c, &ka, &rest);
    ka.rest = index;
    e->table.rest[index] = rest;
    roost_table_publish(c->slot, &ka, ROOST_IDLE);
    if (probed)
        roost_answer_probe(e, &c->key, &ka);
    close(c->client.fd); /* in repair mode: no FIN, no RST */
    c->client.fd = -1;
    c->client.readable = c->client.writable = false;
    e->stat[ROOST_E_FROZEN]++;
    roost_conn_transition(e, c, ROOST_ST_IDLE, (enum roost_cause)c->freeze_cause);
    if (c->keep_link) {
        c->phase = ROOST_HELD_LINK;
    } else {
        c->slot = NULL;
        roost_conn_forget(e, c);
    }
}

void roost_grace_done(struct roost_engine *e) {
    uint64_t count;
    if (read(e->grace.event_fd, &count, sizeof(count)) != sizeof(count))
        return;
    e->grace.running = false;
    struct roost_conn **tail = &e->graced;
    while (*tail)
        tail = &(*tail)->next_frozen;
    *tail = e->in_grace;
    e->in_grace = NULL;
}

void roost_freeze_turn(struct roost_engine *e) {
    struct timespec from, to;
    if (e->graced) {
        clock_gettime(CLOCK_MONOTONIC, &from);
        roost_drain(e); /* what was held until now has its say */
        for (int i = 0; i < SNAPSHOTS_A_TURN && e->graced; i++) {
            struct roost_conn *c = e->graced;
            e->graced = c->next_frozen;
            c->in_batch = false;
            c->queued--;
            finish(e, c);
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        e->stat[ROOST_E_FREEZE_NS] +=
            (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000 + (uint64_t)(to.tv_nsec - from.tv_nsec);
    }
    if (e->gathering && !e->grace.running) {
        e->in_grace = e->gathering;
        e->gathering = NULL;
        e->grace.running = true;
        pthread_mutex_lock(&e->grace.lock);
        e->grace.wanted = true;
        pthread_cond_signal(&e->grace.cond);
        pthread_mutex_unlock(&e->grace.lock);
    }
}
