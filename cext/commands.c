// SPDX-License-Identifier: Apache-2.0
/* What the control plane asks for, and what it is told. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loop.h"
#include "cext/life/next.h"

#define COMMANDS_NS 100000 /* a turn: packets wait for as long */

/* A later connection with the 4-tuple of the one that is meant. While its record is asked for, it has no number. */
static bool is_another(const struct roost_conn *c, const struct roost_command *command) {
    return c && command->id && c->id && c->id != command->id;
}

/* The awake connection a command means, or NULL. */
static struct roost_conn *target(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = command->id ? roost_conn_by_id(e, command->id) : NULL;
    if (!c)
        c = roost_conn_by_key(e, &command->record.key);
    return is_another(c, command) ? NULL : c;
}

/* The latest command is answered when it is done; an earlier one that is under way is answered ECANCELED. */
static void supersede(struct roost_engine *e, const struct roost_conn *c, const struct roost_command *command,
                      uint64_t earlier) {
    if (earlier)
        roost_refuse(e, command->op, earlier, c->id, &c->key, ECANCELED);
}

/* It was quiet when the control plane was told, and is not now, or a command that is waited for is under way: it is told
 * again after another interval. */
static bool overtaken(const struct roost_engine *e, const struct roost_conn *c, const struct roost_command *command) {
    return command->cause == ROOST_C_QUIET && (c->token || !roost_is_quiet(e, c));
}

/* Why it goes no step down now, to STANDBY or IDLE: an errno. */
static int stays(const struct roost_engine *e, const struct roost_conn *c, const struct roost_command *command,
                 enum roost_state to) {
    if (!c)
        return ENOENT;
    if (c->phase != ROOST_LIVE || c->state == to)
        return EALREADY;
    if (!roost_is_legal(c->state, to, command->cause))
        return EINVAL;
    if (overtaken(e, c, command))
        return EAGAIN;
    return c->server_waits ? EBUSY : 0; /* a server is waiting for it */
}

static int op_standby(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = target(e, command);
    int error = stays(e, c, command, ROOST_ST_STANDBY);
    if (error)
        return error;
    uint64_t token = c->token;
    c->token = command->token;
    bool wanted = c->want_freeze;
    c->want_freeze = false; /* no further than STANDBY */
    error = -roost_link_end(e, c, (enum roost_cause)command->cause);
    if (error) {
        c->token = token;
        c->want_freeze = wanted;
    } else {
        supersede(e, c, command, token);
    }
    return error;
}

static int op_idle(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = target(e, command);
    int error = stays(e, c, command, ROOST_ST_IDLE);
    if (error)
        return error;
    uint64_t token = c->token;
    c->token = command->token;
    error = roost_freeze(e, c, (enum roost_cause)command->cause);
    if (error == -EAGAIN || error == -EBUSY || error == -ENOSPC) {
        c->told_quiet_ms = e->now_ms;
        roost_conn_run(e, c);
    }
    if (error)
        c->token = token;
    else
        supersede(e, c, command, token);
    return -error;
}

/* Whether the row has the server's leg of a pair as it is now: the client's may be as it was, and the server's not. */
static bool same_peer(struct roost_engine *e, const struct roost_ka *slot, const struct roost_command *command) {
    struct roost_key key;
    if (!roost_is_pair(slot))
        return true;
    const struct roost_rest *rest = &e->table.rest[slot->rest];
    const struct roost_ka *peer = roost_table_peer(&e->table, slot, &key);
    return peer && command->peer.rest.id == rest->id && command->record.rest.peer == rest->peer &&
           command->record.rest.peer_version == rest->peer_version && peer->snd_nxt == command->peer.ka.snd_nxt &&
           peer->rcv_nxt == command->peer.ka.rcv_nxt;
}

static int op_sleep(struct roost_engine *e, const struct roost_command *command) {
    struct roost_holder h = roost_whose(e, &command->record.key);
    struct roost_ka *slot = h.slot;
    if (!roost_is_legal(ROOST_ST_IDLE, ROOST_ST_SLEEP, command->cause))
        return EINVAL;
    if (h.by != ROOST_BY_SLOT || ROOST_PHASE(slot->ctl) != ROOST_IDLE)
        return EAGAIN; /* it woke meanwhile */
    if (!roost_table_has_rest(slot))
        return EAGAIN; /* another one, born asleep */
    struct roost_rest *rest = &e->table.rest[slot->rest];
    /* It may have woken and be frozen again: then the row is of another moment, and useless. */
    if (rest->id != command->id || slot->snd_nxt != command->record.ka.snd_nxt ||
        slot->rcv_nxt != command->record.ka.rcv_nxt || !same_peer(e, slot, command))
        return EAGAIN;
    struct roost_event event;
    const uint32_t class = slot->class;
    roost_event_of_slot(e, &command->record.key, slot, &event);
    roost_table_set_phase(slot, ROOST_SLEEP);
    uint32_t index = slot->rest;
    __atomic_store_n(&slot->rest, ROOST_ROW_OF(command->record.ka.rest), __ATOMIC_RELEASE);
    roost_table_rest_release(&e->table, index);
    if (slot->rest == ROOST_NO_REST && roost_sleep_without_slot(e, &command->record.key, slot->ctl, class, false))
        roost_table_remove(&e->table, slot);
    roost_post_transition(e, &event, class, ROOST_ST_IDLE, ROOST_ST_SLEEP, (enum roost_cause)command->cause,
                          command->token);
    return 0;
}

static bool may_wake(uint32_t cause) {
    return roost_is_legal(ROOST_ST_IDLE, ROOST_ST_ACTIVE, cause) ||
           roost_is_legal(ROOST_ST_IDLE, ROOST_ST_STANDBY, cause);
}

