// SPDX-License-Identifier: Apache-2.0
/* What the control plane asks for, and what it is told. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define COMMANDS_A_TURN 4096

void roost_refuse(struct roost_engine *e, uint8_t op, uint64_t token, uint64_t id, const struct roost_key *key,
                  int error) {
    struct roost_event event;
    memset(&event, 0, sizeof(event));
    event.type = ROOST_EV_REFUSED;
    event.op = op;
    event.error = error;
    event.token = token;
    event.id = id;
    event.at_ms = roost_realtime_ms();
    event.record.key = *key;
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
}

uint8_t roost_state_of_slot(const struct roost_ka *slot) {
    return slot->rest == ROOST_NO_REST ? ROOST_ST_SLEEP : ROOST_ST_IDLE;
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
        event->gap_ms = roost_monotonic_ms() - event->record.rest.active_ms;
    } else if (ROOST_IS_BORN(slot->rest)) {
        event->gap_ms = (uint64_t)ROOST_SILENCE_S(slot->heard, roost_monotonic_ms() / 1000) * 1000;
    }
}

/* The awake connection a command means, or NULL. */
static struct roost_conn *target(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = command->id ? roost_conn_by_id(e, command->id) : NULL;
    return c ? c : roost_conn_by_key(e, &command->record.key); /* one that waits for its record has no id yet */
}

/* The latest command is the one that is answered when it is done; whoever gave an earlier one that is under way is told
 * that it was overtaken. */
static void supersede(struct roost_engine *e, const struct roost_conn *c, const struct roost_command *command,
                      uint64_t earlier) {
    if (earlier)
        roost_refuse(e, command->op, earlier, c->id, &c->key, ECANCELED);
}

static int op_standby(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = target(e, command);
    if (!c)
        return ENOENT;
    if (c->phase != ROOST_LIVE || c->state == ROOST_ST_STANDBY)
        return EALREADY;
    if (c->attach_fd >= 0) /* a server is waiting for it */
        return EBUSY;
    uint64_t token = c->token;
    c->token = command->token;
    bool wanted = c->want_freeze;
    c->want_freeze = false; /* no further than STANDBY */
    int error = -roost_link_end(e, c, (enum roost_cause)command->cause);
    if (error) {
        c->token = token;
        c->want_freeze = wanted;
    } else {
        supersede(e, c, command, token);
    }
    return error;
}

static int op_idle(struct roost_engine *e, const struct roost_command *command, bool keep_link) {
    struct roost_conn *c = target(e, command);
    if (!c)
        return ENOENT;
    if (c->phase != ROOST_LIVE)
        return EALREADY;
    if (c->attach_fd >= 0) /* a server is waiting for it */
        return EBUSY;
    uint64_t token = c->token;
    c->token = command->token;
    int error = roost_freeze(e, c, keep_link, (enum roost_cause)command->cause);
    if (error == -EAGAIN || error == -EBUSY || error == -ENOSPC) {
        c->told_quiet_ms = e->now_ms;
        roost_conn_set_timer(e, c);
    }
    if (error)
        c->token = token;
    else
        supersede(e, c, command, token);
    return -error;
}

static bool is_pair(const struct roost_ka *slot) {
    return slot && ROOST_FLAGS(slot->ctl) & ROOST_F_PAIRED;
}

/* Whether the row has the server's leg of a pair as it is now: the client's may be as it was, and the server's not. */
static bool same_peer(struct roost_engine *e, const struct roost_ka *slot, const struct roost_command *command) {
    struct roost_key key;
    if (!is_pair(slot))
        return true;
    const struct roost_rest *rest = &e->table.rest[slot->rest];
    const struct roost_ka *peer = roost_table_peer(&e->table, slot, &key);
    return peer && command->peer.rest.id == rest->id && command->record.rest.peer == rest->peer &&
           command->record.rest.peer_version == rest->peer_version && peer->snd_nxt == command->peer.ka.snd_nxt &&
           peer->rcv_nxt == command->peer.ka.rcv_nxt;
}

static int op_sleep(struct roost_engine *e, const struct roost_command *command) {
    struct roost_ka *slot = roost_table_find(&e->table, &command->record.key);
    if (!slot || ROOST_PHASE(slot->ctl) != ROOST_IDLE || roost_conn_by_key(e, &command->record.key))
        return EAGAIN; /* it woke meanwhile */
    if (!roost_table_has_rest(slot))
        return EAGAIN; /* another one, born asleep */
    struct roost_rest *rest = &e->table.rest[slot->rest];
    /* It may have woken and be frozen again: then the row is of another moment, and useless. */
    if (rest->id != command->id || slot->snd_nxt != command->record.ka.snd_nxt ||
        slot->rcv_nxt != command->record.ka.rcv_nxt || !same_peer(e, slot, command))
        return EAGAIN;
    struct roost_event event;
    roost_event_of_slot(e, &command->record.key, slot, &event);
    event.type = ROOST_EV_TRANSITION;
    event.to_state = ROOST_ST_SLEEP;
    event.cause = command->cause;
    event.token = command->token;
    roost_table_set_phase(slot, ROOST_SLEEP);
    uint32_t index = slot->rest;
    slot->rest = ROOST_NO_REST;
    roost_table_rest_release(&e->table, index);
    if (roost_sleep_without_slot(e, &command->record.key, slot, event.record.service, false))
        roost_table_remove(&e->table, slot);
    roost_mailbox_post(&e->box, &event);
    return 0;
}

