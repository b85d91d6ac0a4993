// SPDX-License-Identifier: Apache-2.0
/*
 * The near ends of connections that we make. A client is dialled from where its service listens.
 *
 * And the local ports of links that may sleep. While one does, the kernel knows nothing of its port, and would give it to
 * the next socket that connects to the same server, which would fail: the server has a connection with that 4-tuple. So such
 * links take their ports from a range that the kernel does not give away, and never one whose 4-tuple is asleep.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "cext/socket/connect.h"
#include "candidates.h"
#include "conn.h"

#define TRIES 256

int roost_link_ports(roost_engine *e, uint16_t first, uint16_t last) {
    if (!first || last < first)
        return -EINVAL;
    e->link_port_first = e->link_port_next = first;
    e->link_port_last = last;
    return 0;
}

/* The address that this machine would have towards a server. */
static int local_address(const uint8_t server[16], uint8_t local[16]) {
    struct sockaddr_storage address;
    uint16_t port;
    bool v4 = roost_address_is_v4(server);
    int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    socklen_t size = roost_address_to(server, htons(1), &address);
    int e = connect(fd, (struct sockaddr *)&address, size) ? -errno : roost_address_of_socket(fd, local, &port);
    close(fd);
    return e;
}

static bool is_reserved(const struct roost_engine *e, uint16_t port) {
    return e->link_ports_reserved && e->link_ports_reserved[port / 8] >> port % 8 & 1;
}

int roost_link_port_reserve(roost_engine *e, uint16_t port) {
    if (!e->link_ports_reserved)
        e->link_ports_reserved = calloc(65536 / 8, 1);
    if (!e->link_ports_reserved)
        return -ENOMEM;
    e->link_ports_reserved[port / 8] |= (uint8_t)(1 << port % 8);
    return 0;
}

void roost_link_ports_unreserve(roost_engine *e) {
    roost_lock(e);
    free(e->link_ports_reserved);
    e->link_ports_reserved = NULL;
    roost_unlock(e);
}

int roost_ports_connect(struct roost_engine *e, const struct roost_service *s, const struct roost_server *to,
                        bool held) {
    struct roost_key key = {.client_port = htons(to->port)};
    uint32_t ports = (uint32_t)(e->link_port_last - e->link_port_first) + 1;
    memcpy(key.client, to->address, sizeof(key.client));
    const uint8_t *source = roost_source(s, to);
    if (source)
        memcpy(key.local, source, sizeof(key.local));
    int error = source ? 0 : local_address(to->address, key.local);
    for (int tries = 0; !error && ports > 0 && tries < TRIES; ports--) {
        uint16_t port = e->link_port_next;
        e->link_port_next = port == e->link_port_last ? e->link_port_first : port + 1;
        key.local_port = htons(port);
        if (is_reserved(e, port) || roost_table_find(&e->table, &key))
            continue;
        int fd = roost_connect(to, held, key.local, key.local_port);
        if (fd != -EADDRINUSE && fd != -EADDRNOTAVAIL) /* else: in use, by an awake link or a listener */
            return fd;
        tries++;
    }
    return error ? error : -EADDRNOTAVAIL;
}

/* At which the client would find the service: where it listens, or the server's address for whom it answers. */
static int near_end(const struct roost_service *s, const struct roost_server *client, const uint8_t server[16],
                    struct roost_key *key) {
    key->local_port = htons(s->listen_port);
    if (roost_address_is_v4(s->listen) != roost_address_is_v4(client->address))
        return -EAFNOSUPPORT;
    if (roost_address_is_any(s->listen) && !s->transparent)
        return local_address(client->address, key->local);
    if (!roost_address_is_any(s->listen)) {
        memcpy(key->local, s->listen, sizeof(key->local));
        return 0;
    }
    memcpy(key->local, server, sizeof(key->local)); /* ours: it would be linked to this machine, and so to itself */
    return roost_address_is_any(server) || roost_address_is_ours(server) ? -EADDRNOTAVAIL : 0;
}

int roost_dial_client(roost_engine *e, uint16_t service, const struct roost_server *client, const uint8_t server[16],
                      struct roost_key *key) {
    memset(key, 0, sizeof(*key));
    memcpy(key->client, client->address, sizeof(key->client));
    key->client_port = htons(client->port);
    roost_lock(e);
    const struct roost_service *s = roost_service_of(e, service);
    int error = s->index ? near_end(s, client, server, key) : -ENOENT;
    if (!error && (roost_whose(e, key).by != ROOST_BY_NONE || roost_is_candidate(e, key)))
        error = -EEXIST;
    roost_unlock(e);
    return error ? error : roost_dial(client, key->local, key->local_port);
}
