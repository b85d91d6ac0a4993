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
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"
#include "cext/base/address.h"
#include "cext/socket/connect.h"
#include "cext/socket/proxy_header.h"

#define RETRY_MS 200
#define LEAST_SHARE_MS 500 /* for a server to answer, where others wait for their turn */
#define UNLINK_MS 1000
#define TEND_MS 10
#define TENDS_A_TURN 16

struct roost_pool *roost_pool_of(struct roost_engine *e, uint16_t service) {
    size_t places = sizeof(e->by_index) / sizeof(e->by_index[0]);
    return service < places && e->by_index[service] ? &e->by_index[service]->pool : NULL;
}

/* Whether the handshake with a server is ended by the client's first bytes only: two packets less, and a wake-up of the
 * server. Not while a client's socket is rebuilt and this thread has nothing else to do: then the server begins
 * meanwhile, on another processor or machine, and its first answer arrives 35 us sooner. */
static bool holds_greeting(const struct roost_engine *e, const struct roost_conn *c) {
    return c->phase == ROOST_LIVE || e->rush || e->wakes;
}

/* The daemon's end of a link to it goes to *theirs: a socketpair has no address by which anything else could pass for a link. */
static int connect_to(struct roost_engine *e, const struct roost_service *s, const struct roost_key *key,
                      const struct roost_server *to, bool held, int *theirs) {
    if (s->by_daemon) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends))
            return -errno;
        *theirs = ends[1];
        return ends[0];
    }
    if (!s->as_client)
        return s->persistent ? roost_ports_connect(e, s, to, held) : roost_connect(to, held, roost_source(s, to), 0);
    int fd = roost_connect(to, held, key->client, key->client_port);
    /* The port is taken while an earlier link of the client is in TIME-WAIT and its server has no timestamps: the server
     * then sees the client's address with another port. */
    return fd == -EADDRNOTAVAIL || fd == -EADDRINUSE ? roost_connect(to, held, key->client, 0) : fd;
}

/* What the server is told about the client before its first byte. */
static int introduce(const struct roost_service *s, struct roost_conn *c) {
    uint8_t header[ROOST_PROXY_HEADER_MAX];
    if (!s->proxy_header)
        return 0;
    return roost_leg_queue(&c->server, header, roost_proxy_header(&c->key, s->proxy_header, header));
}

static void tell_link(struct roost_engine *e, const struct roost_conn *c, int theirs) {
    struct roost_event event;
    roost_event_of_conn(e, c, &event);
    event.type = ROOST_EV_LINK;
    event.count = (uint32_t)theirs;
    roost_mailbox_post(&e->box, &event);
}

static void linked(struct roost_engine *e, struct roost_conn *c) {
    c->link = ROOST_LINKED;
    c->retry_ms = 0;
    c->server.writable = true; /* what there is to read, the event has said or the next one will */
    e->stat[ROOST_E_LINKED]++;
    roost_conn_touch(e, c);
    roost_wheel_cancel(&e->wheel, &c->timer); /* of the attempt */
    roost_conn_run(e, c);
}

static void is_made(struct roost_engine *e, struct roost_conn *c) {
    if (c->place)
        roost_pool_linked(roost_pool_of(e, c->service), c->place - 1);
    linked(e, c);
}

/* Begins a link to this server, or takes one that is ready: 0 or -errno. */
static int begin(struct roost_engine *e, struct roost_conn *c, const struct roost_server *to) {
    const struct roost_service *s = roost_service_of(e, c->service);
    int theirs = -1, fd = c->place ? roost_ready_links_take(&e->by_index[c->service]->ready, to) : -1;
    const bool ready = fd >= 0, held = !ready && holds_greeting(e, c);
    if (!ready)
        fd = connect_to(e, s, &c->key, to, held, &theirs);
    if (fd < 0)
        return fd;
    roost_leg_fresh(&c->server, fd);
    c->server.turn = e->turn;
    c->server.greeting = held ? ROOST_GREETING_HELD : ROOST_GREETING_SENT;
    if (!introduce(s, c) && !roost_watch(e, fd, c, true)) {
        if (theirs >= 0)
            tell_link(e, c, theirs);
        if (ready) {
            roost_pool_given(roost_pool_of(e, c->service), c->place - 1);
            linked(e, c);
        }
        return 0;
    }
    close(fd);
    if (theirs >= 0)
        close(theirs);
    roost_leg_fresh(&c->server, -1);
    return -ENOMEM;
}

