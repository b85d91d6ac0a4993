// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "connect.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "repair.h"

/* Of a socket that is bound, or not: the descriptor, or -errno, and it is closed. error: of what was done with it so far. */
static int begin(int fd, const struct roost_server *to, int error) {
    struct sockaddr_storage server;
    socklen_t size = roost_address_to(to->address, htons(to->port), &server);
    if (!error && (!connect(fd, (struct sockaddr *)&server, size) || errno == EINPROGRESS))
        return fd;
    error = -errno;
    close(fd);
    return error;
}

static int bind_to(int fd, const uint8_t from[16], uint16_t port_be) {
    struct sockaddr_storage local;
    socklen_t size = roost_address_to(from, port_be, &local);
    return bind(fd, (struct sockaddr *)&local, size);
}

const uint8_t *roost_source(const struct roost_service *service, const struct roost_server *to) {
    const bool any = roost_address_is_any(service->source);
    return !any && roost_address_is_v4(service->source) == roost_address_is_v4(to->address) ? service->source : NULL;
}

int roost_connect(const struct roost_server *to, bool held, const uint8_t *from, uint16_t port_be) {
    int one = 1, zero = 0, fd = roost_socket_for(to->address, from != NULL);
    if (fd < 0)
        return fd;
    int e = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!e && held)
        e = setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &zero, sizeof(zero));
    if (!e && from) {
        /* Beside an earlier link in TIME-WAIT, and beside servers that came for a client by this address. */
        e = port_be ? setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one))
                    : setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
        if (!e)
            e = bind_to(fd, from, port_be);
    }
    return begin(fd, to, e);
}

int roost_dial(const struct roost_server *to, const uint8_t from[16], uint16_t port_be) {
    int one = 1, fd = roost_socket_for(to->address, true);
    if (fd < 0)
        return fd;
    int e = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!e)
        e = setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &one, sizeof(one)); /* which lets it be bound beside a listener */
    if (!e)
        e = bind_to(fd, from, port_be);
    if (!e)
        roost_repair_undo(fd, -1);
    return begin(fd, to, e);
}

bool roost_is_connected(int fd) {
    struct sockaddr_storage peer;
    socklen_t size = sizeof(peer);
    return fd >= 0 && !getpeername(fd, (struct sockaddr *)&peer, &size);
}

bool roost_connect_undo(int fd) {
    int unread = 0;
    shutdown(fd, SHUT_WR);                                                      /* in SYN_SENT it disconnects */
    return !roost_is_connected(fd) && (ioctl(fd, SIOCINQ, &unread) || !unread); /* both may have ended it by now */
}
