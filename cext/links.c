// SPDX-License-Identifier: Apache-2.0
/*
 * The server side of a connection: linked when the client speaks (or a server attaches), unlinked when it is quiet.
 *
 *     UNLINKED -> CONNECTING -> LINKED -> UNLINKING -> UNLINKED
 *
 * UNLINKING: our FIN is sent, the server's awaited for a while. What it still sends goes to the client; what the client
 * sends waits in its socket for the next link.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "address.h"
#include "internal.h"
#include "proxy_header.h"

#define RETRY_MS 200
#define UNLINK_MS 1000

void roost_leg_fresh(struct roost_leg *leg, int fd) {
    free(leg->pending);
    memset(leg, 0, sizeof(*leg));
    leg->fd = fd;
}

static int reach(const struct roost_service *s, const struct roost_key *key, bool same_port) {
    struct sockaddr_storage server, client;
    bool as_accepted = !s->server_port; /* the server whose address the client connected to */
    const uint8_t *ip = as_accepted ? key->local : s->server;
    int one = 1, fd = roost_socket_for(ip, s->as_client);
    if (fd < 0)
        return fd;
    socklen_t size = roost_address_to(ip, as_accepted ? key->local_port : htons(s->server_port), &server);
    int e = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!e && s->as_client) {
        socklen_t client_size = roost_address_to(key->client, same_port ? key->client_port : 0, &client);
        /* Beside an earlier link of this client in TIME-WAIT, and beside servers that came for it by this address. */
        e = same_port ? setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one))
                      : setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
        if (!e)
            e = bind(fd, (struct sockaddr *)&client, client_size);
    }
    if (!e)
        e = connect(fd, (struct sockaddr *)&server, size);
    if (e && errno != EINPROGRESS) {
        e = -errno;
        close(fd);
        return e;
    }
    return fd;
}

/* The port is taken while an earlier link of the client is in TIME-WAIT and its server has no timestamps: the server then
 * sees the client's address with another port. */
static int connect_to(const struct roost_service *s, const struct roost_key *key) {
    int fd = reach(s, key, true);
    return s->as_client && (fd == -EADDRNOTAVAIL || fd == -EADDRINUSE) ? reach(s, key, false) : fd;
}

/* What the server is told about the client before its first byte. */
static int introduce(const struct roost_service *s, struct roost_conn *c) {
    uint8_t header[ROOST_PROXY_HEADER_MAX];
    if (!s->proxy_header)
        return 0;
    return roost_leg_queue(&c->server, header, roost_proxy_header(&c->key, s->proxy_header, header));
}

static void attempt(struct roost_engine *e, struct roost_conn *c) {
    int fd = connect_to(roost_service_of(e, c->service), &c->key);
    c->retry_ms = 0;
    if (fd >= 0) {
        roost_leg_fresh(&c->server, fd);
        if (introduce(roost_service_of(e, c->service), c) || roost_watch(e, fd, c, true)) {
            close(fd);
            roost_leg_fresh(&c->server, fd = -1);
        }
    }
    if (fd == -EMFILE || fd == -ENFILE) { /* our fault, not the server's: it does not count */
        roost_tell_pressure(e);
        c->link_deadline_ms += RETRY_MS;
    }
    if (fd < 0)
        c->retry_ms = e->now_ms + RETRY_MS;
    roost_conn_set_timer(e, c);
}

void roost_link_open(struct roost_engine *e, struct roost_conn *c) {
    const struct roost_service *s = roost_service_of(e, c->service);
    c->link = ROOST_CONNECTING;
    c->link_deadline_ms = e->now_ms + (s->connect_timeout_ms ? s->connect_timeout_ms : 10000);
    attempt(e, c);
}

void roost_link_start(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    if (c->state != ROOST_ST_ACTIVE)
        roost_conn_transition(e, c, ROOST_ST_ACTIVE, cause);
    roost_link_open(e, c);
}

void roost_link_abandon(struct roost_engine *e, struct roost_conn *c) {
    roost_leg_close(e, &c->server, false);
    roost_leg_fresh(&c->server, -1);
    c->link = ROOST_UNLINKED;
    c->retry_ms = 0;
}

void roost_link_connected(struct roost_engine *e, struct roost_conn *c) {
    struct sockaddr_storage peer;
    socklen_t size = sizeof(peer);
    int error = 0;
    socklen_t error_size = sizeof(error);
    if (c->server.fd < 0)
        return;
    /* Not SO_ERROR alone: an event of an earlier attempt's socket may have brought us here. */
    if (getpeername(c->server.fd, (struct sockaddr *)&peer, &size)) {
        getsockopt(c->server.fd, SOL_SOCKET, SO_ERROR, &error, &error_size);
        if (!error)
            return;
        close(c->server.fd);
        c->server.fd = -1;
        c->retry_ms = e->now_ms + RETRY_MS;
        roost_conn_set_timer(e, c);
        return;
    }
    c->link = ROOST_LINKED;
    c->server.readable = c->server.writable = true;
    e->stat[ROOST_E_LINKED]++;
    roost_conn_touch(e, c);
    roost_conn_set_timer(e, c);
    roost_conn_run(e, c);
}

