/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of 16 bytes (IPv4-mapped for IPv4) and ports in network order, as in struct roost_key, and the kernel's form. */
#ifndef ROOST_CEXT_ADDRESS_H
#define ROOST_CEXT_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

static inline bool roost_address_is_v4(const uint8_t ip[16]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return !memcmp(ip, mapped, sizeof(mapped));
}

/* An IPv4-mapped address out of the four bytes of an IPv4 one. */
static inline void roost_address_map_v4(uint8_t ip[16], const void *four) {
    memset(ip, 0, 10);
    memset(ip + 10, 0xff, 2);
    memcpy(ip + 12, four, 4);
}

bool roost_address_is_any(const uint8_t ip[16]); /* 0.0.0.0 or :: */
/* Returns the size for bind() and connect(). */
socklen_t roost_address_to(const uint8_t ip[16], uint16_t port_be, struct sockaddr_storage *storage);
void roost_address_from(const struct sockaddr_storage *storage, uint8_t ip[16], uint16_t *port_be);

/* The address that a socket has, and its peer's. 0 or -errno. */
int roost_address_of_socket(int fd, uint8_t ip[16], uint16_t *port_be);
int roost_address_of_peer(int fd, uint8_t ip[16], uint16_t *port_be);

bool roost_address_is_ours(const uint8_t ip[16]); /* this machine's */

/* A non-blocking TCP socket of the address's family; transparent: it may have an address that is not this machine's.
 * Urgent bytes are bytes. A descriptor or -errno. */
int roost_socket_for(const uint8_t ip[16], bool transparent);

#endif
