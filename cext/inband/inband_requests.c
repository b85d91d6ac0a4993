// SPDX-License-Identifier: Apache-2.0
/*
 * What the ends ask for in band (docs/in-band.md), carried out, refused, or handed to the control plane. DONE and SLEEP
 * are goals, and so is RELEASE: what came before them has to be through first, and a freeze may be refused for a moment.
 */
#include <errno.h>
#include <string.h>

#include "cext/base/address.h"
#include "cext/conn/conn.h"

#include "inband_relay.h"

#define GOAL_PATIENCE_MS 10000 /* a goal not reached by then is given up, and time decides again */
#define PROBE_INTERVAL_MAX_MS (65535u * 1000)

static int set_goal(struct roost_engine *e, struct roost_conn *c, enum roost_inband_verb goal) {
    struct roost_in_band *b = c->in_band;
    if (c->client.eof || c->client.shut)
        return ROOST_INBAND_R_REFUSED; /* it is ending anyway */
    if (b->goal != ROOST_INBAND_SLEEP) /* which goes further */
        b->goal = (uint8_t)goal;
    b->begun = b->unlinked = false;
    b->retry_ms = e->now_ms;
    b->until_ms = e->now_ms + GOAL_PATIENCE_MS;
    return ROOST_INBAND_R_OK;
}

static int ask(struct roost_engine *e, struct roost_conn *c, bool client, const struct roost_inband_request *r) {
    struct roost_inband_end *end = client ? &c->in_band->client : &c->in_band->server;
    struct roost_event event;
    if (!++e->in_band_asked)
        e->in_band_asked = 1;
    end->asked = e->in_band_asked;
    end->number = r->number;
    end->verb = r->verb;
    end->answer = r->answer || r->verb == ROOST_INBAND_STATUS;
    roost_event_of_conn(e, c, &event);
    memset(&event.record, 0, sizeof(event.record));
    event.type = ROOST_EV_IN_BAND;
    event.op = r->verb;
    event.count = end->asked;
    event.asked.key = c->key;
    memcpy(event.asked.name, r->name, sizeof(event.asked.name));
    roost_mailbox_post(&e->box, &event);
    return ROOST_INBAND_LATER;
}

/* Probes that are switched on without an interval need one of the policy; a class counts in 16 bits of seconds. */
static bool can_probe(struct roost_engine *e, const struct roost_conn *c, const struct roost_inband_request *r) {
    if (!r->on)
        return true;
    return r->interval_ms ? r->interval_ms <= PROBE_INTERVAL_MAX_MS
                          : roost_class_of(e, roost_classes_base(&e->table.classes, c->class))->probe_interval_s > 0;
}

/* A server that came by the proxy; one that came by a door has its client's own address, and what is the daemon's own has
 * none. */
static bool may_release(const struct roost_conn *c) {
    uint8_t near[16];
    uint16_t port;
    return c->link == ROOST_LINKED && c->attached && c->linked_to.port && !c->in_band->goal &&
           !roost_address_of_socket(c->server.fd, near, &port) && memcmp(near, c->key.client, sizeof(near));
}

/* What is held of the client, in case that it begins a frame, is this server's still: in front of the answer. */
static int release(struct roost_engine *e, struct roost_conn *c) {
    if (!may_release(c))
        return ROOST_INBAND_R_REFUSED;
    int result = set_goal(e, c, ROOST_INBAND_RELEASE);
    if (result == ROOST_INBAND_R_OK)
        roost_inband_end(e, c, true);
    return result;
}

