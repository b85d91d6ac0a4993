// SPDX-License-Identifier: Apache-2.0
/*
 * In-band requests in the stream: the filter (inband.c) between an end that may ask and the relay. Nothing is allocated
 * for a connection in whose payload no frame could begin.
 *
 * An end is not read while its question to the control plane or its answers wait, nor the client while a goal does
 * (what it says behind `done` is for the next server), nor a server that releases its client. What was read already is kept as its rest: at most one read.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cext/conn/conn.h"

#include "inband_relay.h"

#define DLE 0x10
#define ANSWERS_MAX 8192 /* bytes; then they are sent before the next request is looked at */

_Static_assert(2 * ROOST_PENDING_MAX + ANSWERS_MAX + 3 * ROOST_INBAND_MAX <= ROOST_SCRATCH, "chunk, output, answers");

uint16_t roost_inband_allowed(const struct roost_engine *e, const struct roost_conn *c, bool client) {
    const struct roost_class *class = roost_class_of(e, c->class);
    return client ? class->in_band_clients : class->in_band_servers;
}

static struct roost_inband_end *end_of(const struct roost_conn *c, bool client) {
    return client ? &c->in_band->client : &c->in_band->server;
}

static struct roost_leg *leg_of(struct roost_conn *c, bool client) {
    return client ? &c->client : &c->server;
}

bool roost_inband_looks(struct roost_engine *e, const struct roost_conn *c, bool client) {
    return roost_inband_allowed(e, c, client) || c->in_band;
}

struct roost_in_band *roost_inband_open(struct roost_conn *c) {
    if (!c->in_band)
        c->in_band = calloc(1, sizeof(*c->in_band));
    return c->in_band;
}

static void free_end(struct roost_inband_end *end) {
    uint8_t held[ROOST_INBAND_MAX];
    roost_inband_flush(&end->filter, held);
    free(end->rest);
    memset(end, 0, sizeof(*end));
}

void roost_inband_free(struct roost_conn *c) {
    if (!c->in_band)
        return;
    free_end(&c->in_band->client);
    free_end(&c->in_band->server);
    free(c->in_band);
    c->in_band = NULL;
}

/* Bytes that were read from an end and may not be thrown away. */
static bool keep(struct roost_inband_end *end, const uint8_t *data, size_t length) {
    struct roost_pending *p = malloc(sizeof(*p) + length);
    if (!p)
        return false;
    p->from = 0;
    p->to = (uint32_t)length;
    memcpy(p->data, data, length);
    end->rest = p;
    return true;
}

bool roost_inband_releases(const struct roost_conn *c) {
    return c->in_band && c->in_band->goal == ROOST_INBAND_RELEASE;
}

static bool may_read(struct roost_conn *c, bool client) {
    struct roost_inband_end *end = end_of(c, client);
    end->answering &= leg_of(c, client)->pending != NULL;
    return !end->asked && !end->answering && !(client ? c->in_band->goal : roost_inband_releases(c));
}

static enum roost_moved pass(struct roost_engine *e, struct roost_conn *c, bool client, const uint8_t *data,
                             size_t length) {
    if (!length)
        return ROOST_MOVED_ALL;
    roost_conn_count(e, c, client, length);
    return roost_leg_send(leg_of(c, !client), data, (uint32_t)length, 0);
}

static enum roost_moved out_of_memory(struct roost_conn *c, bool client) {
    leg_of(c, !client)->refused = true; /* bytes are acknowledged and cannot be kept: both ends learn it */
    return ROOST_SINK_BROKEN;
}

enum roost_moved roost_inband_write(struct roost_engine *e, struct roost_conn *c, bool client, const uint8_t *frames,
                                    size_t length) {
    struct roost_leg *leg = leg_of(c, client);
    if (!length || leg->fd < 0 || leg->shut)
        return ROOST_MOVED_ALL;
    bool refused = leg->refused;
    enum roost_moved moved = roost_leg_send(leg, frames, (uint32_t)length, 0);
    if (client && roost_watch_blocked(e, c))
        roost_conn_end(e, c, ROOST_C_CLIENT_CLOSE, true);
    leg->refused = refused; /* a lost answer is no payload */
    return moved;
}

struct output { /* of one chunk; both lie in the engine's scratch */
    uint8_t *payload, *answers;
    size_t ready, answered;
};

static void add(struct output *o, const uint8_t *data, size_t length) {
    memcpy(o->payload + o->ready, data, length);
    o->ready += length;
}

