// SPDX-License-Identifier: Apache-2.0
/*
 * A router's part: which packets are answered for others (ebpf/tc/steer.bpf.c decides by what is told it here), and the
 * doors. A server that connects to a client's address finds itself accepted by a door, with the client's address as the
 * socket's own; it is then linked to the connection which that client has.
 *
 * The doors listen on loopback, where nobody outside can reach them: only steering hands them packets.
 */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ebpf/shared/steer.h"
#include "cext/base/address.h"
#include "cext/internal.h"

#define ACCEPTS_A_TURN 128

/* Of what an earlier engine left asleep. */
static int count_hosts(struct roost_engine *e) {
    struct roost_key key;
    const struct roost_ka *slot;
    int error = roost_hosts_open(&e->hosts, e->table.config.seed);
    for (uint64_t p = 0; p < roost_table_positions(&e->table) && !error; p++)
        if ((slot = roost_table_at(&e->table, p, &key)) && !(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER))
            roost_hosts_add(&e->hosts, &key);
    return error;
}

int roost_router_open(struct roost_engine *e, uint32_t wait_ms, char *err, uint32_t err_len) {
    static const uint8_t loopback[ROOST_DOORS][16] = {
        [ROOST_DOOR_IPV4] = {[10] = 0xff, [11] = 0xff, 127, 0, 0, 1}, [ROOST_DOOR_IPV6] = {[15] = 1}};
    e->server_wait_ms = wait_ms;
    int error = roost_datapath_steer(&e->path, err, err_len);
    int doors = error ? -1 : roost_datapath_steer_map(&e->path, "doors");
    for (uint32_t i = 0; i < ROOST_DOORS && !error; i++) {
        int fd = roost_listen(loopback[i], 0, true, err, err_len);
        if (i == ROOST_DOOR_IPV6 && (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL))
            continue; /* this machine has no IPv6 */
        if (fd < 0)
            return fd;
        e->door[i] = fd;
        uint64_t value = (uint64_t)fd;
        error = bpf_map_update_elem(doors, &i, &value, BPF_ANY) ? -errno : roost_watch_plain(e, fd, TAG_DOOR + i);
        if (error)
            snprintf(err, err_len, "cannot open the door for servers: %s", strerror(-error));
    }
    return error ? error : count_hosts(e);
}

uint32_t roost_router_mark(uint32_t *mask) {
    *mask = ROOST_MARK_MASK;
    return ROOST_MARK;
}

int roost_router_manage(struct roost_engine *e, const struct roost_service *service, char *err, uint32_t err_len) {
    struct roost_managed_key key = {.port = htons(service->listen_port)};
    struct roost_managed value = {.fail_closed = service->fail_closed};
    memcpy(key.address, service->listen, sizeof(key.address));
    if (!e->path.steer) {
        snprintf(err, err_len, "service %u is transparent, and this is no router", service->index);
        return -EINVAL;
    }
    if (!bpf_map_update_elem(roost_datapath_steer_map(&e->path, "managed"), &key, &value, BPF_ANY))
        return 0;
    int error = -errno;
    snprintf(err, err_len, "cannot steer port %u: %s", service->listen_port, strerror(-error));
    return error;
}

int roost_router_attach(struct roost_engine *e, const char *ifname, int servers, char *err, uint32_t err_len) {
    if (!e->path.steer) {
        snprintf(err, err_len, "this is no router");
        return -EINVAL;
    }
    return roost_datapath_attach_steer(&e->path, ifname, servers, err, err_len);
}

int roost_router_attach_port(struct roost_engine *e, uint16_t port) {
    uint16_t port_be = htons(port);
    uint8_t yes = 1;
    if (!e->path.steer)
        return -EINVAL;
    return bpf_map_update_elem(roost_datapath_steer_map(&e->path, "attach_ports"), &port_be, &yes, BPF_ANY) ? -errno
                                                                                                            : 0;
}

/* Whether there is a connection with this client address, client port and local port; completes the key. The services
 * are few. */