static int carry_out(struct roost_engine *e, struct roost_conn *c, bool client, const struct roost_inband_request *r) {
    if (r->verb == ROOST_INBAND_UNKNOWN)
        return ROOST_INBAND_R_UNKNOWN;
    if (r->verb == ROOST_INBAND_BAD)
        return ROOST_INBAND_R_BAD;
    if (!(roost_inband_allowed(e, c, client) & 1u << r->verb))
        return ROOST_INBAND_R_REFUSED;
    switch (r->verb) {
    case ROOST_INBAND_DONE:
    case ROOST_INBAND_SLEEP:
        return set_goal(e, c, (enum roost_inband_verb)r->verb);
    case ROOST_INBAND_RELEASE:
        return client ? ROOST_INBAND_R_REFUSED : release(e, c);
    case ROOST_INBAND_NAME:
    case ROOST_INBAND_STATUS:
        return ask(e, c, client, r);
    case ROOST_INBAND_KEEPALIVE:
        if (!can_probe(e, c, r))
            return ROOST_INBAND_R_REFUSED;
        /* fall through */
    case ROOST_INBAND_QUIET:
    case ROOST_INBAND_ALWAYS_ACTIVE:
        return roost_class_set(e, c, r) ? ROOST_INBAND_R_REFUSED : ROOST_INBAND_R_OK;
    default:
        return ROOST_INBAND_R_OK; /* PING */
    }
}

int roost_inband_carry_out(struct roost_engine *e, struct roost_conn *c, bool client,
                           const struct roost_inband_request *r) {
    int result = carry_out(e, c, client, r);
    e->stat[ROOST_E_IN_BAND]++;
    if (result == ROOST_INBAND_R_REFUSED)
        e->stat[ROOST_E_IN_BAND_REFUSED]++;
    return result;
}

void roost_inband_frozen(struct roost_engine *e, struct roost_conn *c) {
    roost_class_tell(e, c);
    if (!c->in_band || c->in_band->goal != ROOST_INBAND_SLEEP)
        return;
    struct roost_event event;
    roost_event_of_slot(e, &c->key, c->slot, &event);
    event.type = ROOST_EV_SLEEP_DUE;
    event.cause = ROOST_C_COMMAND;
    roost_mailbox_post(&e->box, &event);
}

int roost_inband_answered(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = roost_conn_by_id(e, command->id);
    struct roost_in_band *b = c ? c->in_band : NULL;
    bool client = b && b->client.asked == command->count;
    struct roost_inband_end *end = client ? &b->client : b && b->server.asked == command->count ? &b->server : NULL;
    uint8_t frame[ROOST_INBAND_MAX];
    if (!end || !command->count)
        return 0; /* the end that asked has gone */
    char name[ROOST_INBAND_NAME_MAX + 1] = "";
    memcpy(name, command->preamble, command->preamble_len < sizeof(name) ? command->preamble_len : sizeof(name) - 1);
    struct roost_inband_status status = {
        .state = (enum roost_state)c->state,
        .quiet_ms = {roost_quiet_ms(e, c, ROOST_ST_ACTIVE), roost_quiet_ms(e, c, ROOST_ST_STANDBY),
                     roost_quiet_ms(e, c, ROOST_ST_IDLE)},
        .name = name[0] ? name : NULL,
        .rx_bytes = c->rx,
        .tx_bytes = c->tx,
    };
    bool told = end->verb == ROOST_INBAND_STATUS;
    if (command->error)
        e->stat[ROOST_E_IN_BAND_REFUSED]++;
    if (end->answer) {
        size_t length = roost_inband_answer(frame, client ? 'c' : 's', end->number,
                                            command->error ? ROOST_INBAND_R_REFUSED : ROOST_INBAND_R_OK,
                                            told && !command->error ? &status : NULL);
        end->answering |= roost_inband_write(e, c, client, frame, length) == ROOST_BLOCKED;
    }
    end->asked = 0;
    roost_conn_run(e, c);
    return 0;
}

int roost_inband_tell(struct roost_engine *e, struct roost_conn *c) {
    uint8_t frame[ROOST_INBAND_MAX];
    if (!roost_service_of(e, c->service)->in_band_stay)
        return EPERM;
    if (c->phase != ROOST_LIVE)
        return EAGAIN;
    if (c->client.shut || c->client.eof)
        return ENOTCONN;
    return roost_inband_write(e, c, true, frame, roost_inband_stay(frame)) == ROOST_SINK_BROKEN ? ECONNRESET : 0;
}
