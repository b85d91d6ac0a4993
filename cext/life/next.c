// SPDX-License-Identifier: Apache-2.0
#include "next.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "cext/inband/inband_relay.h"
#include "life.h"

#define LONG_STAY_MS 100 /* the most that one connection's stay counts in the measure of a rush */
#define CROWD_A_TURN 2
#define GOAL_RETRY_MS 100 /* what keeps a freeze from succeeding is mostly a delayed ACK of 40 ms */

#define ROOST_UNANSWERED (ROOST_SERVER_WAITS | ROOST_MUST_ANSWER)

/* The first row applies of which every fact of `set` holds and none of `clear` does. */
static const struct {
    uint32_t set, clear;
    enum roost_next next;
} table[] = {
    {0, ROOST_LIVES, ROOST_NEXT_WAIT},
    {ROOST_MUST_CLOSE, 0, ROOST_NEXT_CLOSE},
    {ROOST_HAS_LINK, 0, ROOST_NEXT_RELAY},
    {ROOST_CONNECTS, 0, ROOST_NEXT_EXPECT},
    {ROOST_UNANSWERED | ROOST_CLIENT_ENDED, ROOST_BYTES_WAIT, ROOST_NEXT_END},
    {ROOST_UNANSWERED | ROOST_CLIENT_READABLE, ROOST_BYTES_WAIT, ROOST_NEXT_PEEK}, /* its bytes are an answer */
    {ROOST_UNANSWERED, ROOST_BYTES_WAIT, ROOST_NEXT_ASK},
    {ROOST_SERVER_WAITS, 0, ROOST_NEXT_ATTACH},
    {ROOST_MUST_FREEZE, 0, ROOST_NEXT_FREEZE},
    {ROOST_BYTES_WAIT, 0, ROOST_NEXT_LINK},
    {ROOST_CLIENT_ENDED, 0, ROOST_NEXT_END},
    {ROOST_CLIENT_READABLE, 0, ROOST_NEXT_PEEK},
    {0, 0, ROOST_NEXT_STAND},
};

enum roost_next roost_next(uint32_t facts) {
    unsigned int i = 0;
    while ((facts & table[i].set) != table[i].set || facts & table[i].clear)
        i++; /* the last row always applies */
    return table[i].next;
}

static uint32_t facts_of(const struct roost_conn *c) {
    return (c->phase == ROOST_LIVE ? ROOST_LIVES : 0) | (c->want_close ? ROOST_MUST_CLOSE : 0) |
           (c->link == ROOST_LINKED || c->link == ROOST_UNLINKING ? ROOST_HAS_LINK : 0) |
           (c->link == ROOST_CONNECTING ? ROOST_CONNECTS : 0) | (c->server_waits ? ROOST_SERVER_WAITS : 0) |
           (c->want_freeze ? ROOST_MUST_FREEZE : 0) | (roost_inband_wants_link(c) ? ROOST_BYTES_WAIT : 0) |
           (c->must_answer ? ROOST_MUST_ANSWER : 0) | (c->client.readable ? ROOST_CLIENT_READABLE : 0);
}

static void become(struct roost_engine *e, struct roost_conn *c, enum roost_state state, enum roost_cause cause) {
    if (c->state == state)
        return;
    roost_conn_transition(e, c, state, cause);
    c->told_quiet_ms = e->now_ms; /* a whole quiet interval follows, though nothing may have been said */
}

/* What a client says that has no link. */
static uint32_t peek(struct roost_engine *e, struct roost_conn *c) {
    uint8_t byte;
    ssize_t n = recv(c->client.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0)
        return ROOST_BYTES_WAIT;
    if (n == 0)
        return ROOST_CLIENT_ENDED;
    if (errno != EAGAIN && errno != EINTR) {
        roost_leg_failed(&c->client, errno);
        roost_client_failed(e, c);
        return 0; /* it must close */
    }
    c->client.readable = false;
    return 0;
}