static bool complete(struct roost_engine *e, struct roost_key *key, const uint8_t server[16], bool any_port) {
    for (int i = 0; i < e->listeners; i++) {
        const struct roost_service *s = &e->listener[i].service;
        bool every = roost_address_is_any(s->listen); /* then its own server asks for it */
        if (s->unreachable || (every && !s->transparent) || (!any_port && key->local_port != htons(s->listen_port)))
            continue;
        memcpy(key->local, every ? server : s->listen, sizeof(key->local));
        key->local_port = htons(s->listen_port);
        if (roost_conn_by_key(e, key) || roost_table_find(&e->table, key))
            return true;
    }
    return false;
}

/* The only connection that has this client address, when it is not the one that came last. */
static bool scan(struct roost_engine *e, struct roost_key *key) {
    uint64_t positions = roost_table_positions(&e->table);
    struct roost_key other;
    for (struct roost_conn *c = e->oldest; c; c = c->newer)
        if (!memcmp(c->key.client, key->client, sizeof(key->client)) && !roost_service_of(e, c->service)->unreachable) {
            *key = c->key;
            return true;
        }
    for (uint64_t p = 0; p < positions; p++) {
        const struct roost_ka *slot = roost_table_at(&e->table, p, &other);
        if (slot && !(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) &&
            !roost_service_of(e, roost_table_service(&e->table, slot))->unreachable &&
            !memcmp(other.client, key->client, sizeof(key->client))) {
            *key = other;
            return true;
        }
    }
    return false;
}

/* The connection that a server means by the address it connected to: the one with this address and port, else the only
 * one with this address. 0, ENOENT, or ENOTUNIQ: it has several. */
static int find_client(struct roost_engine *e, struct roost_key *key, const uint8_t server[16]) {
    if (complete(e, key, server, true))
        return 0;
    struct roost_host *host = roost_hosts_find(&e->hosts, key->client);
    if (!host || host->count > 1)
        return host ? ENOTUNIQ : ENOENT;
    key->client_port = host->client_port;
    key->local_port = host->local_port;
    if (host->client_port && complete(e, key, server, false))
        return 0;
    if (!scan(e, key))
        return ENOENT;
    host->client_port = key->client_port;
    host->local_port = key->local_port;
    return 0;
}

int roost_router_link(struct roost_engine *e, struct roost_command *command, uint64_t since_ms, uint32_t *wait_ms) {
    struct sockaddr_storage self, peer;
    socklen_t size = sizeof(self);
    uint8_t server[16], byte;
    uint16_t server_port;
    struct roost_key *key = &command->record.key;
    *wait_ms = 0;
    if (getsockname(command->fd, (struct sockaddr *)&self, &size))
        return errno;
    size = sizeof(peer);
    if (getpeername(command->fd, (struct sockaddr *)&peer, &size) ||
        !recv(command->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT))
        return ENOTCONN; /* it has gone, or ended before it began */
    roost_address_from(&self, key->client, &key->client_port);
    roost_address_from(&peer, server, &server_port);
    int error = find_client(e, key, server);
    if (!error)
        error = roost_attach_server(e, command, since_ms, wait_ms);
    if (error == ENOENT || error == EAGAIN)
        command->error =
            error; /* it waits for a client that is not there, whose own server may be first when it comes */
    if (error && error != ENOTUNIQ && command->error && *wait_ms < e->server_wait_ms)
        *wait_ms = e->server_wait_ms;
    return error;
}

void roost_router_turn_away(struct roost_engine *e, int fd) {
    e->stat[ROOST_E_DOOR_REFUSED]++;
    roost_reset_fd(fd);
}

static void let_in(struct roost_engine *e, int fd) {
    struct roost_command command;
    memset(&command, 0, sizeof(command));
    command.op = ROOST_OP_ATTACH;
    command.cause = ROOST_C_SERVER_ATTACH;
    command.fd = fd;
    if (roost_attach_or_wait(e, &command, true))
        roost_router_turn_away(e, fd);
}

void roost_router_accept(struct roost_engine *e, int door) {
    for (int i = 0; i < ACCEPTS_A_TURN && e->door[door] >= 0; i++) {
        int fd = accept4(e->door[door], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            let_in(e, fd);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            roost_accept_pause(e);
        if (fd < 0 && errno != ECONNABORTED)
            return;
    }
}