static int op_wake(struct roost_engine *e, const struct roost_command *command, bool then_close) {
    struct roost_conn *c = target(e, command);
    int error = 0;
    if (c && c->phase == ROOST_MARKED) {
        roost_freeze_cancel(e, c, EAGAIN);
        if (c->dead)
            return then_close ? 0 : ENOENT;
    }
    if (c && then_close && c->phase == ROOST_LIVE) {
        supersede(e, c, command, c->token);
        c->token = command->token;
        roost_conn_close(e, c, (enum roost_cause)command->cause, true);
        return 0;
    }
    if (c && c->phase == ROOST_LIVE)
        return EALREADY;
    if (!c)
        c = roost_wake(e, &command->record.key, (enum roost_cause)command->cause, &error);
    if (!c)
        return error;
    if (command->id && c->id && c->id != command->id)
        return ENOENT; /* the number of an earlier connection with this 4-tuple; this one goes on waking */
    supersede(e, c, command, c->token);
    c->token = command->token;
    c->want_close |= then_close;
    if (c->phase == ROOST_HELD_LINK) {
        c->wake_cause = command->cause;
        c->phase = ROOST_THAWING;
        roost_slot_wakes(e, c);
        roost_wake_queue(e, c);
    }
    return 0;
}

/* A client that sleeps with a server is that server's. To be taken over from it, both must be awake. */
static int wake_pair(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot,
                     uint32_t *wait_ms) {
    const struct roost_service *s = roost_service_of(e, roost_table_service(&e->table, slot));
    int error = EBUSY;
    if (s->second_server != ROOST_SECOND_REFUSED)
        *wait_ms = s->second_server_ms;
    if (s->second_server == ROOST_SECOND_TAKES_OVER && roost_wake(e, key, ROOST_C_SERVER_ATTACH, &error))
        error = EBUSY; /* not yet */
    return error;
}

/* Why a client that is awake, or wakes, cannot be linked to this server now; 0 when it can. */
static int obstacle(struct roost_engine *e, struct roost_conn *c, uint32_t *wait_ms) {
    const struct roost_service *s = roost_service_of(e, c->service);
    bool linked = c->link == ROOST_CONNECTING || c->link == ROOST_LINKED;
    bool taken = c->attach_fd >= 0 || c->want_close || c->client.eof || c->phase == ROOST_HELD_LINK || is_pair(c->slot);
    if (!linked && !taken)
        return 0;
    if (s->second_server != ROOST_SECOND_REFUSED)
        *wait_ms = s->second_server_ms;
    return !taken && s->second_server == ROOST_SECOND_TAKES_OVER ? -roost_link_yield(e, c) : EBUSY;
}

int roost_attach_server(struct roost_engine *e, struct roost_command *command, uint64_t since_ms, uint32_t *wait_ms) {
    int error = 0;
    *wait_ms = 0;
    struct roost_conn *c = roost_conn_by_key(e, &command->record.key);
    const struct roost_ka *slot = c ? NULL : roost_table_find(&e->table, &command->record.key);
    if (is_pair(slot))
        return wake_pair(e, &command->record.key, slot, wait_ms);
    if (!c)
        c = roost_wake(e, &command->record.key, ROOST_C_SERVER_ATTACH, &error);
    if (c)
        error = obstacle(e, c, wait_ms);
    if (error)
        return error;
    c->attach_until_ms = since_ms + roost_service_of(e, c->service)->second_server_ms;
    c->attach_fd = command->fd;
    c->attach_token = command->token;
    c->want_freeze = false;
    c->preamble = malloc(command->preamble_len ? command->preamble_len : 1);
    if (c->preamble) {
        memcpy(c->preamble, command->preamble, command->preamble_len);
        c->preamble_len = command->preamble_len;
    }
    c->early = (uint8_t *)command->early;
    c->early_len = command->early_len;
    command->early = NULL; /* the connection's now */
    if (c->phase == ROOST_LIVE && c->link == ROOST_UNLINKED)
        roost_link_attach(e, c);
    return 0;
}

/* A slot out of a record, IDLE; NULL: no room. */
static struct roost_ka *insert_idle(struct roost_engine *e, const struct roost_record *record) {
    struct roost_ka ka = record->ka;
    ka.ctl = (ka.ctl & ~0xffu) | ROOST_IDLE;
    ka.heard &= ~0xfu; /* no probe of ours is under way */
    ka.rest = roost_table_rest_alloc(&e->table);
    if (ka.rest == ROOST_NO_REST)
        return NULL;
    e->table.rest[ka.rest] = record->rest;
    struct roost_ka *slot = roost_table_insert(&e->table, &record->key, &ka, record->service);
    if (!slot)
        roost_table_rest_release(&e->table, ka.rest);
    return slot;
}

