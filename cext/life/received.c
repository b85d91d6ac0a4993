// SPDX-License-Identifier: Apache-2.0
/*
 * What comes out of the ring: a frame that wakes its connection, or that came while the connection was being moved. It makes
 * an awake connection of an inactive one, joins the frames that are held for one on its way, or goes to the stack.
 */
#include <errno.h>
#include <string.h>

#include "life.h"
#include "cext/socket/repair.h"
#include "cext/socket/segment.h"

/* A frame that met a freeze. Only a genuine one ends the freeze at once; others can be forged. */
static void meet_freeze(struct roost_engine *e, struct roost_conn *c, const struct roost_frame *f, bool server) {
    struct roost_ka now;
    struct roost_segment segment;
    roost_hold(e, c, f, server);
    if (!c->held || c->waking)
        return;
    struct roost_held *newest = c->held;
    while (newest->next)
        newest = newest->next;
    if (!roost_repair_peek(newest->server ? c->server.fd : c->client.fd, &now) &&
        roost_judge_kept(newest->data, newest->length, newest->l3, &now, &segment) == ROOST_V_WAKE)
        roost_wake_queue(e, c);
}

/* A frame of an inactive connection that was held because the slot was being moved just then: judged again now that it
 * has been. */
static bool wakes_now(struct roost_engine *e, const struct roost_frame *f, struct roost_ka *slot, bool *speaks) {
    struct roost_segment segment;
    *speaks = false;
    if (f->why == ROOST_WHY_FRAGMENT)
        return true;
    if (f->why == ROOST_WHY_WAKE && !f->length) /* too long to be held, but judged */
        return true;
    if (!roost_segment_checksums_good(f->data, f->length, f->l3) ||
        !roost_segment_parse(f->data, f->length, f->l3, &segment)) {
        e->stat[ROOST_E_FRAME_BAD]++;
        return false;
    }
    switch (roost_judge(slot, &segment)) {
    case ROOST_V_WAKE:
        *speaks = segment.payload && !(segment.flags & ROOST_RST);
        return true;
    case ROOST_V_ANSWER:
        roost_answer_probe(e, &f->key, slot, &segment);
        return false;
    case ROOST_V_CHALLENGE: /* XDP's to do, but it has not seen this slot (it does so once for each that comes back), or no
                             * way for the answer, or it is not there, as on the loopback interface */
        if (f->why == ROOST_WHY_CANDIDATE || f->why == ROOST_WHY_ANSWER || f->why == ROOST_WHY_LOCAL)
            roost_answer_probe(e, &f->key, slot, NULL);
        return false;
    default:
        return false;
    }
}

/* The connection and leg that a frame is for. */
struct addressee {
    struct roost_conn *conn;     /* awake, or on its way; NULL: inactive, or not ours */
    struct roost_ka *slot;       /* of the leg that the frame is for */
    struct roost_ka *client;     /* of the connection */
    const struct roost_key *key; /* of the connection */
    struct roost_key peer;
    bool server; /* it is the server's leg */
};

static void find_addressee(struct roost_engine *e, const struct roost_key *key, struct addressee *a) {
    memset(a, 0, sizeof(*a));
    a->key = key;
    struct roost_holder h = roost_whose(e, key);
    a->conn = h.conn;
    a->slot = a->client = h.slot;
    if (h.by != ROOST_BY_LEG)
        return;
    a->client = roost_table_peer(&e->table, a->slot, &a->peer);
    if (a->client) {
        a->server = true;
        a->key = &a->peer;
        a->conn = roost_conn_by_key(e, a->key);
    } else { /* a leg without a client: the stack tells its server */
        roost_table_remove(&e->table, a->slot);
        a->slot = NULL;
    }
}

/* A sleeper does not die of a limit: its packet is dropped, and comes again when it is due. */
static bool may_wake(struct roost_engine *e, const struct roost_conn *c, const struct addressee *a) {
    const struct roost_service *s = roost_service_of(e, roost_table_service(&e->table, a->client));
    return c || a->server || roost_limits_allow(e, ROOST_LIMIT_WAKES, s, a->key->client);
}

void roost_take_frame(struct roost_engine *e, const struct roost_frame *f) {
    struct addressee a;
    bool speaks;
    find_addressee(e, &f->key, &a);
    struct roost_conn *c = a.conn;
    if (!c && !a.slot) {
        roost_recall_frame(e, f);
    } else if (!a.slot || (c && c->phase == ROOST_LIVE)) {
        if (f->why == ROOST_WHY_CANDIDATE) /* the filter takes it for another one */
            roost_datapath_mark_stranger(&e->path, roost_hash_of_key(e, &f->key), true);
        roost_stray(e, f);
    } else if (c && c->phase == ROOST_MARKED) {
        meet_freeze(e, c, f, a.server);
    } else if (c && c->phase == ROOST_THAWING) {
        roost_hold(e, c, f, a.server);
    } else if (wakes_now(e, f, a.slot, &speaks)) {
        uint32_t class = a.client->class, silence_s = roost_silence_s(a.client->heard, (uint32_t)(e->now_ms / 1000));
        bool heard = !c && !a.server;
        if (!may_wake(e, c, &a))
            return;
        if (!c)
            c = roost_rouse(e, a.key, a.client, a.server ? ROOST_C_SERVER_DATA : ROOST_C_CLIENT_DATA);
        if (!c)
            return;
        if (heard)
            roost_tally_silence(e, class, silence_s, false);
        c->speaks |= speaks;
        roost_hold(e, c, f, a.server);
    }
}

int roost_on_frame(void *context, void *data, size_t size) {
    struct roost_engine *e = context;
    e->frame_budget--;
    if (size >= sizeof(struct roost_frame))
        roost_take_frame(e, data);
    /* libbpf has moved past this frame; what is left makes epoll report the ring again. */
    return e->frame_budget > 0 ? 0 : -EAGAIN;
}
