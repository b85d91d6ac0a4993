// SPDX-License-Identifier: Apache-2.0
/* The awake connections: found by id and by key, in order of activity, ended here. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cext/internal.h"
#include "cext/socket/repair.h"

#define LONG_STAY_MS 100 /* no more counts of one that went, when it is asked how many come and go */

static uint64_t hash_of_key(const struct roost_engine *e, const struct roost_key *key) {
    return roost_hash6(&e->table.config, key);
}

int roost_conns_init(struct roost_engine *e, uint32_t expected) {
    return roost_hash_reserve(&e->by_id, expected) || roost_hash_reserve(&e->by_key, expected) ? -ENOMEM : 0;
}

struct roost_conn *roost_conn_by_id(struct roost_engine *e, uint64_t id) {
    return roost_hash_find(&e->by_id, roost_hash_of_number(id), NULL, NULL);
}

static bool has_key(const void *conn, const void *key) {
    return !memcmp(&((const struct roost_conn *)conn)->key, key, sizeof(struct roost_key));
}

struct roost_conn *roost_conn_by_key(struct roost_engine *e, const struct roost_key *key) {
    return roost_hash_find(&e->by_key, hash_of_key(e, key), has_key, key);
}

static void into_order(struct roost_engine *e, struct roost_conn *c) {
    c->older = e->newest;
    c->newer = NULL;
    if (e->newest)
        e->newest->newer = c;
    else
        e->oldest = c;
    e->newest = c;
}

static void out_of_order(struct roost_engine *e, struct roost_conn *c) {
    if (c->older)
        c->older->newer = c->newer;
    else
        e->oldest = c->newer;
    if (c->newer)
        c->newer->older = c->older;
    else
        e->newest = c->older;
}

void roost_conn_touch(struct roost_engine *e, struct roost_conn *c) {
    c->active_ms = e->now_ms;
    if (e->newest == c)
        return;
    out_of_order(e, c);
    into_order(e, c);
}

/* 0 is no number: until the store has told it, a connection has none. */
static void into_ids(struct roost_engine *e, struct roost_conn *c) {
    if (c->id)
        roost_hash_put(&e->by_id, roost_hash_of_number(c->id), c); /* roost_conn_new has made room */
}

void roost_conn_set_id(struct roost_engine *e, struct roost_conn *c, uint64_t id) {
    roost_hash_drop(&e->by_id, roost_hash_of_number(c->id), c);
    c->id = id;
    into_ids(e, c);
    c->overrides = roost_overrides_find(&e->overrides, &e->table.config, &c->key, id);
}

struct roost_conn *roost_conn_new(struct roost_engine *e, const struct roost_key *key, uint64_t id, uint16_t service) {
    if (roost_hash_reserve(&e->by_id, e->awake + 1) || roost_hash_reserve(&e->by_key, e->awake + 1))
        return NULL;
    struct roost_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->key = *key;
    c->id = id;
    c->service = service;
    c->client.fd = c->server.fd = c->attach_fd = -1;
    c->active_ms = c->since_ms = e->now_ms;
    c->held_tail = &c->held;
    c->overrides = roost_overrides_find(&e->overrides, &e->table.config, key, id);
    into_ids(e, c);
    roost_hash_put(&e->by_key, hash_of_key(e, key), c);
    roost_listings_awake(e, key);
    into_order(e, c);
    e->awake++;
    roost_sockets_note(e, key);
    return c;
}

void roost_conn_forget(struct roost_engine *e, struct roost_conn *c) {
    if (c->dead)
        return;
    roost_hash_drop(&e->by_id, roost_hash_of_number(c->id), c);
    roost_hash_drop(&e->by_key, hash_of_key(e, &c->key), c);
    roost_listings_asleep(e, &c->key);
    out_of_order(e, c);
    roost_wheel_cancel(&e->wheel, &c->timer);
    e->awake--;
    c->dead = true;
    c->next_dead = e->dead;
    e->dead = c;
}

/* Events of this turn may still name a dead connection, and so may a queue (queued counts those): memory goes at the
 * end of a turn, when nothing names it any more. */
