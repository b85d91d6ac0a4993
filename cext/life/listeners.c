// SPDX-License-Identifier: Apache-2.0
/* Services: listening, accepting, and holding back when descriptors or the control plane cannot follow. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "cext/handover/bridge.h"
#include "life.h"

#define ACCEPTS_A_TURN 128
#define CLOSE_ACCEPTS 4096 /* with the lock: some 50 ms */
#define ACCEPT_PAUSE_MS 50
#define FOR_WAKES 32 /* one of so many sockets is kept for those that wake */

/* The address that a client connected to; -errno. */
static int accepted_at(const struct roost_service *s, int fd, struct roost_key *key) {
    if (!roost_address_is_any(s->listen)) {
        memcpy(key->local, s->listen, sizeof(key->local));
        key->local_port = htons(s->listen_port);
        return 0;
    }
    return roost_address_of_socket(fd, key->local, &key->local_port);
}

/* The kernel holds back the ACK of what a new client says (roost_service_add). In a rush the answer may be the ACK, a
 * packet less for each client; else it goes at once. */
static void acknowledge_or_wait(struct roost_engine *e, struct roost_conn *c) {
    if (e->rush)
        roost_acknowledge_later(e, c);
    else
        roost_leg_acknowledge(&c->client);
}

bool roost_turns_away(const struct roost_listener *l) {
    return l->service.refuse_down && !l->service.by_daemon && !l->pool.as_accepted && !roost_pool_left(&l->pool, 0);
}

/* A connection with this socket, which is reset where that fails. dialled: it was not accepted. */
static struct roost_conn *take_in(struct roost_engine *e, int fd, const struct roost_key *key, uint16_t service,
                                  bool dialled) {
    struct roost_conn *c = roost_conn_new(e, key, e->next_id++, service, roost_class_for(e, key, service));
    if (c)
        c->client.rebuilt = dialled; /* likewise it is bound */
    if (!c || (dialled && roost_rebuilt_reserve(e, fd)) || roost_watch(e, fd, c, false)) {
        roost_reset_fd(fd);
        if (c)
            roost_conn_forget(e, c);
        return NULL;
    }
    if (dialled)
        roost_rebuilt_name(e, fd, c);
    c->client.fd = fd;
    c->client.writable = true; /* what there is to read, epoll says */
    return c;
}

/* Whether its source is no crowd (limits.h). */
static bool accept_one(struct roost_engine *e, struct roost_listener *l, int fd, const struct sockaddr_storage *peer) {
    const struct roost_service *s = &l->service;
    struct roost_key key;
    if (accepted_at(s, fd, &key)) {
        close(fd);
        return true;
    }
    roost_address_from(peer, key.client, &key.client_port);
    /* A service that answers for every server would have this machine for its server, and link to itself. */
    if (s->transparent && roost_address_is_any(s->listen) && roost_address_is_ours(key.local)) {
        roost_reset_fd(fd);
        return true;
    }
    if (!roost_limits_allow(e, ROOST_LIMIT_HANDSHAKES, s, key.client) || !roost_limits_have_room(e, s, key.client)) {
        roost_reset_fd(fd);
        return false;
    }
    if (roost_turns_away(l)) {
        e->stat[ROOST_E_CLIENTS_REFUSED]++;
        roost_reset_fd(fd);
        return true;
    }
    if (roost_class_of(e, roost_class_for(e, &key, s->index))->refuses) {
        e->stat[ROOST_E_CLIENTS_DENIED]++;
        roost_reset_fd(fd);
        return true;
    }
    struct roost_conn *c = take_in(e, fd, &key, l->service.index, false);
    if (!c)
        return true;
    c->crowds = roost_limits_crowds(e, ROOST_LIMIT_HANDSHAKES, s, key.client);
    e->crowd_accepted += c->crowds;
    acknowledge_or_wait(e, c);
    e->stat[ROOST_E_ACCEPTED]++;
    roost_link_start(e, c, ROOST_C_CLIENT_CONNECT);
    return !c->crowds;
}

static bool has_room(const struct roost_engine *e) {
    return e->awake < e->max_awake - e->max_awake / FOR_WAKES;
}

int roost_adopt(struct roost_engine *e, const struct roost_command *command) {
    const struct roost_key *key = &command->record.key;
    const struct roost_service *s = roost_service_of(e, (uint16_t)command->count);
    int error = !s->index ? ENOENT : roost_whose(e, key).by != ROOST_BY_NONE ? EEXIST : !has_room(e) ? EMFILE : 0;
    struct roost_conn *c = error ? NULL : take_in(e, command->fd, key, s->index, true);
    if (error)
        roost_reset_fd(command->fd);
    if (!c)
        return error ? error : ENOMEM;
    c->token = command->token;
    roost_conn_transition(e, c, ROOST_ST_STANDBY, ROOST_C_SERVER_ATTACH);
    roost_conn_run(e, c);
    e->servers_retry_ms = 0; /* those that wait for it are tried at once */
    return 0;
}

