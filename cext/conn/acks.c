// SPDX-License-Identifier: Apache-2.0
/*
 * The ACK of what a client has said: the server's answer may bring it, a packet less. When there is no answer for a while it
 * goes by itself: a client with Nagle's algorithm waits for it with its next words.
 */
#include "conn.h"

#define ANSWER_MS 2 /* a server that is close answers sooner */
#define ANSWER_IN_RUSH_MS 10

void roost_acknowledge_later(struct roost_engine *e, struct roost_conn *c) {
    c->ack_ms = e->now_ms + (e->rush ? ANSWER_IN_RUSH_MS : ANSWER_MS);
    if (c->unacked) /* it waits already */
        return;
    c->unacked = true;
    c->queued++;
    c->next_unacked = NULL;
    *e->unacked_tail = c;
    e->unacked_tail = &c->next_unacked;
}

/* True if an answer acknowledged the client's last bytes. A greeting is no answer: the ACK of the client's first bytes would
 * be held back for as long as the kernel likes. */
static bool is_answered(const struct roost_conn *c) {
    return c->rx && c->tx && !c->asked;
}

void roost_unacked_turn(struct roost_engine *e) {
    struct roost_conn *c;
    while ((c = e->unacked) && (c->dead || e->now_ms >= c->ack_ms)) {
        e->unacked = c->next_unacked;
        if (!e->unacked)
            e->unacked_tail = &e->unacked;
        c->unacked = false;
        c->queued--;
        if (!c->dead && c->client.fd >= 0 && !is_answered(c))
            roost_leg_acknowledge(&c->client);
    }
}
