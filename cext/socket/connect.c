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

int roost_connect(const struct roost_server *to, bool held, const uint8_t *from, uint16_t port_be) {
    struct sockaddr_storage server, local;
    int one = 1, zero = 0, fd = roost_socket_for(to->address, from != NULL);
    if (fd < 0)
        return fd;
    socklen_t size = roost_address_to(to->address, htons(to->port), &server);
    int e = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!e && held)
        e = setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &zero, sizeof(zero));
    if (!e && from) {
        socklen_t local_size = roost_address_to(from, port_be, &local);
        /* Beside an earlier link in TIME-WAIT, and beside servers that came for a client by this address. */
        e = port_be ? setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one))
                    : setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
        if (!e)
            e = bind(fd, (struct sockaddr *)&local, local_size);
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