/* Ours, not the server's: another server would not change it. */
static bool our_fault(int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS || error == EADDRNOTAVAIL ||
           error == EADDRINUSE;
}

static void leave_server(struct roost_engine *e, struct roost_conn *c) {
    struct roost_pool *pool = roost_pool_of(e, c->service);
    if (c->place && pool)
        roost_pool_leave(pool, c->place - 1);
    c->place = 0;
}

/* A link could not be made: another server will be tried, and this one is down when that was one time too many. */
static void blame_server(struct roost_engine *e, struct roost_conn *c, int error) {
    struct roost_pool *pool = roost_pool_of(e, c->service);
    c->server.error = (uint8_t)error;
    if (!pool || !c->place)
        return;
    int place = c->place - 1;
    c->tried |= 1ULL << place;
    if (roost_pool_failed(pool, place)) {
        roost_births_servers(e, c->service);
        struct roost_event event;
        roost_event_of_conn(e, c, &event);
        event.type = ROOST_EV_SERVER_DOWN;
        event.error = error;
        event.count = pool->place[place].failed_in_row;
        memcpy(event.record.key.local, pool->place[place].server.address, sizeof(event.record.key.local));
        event.record.key.local_port = htons(pool->place[place].server.port);
        roost_mailbox_post(&e->box, &event);
    }
    leave_server(e, c);
}

/* The server that the pool chooses, or whose address the client connected to. False: there is none to try now. */
static bool choose(struct roost_engine *e, struct roost_conn *c, struct roost_server *to) {
    struct roost_pool *pool = roost_pool_of(e, c->service);
    if (!pool || pool->as_accepted) {
        memcpy(to->address, c->key.local, sizeof(to->address));
        to->port = ntohs(c->key.local_port);
        return true;
    }
    int place = roost_pool_choose(pool, c->key.client, c->tried);
    if (place == ROOST_NO_PLACE)
        return false;
    roost_pool_enter(pool, place);
    c->place = (uint8_t)(place + 1);
    *to = pool->place[place].server;
    return true;
}

/* One server after the other, until one takes the link or all that are up were tried; then again after a while. */
static void attempt(struct roost_engine *e, struct roost_conn *c) {
    struct roost_pool *pool = roost_pool_of(e, c->service);
    struct roost_server to;
    int error = -ECONNREFUSED;
    while (error && choose(e, c, &to)) {
        if (!roost_service_of(e, c->service)->by_daemon)
            c->linked_to = to;
        error = begin(e, c, &to);
        if (!error)
            break;
        if (our_fault(-error) || !c->place) {
            leave_server(e, c);
            break;
        }
        blame_server(e, c, -error);
    }
    c->retry_ms = 0;
    if (error == -EMFILE || error == -ENFILE) { /* our fault, not the server's: it does not count */
        roost_tell_pressure(e);
        c->link_deadline_ms += RETRY_MS;
    }
    if (error) {
        c->tried = 0;
        c->retry_ms = e->now_ms + RETRY_MS;
    } else if (c->link == ROOST_CONNECTING && c->place &&
               e->now_ms < c->link_deadline_ms) { /* a silent server leaves the others their share */
        uint32_t others = roost_pool_left(pool, c->tried | 1ULL << (c->place - 1));
        uint64_t share = (c->link_deadline_ms - e->now_ms) / (others + 1);
        if (others && share >= LEAST_SHARE_MS)
            c->retry_ms = e->now_ms + share;
    }
    roost_conn_run(e, c); /* for its timer */
}

/* It did not take the link: the next one's turn. */
static void try_another(struct roost_engine *e, struct roost_conn *c, int error) {
    roost_leg_close(e, &c->server, false);
    blame_server(e, c, error);
    attempt(e, c);
}