static void close_now(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause, bool reset) {
    uint64_t stayed_ms = e->now_ms - c->since_ms;
    roost_births_ended(e, &c->key, c->id);
    roost_sockets_note(e, &c->key); /* the kernel keeps TIME-WAIT or an orphan for a while */
    roost_conn_refuse_server(e, c, ECONNRESET);
    roost_leg_close(e, &c->client, reset);
    roost_leg_close(e, &c->server, reset);
    e->rush_stayed_ms += stayed_ms < LONG_STAY_MS ? stayed_ms : LONG_STAY_MS;
    roost_conn_transition(e, c, ROOST_ST_CLOSED, cause);
    e->stat[ROOST_E_CLOSED]++;
    roost_conn_forget(e, c);
}

static void freeze(struct roost_engine *e, struct roost_conn *c) {
    c->want_freeze = false;
    int error = roost_freeze(e, c, (enum roost_cause)c->freeze_cause);
    if (error)
        roost_refuse(e, ROOST_OP_IDLE, c->token, c->id, &c->key, -error);
}

/* What earlier links left for the client goes out when it can be written to. */
static void flush(struct roost_engine *e, struct roost_conn *c) {
    if (c->phase != ROOST_LIVE || c->link != ROOST_UNLINKED || !c->client.pending)
        return;
    int error = roost_leg_flush(&c->client);
    if (error && error != -EAGAIN)
        roost_client_failed(e, c);
}

/* Steps until one leaves nothing to decide. False: the connection is closed. */
static bool advance(struct roost_engine *e, struct roost_conn *c) {
    uint32_t heard = 0; /* by the peek of this call */
    for (;;) {
        switch (roost_next(facts_of(c) | heard)) {
        case ROOST_NEXT_WAIT:
            return true;
        case ROOST_NEXT_CLOSE:
            close_now(e, c, (enum roost_cause)c->close_cause, c->close_resets);
            return false;
        case ROOST_NEXT_END:
            close_now(e, c, ROOST_C_CLIENT_CLOSE, false);
            return false;
        case ROOST_NEXT_RELAY:
            become(e, c, ROOST_ST_ACTIVE, (enum roost_cause)c->wake_cause);
            roost_relay(e, c);
            if (c->link != ROOST_UNLINKED && !c->want_close)
                return true;
            break;
        case ROOST_NEXT_EXPECT:
            become(e, c, ROOST_ST_ACTIVE, (enum roost_cause)c->wake_cause);
            return true;
        case ROOST_NEXT_ASK:
            if (roost_ask(e, c)) {
                become(e, c, ROOST_ST_STANDBY, (enum roost_cause)c->wake_cause);
                return true;
            }
            break;
        case ROOST_NEXT_ATTACH:
            roost_link_attach(e, c); /* refused, it waits no longer either */
            break;
        case ROOST_NEXT_FREEZE:
            freeze(e, c);
            break;
        case ROOST_NEXT_LINK:
            become(e, c, ROOST_ST_ACTIVE, ROOST_C_CLIENT_DATA);
            roost_link_open(e, c);
            break;
        case ROOST_NEXT_PEEK:
            heard = peek(e, c);
            break;
        case ROOST_NEXT_STAND:
            become(e, c, ROOST_ST_STANDBY, (enum roost_cause)c->wake_cause);
            return true;
        }
    }
}

/* With its link kept (the persistent interface) the client is not read while its goal is pursued: bytes in its socket
 * revoke the goal. */