void roost_conns_free_dead(struct roost_engine *e) {
    struct roost_conn **at = &e->dead;
    while (*at) {
        struct roost_conn *c = *at;
        if (c->queued) {
            at = &c->next_dead;
            continue;
        }
        *at = c->next_dead;
        roost_drop_held(c);
        free(c->client.pending);
        free(c->server.pending);
        free(c->preamble);
        free(c->early);
        roost_inband_free(c);
        free(c);
    }
}

const struct roost_service *roost_service_of(struct roost_engine *e, uint16_t index) {
    static const struct roost_service none;
    size_t at = index;
    if (at >= sizeof(e->by_index) / sizeof(e->by_index[0]) || !e->by_index[at])
        return &none; /* a service that is not configured any more: its connections go on sleeping */
    return &e->by_index[at]->service;
}

void roost_conn_run(struct roost_engine *e, struct roost_conn *c) {
    if (c->ready || c->dead)
        return;
    c->ready = true;
    c->queued++;
    c->next_ready = NULL;
    *e->ready_tail = c;
    e->ready_tail = &c->next_ready;
}

/* The next moment at which something must be looked at. */
void roost_conn_set_timer(struct roost_engine *e, struct roost_conn *c) {
    uint64_t due = 0, in_band = c->in_band ? roost_inband_due_ms(e, c) : 0;
    if (c->link == ROOST_CONNECTING || c->link == ROOST_UNLINKING) {
        due = c->link == ROOST_CONNECTING && c->retry_ms ? c->retry_ms : c->link_deadline_ms;
    } else if (c->phase == ROOST_LIVE) {
        uint64_t quiet = roost_quiet_ms(e, c, (enum roost_state)c->state);
        if (quiet) {
            due = (c->told_quiet_ms > c->active_ms ? c->told_quiet_ms : c->active_ms) + quiet;
        }
    }
    if (in_band && (!due || in_band < due))
        due = in_band;
    if (due)
        roost_wheel_set(&e->wheel, &c->timer, due);
    else
        roost_wheel_cancel(&e->wheel, &c->timer);
}

/* Is it of interest to the history alone? What goes to sleep or wakes is something to decide about. */
static bool is_plain(const struct roost_conn *c, enum roost_state to) {
    return c->state != ROOST_ST_IDLE && c->state != ROOST_ST_SLEEP && to != ROOST_ST_IDLE && to != ROOST_ST_SLEEP;
}

static void post_row(struct roost_engine *e, const struct roost_conn *c, enum roost_state to, enum roost_cause cause) {
    struct roost_row row = {.id = c->id,
                            .at_ms = roost_realtime_ms(),
                            .key = c->key,
                            .service = c->service,
                            .from_state = c->state,
                            .to_state = (uint8_t)to,
                            .cause = (uint8_t)cause,
                            .rx_bytes = c->rx,
                            .tx_bytes = c->tx,
                            .gap_ms = e->now_ms > c->active_ms ? e->now_ms - c->active_ms : 0};
    roost_mailbox_post_row(&e->box, &row);
}

static void post_transition(struct roost_engine *e, const struct roost_conn *c, enum roost_state to,
                            enum roost_cause cause, uint64_t token) {
    struct roost_event event;
    roost_event_of_conn(e, c, &event);
    event.type = ROOST_EV_TRANSITION;
    event.from_state = c->state;
    event.to_state = (uint8_t)to;
    event.cause = (uint8_t)cause;
    event.token = token;
    roost_mailbox_post(&e->box, &event);
}