/* Both legs of a pair: IDLE, for each must know where the other is, and the store does not. */
static struct roost_ka *insert_pair(struct roost_engine *e, const struct roost_command *command) {
    struct roost_ka *server = insert_idle(e, &command->peer);
    struct roost_ka *client = server ? insert_idle(e, &command->record) : NULL;
    if (client) {
        roost_table_pair(&e->table, &e->table.rest[server->rest], client);
        roost_table_pair(&e->table, &e->table.rest[client->rest], server);
    } else if (server) {
        roost_table_remove(&e->table, server);
    }
    return client;
}

struct roost_ka *roost_insert_sleeping(struct roost_engine *e, const struct roost_record *record) {
    struct roost_ka ka = record->ka;
    ka.ctl = (ka.ctl & ~0xffu) | ROOST_SLEEP;
    ka.rest = ROOST_NO_REST;
    ka.heard &= ~0xfu;
    return roost_table_insert(&e->table, &record->key, &ka, record->service);
}

static int op_insert(struct roost_engine *e, const struct roost_command *command) {
    bool pair = command->peer.rest.id;
    if (roost_table_find(&e->table, &command->record.key) || roost_conn_by_key(e, &command->record.key) ||
        (pair && roost_table_find(&e->table, &command->peer.key)))
        return EEXIST;
    const struct roost_record *record = &command->record;
    bool without_slot = !pair && roost_sleep_without_slot(e, &record->key, &record->ka, record->service, false);
    const struct roost_ka *slot = without_slot ? NULL
                                  : pair       ? insert_pair(e, command)
                                               : roost_insert_sleeping(e, record);
    if (!slot && !without_slot)
        return ENOSPC;
    roost_hosts_add(&e->hosts, &command->record.key);
    struct roost_event event;
    if (slot)
        roost_event_of_slot(e, &command->record.key, slot, &event);
    else
        roost_event_of_perhaps(e, &command->record.key, &event);
    event.type = ROOST_EV_TRANSITION;
    event.from_state = ROOST_ST_NONE;
    event.cause = command->cause;
    event.id = command->id;
    event.token = command->token;
    roost_mailbox_post(&e->box, &event);
    return 0;
}

static int op_pressure(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = e->oldest;
    for (uint32_t done = 0; c && done < command->count;) {
        struct roost_conn *next = c->newer; /* freezing may drop c from the list */
        if (c->phase == ROOST_LIVE && !c->want_freeze && !roost_freeze(e, c, false, (enum roost_cause)command->cause))
            done++;
        c = next;
    }
    return 0;
}

static int op_tell(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = target(e, command);
    int error = c ? roost_inband_tell(e, c) : ENOENT;
    if (!error && command->token) {
        struct roost_event event;
        roost_event_of_conn(e, c, &event);
        event.type = ROOST_EV_DONE;
        event.op = command->op;
        event.token = command->token;
        roost_mailbox_post(&e->box, &event);
    }
    return error;
}

static int carry_out(struct roost_engine *e, struct roost_command *command) {
    switch (command->op) {
    case ROOST_OP_STANDBY:
        return op_standby(e, command);
    case ROOST_OP_IDLE:
        return op_idle(e, command, false);
    case ROOST_OP_FREEZE_HELD:
        return op_idle(e, command, true);
    case ROOST_OP_SLEEP:
        return op_sleep(e, command);
    case ROOST_OP_WAKE:
        return op_wake(e, command, false);
    case ROOST_OP_CLOSE:
        return op_wake(e, command, true);
    case ROOST_OP_ATTACH:
        return roost_attach_or_wait(e, command, false);
    case ROOST_OP_RESTORE:
        roost_restore(e, command);
        return 0;
    case ROOST_OP_PERHAPS:
        roost_perhaps_answered(e, command);
        return 0;
    case ROOST_OP_INSERT:
        return op_insert(e, command);
    case ROOST_OP_PRESSURE:
        return op_pressure(e, command);
    case ROOST_OP_ANSWER:
        return roost_inband_answered(e, command);
    case ROOST_OP_TELL:
        return op_tell(e, command);
    case ROOST_OP_OVERRIDE:
        return roost_policy_restore(e, command);
    default:
        return EINVAL;
    }
}

void roost_command(struct roost_engine *e, struct roost_command *command, int error) {
    if (!error)
        error = carry_out(e, command);
    if (error) {
        roost_refuse(e, command->op, command->token, command->id, &command->record.key, error);
        if (command->op == ROOST_OP_ATTACH && command->fd >= 0)
            close(command->fd);
    }
    free((void *)command->early);
}

void roost_commands_turn(struct roost_engine *e) {
    struct roost_command command;
    for (int i = 0; i < COMMANDS_A_TURN && roost_mailbox_next(&e->box, &command); i++) {
        int error = 0;
        if (!roost_perhaps_command(e, &command, &error))
            roost_command(e, &command, error);
    }
}
