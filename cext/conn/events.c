// SPDX-License-Identifier: Apache-2.0
/*
 * What the control plane is told of a connection: as it is awake, as its slot has it, its transitions, and that a command
 * was refused. A transition that the table of control/core/states.py lacks is refused here, before it is told.
 */
#include <errno.h>
#include <string.h>

#include "conn.h"
#include "cext/base/count.h"
#include "cext/socket/repair.h"
#include "transitions.h"

void roost_refuse(struct roost_engine *e, uint8_t op, uint64_t token, uint64_t id, const struct roost_key *key,
                  int error) {
    struct roost_event event = {.type = ROOST_EV_REFUSED,
                                .op = op,
                                .error = error,
                                .token = token,
                                .id = id,
                                .at_ms = roost_realtime_ms(),
                                .record.key = *key};
    roost_mailbox_post(&e->box, &event);
}

void roost_event_of_conn(struct roost_engine *e, const struct roost_conn *c, struct roost_event *event) {
    memset(event, 0, sizeof(*event));
    event->from_state = event->to_state = c->state;
    event->id = c->id;
    event->at_ms = roost_realtime_ms();
    event->rx_bytes = c->rx;
    event->tx_bytes = c->tx;
    event->gap_ms = e->now_ms > c->active_ms ? e->now_ms - c->active_ms : 0;
    event->record.key = c->key;
    event->record.service = c->service;
    event->record.rest.id = c->id;
    event->record.rest.active_ms = c->active_ms;
    event->record.ka.rest = c->row;
}

/* By which end the connection, or its link, is over. */
static uint8_t error_of(const struct roost_conn *c, enum roost_cause cause) {
    if (cause == ROOST_C_SERVER_CLOSE)
        return c->server.error;
    if (cause == ROOST_C_PROBE_TIMEOUT)
        return c->client.error ? c->client.error : ETIMEDOUT;
    return cause == ROOST_C_CLIENT_CLOSE ? c->client.error : 0;
}

void roost_ends_of_conn(const struct roost_engine *e, const struct roost_conn *c, enum roost_cause cause,
                        struct roost_ends *ends) {
    const bool inactive = c->state == ROOST_ST_IDLE || c->state == ROOST_ST_SLEEP;
    memset(ends, 0, sizeof(*ends));
    ends->error = error_of(c, cause);
    ends->probes = inactive ? c->probes : 0;
    if (c->silent_ms && (inactive || cause == ROOST_C_PROBE_TIMEOUT))
        ends->silence_s = (uint32_t)(roost_less(e->now_ms, c->silent_ms) / 1000);
    if (c->state == ROOST_ST_ACTIVE) {
        memcpy(ends->server, c->linked_to.address, sizeof(ends->server));
        ends->server_port = c->linked_to.port;
    }
}

uint8_t roost_state_of_slot(const struct roost_ka *slot) {
    return ROOST_IS_STORED(slot->rest) ? ROOST_ST_SLEEP : ROOST_ST_IDLE;
}

uint64_t roost_slot_quiet_ms(const struct roost_engine *e, const struct roost_ka *slot) {
    uint64_t now_ms = roost_monotonic_ms();
    if (roost_table_has_rest(slot))
        return now_ms - e->table.rest[slot->rest].active_ms;
    return ROOST_IS_BORN(slot->rest) ? (uint64_t)roost_silence_s(slot->heard, (uint32_t)(now_ms / 1000)) * 1000 : 0;
}

void roost_event_of_slot(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot,
                         struct roost_event *event) {
    memset(event, 0, sizeof(*event));
    event->at_ms = roost_realtime_ms();
    event->record.key = *key;
    event->record.ka = *slot;
    event->record.service = roost_table_service(&e->table, slot);
    event->from_state = event->to_state = roost_state_of_slot(slot);
    if (roost_table_has_rest(slot)) {
        event->record.rest = e->table.rest[slot->rest];
        event->id = event->record.rest.id;
        bool by_number = roost_classes_need_slot(&e->table.classes, slot->class) || roost_is_pair(slot);
        event->record.ka.rest = by_number ? ROOST_ROW(event->id) : ROOST_NO_REST;
    }
    event->gap_ms = roost_slot_quiet_ms(e, slot);
    event->ends.silence_s = roost_silence_s(slot->heard, (uint32_t)(roost_monotonic_ms() / 1000));
    event->ends.probes = (uint8_t)ROOST_HEARD_PROBES(slot->heard);
}

void roost_event_of_holder(struct roost_engine *e, const struct roost_key *key, const struct roost_holder *h,
                           struct roost_event *event) {
    if (h->conn)
        roost_event_of_conn(e, h->conn, event);
    else
        roost_event_of_slot(e, key, h->slot, event);
}

bool roost_is_legal(uint8_t from, uint8_t to, uint8_t cause) {
    return from < sizeof(roost_transitions) / sizeof(roost_transitions[0]) && cause < sizeof(roost_transitions[0]) &&
           roost_transitions[from][cause] & 1u << to;
}

bool roost_post_transition(struct roost_engine *e, struct roost_event *event, uint32_t class, enum roost_state from,
                           enum roost_state to, enum roost_cause cause, uint64_t token) {
    const bool legal = roost_is_legal((uint8_t)from, (uint8_t)to, (uint8_t)cause);
    event->type = legal ? ROOST_EV_TRANSITION : ROOST_EV_ILLEGAL;
    event->from_state = (uint8_t)from;
    event->to_state = (uint8_t)to;
    event->cause = (uint8_t)cause;
    event->token = legal ? token : 0;
    roost_mailbox_post(&e->box, event);
    if (legal)
        roost_tally(e, class, event->from_state, event->to_state, event->cause, event->rx_bytes, event->tx_bytes);
    return legal;
}

void roost_tell_pressure(struct roost_engine *e) {
    struct roost_event event = {.type = ROOST_EV_PRESSURE, .count = (uint32_t)e->awake, .at_ms = roost_realtime_ms()};
    roost_mailbox_post(&e->box, &event);
    e->pressure_told = true;
}