void roost_link_open(struct roost_engine *e, struct roost_conn *c) {
    const struct roost_service *s = roost_service_of(e, c->service);
    c->link = ROOST_CONNECTING;
    c->linked_to = (struct roost_server){0};
    c->server.error = 0;
    c->tried = 0;
    c->link_deadline_ms = e->now_ms + (s->connect_timeout_ms ? s->connect_timeout_ms : 10000);
    attempt(e, c);
}

void roost_link_start(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    if (c->state != ROOST_ST_ACTIVE)
        roost_conn_transition(e, c, ROOST_ST_ACTIVE, cause);
    roost_link_open(e, c);
}

void roost_link_abandon(struct roost_engine *e, struct roost_conn *c) {
    const uint8_t error = c->server.error; /* the transition that follows tells it */
    roost_leg_close(e, &c->server, false);
    roost_leg_fresh(&c->server, -1);
    c->server.error = error;
    leave_server(e, c);
    c->link = ROOST_UNLINKED;
    c->retry_ms = 0;
    roost_waiting_served(e, c, false);
}

void roost_link_resumed(struct roost_engine *e, struct roost_conn *c) {
    struct roost_pool *pool = c->attached ? NULL : roost_pool_of(e, c->service);
    c->linked_to.port = ntohs(c->server_key.client_port);
    memcpy(c->linked_to.address, c->server_key.client, sizeof(c->linked_to.address));
    int place = pool ? roost_pool_find(pool, &c->linked_to) : ROOST_NO_PLACE;
    if (place == ROOST_NO_PLACE)
        return; /* it came by itself, or has left the configuration */
    roost_pool_enter(pool, place);
    c->place = (uint8_t)(place + 1);
}

/* None of them lasts longer than ready_ms, and they do not end all at once. */
static uint32_t lifetime_ms(const struct roost_listener *l, uint32_t i) {
    return l->service.ready_ms - (uint32_t)((uint64_t)l->service.ready_ms * i / (2 * l->ready.count));
}

/* Not while others wait for this thread; and some at a time: a connection takes it 30 us. Where sockets are short, there are
 * none. */
void roost_ready_turn(struct roost_engine *e) {
    if (e->now_ms < e->tended_ms + TEND_MS || e->rush || e->wakes || e->accept_resume_ms)
        return;
    e->tended_ms = e->now_ms;
    uint32_t left = TENDS_A_TURN;
    for (int n = 0; n < e->listeners && left; n++) {
        struct roost_listener *l = &e->listener[e->tended++ % (uint32_t)e->listeners];
        for (uint32_t looks = 0; looks < l->ready.count && left; looks++, left--) {
            uint32_t i = l->ready.next++ % l->ready.count;
            struct roost_ready_link *link = &l->ready.link[i];
            bool wanted = !e->pressure_told && roost_pool_is_up(&l->pool, &link->to);
            roost_ready_link_tend(link, wanted, roost_source(&l->service, &link->to), lifetime_ms(l, i), e->now_ms);
        }
    }
}

void roost_links_turn(struct roost_engine *e) {
    for (struct roost_conn *c = e->dead; c; c = c->next_dead)
        leave_server(e, c);
}

/* True if the link is made; one that was made and is reset already ends as a link. */
static bool made(struct roost_engine *e, struct roost_conn *c, uint32_t events) {
    int error = 0;
    socklen_t error_size = sizeof(error);
    if (!(events & (EPOLLERR | EPOLLHUP)))
        return events & EPOLLOUT;
    if (roost_is_connected(c->server.fd))
        return true;
    getsockopt(c->server.fd, SOL_SOCKET, SO_ERROR, &error, &error_size);
    if (error)
        try_another(e, c, error);
    return false;
}

void roost_link_event(struct roost_engine *e, struct roost_conn *c, uint32_t events) {
    if (made(e, c, events))
        is_made(e, c);
}

/* An attached server; none where the descriptor is one of the daemon's own. */
static void name_peer(struct roost_conn *c) {
    uint16_t port = 0;
    c->linked_to = (struct roost_server){0};
    if (!roost_address_of_peer(c->server.fd, c->linked_to.address, &port))
        c->linked_to.port = ntohs(port);
}