void roost_conn_transition(struct roost_engine *e, struct roost_conn *c, enum roost_state to, enum roost_cause cause) {
    /* A command to freeze is not answered by the STANDBY on its way. */
    bool on_the_way = c->want_freeze && to == ROOST_ST_STANDBY;
    uint64_t token = on_the_way ? 0 : c->token;
    if (!token && is_plain(c, to))
        post_row(e, c, to, cause);
    else
        post_transition(e, c, to, cause, token);
    if (c->state == ROOST_ST_NONE)
        roost_hosts_add(&e->hosts, &c->key);
    if (to == ROOST_ST_CLOSED) {
        roost_hosts_remove(&e->hosts, &c->key);
        roost_overrides_remove(&e->overrides, &e->table.config, &c->key);
        c->overrides = NULL;
    }
    c->state = (uint8_t)to;
    c->since_ms = e->now_ms;
    c->rx = c->tx = 0;
    if (!on_the_way)
        c->token = 0;
    c->told_quiet_ms = 0;
}

void roost_reset_fd(int fd) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

/* Explicitly out of epoll, which forgets a file only with its last descriptor: the control plane may hold a duplicate of an
 * attached server's, and a process that was forked just now one of each. */
void roost_leg_close(struct roost_engine *e, struct roost_leg *leg, bool reset) {
    if (leg->fd < 0)
        return;
    epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, leg->fd, NULL);
    roost_rebuilt_name(e, leg->fd, NULL);
    if (reset)
        roost_reset_fd(leg->fd);
    else
        close(leg->fd);
    leg->fd = -1;
}

void roost_conn_close(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause, bool reset) {
    if (c->dead)
        return;
    roost_sockets_note(e, &c->key); /* what is left of its socket stays a while */
    if (c->slot) {                  /* held packets are for a socket that goes: the stack answers them */
        roost_hold_release(e, c);
    }
    if (c->attach_fd >= 0)
        roost_attach_refused(e, c, ECONNRESET);
    roost_leg_close(e, &c->client, reset);
    roost_leg_close(e, &c->server, reset);
    uint64_t stayed_ms = e->now_ms - c->since_ms;
    e->rush_stayed_ms += stayed_ms < LONG_STAY_MS ? stayed_ms : LONG_STAY_MS;
    roost_conn_transition(e, c, ROOST_ST_CLOSED, cause);
    e->stat[ROOST_E_CLOSED]++;
    roost_conn_forget(e, c);
}

static int watch(struct roost_engine *e, int op, int fd, struct roost_conn *c, bool server, uint32_t out) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET | out};
    event.data.u64 =
        !server && c->client.rebuilt ? TAG_REBUILT | (uint64_t)fd : (uint64_t)(uintptr_t)c | (server ? 1 : 0);
    return epoll_ctl(e->epoll_fd, op, fd, &event) ? -errno : 0;
}

int roost_watch(struct roost_engine *e, int fd, struct roost_conn *c, bool server) {
    return watch(e, EPOLL_CTL_ADD, fd, c, server, server ? EPOLLOUT : 0);
}

void roost_watch_blocked(struct roost_engine *e, struct roost_conn *c) {
    if (!c->client.pending || c->client.watched_out || c->client.fd < 0)
        return;
    /* No memory: nobody would tell when it is writable. */
    if (watch(e, EPOLL_CTL_MOD, c->client.fd, c, false, EPOLLOUT))
        roost_conn_close(e, c, ROOST_C_CLIENT_CLOSE, true);
    else
        c->client.watched_out = true;
}

int roost_rebuilt_reserve(struct roost_engine *e, int fd) {
    uint32_t size = e->rebuilt_size ? e->rebuilt_size : 1024;
    while (size <= (uint32_t)fd)
        size *= 2;
    if (size == e->rebuilt_size)
        return 0;
    struct roost_conn **more = realloc(e->rebuilt, size * sizeof(*more));
    if (!more)
        return -ENOMEM;
    memset(more + e->rebuilt_size, 0, (size - e->rebuilt_size) * sizeof(*more));
    e->rebuilt = more;
    e->rebuilt_size = size;
    return 0;
}

void roost_rebuilt_name(struct roost_engine *e, int fd, struct roost_conn *c) {
    if ((uint32_t)fd < e->rebuilt_size)
        e->rebuilt[fd] = c;
}

struct epoll_event roost_rebuilt_event(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET};
    event.data.u64 = TAG_REBUILT | (uint64_t)fd;
    return event;
}