static int op_wake(struct roost_engine *e, const struct roost_command *command, bool then_close) {
    struct roost_conn *c = target(e, command);
    int error = 0;
    if (then_close ? !roost_is_legal(ROOST_ST_IDLE, ROOST_ST_CLOSED, command->cause) : !may_wake(command->cause))
        return EINVAL;
    if (c && c->phase == ROOST_MARKED)
        roost_freeze_cancel(e, c, EAGAIN);
    if (c && then_close && c->phase == ROOST_LIVE) {
        if (!roost_is_legal(c->state, ROOST_ST_CLOSED, command->cause))
            return EINVAL;
        supersede(e, c, command, c->token);
        c->token = command->token;
        roost_conn_end(e, c, (enum roost_cause)command->cause, true);
        return 0;
    }
    if (c && c->phase == ROOST_LIVE)
        return EALREADY;
    if (!c)
        c = roost_wake(e, &command->record.key, (enum roost_cause)command->cause, &error);
    if (!c)
        return error;
    if (is_another(c, command))
        return ENOENT; /* it goes on waking */
    supersede(e, c, command, c->token);
    c->token = command->token;
    if (then_close)
        roost_conn_end(e, c, (enum roost_cause)command->cause, true);
    return 0;
}

/* No transition tells of it: this event does, of the connection that it is about. */
static void done(struct roost_engine *e, const struct roost_command *command, struct roost_event *event) {
    event->type = ROOST_EV_DONE;
    event->op = command->op;
    event->token = command->token;
    if (command->token)
        roost_mailbox_post(&e->box, event);
}

static int op_tell(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = target(e, command);
    int error = c ? roost_inband_tell(e, c) : ENOENT;
    if (error)
        return error;
    struct roost_event event;
    roost_event_of_conn(e, c, &event);
    done(e, command, &event);
    return 0;
}

static int op_adopt(struct roost_engine *e, const struct roost_command *command) {
    if (!command->error)
        return roost_adopt(e, command);
    roost_attach_undialled(e, &command->record.key);
    return 0;
}

static int op_give(struct roost_engine *e, const struct roost_command *command) {
    int error = roost_class_give(e, command);
    if (error)
        return error;
    struct roost_conn *c = roost_conn_by_key(e, &command->record.key);
    if (c)
        roost_next_rearm(e, c);
    struct roost_event event = {.id = command->id};
    event.record.key = command->record.key;
    done(e, command, &event);
    return 0;
}

/* All but ROOST_OP_ATTACH. 0 or an errno. */
static int carry_out(struct roost_engine *e, const struct roost_command *command) {
    switch (command->op) {
    case ROOST_OP_STANDBY:
        return op_standby(e, command);
    case ROOST_OP_IDLE:
        return op_idle(e, command);
    case ROOST_OP_SLEEP:
        return op_sleep(e, command);
    case ROOST_OP_WAKE:
        return op_wake(e, command, false);
    case ROOST_OP_CLOSE:
        return op_wake(e, command, true);
    case ROOST_OP_RESTORE:
        roost_restore(e, command);
        return 0;
    case ROOST_OP_CANDIDATE:
        roost_recall_answered(e, command);
        return 0;
    case ROOST_OP_INSERT:
        return roost_insert(e, command);
    case ROOST_OP_PRESSURE:
        roost_relieve(e, command->count, (enum roost_cause)command->cause);
        return 0;
    case ROOST_OP_DESCEND:
        if (!roost_is_legal(ROOST_ST_IDLE, ROOST_ST_SLEEP, command->cause))
            return EINVAL;
        roost_descend(e, command->count, (enum roost_cause)command->cause);
        return 0;
    case ROOST_OP_ANSWER:
        return roost_inband_answered(e, command);
    case ROOST_OP_TELL:
        return op_tell(e, command);
    case ROOST_OP_OVERRIDE:
        return roost_class_restore(e, command);
    case ROOST_OP_GIVE:
        return op_give(e, command);
    case ROOST_OP_ADOPT:
        return op_adopt(e, command);
    default:
        return EINVAL;
    }
}

void roost_command_resume(struct roost_engine *e, struct roost_waiting *w) {
    if (w->command.op == ROOST_OP_ATTACH) {
        roost_attach_server(e, w);
        return;
    }
    int error = carry_out(e, &w->command);
    if (error)
        roost_waiting_refuse(e, w, error);
    else
        roost_waiting_free(w);
}

/* Carries a command out, lets it wait for its connection, or answers it with an error. */
static void command(struct roost_engine *e, struct roost_command *command) {
    struct roost_waiting *w = NULL;
    int error = 0;
    if (roost_recall_command(e, command, &error))
        return;
    if (!error && command->op == ROOST_OP_ATTACH) {
        w = roost_waiting_new(e, command, false);
        error = w ? 0 : ENOMEM;
        if (w)
            roost_attach_server(e, w);
    } else if (!error) {
        error = carry_out(e, command);
    }
    if (error) {
        roost_refuse(e, command->op, command->token, command->id, &command->record.key, error);
        if (command->op == ROOST_OP_ATTACH && command->fd >= 0)
            close(command->fd);
    }
    if (!w)
        free((void *)command->early);
}

void roost_commands_turn(struct roost_engine *e) {
    struct roost_command next;
    const uint64_t until_ns = roost_monotonic_ns() + COMMANDS_NS;
    while (roost_mailbox_command(&e->box, &next)) {
        command(e, &next);
        if (roost_monotonic_ns() >= until_ns)
            break;
    }
}