void roost_link_attach(struct roost_engine *e, struct roost_conn *c) {
    struct roost_waiting *w = c->server_waits;
    const struct roost_command *command = &w->command;
    int fd = command->fd, one = 1;
    roost_leg_fresh(&c->server, fd);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
    if ((command->preamble_len &&
         roost_leg_queue(&c->server, (const uint8_t *)command->preamble, command->preamble_len)) ||
        (command->early_len && roost_inband_early(e, c, command->early, command->early_len)) ||
        roost_watch(e, fd, c, true)) {
        roost_leg_fresh(&c->server, -1);
        roost_conn_refuse_server(e, c, ENOMEM);
        return;
    }
    c->link = ROOST_LINKED;
    name_peer(c);
    c->attached = true;
    c->server.readable = c->server.writable = true;
    e->stat[ROOST_E_LINKED]++;
    roost_conn_touch(e, c);
    c->token = command->token;
    c->server_waits = NULL;
    roost_waiting_linked(e, c, w);
    roost_conn_transition(e, c, ROOST_ST_ACTIVE, ROOST_C_SERVER_ATTACH);
}

void roost_link_drop(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    if (roost_inband_unlinked(e, c)) {
        roost_conn_end(e, c, ROOST_C_SERVER_CLOSE, true); /* what the server said cannot be kept */
        return;
    }
    roost_link_abandon(e, c);
    c->attached = false;
    if (c->state != ROOST_ST_STANDBY)
        roost_conn_transition(e, c, ROOST_ST_STANDBY, cause);
    c->sinks = cause == ROOST_C_SERVER_CLOSE;
}

static void begin_unlinking(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    c->server.shut = true;
    c->link = ROOST_UNLINKING;
    c->unlink_cause = (uint8_t)cause;
    c->link_deadline_ms = e->now_ms + UNLINK_MS;
    roost_conn_run(e, c);
}

/* A link that is being made is not wanted any more. False: it is made already, and only the event is still to come. Then
 * it ends like any other, for the server may have spoken, and what it says is acknowledged. */
static bool give_up(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    if (roost_is_connected(c->server.fd)) {
        is_made(e, c);
        return false;
    }
    if (roost_connect_undo(c->server.fd)) {
        roost_link_drop(e, c, cause);
        roost_conn_run(e, c);
        return true;
    }
    free(c->server.pending); /* our header, which is not sent any more */
    c->server.pending = NULL;
    c->retry_ms = 0;
    if (c->place)
        roost_pool_linked(roost_pool_of(e, c->service), c->place - 1);
    begin_unlinking(e, c, cause);
    return true;
}

/* Its server's socket is about to be another's, without what was set for this one. */
static void pass_on_leg(struct roost_engine *e, struct roost_conn *c) {
    epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, c->server.fd, NULL);
    if (c->server.probed)
        roost_leg_probe(&c->server, roost_class_of(e, ROOST_CLASS_NONE));
}

/* Leaves the link to the next client, where the service has places for such: its server has answered this one, and is not
 * saying anything. */
static bool leave_link(struct roost_engine *e, struct roost_conn *c) {
    const int fd = c->server.fd;
    int unread = 0;
    if (!c->place || c->attached || c->asked || c->server.eof || c->server.ends || c->client.pending ||
        roost_link_unacknowledged(c) || ioctl(fd, SIOCINQ, &unread) || unread)
        return false;
    if (!roost_ready_links_leave(&e->by_index[c->service]->ready, &c->linked_to, fd, e->now_ms))
        return false;
    pass_on_leg(e, c);
    c->server.fd = -1;
    e->stat[ROOST_E_LINKS_LEFT]++;
    return true;
}

static int end(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    if (c->link == ROOST_UNLINKED)
        return 0;
    if (c->client.eof || c->client.shut)
        return -EBUSY;                 /* the end of it all has begun */
    if (c->link == ROOST_CONNECTING) { /* what is pending for the server is no more than our own header */
        if (c->rx || c->client.readable || roost_inband_wants_link(c))
            return -EBUSY; /* the client spoke and waits for this very link */
        if (give_up(e, c, cause))
            return 0;
    }
    if (c->server.pending || roost_inband_unfinished(c))
        return -EBUSY;
    if (c->link == ROOST_UNLINKING)
        return 0;
    if (leave_link(e, c)) {
        roost_link_drop(e, c, cause);
        roost_conn_run(e, c);
        return 0;
    }
    shutdown(c->server.fd, SHUT_WR);
    begin_unlinking(e, c, cause);
    return 0;
}

