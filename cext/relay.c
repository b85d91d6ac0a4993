// SPDX-License-Identifier: Apache-2.0
/*
 * Bytes between the two legs of a linked connection. A leg is read only when the other took all that was read before;
 * so a slow reader holds back the writer by TCP's own window, and at most one read (64 KB) waits here. Buffers exist
 * only while something waits.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "internal.h"

#define READS_A_TURN 8 /* per direction; then the others have their turn */

int roost_leg_queue(struct roost_leg *leg, const uint8_t *data, uint32_t length) {
    struct roost_pending *old = leg->pending;
    uint32_t waiting = old ? old->to - old->from : 0;
    struct roost_pending *p = malloc(sizeof(*p) + waiting + length);
    if (!p)
        return -ENOMEM;
    if (old)
        memcpy(p->data, old->data + old->from, waiting);
    memcpy(p->data + waiting, data, length);
    p->from = 0;
    p->to = waiting + length;
    free(old);
    leg->pending = p;
    return 0;
}

int roost_leg_flush(struct roost_leg *leg) {
    while (leg->pending) {
        struct roost_pending *p = leg->pending;
        ssize_t n = send(leg->fd, p->data + p->from, p->to - p->from, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN)
                leg->writable = false;
            return -errno;
        }
        p->from += (uint32_t)n;
        if (p->from == p->to) {
            free(p);
            leg->pending = NULL;
        }
    }
    return 0;
}

enum outcome {
    MOVED_ALL,
    AGAIN,
    BLOCKED,
    SOURCE_BROKEN,
    SINK_BROKEN
};

/* Moves what there is from one leg to the other; AGAIN: there may be more, but others wait. */
static enum outcome move(struct roost_engine *e, struct roost_conn *c, struct roost_leg *from, struct roost_leg *to,
                         uint64_t *counter, uint64_t *total) {
    for (int reads = 0; reads < READS_A_TURN; reads++) {
        int f = roost_leg_flush(to);
        if (f)
            return f == -EAGAIN ? BLOCKED : SINK_BROKEN;
        if (!from->readable || from->eof)
            return MOVED_ALL;
        ssize_t n = recv(from->fd, e->scratch, ROOST_PENDING_MAX, MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN)
                return SOURCE_BROKEN;
            from->readable = false;
            return MOVED_ALL;
        }
        if (n == 0) {
            from->eof = true;
            return MOVED_ALL;
        }
        /* A short read took all there was; what comes now is told by epoll. But a read also ends before urgent data,
         * and nothing tells of an end that was there already. */
        if (n < ROOST_PENDING_MAX && !from->more)
            from->readable = false;
        roost_conn_touch(e, c);
        c->asked = from == &c->client;
        *counter += (uint64_t)n;
        *total += (uint64_t)n;
        ssize_t sent = send(to->fd, e->scratch, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            to->refused = true; /* these bytes are acknowledged and went nowhere */
            return SINK_BROKEN;
        }
        if (sent < 0)
            sent = 0;
        if (sent < n) {
            to->writable = false;
            if (roost_leg_queue(to, e->scratch + sent, (uint32_t)(n - sent)))
                return SINK_BROKEN; /* no memory: the bytes are acknowledged and cannot be kept; both ends learn it */
            return BLOCKED;
        }
    }
    return AGAIN;
}

/* The server's side failed. What the client sent is lost when the server's kernel did not acknowledge it, and may be when
 * it did and the server never answered: then the client must learn it. Otherwise only the link is gone. */
static void server_broken(struct roost_engine *e, struct roost_conn *c) {
    if (c->server.pending || c->server.refused || c->asked || c->client.eof || roost_link_unacknowledged(c) ||
        roost_service_of(e, c->service)->close_with_server)
        roost_conn_close(e, c, ROOST_C_SERVER_CLOSE, true);
    else
        roost_link_drop(e, c, c->link == ROOST_UNLINKING ? (enum roost_cause)c->unlink_cause : ROOST_C_SERVER_CLOSE);
}

/* FINs, once all that came before them is through. Returns false when the connection left LINKED. */
static bool pass_on_ends(struct roost_engine *e, struct roost_conn *c) {
    if (c->client.eof && !c->server.pending && !c->server.shut) {
        shutdown(c->server.fd, SHUT_WR);
        c->server.shut = true;
    }
    if (!c->server.eof || c->client.pending)
        return true;
    if (c->client.eof) {
        roost_conn_close(e, c, c->client.shut ? ROOST_C_SERVER_CLOSE : ROOST_C_CLIENT_CLOSE, false);
        return false;
    }
    if (c->link == ROOST_UNLINKING) {
        if (roost_link_unacknowledged(c) > 1) /* more than our FIN: taken by it, or refused by RST? */
            return true;
        roost_link_drop(e, c, (enum roost_cause)c->unlink_cause);
        return false;
    }
    if (roost_service_of(e, c->service)->close_with_server && !c->attached) {
        if (!c->client.shut) {
            shutdown(c->client.fd, SHUT_WR);
            c->client.shut = true;
        }
        return true;
    }
    if (c->server.pending) /* it still reads, as far as we know */
        return true;
    if (roost_link_unacknowledged(c)) {
        roost_link_settle(e, c);
        return true;
    }
    roost_link_drop(e, c, ROOST_C_SERVER_CLOSE);
    return false;
}

void roost_relay(struct roost_engine *e, struct roost_conn *c) {
    if (c->phase != ROOST_LIVE)
        return;
    if (c->link == ROOST_UNLINKED) {
        int f = roost_leg_flush(&c->client);
        if (f && f != -EAGAIN)
            roost_conn_close(e, c, ROOST_C_CLIENT_CLOSE, true);
        else if (c->client.readable)
            roost_look(e, c, ROOST_C_NONE);
        return;
    }
    if (c->link == ROOST_CONNECTING)
        return;

    /* The server first: a link that has ended must not swallow what the client says now. */
    enum outcome out = move(e, c, &c->server, &c->client, &c->tx, &e->stat[ROOST_E_BYTES_OUT]);
    if (out == SINK_BROKEN) {
        roost_conn_close(e, c, ROOST_C_CLIENT_CLOSE, true);
        return;
    }
    if (out == SOURCE_BROKEN) {
        server_broken(e, c);
        return;
    }
    bool over =
        c->server.eof && !c->server.pending && (c->attached || !roost_service_of(e, c->service)->close_with_server);
    enum outcome in = MOVED_ALL;
    if (c->link == ROOST_LINKED && !over)
        in = move(e, c, &c->client, &c->server, &c->rx, &e->stat[ROOST_E_BYTES_IN]);
    if (in == SOURCE_BROKEN) {
        roost_conn_close(e, c, ROOST_C_CLIENT_CLOSE, true);
        return;
    }
    if (in == SINK_BROKEN) {
        server_broken(e, c);
        return;
    }
    if (pass_on_ends(e, c) && (in == AGAIN || out == AGAIN))
        roost_conn_run(e, c);
}
