// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "address.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

bool roost_address_is_any(const uint8_t ip[16]) {
    static const uint8_t any[16];
    return roost_address_is_v4(ip) ? !memcmp(ip + 12, any, 4) : !memcmp(ip, any, 16);
}

socklen_t roost_address_to(const uint8_t ip[16], uint16_t port_be, struct sockaddr_storage *storage) {
    memset(storage, 0, sizeof(*storage));
    if (roost_address_is_v4(ip)) {
        struct sockaddr_in *a = (struct sockaddr_in *)storage;
        a->sin_family = AF_INET;
        a->sin_port = port_be;
        memcpy(&a->sin_addr, ip + 12, 4);
        return sizeof(*a);
    }
    struct sockaddr_in6 *a = (struct sockaddr_in6 *)storage;
    a->sin6_family = AF_INET6;
    a->sin6_port = port_be;
    memcpy(&a->sin6_addr, ip, 16);
    return sizeof(*a);
}

void roost_address_from(const struct sockaddr_storage *storage, uint8_t ip[16], uint16_t *port_be) {
    if (storage->ss_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)storage;
        roost_address_map_v4(ip, &a->sin_addr);
        *port_be = a->sin_port;
    } else {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)storage;
        memcpy(ip, &a->sin6_addr, 16);
        *port_be = a->sin6_port;
    }
}

int roost_address_of_socket(int fd, uint8_t ip[16], uint16_t *port_be) {
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &size))
        return -errno;
    roost_address_from(&address, ip, port_be);
    return 0;
}

int roost_address_of_peer(int fd, uint8_t ip[16], uint16_t *port_be) {
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    if (getpeername(fd, (struct sockaddr *)&address, &size))
        return -errno;
    if (address.ss_family != AF_INET && address.ss_family != AF_INET6)
        return -EAFNOSUPPORT;
    roost_address_from(&address, ip, port_be);
    return 0;
}

int roost_socket_for(const uint8_t ip[16], bool transparent) {
    bool v4 = roost_address_is_v4(ip);
    int one = 1, fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int e = setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
    if (!e && transparent)
        e = v4 ? setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &one, sizeof(one))
               : setsockopt(fd, IPPROTO_IPV6, IPV6_TRANSPARENT, &one, sizeof(one));
    if (!e && !v4)
        e = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (e) {
        e = -errno;
        close(fd);
        return e;
    }
    return fd;
}

bool roost_address_is_ours(const uint8_t ip[16]) {
    struct sockaddr_storage address;
    int fd = roost_socket_for(ip, false);
    socklen_t size = roost_address_to(ip, 0, &address);
    bool ours = fd >= 0 && !bind(fd, (struct sockaddr *)&address, size);
    if (fd >= 0)
        close(fd);
    return ours;
}