static void send_answers(struct roost_engine *e, struct roost_conn *c, bool client, struct output *o) {
    end_of(c, client)->answering |= roost_inband_write(e, c, client, o->answers, o->answered) == ROOST_BLOCKED;
    o->answered = 0;
}

/* False: the end is not to be read any further. */
static bool take_request(struct roost_engine *e, struct roost_conn *c, bool client,
                         const struct roost_inband_item *item, struct output *o) {
    const struct roost_inband_request *r = &item->request;
    int result = roost_inband_carry_out(e, c, client, r);
    if (r->forward || roost_service_of(e, c->service)->in_band_forward)
        add(o, item->data, item->length);
    if (result != ROOST_INBAND_LATER && (r->answer || r->verb == ROOST_INBAND_STATUS))
        o->answered += roost_inband_answer(o->answers + o->answered, client ? 'c' : 's', r->number,
                                           (enum roost_inband_result)result, NULL);
    if (o->answered > ANSWERS_MAX)
        send_answers(e, c, client, o);
    return may_read(c, client);
}

enum roost_moved roost_inband_chunk(struct roost_engine *e, struct roost_conn *c, bool client, const uint8_t *data,
                                    uint32_t size) {
    uint16_t verbs = roost_inband_allowed(e, c, client);
    if (!c->in_band && (!verbs || !memchr(data, DLE, size)))
        return pass(e, c, client, data, size);
    if (!roost_inband_open(c))
        return out_of_memory(c, client);

    struct roost_inband_end *end = end_of(c, client);
    struct output o = {.payload = e->scratch + ROOST_PENDING_MAX};
    o.answers = o.payload + ROOST_PENDING_MAX + ROOST_INBAND_MAX;
    if (!verbs) { /* the policy was changed while a frame was incomplete */
        o.ready = roost_inband_flush(&end->filter, o.payload);
        add(&o, data, size);
        return pass(e, c, client, o.payload, o.ready);
    }

    const uint8_t *chunk = data;
    bool whole = false; /* a chunk that is all payload is passed on from where it lies */
    size_t left = size;
    struct roost_inband_item item;
    int found;
    bool go_on = true;
    while (go_on && (found = roost_inband_next(&end->filter, e->name, &data, &left, &item)) != ROOST_INBAND_END) {
        if (found < 0)
            return out_of_memory(c, client);
        if (found == ROOST_INBAND_REQUEST)
            go_on = take_request(e, c, client, &item, &o);
        else if (item.data == chunk && item.length == size && !o.ready)
            whole = true;
        else
            add(&o, item.data, item.length);
    }
    if (left && !keep(end, data, left))
        return out_of_memory(c, client);
    if (roost_inband_held(&end->filter))
        end->held_ms = e->now_ms;
    enum roost_moved moved = whole ? pass(e, c, client, chunk, size) : pass(e, c, client, o.payload, o.ready);
    send_answers(e, c, client, &o);
    return moved;
}

static bool out_of_patience(const struct roost_engine *e, const struct roost_inband_end *end) {
    return roost_inband_held(&end->filter) && e->now_ms >= end->held_ms + roost_inband_patience_ms(&end->filter);
}

enum roost_moved roost_inband_end(struct roost_engine *e, struct roost_conn *c, bool client) {
    uint8_t held[ROOST_INBAND_MAX];
    return c->in_band ? pass(e, c, client, held, roost_inband_flush(&end_of(c, client)->filter, held))
                      : ROOST_MOVED_ALL;
}

enum roost_moved roost_inband_resume(struct roost_engine *e, struct roost_conn *c, bool client, bool *stop) {
    enum roost_moved moved = ROOST_MOVED_ALL;
    if (!c->in_band)
        return moved;
    struct roost_inband_end *end = end_of(c, client);
    if (out_of_patience(e, end))
        moved = roost_inband_end(e, c, client);
    if (moved == ROOST_MOVED_ALL && end->rest && may_read(c, client)) {
        struct roost_pending *p = end->rest;
        end->rest = NULL;
        moved = roost_inband_chunk(e, c, client, p->data, p->to);
        free(p);
    }
    *stop = end->stopped = !may_read(c, client);
    return moved;
}

int roost_inband_early(struct roost_engine *e, struct roost_conn *c, const uint8_t *data, uint32_t length) {
    if (roost_inband_allowed(e, c, false) && length <= ROOST_PENDING_MAX) {
        if (!roost_inband_open(c))
            return -ENOMEM;
        return keep(&c->in_band->server, data, length) ? 0 : -ENOMEM;
    }
    c->tx += length;
    return roost_leg_queue(&c->client, data, length);
}

