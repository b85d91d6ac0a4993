// SPDX-License-Identifier: Apache-2.0
/*
 * Awake connections and listening sockets between an engine that has stopped, or does not run yet, and a bridge
 * (cext/handover/). Sockets go as they are; what the engine knows of a connection goes as facts, and what is being decided just
 * then is decided anew.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "cext/handover/bridge.h"
#include "cext/base/address.h"
#include "cext/base/face.h"
#include "life.h"

/* ---- to the next one ---- */

static bool goes(struct roost_engine *e, const struct roost_conn *c) {
    return (c->phase == ROOST_LIVE || c->phase == ROOST_MARKED) && c->client.fd >= 0 &&
           !roost_service_of(e, c->service)->by_daemon;
}

/* It stays awake. What was held is said again by its sender. */
static void unmark(struct roost_engine *e, struct roost_conn *c) {
    if (c->slot)
        roost_table_remove(&e->table, c->slot);
    if (c->server_slot)
        roost_table_remove(&e->table, c->server_slot);
    roost_conn_set_slot(e, c, NULL);
    c->server_slot = NULL;
    c->phase = ROOST_LIVE;
}

/* Who asked in band and has no answer yet is told that nothing was done. */
static void refuse_asked(struct roost_engine *e, struct roost_conn *c) {
    for (int client = 0; client < 2 && c->in_band; client++) {
        uint32_t asked = client ? c->in_band->client.asked : c->in_band->server.asked;
        struct roost_command refusal = {.id = c->id, .count = asked, .error = ECANCELED, .fd = -1};
        if (asked)
            roost_inband_answered(e, &refusal);
    }
}

static uint8_t link_of(const struct roost_conn *c) {
    return c->link == ROOST_LINKED       ? ROOST_HANDED_LINKED
           : c->link == ROOST_UNLINKING  ? ROOST_HANDED_ENDING
           : c->link == ROOST_CONNECTING ? ROOST_HANDED_WANTED
                                         : ROOST_HANDED_NONE;
}

static struct roost_handed_leg leg_facts(const struct roost_leg *leg) {
    return (struct roost_handed_leg){.eof = leg->eof,
                                     .shut = leg->shut,
                                     .error = leg->error,
                                     .lost = leg->lost,
                                     .refused = leg->refused,
                                     .probed = leg->probed,
                                     .rebuilt = leg->rebuilt};
}

static void note_goal(struct roost_handed_facts *f, const struct roost_in_band *b) {
    if (!b || !b->goal)
        return;
    f->goal = b->goal;
    f->goal_begun = b->begun;
    f->goal_unlinked = b->unlinked;
    f->goal_retry_ms = b->retry_ms;
    f->goal_until_ms = b->until_ms;
}

static void note_facts(struct roost_engine *e, const struct roost_conn *c, struct roost_handed_facts *f) {
    f->state = c->state;
    f->link = link_of(c);
    f->moves = c->link == ROOST_LINKED && !c->want_close && !roost_inband_looks(e, c, true) &&
               !roost_inband_looks(e, c, false);
    f->key = c->key;
    f->service = c->service;
    f->server_port = c->linked_to.port;
    memcpy(f->server, c->linked_to.address, sizeof(f->server));
    f->id = c->id;
    f->active_ms = c->active_ms;
    f->since_ms = c->since_ms;
    f->silent_ms = c->silent_ms;
    f->heard_mark = c->heard_mark;
    f->link_deadline_ms = c->link_deadline_ms;
    f->rx = c->rx;
    f->tx = c->tx;
    f->asked = c->asked;
    f->cut = c->cut;
    f->wake_cause = c->wake_cause;
    f->sinks = c->sinks;
    f->attached = c->attached;
    f->unlink_cause = c->unlink_cause;
    f->closes = c->want_close;
    f->close_cause = c->close_cause;
    f->close_resets = c->close_resets;
    note_goal(f, c->in_band);
    f->leg[0] = leg_facts(&c->client);
    f->leg[1] = leg_facts(&c->server);
}

static int give_leg(struct roost_engine *e, struct roost_leg *leg) {
    int fd = leg->fd;
    if (fd >= 0) {
        epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        roost_rebuilt_name(e, fd, NULL);
    }
    leg->fd = -1;
    return fd;
}

static struct roost_pending *give_pending(struct roost_leg *leg) {
    struct roost_pending *p = leg->pending;
    leg->pending = NULL;
    return p;
}

