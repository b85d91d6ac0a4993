/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROOST_CEXT_CONNECT_H
#define ROOST_CEXT_CONNECT_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/types.h"

/* The address that a service's links to this server are to have; NULL: the one that the kernel chooses. */
const uint8_t *roost_source(const struct roost_service *service, const struct roost_server *to);
/* Begins a connection to a server from an address and port; from NULL: the kernel chooses, port 0: it chooses the port. held:
 * the handshake is ended by what is sent first. A descriptor or -errno. */
int roost_connect(const struct roost_server *to, bool held, const uint8_t *from, uint16_t port_be);
/* The same from an address and port at which a socket of this machine listens. */
int roost_dial(const struct roost_server *to, const uint8_t from[16], uint16_t port_be);
bool roost_is_connected(int fd);
/* Takes back a connection that is being made. False: it was made meanwhile, and our FIN is sent. The kernel decides at once: one
 * that is closed after a look at it may be made in between, and what its server says would be reset. */
bool roost_connect_undo(int fd);

#endif
