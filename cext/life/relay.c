// SPDX-License-Identifier: Apache-2.0
/*
 * Bytes between the two legs of a linked connection. A leg is read only when the other took all that was read before;
 * so a slow reader holds back the writer by TCP's own window, and at most one read (64 KB) waits here. Buffers exist
 * only while something waits.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "life.h"

#define READS_A_TURN 8 /* per direction; then the others have their turn */

static bool closes_with_server(const struct roost_engine *e, const struct roost_conn *c) {
    return roost_class_of(e, c->class)->on_server_close == ROOST_CLOSE_CLIENT;
}

/* Does an end's FIN go on to the other one, as soon as what came before it is through? */
static bool passes_on(struct roost_engine *e, const struct roost_conn *c, bool client) {
    if (client)
        return c->link == ROOST_LINKED;
    return c->link == ROOST_LINKED && !c->attached && closes_with_server(e, c);
}

/* Moves what there is from one end to the other. */
static enum roost_moved move(struct roost_engine *e, struct roost_conn *c, bool client) {
    struct roost_leg *from = client ? &c->client : &c->server, *to = client ? &c->server : &c->client;
    const bool looks = roost_inband_looks(e, c, client);
    bool at_end = false;
    for (int reads = 0; reads < READS_A_TURN; reads++) {
        bool stop = false;
        int f = roost_leg_flush(to);
        if (f)
            return f == -EAGAIN ? ROOST_BLOCKED : ROOST_SINK_BROKEN;
        enum roost_moved moved = looks ? roost_inband_resume(e, c, client, &stop) : ROOST_MOVED_ALL;
        if (moved != ROOST_MOVED_ALL || stop || !from->readable || from->eof)
            return moved;
        ssize_t n = at_end ? 0 : recv(from->fd, e->scratch, ROOST_PENDING_MAX, MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN) {
                roost_leg_failed(from, errno);
                return ROOST_SOURCE_BROKEN;
            }
            from->readable = false;
            return ROOST_MOVED_ALL;
        }
        if (n == 0) {
            from->eof = true;
            return looks ? roost_inband_end(e, c, client) : ROOST_MOVED_ALL;
        }
        /* A short read took all there was; what comes now is told by epoll. But a read also ends before urgent data,
         * and nothing tells of an end that was there already. */
        if (n < ROOST_PENDING_MAX && !from->more)
            from->readable = false;
        at_end = n < ROOST_PENDING_MAX && from->ends && !from->urgent; /* it was told before this read */
        roost_conn_touch(e, c);
        if (looks) {
            moved = roost_inband_chunk(e, c, client, e->scratch, (uint32_t)n);
        } else {
            roost_conn_count(e, c, client, (uint64_t)n);
            /* The FIN that is known to follow goes in the same packet as the last bytes. */
            bool last = from->ends && !from->eof && !to->shut && passes_on(e, c, client);
            moved = roost_leg_send(to, e->scratch, (uint32_t)n, last ? MSG_MORE : 0);
        }
        if (moved != ROOST_MOVED_ALL)
            return moved;
    }
    return ROOST_MOVED_AGAIN;
}

/* The server's side failed. What the client sent is lost when the server's kernel did not acknowledge it, and may be when
 * it did and the server never answered: then the client must learn it. Otherwise only the link is gone. */
void roost_server_failed(struct roost_engine *e, struct roost_conn *c) {
    if (c->server.pending || c->server.refused || c->asked || c->client.eof || roost_link_unacknowledged(c) ||
        closes_with_server(e, c))
        roost_conn_end(e, c, ROOST_C_SERVER_CLOSE, true);
    else
        roost_link_drop(e, c, c->link == ROOST_UNLINKING ? (enum roost_cause)c->unlink_cause : ROOST_C_SERVER_CLOSE);
}