static bool client_spoke(const struct roost_conn *c) {
    uint8_t byte;
    return roost_inband_wants_link(c) || recv(c->client.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

static bool is_linked(const struct roost_conn *c) {
    return c->link == ROOST_CONNECTING || c->link == ROOST_LINKED;
}

static int reach(struct roost_engine *e, struct roost_conn *c, uint8_t goal) {
    return goal == ROOST_INBAND_SLEEP     ? roost_freeze(e, c, ROOST_C_COMMAND)
           : goal == ROOST_INBAND_RELEASE ? roost_link_release(e, c, e->now_ms >= c->in_band->until_ms)
                                          : roost_link_end(e, c, ROOST_C_COMMAND);
}

/* What was asked for in band: DONE (no link), RELEASE (likewise) or SLEEP. */
static void pursue(struct roost_engine *e, struct roost_conn *c) {
    struct roost_in_band *b = c->in_band;
    bool linked = is_linked(c);
    if (!b->goal || c->phase != ROOST_LIVE)
        return;
    b->unlinked |= !linked;
    bool pair = b->goal == ROOST_INBAND_SLEEP && roost_service_of(e, c->service)->persistent;
    bool again = linked && (b->unlinked || (pair && client_spoke(c))); /* the link is wanted again */
    bool late =
        e->now_ms >= b->until_ms && b->goal != ROOST_INBAND_RELEASE; /* whose server speaks to another by then */
    if (late || again || (!linked && b->goal != ROOST_INBAND_SLEEP)) {
        b->goal = 0; /* out of reach, or void, or done */
        return;
    }
    if (c->want_freeze || c->link == ROOST_CONNECTING || (b->begun && e->now_ms < b->retry_ms))
        return;
    b->retry_ms = e->now_ms + GOAL_RETRY_MS;
    int error = reach(e, c, b->goal);
    if (error == -EOPNOTSUPP) /* a link-local address: no further than STANDBY */
        b->goal = 0;
    b->begun |= !error;
    b->unlinked |= !is_linked(c); /* the next look may find another link */
}

static bool is_probed(const struct roost_conn *c) {
    return (c->client.fd < 0 || c->client.probed) && (c->server.fd < 0 || c->server.probed);
}

/* When the kernel is told to send keep-alives; 0: it need not be. Not before there is reason to: most connections have moved
 * on by then, and pay nothing for it. */
static uint64_t probes_ms(const struct roost_engine *e, const struct roost_conn *c) {
    uint64_t since_ms = c->active_ms > c->since_ms ? c->active_ms : c->since_ms;
    uint32_t interval_s = roost_class_of(e, c->class)->awake_probe_s;
    return interval_s && !is_probed(c) ? since_ms + interval_s * 1000ULL : 0;
}

static void probe_legs(struct roost_engine *e, struct roost_conn *c) {
    if (c->client.fd >= 0)
        roost_leg_probe(&c->client, roost_class_of(e, c->class));
    if (c->server.fd >= 0)
        roost_leg_probe(&c->server, roost_class_of(e, c->class));
}

/* When it is looked at whether what waits to be written waits in vain; 0: never. Not by TCP_USER_TIMEOUT, which would be
 * the time-out of keep-alives as well, and a system call for each that wakes. */
static uint64_t writes_ms(const struct roost_engine *e, const struct roost_conn *c) {
    uint32_t timeout_s = roost_class_of(e, c->class)->write_timeout_s;
    return timeout_s && c->phase == ROOST_LIVE ? c->taken_ms + timeout_s * 1000ULL : 0;
}

static void expect_writes(struct roost_engine *e, struct roost_conn *c) {
    uint64_t due = writes_ms(e, c);
    if (!due || e->now_ms < due)
        return;
    c->taken_ms = e->now_ms - roost_conn_stuck_ms(c);
    if (e->now_ms < writes_ms(e, c) || c->want_close)
        return;
    e->stat[ROOST_E_WRITE_TIMEOUTS]++;
    roost_conn_end(e, c, ROOST_C_WRITE_TIMEOUT, true);
}

static uint64_t sooner(uint64_t one, uint64_t other) { /* 0: never */
    return one && (!other || one < other) ? one : other;
}

/* The next moment at which the connection must be looked at, 0: none. */
static uint64_t due_ms(struct roost_engine *e, struct roost_conn *c) {
    uint64_t due = 0, in_band = c->in_band ? roost_inband_due_ms(e, c) : 0;
    if (c->link == ROOST_CONNECTING || c->link == ROOST_UNLINKING) {
        due = c->link == ROOST_CONNECTING && c->retry_ms ? c->retry_ms : c->link_deadline_ms;
    } else if (c->phase == ROOST_LIVE) {
        uint64_t quiet = roost_quiet_ms(e, c, (enum roost_state)c->state);
        if (quiet)
            due = (c->told_quiet_ms > c->active_ms ? c->told_quiet_ms : c->active_ms) + quiet;
        due = sooner(probes_ms(e, c), due);
    }
    return sooner(writes_ms(e, c), sooner(in_band, due));
}

static void arm(struct roost_engine *e, struct roost_conn *c) {
    uint64_t due = due_ms(e, c);
    if (due)
        roost_wheel_set(&e->wheel, &c->timer, due);
    else
        roost_wheel_cancel(&e->wheel, &c->timer);
}

void roost_next_rearm(struct roost_engine *e, struct roost_conn *c) {
    if (c->phase == ROOST_LIVE && (c->client.probed || c->server.probed))
        probe_legs(e, c);
    arm(e, c);
}

static void look(struct roost_engine *e, struct roost_conn *c) {
    const uint8_t link = c->link;
    const uint16_t class = c->class;
    const bool cut = c->cut;
    flush(e, c);
    if (!advance(e, c))
        return;
    if (c->phase == ROOST_LIVE) {
        if (c->in_band) {
            pursue(e, c);
            if (c->phase == ROOST_LIVE)
                roost_inband_turn(e, c);
        }
        if (roost_watch_blocked(e, c)) /* no memory: nothing would tell when it can be written to */
            roost_conn_end(e, c, ROOST_C_CLIENT_CLOSE, true);
    }
    /* Activity moves no timer: one that fires early is set again. But an interval may be shorter now. */
    if (!c->timer.previous || c->link != link || link != ROOST_LINKED || c->in_band || c->class != class ||
        c->cut != cut)
        arm(e, c);
}

/* At most so many of those that are there now. */
static void next_of(struct roost_engine *e, struct roost_ready *queue, uint32_t most) {
    struct roost_conn *c = queue->first, **end = &queue->first;
    while (*end && most--)
        end = &(*end)->next_ready;
    queue->first = *end;
    *end = NULL;
    if (!queue->first)
        queue->last = &queue->first;
    while (c) {
        struct roost_conn *next = c->next_ready;
        c->ready = false;
        c->queued--;
        if (!c->dead)
            look(e, c);
        c = next;
    }
}

void roost_next_turn(struct roost_engine *e) {
    next_of(e, &e->ready[0], UINT32_MAX);
    next_of(e, &e->ready[1], CROWD_A_TURN);
}

/* Quiet for its interval: the control plane decides what follows. */
static void tell_quiet(struct roost_engine *e, struct roost_conn *c) {
    struct roost_event event;
    uint64_t quiet = roost_quiet_ms(e, c, (enum roost_state)c->state);
    uint64_t since = c->told_quiet_ms > c->active_ms ? c->told_quiet_ms : c->active_ms;
    if (!quiet || e->now_ms < since + quiet || roost_mailbox_crowded(&e->box))
        return;
    roost_event_of_conn(e, c, &event);
    event.type = ROOST_EV_QUIET;
    roost_mailbox_post(&e->box, &event);
    c->told_quiet_ms = e->now_ms; /* told again when nothing comes of it */
}

static void timer(struct roost_engine *e, struct roost_conn *c) {
    expect_writes(e, c);
    if (c->link == ROOST_CONNECTING || c->link == ROOST_UNLINKING) {
        roost_link_timer(e, c);
    } else if (c->phase == ROOST_LIVE) {
        if (c->in_band)
            roost_inband_timer(e, c);
        uint64_t probes = probes_ms(e, c);
        if (probes && e->now_ms >= probes)
            probe_legs(e, c);
        tell_quiet(e, c);
    }
    arm(e, c);
}

void roost_next_timers(struct roost_engine *e) {
    struct roost_timer *due = roost_wheel_advance(&e->wheel, e->now_ms);
    while (due) {
        struct roost_timer *next = due->next;
        due->next = NULL;
        struct roost_conn *c = (struct roost_conn *)due; /* the timer is its first member */
        if (!c->dead)
            timer(e, c);
        due = next;
    }
}