int roost_inband_unlinked(struct roost_engine *e, struct roost_conn *c) {
    uint8_t held[ROOST_INBAND_MAX];
    if (!c->in_band)
        return 0;
    struct roost_inband_end *end = &c->in_band->server;
    struct roost_pending *rest = end->rest;
    size_t length = roost_inband_flush(&end->filter, held);
    bool broken = length && roost_leg_queue(&c->client, held, (uint32_t)length);
    if (rest) { /* its answers do not matter any more; what it asks for does not either, with its link gone */
        const uint8_t *data = rest->data;
        size_t left = rest->to;
        struct roost_inband_item item;
        int found;
        while ((found = roost_inband_next(&end->filter, e->name, &data, &left, &item)) != ROOST_INBAND_END && !broken)
            broken = found < 0 || ((found == ROOST_INBAND_PAYLOAD || item.request.forward) &&
                                   roost_leg_queue(&c->client, item.data, (uint32_t)item.length));
        length = roost_inband_flush(&end->filter, held);
        broken |= length && roost_leg_queue(&c->client, held, (uint32_t)length);
    }
    free_end(end);
    return broken ? -ENOMEM : 0;
}

bool roost_inband_wants_link(const struct roost_conn *c) {
    const struct roost_in_band *b = c->in_band;
    return b && (roost_inband_held(&b->client.filter) || b->client.rest);
}

bool roost_inband_has_rest(const struct roost_conn *c) {
    return c->in_band && (c->in_band->server.rest || roost_inband_held(&c->in_band->server.filter));
}

void roost_inband_forget_rest(struct roost_conn *c) {
    if (c->in_band)
        free_end(&c->in_band->server);
}

bool roost_inband_unfinished(const struct roost_conn *c) {
    const struct roost_in_band *b = c->in_band;
    return b && (roost_inband_held(&b->client.filter) || roost_inband_held(&b->server.filter) || b->client.asked ||
                 b->server.asked || b->server.rest);
}

static bool is_idle(const struct roost_inband_end *end) {
    return !roost_inband_held(&end->filter) && !end->rest && !end->asked && !end->answering && !end->stopped;
}

void roost_inband_turn(struct roost_engine *e, struct roost_conn *c) {
    for (int client = 0; client < 2; client++)
        if (end_of(c, client)->stopped && may_read(c, client)) {
            end_of(c, client)->stopped = false;
            roost_conn_run(e, c);
        }
    if (is_idle(&c->in_band->client) && is_idle(&c->in_band->server) && !c->in_band->goal)
        roost_inband_free(c);
}

uint64_t roost_inband_due_ms(struct roost_engine *e, struct roost_conn *c) {
    const struct roost_in_band *b = c->in_band;
    uint64_t due = b->goal && !c->want_freeze ? b->retry_ms : 0;
    if (c->phase != ROOST_LIVE || (c->link != ROOST_LINKED && c->link != ROOST_UNLINKED))
        return 0; /* whatever ends that goes on with this */
    for (int client = 0; client < 2; client++) {
        const struct roost_inband_end *end = end_of(c, client);
        uint64_t at = end->held_ms + roost_inband_patience_ms(&end->filter);
        bool blocked = leg_of(c, !client)->pending; /* then it goes on when that is taken */
        if (roost_inband_held(&end->filter) && !blocked && (!due || at < due))
            due = at;
    }
    return due;
}

void roost_inband_timer(struct roost_engine *e, struct roost_conn *c) {
    uint64_t due = roost_inband_due_ms(e, c);
    if (due && e->now_ms >= due)
        roost_conn_run(e, c);
}

int roost_inband_take(struct roost_conn *c, bool client, struct roost_pending **bytes) {
    struct roost_inband_end *end = c->in_band ? end_of(c, client) : NULL;
    *bytes = NULL;
    if (!end || (!end->rest && !roost_inband_held(&end->filter)))
        return 0;
    size_t held = roost_inband_held(&end->filter), rest = end->rest ? end->rest->to - end->rest->from : 0;
    struct roost_pending *p = malloc(sizeof(*p) + ROOST_INBAND_MAX + rest);
    if (!p)
        return -ENOMEM;
    roost_inband_flush(&end->filter, p->data);
    if (rest)
        memcpy(p->data + held, end->rest->data + end->rest->from, rest);
    p->from = 0;
    p->to = (uint32_t)(held + rest);
    free(end->rest);
    end->rest = NULL;
    *bytes = p;
    return 0;
}

int roost_inband_give(struct roost_conn *c, bool client, struct roost_pending *bytes) {
    if (!roost_inband_open(c))
        return -ENOMEM;
    end_of(c, client)->rest = bytes;
    return 0;
}