static void pass_on_end(const struct roost_engine *e, struct roost_conn *c, struct roost_leg *to) {
    shutdown(to->fd, SHUT_WR);
    to->shut = true;
    c->half_closed_ms = e->now_ms;
}

/* FINs, once all that came before them is through. Returns false when the connection left LINKED. */
static bool pass_on_ends(struct roost_engine *e, struct roost_conn *c) {
    const bool over = c->client.eof && c->server.eof && !c->client.pending; /* then the close says so */
    if (c->client.eof && !c->server.pending && !c->server.shut && !over)
        pass_on_end(e, c, &c->server);
    if (!c->server.eof || c->client.pending)
        return true;
    if (over && c->server.pending) /* it still reads, as far as we know */
        return true;
    if (over) {
        roost_conn_end(e, c, c->client.shut ? ROOST_C_SERVER_CLOSE : ROOST_C_CLIENT_CLOSE, false);
        return false;
    }
    if (c->link == ROOST_UNLINKING) {
        if (roost_link_unacknowledged(c) > 1) /* more than our FIN: taken by it, or refused by RST? */
            return true;
        roost_link_drop(e, c, (enum roost_cause)c->unlink_cause);
        return false;
    }
    if (closes_with_server(e, c) && !c->attached) {
        if (!c->client.shut)
            pass_on_end(e, c, &c->client);
        return true;
    }
    if (c->server.pending) /* likewise */
        return true;
    if (roost_link_unacknowledged(c)) {
        roost_link_settle(e, c);
        return true;
    }
    roost_link_drop(e, c, ROOST_C_SERVER_CLOSE);
    return false;
}

/* In each of the relay's turns until the server has spoken. Where clients always speak first, there is no hurry to end
 * the handshake. Once the client's first bytes are sent, the kernel takes the link for a dialogue and would hold back
 * the ACK of the server's first ones for 40 ms, which a server with Nagle's algorithm waits for with its next. So that
 * ACK is sent as soon as they are read; but when they are its last as well, our FIN will do. */
static void greet(struct roost_engine *e, struct roost_conn *c) {
    struct roost_pool *pool = roost_pool_of(e, c->service);
    const bool answered = c->tx || c->server.eof, spoken = c->rx || answered;
    if (spoken && c->server.greeting != ROOST_GREETING_PASSED && pool)
        roost_pool_spoken(pool, c->rx && !c->tx);
    if (answered) {
        if (!c->server.ends)
            roost_leg_acknowledge(&c->server);
        c->server.greeting = ROOST_GREETED;
    } else if (spoken) {
        c->server.greeting = ROOST_GREETING_PASSED;
    } else if (c->server.greeting == ROOST_GREETING_HELD &&
               (!pool || pool->client_first != ROOST_SURELY_CLIENT_FIRST)) {
        roost_leg_acknowledge(&c->server);
        c->server.greeting = ROOST_GREETING_SENT;
    }
}

void roost_relay(struct roost_engine *e, struct roost_conn *c) {
    /* The server first: a link that has ended must not swallow what the client says now. */
    enum roost_moved out = move(e, c, false);
    if (out == ROOST_SINK_BROKEN) {
        roost_client_failed(e, c);
        return;
    }
    if (out == ROOST_SOURCE_BROKEN) {
        roost_server_failed(e, c);
        return;
    }
    bool over = c->server.eof && !c->server.pending && (c->attached || !closes_with_server(e, c));
    enum roost_moved in = ROOST_MOVED_ALL;
    if (c->link == ROOST_LINKED && !over)
        in = move(e, c, true);
    if (in == ROOST_SOURCE_BROKEN) {
        roost_client_failed(e, c);
        return;
    }
    if (in == ROOST_SINK_BROKEN) {
        roost_server_failed(e, c);
        return;
    }
    if (c->server.greeting)
        greet(e, c);
    if (pass_on_ends(e, c) && (in == ROOST_MOVED_AGAIN || out == ROOST_MOVED_AGAIN))
        roost_conn_run(e, c);
}