/* No room: new clients wait in the listen queue, which costs them nothing but time. */
void roost_accept_pause(struct roost_engine *e) {
    for (int i = 0; i < e->listeners; i++)
        if (!e->listener[i].paused && e->listener[i].fd >= 0 &&
            !epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, e->listener[i].fd, NULL))
            e->listener[i].paused = true;
    for (int i = 0; i < ROOST_DOORS; i++)
        if (e->door[i] >= 0)
            epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, e->door[i], NULL);
    e->accept_resume_ms = e->now_ms + ACCEPT_PAUSE_MS;
    e->stat[ROOST_E_ACCEPT_PAUSED]++;
    roost_tell_pressure(e);
}

void roost_accept_resume(struct roost_engine *e) {
    if (!e->accept_resume_ms || e->now_ms < e->accept_resume_ms)
        return;
    e->accept_resume_ms = 0;
    for (int i = 0; i < e->listeners; i++)
        if (e->listener[i].paused && !roost_watch_plain(e, e->listener[i].fd, TAG_LISTENER + (uint64_t)i))
            e->listener[i].paused = false;
    for (int i = 0; i < ROOST_DOORS; i++)
        if (e->door[i] >= 0)
            roost_watch_plain(e, e->door[i], TAG_DOOR + (uint64_t)i); /* there already: as good */
}

/* At most so many; fair: and none behind one of a crowd. Whether none waits any more. */
static bool accept_waiting(struct roost_engine *e, struct roost_listener *l, int most, bool fair) {
    for (int i = 0; i < most && !l->paused && l->fd >= 0; i++) {
        struct sockaddr_storage peer;
        socklen_t size = sizeof(peer);
        if (!has_room(e) || roost_mailbox_crowded(&e->box)) {
            roost_accept_pause(e);
            return false;
        }
        int fd = accept4(l->fd, (struct sockaddr *)&peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0 && !accept_one(e, l, fd, &peer) && fair)
            return false;
        if (fd >= 0)
            continue;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            roost_accept_pause(e);
        else if (errno == EAGAIN)
            return true;
        /* else: that client has gone already (ECONNABORTED and the like) */
    }
    return false;
}

void roost_accept_turn(struct roost_engine *e, struct roost_listener *l) {
    if (accept_waiting(e, l, ACCEPTS_A_TURN, true))
        return;
    if (!e->pressure_told && e->awake > roost_room_without_pressure(e))
        roost_tell_pressure(e);
}

static int listen_at(const uint8_t ip[16], uint16_t port, bool transparent) {
    struct sockaddr_storage address;
    int one = 1, fd = roost_socket_for(ip, transparent); /* its options are inherited by what it accepts */
    socklen_t size = roost_address_to(ip, htons(port), &address);
    if (fd < 0)
        return fd;
    if (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
        !setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) && !bind(fd, (struct sockaddr *)&address, size) &&
        !listen(fd, 65535))
        return fd;
    int error = -errno;
    close(fd);
    return error;
}

int roost_listen(struct roost_engine *e, const uint8_t ip[16], uint16_t port, bool transparent,
                 struct roost_reason *why) {
    int fd = e->bridge && port ? roost_bridge_listener(e->bridge, ip, htons(port), transparent) : -1;
    if (fd >= 0)
        return fd;
    fd = listen_at(ip, port, transparent);
    if (fd == -EADDRINUSE && e->bridge) { /* of the daemon before, at another address */
        roost_bridge_forget_listeners(e->bridge, htons(port));
        fd = listen_at(ip, port, transparent);
    }
    return fd >= 0 ? fd : roost_complain(why, fd, "cannot listen on port %u: %m", port);
}

/* For a service that begins: one of its own that was closed, or a new one; NULL: there is no place. */
static struct roost_listener *listener_for(struct roost_engine *e, uint16_t service) {
    for (int i = 0; i < e->listeners; i++)
        if (e->listener[i].service.index == service && e->listener[i].fd < 0)
            return &e->listener[i];
    return e->listeners < ROOST_MAX_SERVICES ? &e->listener[e->listeners] : NULL;
}

