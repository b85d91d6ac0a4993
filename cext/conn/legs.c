// SPDX-License-Identifier: Apache-2.0
/*
 * A leg: one of the two sockets of an awake connection, and what waits to be written to it. Watched by epoll under its
 * connection's address; a rebuilt client's under its descriptor, for as a spare socket it stays in the epoll instance
 * while no connection has it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conn.h"

#define KEEP_MAX_S 32767 /* what the kernel takes */
#define KEEP_MAX 127

void roost_leg_fresh(struct roost_leg *leg, int fd) {
    free(leg->pending);
    memset(leg, 0, sizeof(*leg));
    leg->fd = fd;
}

void roost_reset_fd(int fd) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

/* Explicitly out of epoll, which forgets a file only with its last descriptor: the control plane may hold a duplicate of an
 * attached server's, and a process that was forked just now one of each. */
void roost_leg_close(struct roost_engine *e, struct roost_leg *leg, bool reset) {
    if (leg->fd < 0)
        return;
    epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, leg->fd, NULL);
    roost_rebuilt_name(e, leg->fd, NULL);
    if (reset)
        roost_reset_fd(leg->fd);
    else
        close(leg->fd);
    leg->fd = -1;
}

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
            if (errno != EAGAIN) {
                roost_leg_failed(leg, errno);
                return -errno;
            }
            leg->writable = false;
            return -EAGAIN;
        }
        p->from += (uint32_t)n;
        if (p->from == p->to) {
            free(p);
            leg->pending = NULL;
        }
    }
    return 0;
}

void roost_leg_failed(struct roost_leg *leg, int error) {
    leg->lost |= error != ECONNRESET && error != EPIPE;
    if (!leg->error)
        leg->error = (uint8_t)error;
}

static void set(int fd, int level, int option, int value) {
    setsockopt(fd, level, option, &value,
               sizeof(value)); /* fails where it makes no sense: an attached server's may be no TCP */
}

/* The interval last: with it the kernel works out anew when the first one is due. */
void roost_leg_probe(struct roost_leg *leg, const struct roost_class *class) {
    leg->probed = class->awake_probe_s > 0;
    set(leg->fd, SOL_SOCKET, SO_KEEPALIVE, leg->probed);
    if (!leg->probed)
        return;
    set(leg->fd, IPPROTO_TCP, TCP_KEEPINTVL, class->probe_retry_s < KEEP_MAX_S ? class->probe_retry_s : KEEP_MAX_S);
    set(leg->fd, IPPROTO_TCP, TCP_KEEPCNT, class->probe_count < KEEP_MAX ? class->probe_count : KEEP_MAX);
    set(leg->fd, IPPROTO_TCP, TCP_KEEPIDLE, class->awake_probe_s < KEEP_MAX_S ? class->awake_probe_s : KEEP_MAX_S);
}

void roost_leg_acknowledge(const struct roost_leg *leg) {
    int one = 1;
    setsockopt(leg->fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof(one));
}

enum roost_moved roost_leg_send(struct roost_leg *leg, const uint8_t *data, uint32_t length, int flags) {
    ssize_t sent = 0;
    if (!leg->pending)
        sent = send(leg->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT | flags);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        roost_leg_failed(leg, errno);
        leg->refused = true; /* these bytes are acknowledged and went nowhere */
        return ROOST_SINK_BROKEN;
    }
    if (sent < 0)
        sent = 0;
    if ((uint32_t)sent == length)
        return ROOST_MOVED_ALL;
    leg->writable = false;
    if (roost_leg_queue(leg, data + sent, length - (uint32_t)sent))
        return ROOST_SINK_BROKEN; /* no memory: the bytes are acknowledged and cannot be kept; both ends learn it */
    return ROOST_BLOCKED;
}

/* A closed window: since then nothing was sent, probes of it are not counted. A far end that is silent: what is sent again
 * counts as sent, but by then the time-out has grown to as long as all that lies before. A FIN is no data: where it waits
 * alone, it may be of just now, and the time-out tells by itself. */
static uint64_t stuck_ms(const struct roost_leg *leg) {
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);
    int unacknowledged = 0;
    if (leg->fd < 0 ||
        getsockopt(leg->fd, IPPROTO_TCP, TCP_INFO, &info, &size)) /* none of TCP: the link's other end is the daemon */
        return 0;
    if (!(info.tcpi_unacked || info.tcpi_notsent_bytes))
        return 0;
    bool fin_alone = leg->shut && !ioctl(leg->fd, SIOCOUTQ, &unacknowledged) && unacknowledged <= 1;
    return (fin_alone ? 0 : info.tcpi_last_data_sent) + (info.tcpi_retransmits ? info.tcpi_rto / 1000 : 0);
}

uint64_t roost_conn_stuck_ms(const struct roost_conn *c) {
    if (c->phase != ROOST_LIVE)
        return 0;
    uint64_t client = stuck_ms(&c->client), server = c->link == ROOST_CONNECTING ? 0 : stuck_ms(&c->server);
    return client > server ? client : server;
}

static int watch(struct roost_engine *e, int op, int fd, struct roost_conn *c, bool server, uint32_t out) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET | out};
    event.data.u64 =
        !server && c->client.rebuilt ? TAG_REBUILT | (uint64_t)fd : (uint64_t)(uintptr_t)c | (server ? 1 : 0);
    return epoll_ctl(e->epoll_fd, op, fd, &event) ? -errno : 0;
}

int roost_watch(struct roost_engine *e, int fd, struct roost_conn *c, bool server) {
    return watch(e, EPOLL_CTL_ADD, fd, c, server, server ? EPOLLOUT : 0);
}

int roost_watch_blocked(struct roost_engine *e, struct roost_conn *c) {
    if (!c->client.pending || c->client.watched_out || c->client.fd < 0)
        return 0;
    int error = watch(e, EPOLL_CTL_MOD, c->client.fd, c, false, EPOLLOUT);
    c->client.watched_out = !error;
    return error;
}

int roost_rebuilt_reserve(struct roost_engine *e, int fd) {
    uint32_t size = e->rebuilt_size ? e->rebuilt_size : 1024;
    while (size <= (uint32_t)fd)
        size *= 2;
    if (size == e->rebuilt_size)
        return 0;
    struct roost_conn **more = realloc(e->rebuilt, size * sizeof(*more));
    if (!more)
        return -ENOMEM;
    memset(more + e->rebuilt_size, 0, (size - e->rebuilt_size) * sizeof(*more));
    e->rebuilt = more;
    e->rebuilt_size = size;
    return 0;
}

void roost_rebuilt_name(struct roost_engine *e, int fd, struct roost_conn *c) {
    if ((uint32_t)fd < e->rebuilt_size)
        e->rebuilt[fd] = c;
}

struct epoll_event roost_rebuilt_event(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET};
    event.data.u64 = TAG_REBUILT | (uint64_t)fd;
    return event;
}
