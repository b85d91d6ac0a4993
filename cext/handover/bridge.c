// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "bridge.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "cext/base/clock.h"
#include "cext/base/face.h"
#include "cext/base/priority.h"

#define READ_MAX (64 * 1024) /* as the engine reads at a time, and keeps for a slow reader */
#define READS_A_TURN 8       /* per direction; then the others have their turn */
#define EVENTS_A_TURN 64
#define WATCHED (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)

enum leg {
    CLIENT,
    SERVER
};

static void broken(struct roost_handed *h, enum leg which, int error) {
    struct roost_handed_leg *leg = &h->facts.leg[which];
    leg->broken = true;
    leg->lost |= error != ECONNRESET && error != EPIPE;
    if (!leg->error)
        leg->error = (uint8_t)error;
    h->facts.moves = false;
}

static struct roost_pending **pending_to(struct roost_handed *h, enum leg to) {
    return &h->bytes[to == CLIENT ? ROOST_HANDED_TO_CLIENT : ROOST_HANDED_TO_SERVER];
}

/* 0: all is sent; else an errno. */
static int flush(struct roost_handed *h, enum leg to) {
    struct roost_pending **pending = pending_to(h, to), *p;
    while ((p = *pending)) {
        ssize_t n = send(h->fd[to], p->data + p->from, p->to - p->from, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno;
        p->from += (uint32_t)n;
        if (p->from == p->to) {
            free(p);
            *pending = NULL;
        }
    }
    return 0;
}

/* What was read and not sent. False: no memory, and these bytes are acknowledged. */
static bool keep(struct roost_handed *h, enum leg to, const uint8_t *data, size_t length) {
    struct roost_pending *p = malloc(sizeof(*p) + length);
    if (!p)
        return false;
    p->from = 0;
    p->to = (uint32_t)length;
    memcpy(p->data, data, length);
    *pending_to(h, to) = p;
    return true;
}

static bool sent(struct roost_handed *h, enum leg to, const uint8_t *data, size_t length) {
    ssize_t n = send(h->fd[to], data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    int error = n < 0 ? errno : 0;
    size_t done = n < 0 ? 0 : (size_t)n;
    if (error && error != EAGAIN && error != EINTR) {
        h->facts.leg[to].refused = true;
        broken(h, to, error);
        return false;
    }
    if (done < length && !keep(h, to, data + done, length - done)) {
        h->facts.leg[to].refused = true;
        broken(h, to, ENOMEM);
        return false;
    }
    return done == length;
}

/* Asks for one more look at a leg that still has something to read. */
static void look_again(const struct roost_bridge *b, struct roost_handed *h, enum leg from) {
    struct epoll_event event = {.events = WATCHED, .data.ptr = h};
    epoll_ctl(b->epoll_fd, EPOLL_CTL_MOD, h->fd[from], &event);
}

static void move(struct roost_bridge *b, struct roost_handed *h, enum leg from) {
    const enum leg to = from == CLIENT ? SERVER : CLIENT;
    struct roost_handed_facts *f = &h->facts;
    for (int reads = 0; f->moves; reads++) {
        int error = flush(h, to);
        if (error == EINTR)
            continue;
        if (error) {
            if (error != EAGAIN)
                broken(h, to, error);
            return;
        }
        if (f->leg[SERVER].eof || f->leg[from].eof)
            return; /* a link that has ended must not swallow what the client says now */
        if (reads == READS_A_TURN) {
            look_again(b, h, from);
            return;
        }
        ssize_t n = recv(h->fd[from], b->room, READ_MAX, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            if (errno != EAGAIN)
                broken(h, from, errno);
            return;
        }
        if (!n) {
            f->leg[from].eof = true;
            return;
        }
        f->active_ms = roost_monotonic_ms();
        f->asked = from == CLIENT;
        f->bridged[from] += (uint64_t)n;
        *(from == CLIENT ? &f->rx : &f->tx) += (uint64_t)n;
        if (from == CLIENT)
            f->silent_ms = 0;
        if (!sent(h, to, b->room, (size_t)n))
            return;
    }
}

static void relay(struct roost_bridge *b, struct roost_handed *h) {
    struct roost_handed_leg *leg = h->facts.leg;
    if (!h->facts.moves)
        return;
    move(b, h, SERVER);
    move(b, h, CLIENT);
    if (h->facts.moves && leg[CLIENT].eof && !leg[SERVER].shut && !leg[SERVER].eof && !*pending_to(h, SERVER)) {
        shutdown(h->fd[SERVER], SHUT_WR);
        leg[SERVER].shut = true;
    }
}

static void *bridge_thread(void *context) {
    struct roost_bridge *b = context;
    struct epoll_event events[EVENTS_A_TURN];
    roost_run_first(false);
    for (;;) {
        int count = epoll_wait(b->epoll_fd, events, EVENTS_A_TURN, -1);
        for (int i = 0; i < count; i++) {
            if (!events[i].data.ptr)
                return NULL;
            relay(b, events[i].data.ptr);
        }
    }
}

/* ---- the C face ---- */

roost_bridge *roost_bridge_open(void) {
    struct roost_bridge *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->tail = &b->first;
    b->epoll_fd = b->stop_fd = -1;
    b->room = malloc(ROOST_HANDED_MAX);
    if (b->room)
        return b;
    free(b);
    return NULL;
}

void roost_bridge_add(struct roost_bridge *b, struct roost_handed *h) {
    h->next = NULL;
    *b->tail = h;
    b->tail = &h->next;
}

static void close_descriptors(struct roost_bridge *b) {
    if (b->epoll_fd >= 0)
        close(b->epoll_fd);
    if (b->stop_fd >= 0)
        close(b->stop_fd);
    b->epoll_fd = b->stop_fd = -1;
}

int roost_bridge_start(roost_bridge *b) {
    struct epoll_event event = {.events = EPOLLIN};
    sigset_t all, old;
    roost_bridge_stop(b);
    b->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    b->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error =
        b->epoll_fd < 0 || b->stop_fd < 0 || epoll_ctl(b->epoll_fd, EPOLL_CTL_ADD, b->stop_fd, &event) ? -errno : 0;
    for (struct roost_handed *h = b->first; h && !error; h = h->next) {
        struct epoll_event leg = {.events = WATCHED, .data.ptr = h};
        for (int i = 0; i < 2 && h->facts.moves && !error; i++)
            error = epoll_ctl(b->epoll_fd, EPOLL_CTL_ADD, h->fd[i], &leg) ? -errno : 0;
    }
    if (!error) {
        sigfillset(&all); /* signals are Python's */
        pthread_sigmask(SIG_SETMASK, &all, &old);
        error = -pthread_create(&b->thread, NULL, bridge_thread, b);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    b->running = !error;
    if (error)
        close_descriptors(b);
    return error;
}

void roost_bridge_stop(roost_bridge *b) {
    uint64_t one = 1;
    if (!b->running)
        return;
    if (write(b->stop_fd, &one, sizeof(one)) == sizeof(one))
        pthread_join(b->thread, NULL);
    b->running = false;
    close_descriptors(b);
}

int roost_bridge_receive(roost_bridge *b, int from, uint32_t *refused) {
    int error = 0, came = 0;
    roost_bridge_stop(b); /* which has the room */
    for (;;) {
        struct roost_handed *h = roost_handed_receive(from, b->room, &error);
        if (h) {
            roost_bridge_add(b, h);
            came++;
        } else if (error == -EPROTO) {
            ++*refused;
        } else {
            return error ? error : came;
        }
    }
}

int roost_bridge_send(roost_bridge *b, int to) {
    int error = 0, went = 0;
    struct roost_handed *h;
    while ((h = b->first)) {
        const bool wanted = h->fd[0] >= 0; /* else an engine has taken it, or it is forgotten */
        if (wanted && (error = roost_handed_send(to, h)))
            break;
        b->first = h->next;
        roost_handed_free(h);
        went += wanted;
    }
    if (!b->first)
        b->tail = &b->first;
    return error ? error : went;
}

uint32_t roost_bridge_count(const roost_bridge *b, int kind) {
    uint32_t count = 0;
    for (const struct roost_handed *h = b->first; h; h = h->next)
        count += h->facts.kind == kind && h->fd[0] >= 0;
    return count;
}

void roost_bridge_close(roost_bridge *b) {
    if (!b)
        return;
    roost_bridge_stop(b);
    while (b->first) {
        struct roost_handed *h = b->first;
        b->first = h->next;
        roost_handed_free(h);
    }
    free(b->room);
    free(b);
}

/* ---- its listening sockets ---- */

static bool is_transparent(int fd) {
    int on = 0;
    socklen_t size = sizeof(on);
    return (!getsockopt(fd, SOL_IPV6, IPV6_TRANSPARENT, &on, &size) && on) ||
           (!getsockopt(fd, SOL_IP, IP_TRANSPARENT, &on, &size) && on);
}

static bool listens_at(const struct roost_handed *h, uint16_t port, uint8_t ip[16]) {
    uint16_t its_port;
    return h->facts.kind == ROOST_HANDED_LISTENER && h->fd[0] >= 0 &&
           !roost_address_of_socket(h->fd[0], ip, &its_port) && its_port == port;
}

int roost_bridge_listener(struct roost_bridge *b, const uint8_t ip[16], uint16_t port, bool transparent) {
    uint8_t its[16];
    for (struct roost_handed *h = b->first; h; h = h->next) {
        if (h->taker || !listens_at(h, port, its) || memcmp(its, ip, sizeof(its)) ||
            is_transparent(h->fd[0]) != transparent)
            continue;
        int fd = fcntl(h->fd[0], F_DUPFD_CLOEXEC, 0);
        if (fd >= 0)
            h->taker = b;
        return fd;
    }
    return -1;
}

void roost_bridge_forget_listeners(struct roost_bridge *b, uint16_t port) {
    uint8_t its[16];
    for (struct roost_handed *h = b->first; h; h = h->next)
        if (listens_at(h, port, its)) {
            close(h->fd[0]);
            h->fd[0] = -1;
        }
}
