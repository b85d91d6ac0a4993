// SPDX-License-Identifier: Apache-2.0
/*
 * A server that attaches gets its client at once where that was heard lately. Otherwise the client is woken and asked by a
 * keep-alive probe first, again after 1 s, 2 s, 4 s, and the server waits for the answer, as long as it may: nothing tells a
 * server of success whose client is gone. The kernel has no event for a bare ACK, so it is looked for: often at first,
 * and an eighth of the time that it has taken later, which is what the answer is late by at most.
 */
#include <errno.h>

#include "cext/socket/heard.h"
#include "life.h"

#define AGAIN_MS 1000 /* a client may answer less than one probe in 500 ms (RFC 5961 5, Linux: tcp_invalid_ratelimit) */
#define WAIT_MS 10000 /* where the command does not say */

static bool was_heard_lately(const struct roost_engine *e, struct roost_conn *c) {
    return e->now_ms < roost_conn_heard_ms(e, c) + roost_class_of(e, c->class)->attach_silence_s * 1000ULL;
}

static bool has_answered(struct roost_conn *c) {
    if (!roost_heard_since(c->client.fd, c->heard_mark))
        return false;
    c->must_answer = false;
    c->silent_ms = 0;
    return true;
}

static void probe(struct roost_engine *e, struct roost_conn *c) {
    uint64_t since_ms = roost_conn_heard_ms(e, c);
    if (roost_heard_ask(c->client.fd, &c->heard_mark))
        c->must_answer = false; /* its socket has failed, which an event tells */
    else
        c->silent_ms = since_ms ? since_ms : 1;
}

static void look_again(struct roost_engine *e, struct roost_conn *c) {
    uint64_t waited_ms = e->now_ms - c->asked_ms;
    c->look_ms = e->now_ms + 1 + waited_ms / 8;
    if (!e->answer_ms || c->look_ms < e->answer_ms)
        e->answer_ms = c->look_ms;
}

bool roost_ask(struct roost_engine *e, struct roost_conn *c) {
    if (c->asked_for)
        return true;
    if (was_heard_lately(e, c)) {
        c->must_answer = false;
        return false;
    }
    c->asked_ms = e->now_ms;
    c->again_ms = e->now_ms + AGAIN_MS;
    probe(e, c);
    look_again(e, c);
    c->asked_for = true;
    c->queued++;
    c->next_asked = e->asked;
    e->asked = c;
    return c->must_answer;
}

static bool waits(const struct roost_conn *c) {
    return !c->dead && c->server_waits && c->must_answer && c->phase == ROOST_LIVE && c->client.fd >= 0;
}

static void attend(struct roost_engine *e, struct roost_conn *c) {
    const uint32_t wait_ms = c->server_waits->command.count;
    if (has_answered(c)) {
        roost_conn_run(e, c);
    } else if (e->now_ms >= c->asked_ms + (wait_ms ? wait_ms : WAIT_MS)) {
        c->must_answer = false;
        roost_conn_refuse_server(e, c, ETIMEDOUT);
        roost_conn_run(e, c);
    } else {
        if (e->now_ms >= c->again_ms) {
            c->again_ms = e->now_ms + (e->now_ms - c->asked_ms);
            probe(e, c);
        }
        look_again(e, c);
    }
}

void roost_asked_turn(struct roost_engine *e) {
    if (!e->asked || e->now_ms < e->answer_ms)
        return;
    e->answer_ms = 0;
    for (struct roost_conn **at = &e->asked; *at;) {
        struct roost_conn *c = *at;
        if (waits(c) && e->now_ms >= c->look_ms)
            attend(e, c);
        else if (waits(c) && (!e->answer_ms || c->look_ms < e->answer_ms))
            e->answer_ms = c->look_ms;
        if (waits(c)) {
            at = &c->next_asked;
            continue;
        }
        *at = c->next_asked;
        c->asked_for = false;
        c->queued--;
    }
}