/* 0; or -ENOMEM, and it stays. */
static int hand_over(struct roost_engine *e, struct roost_conn *c, struct roost_bridge *b) {
    struct roost_handed *h = roost_handed_new(ROOST_HANDED_CONNECTION);
    if (!h)
        return -ENOMEM;
    if (c->phase == ROOST_MARKED)
        unmark(e, c);
    roost_conn_refuse_server(e, c, ECANCELED);
    refuse_asked(e, c);
    roost_class_tell(e, c); /* the control plane keeps it, and gives it to the next engine */
    note_facts(e, c, &h->facts);
    if (roost_inband_take(c, true, &h->bytes[ROOST_HANDED_OF_CLIENT]) ||
        roost_inband_take(c, false, &h->bytes[ROOST_HANDED_OF_SERVER])) {
        roost_handed_free(h);
        return -ENOMEM;
    }
    if (c->link == ROOST_CONNECTING) { /* what is pending is our own header */
        free(give_pending(&c->server));
        roost_leg_close(e, &c->server, false);
    }
    h->bytes[ROOST_HANDED_TO_CLIENT] = give_pending(&c->client);
    h->bytes[ROOST_HANDED_TO_SERVER] = give_pending(&c->server);
    h->fd[0] = give_leg(e, &c->client);
    h->fd[1] = give_leg(e, &c->server);
    roost_bridge_add(b, h);
    c->queued = 0; /* the queues end with the engine */
    roost_conn_forget(e, c);
    return 0;
}

static void hand_over_listeners(struct roost_engine *e, struct roost_bridge *b) {
    for (int i = 0; i < e->listeners; i++) {
        struct roost_listener *l = &e->listener[i];
        struct roost_handed *h = l->fd >= 0 ? roost_handed_new(ROOST_HANDED_LISTENER) : NULL;
        if (!h)
            continue;
        epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
        h->fd[0] = l->fd;
        l->fd = -1;
        roost_bridge_add(b, h);
    }
}

int roost_hand_over(roost_engine *e, roost_bridge *b) {
    int went = 0;
    roost_lock(e);
    e->now_ms = roost_monotonic_ms();
    for (struct roost_conn *c = e->oldest, *next; c; c = next) {
        next = c->newer;
        went += goes(e, c) && !hand_over(e, c, b);
    }
    hand_over_listeners(e, b);
    roost_mailbox_flush(&e->box); /* what was refused */
    roost_unlock(e);
    return went;
}

/* ---- from the one before ---- */

void roost_inherit(roost_engine *e, roost_bridge *b) {
    e->bridge = b;
    for (struct roost_handed *h = b->first; h; h = h->next)
        h->taker = NULL; /* of an engine that was closed before its start */
}

static void enter_pool(struct roost_engine *e, struct roost_conn *c) {
    struct roost_pool *pool = c->attached ? NULL : roost_pool_of(e, c->service);
    int place = pool ? roost_pool_find(pool, &c->linked_to) : ROOST_NO_PLACE;
    if (place == ROOST_NO_PLACE)
        return; /* it came by itself, or has left the configuration */
    roost_pool_enter(pool, place);
    c->place = (uint8_t)(place + 1);
}

/* All but its sockets, which the bridge still has. */
static bool take_facts(struct roost_engine *e, struct roost_handed *h) {
    const struct roost_handed_facts *f = &h->facts;
    if (roost_whose(e, &f->key).by != ROOST_BY_NONE || roost_conn_by_id(e, f->id))
        return false;
    struct roost_conn *c = roost_conn_new(e, &f->key, f->id, f->service, roost_class_for(e, &f->key, f->service));
    if (!c)
        return false;
    c->state = f->state;
    c->wake_cause = f->wake_cause ? f->wake_cause : ROOST_C_CLIENT_DATA; /* 0: an earlier version does not say it */
    c->since_ms = f->since_ms;
    c->link_deadline_ms = f->link_deadline_ms;
    c->sinks = f->sinks;
    c->attached = f->attached;
    c->unlink_cause = f->unlink_cause;
    c->linked_to.port = f->server_port;
    memcpy(c->linked_to.address, f->server, sizeof(c->linked_to.address));
    if (f->link == ROOST_HANDED_LINKED || f->link == ROOST_HANDED_ENDING)
        enter_pool(e, c);
    roost_hosts_add(&e->hosts, &c->key);
    if (e->next_id <= c->id)
        e->next_id = c->id + 1;
    h->taker = c;
    return true;
}

int roost_inherit_connections(roost_engine *e) {
    int taken = 0;
    roost_lock(e);
    e->now_ms = roost_monotonic_ms();
    for (struct roost_handed *h = e->bridge ? e->bridge->first : NULL; h; h = h->next)
        taken += h->facts.kind == ROOST_HANDED_CONNECTION && take_facts(e, h);
    roost_unlock(e);
    return taken;
}