void roost_attach_refused(struct roost_engine *e, struct roost_conn *c, int error) {
    if (c->attach_fd >= 0)
        close(c->attach_fd);
    c->attach_fd = -1;
    free(c->preamble);
    free(c->early);
    c->preamble = NULL;
    c->early = NULL;
    c->preamble_len = c->early_len = 0;
    roost_refuse(e, ROOST_OP_ATTACH, c->attach_token, c->id, &c->key, error);
    c->attach_token = 0;
}

void roost_link_attach(struct roost_engine *e, struct roost_conn *c) {
    int fd = c->attach_fd, one = 1;
    c->attach_fd = -1;
    roost_leg_fresh(&c->server, fd);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
    if ((c->preamble_len && roost_leg_queue(&c->server, (uint8_t *)c->preamble, c->preamble_len)) ||
        (c->early_len && roost_leg_queue(&c->client, c->early, c->early_len)) || roost_watch(e, fd, c, true)) {
        close(fd);
        roost_leg_fresh(&c->server, -1);
        c->preamble_len = c->early_len = 0;
        roost_attach_refused(e, c, ENOMEM);
        roost_look(e, c, ROOST_C_SERVER_ATTACH);
        return;
    }
    if (c->early_len) {
        c->tx += c->early_len;
        roost_conn_touch(e, c);
    }
    free(c->preamble);
    free(c->early);
    c->preamble = NULL;
    c->early = NULL;
    c->preamble_len = c->early_len = 0;
    c->link = ROOST_LINKED;
    c->attached = true;
    c->server.readable = c->server.writable = true;
    e->stat[ROOST_E_LINKED]++;
    roost_conn_touch(e, c);
    c->token = c->attach_token;
    c->attach_token = 0;
    roost_conn_transition(e, c, ROOST_ST_ACTIVE, ROOST_C_SERVER_ATTACH);
    roost_conn_set_timer(e, c);
    roost_conn_run(e, c);
}

void roost_link_drop(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    roost_link_abandon(e, c);
    c->attached = false;
    if (c->state != ROOST_ST_STANDBY)
        roost_conn_transition(e, c, ROOST_ST_STANDBY, cause);
    if (c->attach_fd >= 0) {
        roost_link_attach(e, c);
        return;
    }
    roost_conn_set_timer(e, c);
    if (c->client.readable)
        roost_conn_run(e, c);
    if (c->want_freeze) {
        c->want_freeze = false;
        int error = roost_freeze(e, c, false, (enum roost_cause)c->freeze_cause);
        if (error)
            roost_refuse(e, ROOST_OP_IDLE, c->token, c->id, &c->key, -error);
    }
}

int roost_link_end(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    if (c->link == ROOST_UNLINKED)
        return 0;
    if (c->client.eof || c->client.shut || c->client.pending)
        return -EBUSY;                 /* in the middle of something: bytes wait, or the end has begun */
    if (c->link == ROOST_CONNECTING) { /* what is pending for the server is no more than our own header */
        if (c->rx == 0 && !c->client.readable) {
            roost_link_drop(e, c, cause);
            return 0;
        }
        return -EBUSY; /* the client spoke and waits for this very link */
    }
    if (c->server.pending)
        return -EBUSY;
    if (c->link == ROOST_UNLINKING)
        return 0;
    shutdown(c->server.fd, SHUT_WR);
    c->server.shut = true;
    c->link = ROOST_UNLINKING;
    c->unlink_cause = (uint8_t)cause;
    c->link_deadline_ms = e->now_ms + UNLINK_MS;
    roost_conn_set_timer(e, c);
    roost_conn_run(e, c);
    return 0;
}

void roost_link_timer(struct roost_engine *e, struct roost_conn *c) {
    if (c->link == ROOST_CONNECTING) {
        if (e->now_ms >= c->link_deadline_ms) {
            e->stat[ROOST_E_LINK_FAILED]++;
            roost_conn_close(e, c, ROOST_C_SERVER_CLOSE, true);
        } else if (c->retry_ms && e->now_ms >= c->retry_ms) {
            attempt(e, c);
        } else {
            roost_conn_set_timer(e, c);
        }
    } else if (c->link == ROOST_UNLINKING) {
        int unread = 0;
        if (e->now_ms < c->link_deadline_ms) {
            roost_conn_set_timer(e, c);
        } else if (c->client.pending || (!ioctl(c->server.fd, SIOCINQ, &unread) && unread > 0)) {
            c->link_deadline_ms = e->now_ms + UNLINK_MS; /* acknowledged to the server, and the client is slow */
            roost_conn_set_timer(e, c);
            roost_conn_run(e, c);
        } else if (roost_link_unacknowledged(c) > 1) { /* more than our FIN */
            roost_conn_close(e, c, ROOST_C_SERVER_CLOSE, true);
        } else {
            roost_link_drop(e, c, (enum roost_cause)c->unlink_cause);
        }
    }
}

int roost_link_unacknowledged(const struct roost_conn *c) {
    int bytes = 0;
    return ioctl(c->server.fd, SIOCOUTQ, &bytes) ? 0 : bytes;
}

/* The server has ended and we have not: end it our side, and wait whether it takes what the client sent. */
void roost_link_settle(struct roost_engine *e, struct roost_conn *c) {
    c->link = ROOST_UNLINKING;
    c->unlink_cause = ROOST_C_SERVER_CLOSE;
    c->server.shut = true;
    shutdown(c->server.fd, SHUT_WR);
    c->link_deadline_ms = e->now_ms + UNLINK_MS;
    roost_conn_set_timer(e, c);
}