int roost_link_end(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    return c->link != ROOST_UNLINKED && c->client.pending ? -EBUSY : end(e, c, cause); /* in the middle of something */
}

static void tell_released(struct roost_engine *e, const struct roost_conn *c) {
    struct roost_event event;
    roost_event_of_conn(e, c, &event);
    event.type = ROOST_EV_RELEASED;
    event.count = (uint32_t)c->server.fd;
    roost_mailbox_post(&e->box, &event);
}

/* What the server says next is a request for another client: it must not have been read here. */
int roost_link_release(struct roost_engine *e, struct roost_conn *c, bool late) {
    const bool ahead = roost_inband_has_rest(c), unsent = c->client.pending || c->server.pending;
    if (unsent && !late && !ahead)
        return -EBUSY;
    if (unsent || ahead) {
        roost_inband_forget_rest(c);
        if (c->server.pending || c->asked) { /* what the client has said may be lost */
            roost_conn_end(e, c, ROOST_C_SERVER_CLOSE, true);
            return 0;
        }
        roost_leg_close(e, &c->server, true);
    } else {
        pass_on_leg(e, c);
        tell_released(e, c);
        c->server.fd = -1;
    }
    roost_link_drop(e, c, ROOST_C_COMMAND);
    roost_conn_run(e, c);
    return 0;
}

int roost_link_yield(struct roost_engine *e, struct roost_conn *c) {
    if (c->phase != ROOST_LIVE || roost_inband_releases(c)) /* whose server may speak to another one already */
        return -EBUSY;
    c->want_freeze = false;
    /* What the client has said was not read yet. */
    bool over = c->link == ROOST_CONNECTING && give_up(e, c, ROOST_C_SERVER_ATTACH);
    return over ? 0 : end(e, c, ROOST_C_SERVER_ATTACH);
}

void roost_link_timer(struct roost_engine *e, struct roost_conn *c) {
    if (c->link == ROOST_CONNECTING) {
        if (e->now_ms >= c->link_deadline_ms) {
            e->stat[ROOST_E_LINK_FAILED]++;
            blame_server(e, c, c->server.fd < 0 && c->server.error ? c->server.error : ETIMEDOUT);
            roost_conn_end(e, c, ROOST_C_SERVER_CLOSE, true);
        } else if (c->retry_ms && e->now_ms >= c->retry_ms) {
            if (c->server.fd >= 0)
                try_another(e, c, ETIMEDOUT);
            else
                attempt(e, c);
        }
    } else if (c->link == ROOST_UNLINKING && e->now_ms >= c->link_deadline_ms) {
        int unread = 0;
        const bool untaken = roost_link_unacknowledged(c) > 1; /* more than our FIN */
        if (c->client.pending || (!ioctl(c->server.fd, SIOCINQ, &unread) && unread > 0) ||
            (untaken && !c->server.eof)) {
            if (c->server_waits && e->now_ms >= c->server_waits->until_ms)
                roost_conn_refuse_server(e, c, EBUSY);
            /* What is acknowledged to one end is the other one's to take, for as long as write_timeout says. */
            c->link_deadline_ms = e->now_ms + UNLINK_MS;
            roost_conn_run(e, c);
        } else if (untaken) {
            roost_conn_end(e, c, ROOST_C_SERVER_CLOSE, true);
        } else {
            roost_link_drop(e, c, (enum roost_cause)c->unlink_cause);
            roost_conn_run(e, c);
        }
    }
}

int roost_link_unacknowledged(const struct roost_conn *c) {
    int bytes = 0;
    return ioctl(c->server.fd, SIOCOUTQ, &bytes) ? 0 : bytes;
}

/* The server has ended and we have not: end it our side, and wait whether it takes what the client sent. */
void roost_link_settle(struct roost_engine *e, struct roost_conn *c) {
    shutdown(c->server.fd, SHUT_WR);
    begin_unlinking(e, c, ROOST_C_SERVER_CLOSE);
}