/* Links that may sleep take their ports in turn: behind those that are in use. */
static void pass_port(struct roost_engine *e, int fd) {
    uint8_t local[16];
    uint16_t port_be;
    if (roost_address_of_socket(fd, local, &port_be))
        return;
    uint16_t port = ntohs(port_be);
    if (port >= e->link_port_next && port < e->link_port_last)
        e->link_port_next = port + 1;
}

static void take_leg(struct roost_leg *leg, struct roost_handed *h, int which) {
    const struct roost_handed_leg *f = &h->facts.leg[which];
    leg->fd = h->fd[which];
    leg->writable = true;
    leg->eof = f->eof;
    leg->shut = f->shut;
    leg->error = f->error;
    leg->lost = f->lost;
    leg->refused = f->refused;
    leg->probed = f->probed;
    leg->rebuilt = f->rebuilt;
    leg->pending = h->bytes[which ? ROOST_HANDED_TO_SERVER : ROOST_HANDED_TO_CLIENT];
    h->bytes[which ? ROOST_HANDED_TO_SERVER : ROOST_HANDED_TO_CLIENT] = NULL;
    h->fd[which] = -1;
}

static bool take_goal(struct roost_conn *c, const struct roost_handed_facts *f) {
    if (!f->goal)
        return true;
    struct roost_in_band *b = roost_inband_open(c);
    if (!b)
        return false;
    b->goal = f->goal;
    b->begun = f->goal_begun;
    b->unlinked = f->goal_unlinked;
    b->retry_ms = f->goal_retry_ms;
    b->until_ms = f->goal_until_ms;
    return true;
}

static bool take_in_band(struct roost_conn *c, struct roost_handed *h) {
    bool kept = take_goal(c, &h->facts);
    for (int client = 0; client < 2 && kept; client++) {
        struct roost_pending **bytes = &h->bytes[client ? ROOST_HANDED_OF_CLIENT : ROOST_HANDED_OF_SERVER];
        kept = !*bytes || !roost_inband_give(c, client, *bytes);
        *bytes = NULL;
    }
    return kept;
}

/* What becomes of it from here on is decided by the first turn of the engine. What there is to read, epoll says then. */
static void take_up(struct roost_engine *e, struct roost_handed *h) {
    const struct roost_handed_facts *f = &h->facts;
    struct roost_conn *c = h->taker;
    c->active_ms = f->active_ms;
    c->silent_ms = f->silent_ms;
    c->heard_mark = f->heard_mark;
    c->asked = f->asked;
    c->cut = f->cut && !f->bridged[1];
    c->rx = f->rx;
    c->tx = f->tx;
    c->link = f->link == ROOST_HANDED_LINKED   ? ROOST_LINKED
              : f->link == ROOST_HANDED_ENDING ? ROOST_UNLINKING
                                               : ROOST_UNLINKED;
    e->stat[ROOST_E_BYTES_IN] += f->bridged[0];
    e->stat[ROOST_E_BYTES_OUT] += f->bridged[1];
    take_leg(&c->client, h, 0);
    take_leg(&c->server, h, 1);
    c->half_closed_ms = c->client.shut || c->server.shut ? e->now_ms : 0;
    if (c->server.fd >= 0 && roost_service_of(e, c->service)->persistent)
        pass_port(e, c->server.fd);
    bool kept = take_in_band(c, h) && (!c->client.rebuilt || !roost_rebuilt_reserve(e, c->client.fd)) &&
                !roost_watch(e, c->client.fd, c, false) && (c->server.fd < 0 || !roost_watch(e, c->server.fd, c, true));
    if (c->client.rebuilt && kept)
        roost_rebuilt_name(e, c->client.fd, c);
    if (!kept)
        roost_conn_end(e, c, ROOST_C_CLIENT_CLOSE, true);
    if (f->closes)
        roost_conn_end(e, c, (enum roost_cause)f->close_cause, f->close_resets);
    if (f->leg[0].broken)
        roost_client_failed(e, c);
    else if (f->leg[1].broken)
        roost_server_failed(e, c);
    else if (f->link == ROOST_HANDED_WANTED && !c->want_close)
        roost_link_open(e, c);
    roost_conn_run(e, c);
}

void roost_inherited_begin(struct roost_engine *e) {
    if (!e->bridge)
        return;
    roost_bridge_stop(e->bridge);
    for (struct roost_handed *h = e->bridge->first; h; h = h->next) {
        if (h->taker && h->facts.kind == ROOST_HANDED_CONNECTION)
            take_up(e, h);
        h->taker = NULL;
    }
    e->bridge = NULL;
}
