// SPDX-License-Identifier: Apache-2.0
/* The awake connections: found by id and by key, in order of activity, ended here. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conn.h"
#include "cext/base/count.h"
#include "cext/socket/heard.h"
#include "cext/socket/repair.h"

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
}

struct roost_conn *roost_conn_new(struct roost_engine *e, const struct roost_key *key, uint64_t id, uint16_t service,
                                  uint16_t class) {
    if (roost_hash_reserve(&e->by_id, e->awake + 1) || roost_hash_reserve(&e->by_key, e->awake + 1))
        return NULL;
    struct roost_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->key = *key;
    c->id = id;
    c->service = service;
    c->client.fd = c->server.fd = -1;
    c->active_ms = c->since_ms = c->taken_ms = e->now_ms;
    c->held_tail = &c->held;
    c->class = class;
    roost_classes_hold(&e->table.classes, class);
    into_ids(e, c);
    roost_hash_put(&e->by_key, hash_of_key(e, key), c);
    roost_listings_awake(e, key);
    into_order(e, c);
    e->awake++;
    roost_counted_more(&e->table.counted, key->client, service);
    roost_sockets_note(e, key);
    return c;
}

void roost_conn_set_slot(struct roost_engine *e, struct roost_conn *c, struct roost_ka *slot) {
    if (slot && !c->slot)
        roost_counted_less(&e->table.counted, c->key.client, c->service);
    else if (!slot && c->slot)
        roost_counted_more(&e->table.counted, c->key.client, c->service);
    c->slot = slot;
}

void roost_conn_forget(struct roost_engine *e, struct roost_conn *c) {
    roost_waiting_served(e, c, false);
    roost_hash_drop(&e->by_id, roost_hash_of_number(c->id), c);
    roost_hash_drop(&e->by_key, hash_of_key(e, &c->key), c);
    roost_listings_asleep(e, &c->key);
    out_of_order(e, c);
    roost_wheel_cancel(&e->wheel, &c->timer);
    roost_conn_set_class(e, c, ROOST_CLASS_NONE);
    ROOST_ONE_LESS(e->awake);
    roost_conn_set_slot(e, c, NULL);
    roost_counted_less(&e->table.counted, c->key.client, c->service);
    c->dead = true;
    c->next_dead = e->dead;
    e->dead = c;
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
    struct roost_ready *queue = &e->ready[c->crowds];
    *queue->last = c;
    queue->last = &c->next_ready;
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
    roost_ends_of_conn(e, c, cause, &row.ends);
    roost_mailbox_post_row(&e->box, &row);
    roost_tally(e, c->class, row.from_state, row.to_state, row.cause, row.rx_bytes, row.tx_bytes);
}

static bool post_event(struct roost_engine *e, const struct roost_conn *c, enum roost_state to, enum roost_cause cause,
                       uint64_t token) {
    struct roost_event event;
    roost_event_of_conn(e, c, &event);
    roost_ends_of_conn(e, c, cause, &event.ends);
    return roost_post_transition(e, &event, c->class, (enum roost_state)c->state, to, cause, token);
}

void roost_conn_transition(struct roost_engine *e, struct roost_conn *c, enum roost_state to, enum roost_cause cause) {
    /* A command to freeze is not answered by the STANDBY on its way. */
    bool on_the_way = c->want_freeze && to == ROOST_ST_STANDBY;
    uint64_t token = on_the_way ? 0 : c->token;
    if (!token && is_plain(c, to) && roost_is_legal(c->state, (uint8_t)to, (uint8_t)cause)) {
        post_row(e, c, to, cause);
    } else if (!post_event(e, c, to, cause, token)) { /* a fault of ours: both ends learn it */
        if (to != ROOST_ST_CLOSED) {
            roost_conn_end(e, c, ROOST_C_COMMAND, true);
            return;
        }
        post_event(e, c, to, ROOST_C_COMMAND, token);
    }
    if (c->state == ROOST_ST_NONE)
        roost_hosts_add(&e->hosts, &c->key);
    if (to == ROOST_ST_CLOSED)
        roost_hosts_remove(&e->hosts, &c->key);
    c->state = (uint8_t)to;
    c->since_ms = e->now_ms;
    c->rx = c->tx = 0;
    if (!on_the_way)
        c->token = 0;
    c->told_quiet_ms = 0;
    c->sinks = false;
}

void roost_conn_end(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause, bool reset) {
    if (c->want_close) /* the first reason stands */
        return;
    c->want_close = true;
    c->close_cause = (uint8_t)cause;
    c->close_resets = reset;
    roost_conn_run(e, c);
}

uint64_t roost_conn_heard_ms(const struct roost_engine *e, struct roost_conn *c) {
    if (c->silent_ms && roost_heard_since(c->client.fd, c->heard_mark))
        c->silent_ms = 0;
    return c->silent_ms ? c->silent_ms : e->now_ms - roost_heard_ago_ms(c->client.fd);
}

void roost_client_failed(struct roost_engine *e, struct roost_conn *c) {
    e->stat[ROOST_E_PROBE_DEAD] += c->client.lost && !c->want_close;
    if (c->client.lost)
        c->silent_ms = roost_conn_heard_ms(e, c);
    roost_conn_end(e, c, c->client.lost ? ROOST_C_PROBE_TIMEOUT : ROOST_C_CLIENT_CLOSE, true);
}

void roost_conn_refuse_server(struct roost_engine *e, struct roost_conn *c, int error) {
    struct roost_waiting *w = c->server_waits;
    if (!w)
        return;
    c->server_waits = NULL;
    w->command.id = c->id;
    roost_waiting_refuse(e, w, error);
}

void roost_conn_count(struct roost_engine *e, struct roost_conn *c, bool to_server, uint64_t bytes) {
    c->asked = to_server;
    c->cut &= to_server;
    if (to_server) {
        c->silent_ms = 0;
        roost_waiting_served(e, c, true);
    }
    *(to_server ? &c->rx : &c->tx) += bytes;
    e->stat[to_server ? ROOST_E_BYTES_IN : ROOST_E_BYTES_OUT] += bytes;
}