int roost_service_add(roost_engine *e, const struct roost_service *service, struct roost_reason *why) {
    size_t places = sizeof(e->by_index) / sizeof(e->by_index[0]);
    if (!listener_for(e, service->index) || service->index == 0 || service->index >= places)
        return roost_complain(
            why, ENOSPC,
            "no number is left for it: there are %zu, and every name that a service has had keeps its own, "
            "which the history has; give it the name of one that is gone",
            places - 1);
    int fd = roost_listen(e, service->listen, service->listen_port, service->transparent, why);
    if (fd < 0)
        return fd;
    int zero = 0; /* inherited as well: see acknowledge_or_wait */
    setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &zero, sizeof(zero));
    int managed = service->transparent ? roost_router_manage(e, service, why) : 0;
    if (managed) {
        close(fd);
        return managed;
    }
    roost_lock(e);
    struct roost_listener *l = listener_for(e, service->index);
    struct roost_listener *first = e->by_index[service->index];
    l->service = *service;
    l->fd = fd;
    roost_class_change(e, service);
    int error = roost_pool_set(&l->pool, service);
    if (!error && (!first || first == l))
        error = roost_ready_links_set(&l->ready, service);
    if (!error)
        error = roost_watch_plain(e, fd, TAG_LISTENER + (uint64_t)(l - e->listener));
    if (!error)
        error = roost_limits_tell(e, service);
    if (!error)
        error = roost_births_tell(e, service);
    if (!error) {
        e->listeners += l == &e->listener[e->listeners];
        if (!first)
            e->by_index[service->index] = l;
    } else {
        roost_limits_forget(e, service);
        close(fd);
        l->fd = -1;
        roost_ready_links_close(&l->ready);
    }
    roost_unlock(e);
    return error;
}

int roost_service_close(roost_engine *e, uint16_t service) {
    int error = -ENOENT;
    roost_lock(e);
    e->now_ms = roost_monotonic_ms();
    for (int i = 0; i < e->listeners; i++) {
        struct roost_listener *l = &e->listener[i];
        if (l->service.index != service)
            continue;
        error = 0;
        if (l->fd < 0)
            continue;
        if (!accept_waiting(e, l, CLOSE_ACCEPTS, false)) {
            error = -EAGAIN;
            break;
        }
        l->service.fail_closed = 0;
        if (l->service.transparent && (error = roost_router_manage(e, &l->service, NULL)))
            break;
        close(l->fd); /* epoll forgets it with its last descriptor */
        l->fd = -1;
        roost_ready_links_close(&l->ready);
        roost_births_tell(e, &l->service);
        roost_limits_forget(e, &l->service);
    }
    roost_unlock(e);
    return error;
}

int roost_service_update(roost_engine *e, const struct roost_service *service) {
    int error = -ENOENT;
    roost_lock(e);
    for (int i = 0; i < e->listeners; i++) {
        struct roost_service *s = &e->listener[i].service;
        if (s->index != service->index)
            continue;
        error = roost_pool_set(&e->listener[i].pool, service);
        if (!error && e->by_index[service->index] == &e->listener[i] && e->listener[i].fd >= 0)
            error = roost_ready_links_set(&e->listener[i].ready, service);
        if (error)
            break;
        struct roost_service fresh = *service;
        memcpy(fresh.listen, s->listen, sizeof(fresh.listen));
        fresh.listen_port = s->listen_port;
        *s = fresh;
        roost_class_change(e, s);
        if (e->listener[i].fd >= 0) /* else another service may have its place */
            error = roost_limits_tell(e, s);
        if (!error)
            error = roost_births_tell(e, s);
    }
    roost_unlock(e);
    return error;
}

int roost_server_mark(roost_engine *e, uint16_t service, const struct roost_server *server, int up) {
    roost_lock(e);
    struct roost_pool *pool = roost_pool_of(e, service);
    int place = pool ? roost_pool_find(pool, server) : ROOST_NO_PLACE;
    if (place != ROOST_NO_PLACE)
        roost_pool_mark(pool, place, up);
    roost_births_servers(e, service);
    roost_unlock(e);
    return place == ROOST_NO_PLACE ? -ENOENT : 0;
}

int roost_servers_read(roost_engine *e, uint16_t service, struct roost_server_status *status, uint32_t max) {
    roost_lock(e);
    const struct roost_pool *pool = roost_pool_of(e, service);
    int count = pool ? roost_pool_read(pool, status, max) : -ENOENT;
    for (int i = 0; i < count; i++)
        status[i].ready = roost_ready_links_made(&e->by_index[service]->ready, &status[i].server);
    roost_unlock(e);
    return count;
}

void roost_stop_listening(roost_engine *e) {
    roost_lock(e);
    for (int i = 0; i < e->listeners; i++) {
        if (e->listener[i].fd >= 0)
            close(e->listener[i].fd); /* epoll forgets it with its last descriptor */
        e->listener[i].fd = -1;
        e->listener[i].paused = false;
        roost_ready_links_close(&e->listener[i].ready);
    }
    roost_datapath_close_local_connect(&e->path); /* first: nothing is sent to a door that is closed */
    for (int i = 0; i < ROOST_DOORS; i++) {
        if (e->door[i] >= 0)
            close(e->door[i]);
        e->door[i] = -1;
    }
    e->accept_resume_ms = 0;
    e->bears_none = true;
    roost_births_close(e);
    roost_unlock(e);
}
