/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is handed over, in the process that has it: the daemon that ends, and the one that begins. A thread moves bytes between
 * the legs of linked connections until an engine takes them: so no byte waits while the one writes its last rows, and the other
 * loads, and compares rows and table.
 *
 * It moves bytes, and passes on a client's FIN. All else waits for the engine: what a server's end means, what is asked for in
 * band, time-outs, new links.
 */
#ifndef ROOST_CEXT_BRIDGE_H
#define ROOST_CEXT_BRIDGE_H

#include <pthread.h>

#include "handed.h"

struct roost_bridge {
    struct roost_handed *first, **tail;
    pthread_t thread;
    int epoll_fd, stop_fd;
    bool running;
    uint8_t *room; /* of the thread, and of messages */
};

void roost_bridge_add(struct roost_bridge *b, struct roost_handed *h);
/* A descriptor, the caller's, of the listening socket for this address (port in network order), once for each engine; -1: there is
 * none. The bridge keeps its own: an engine that does not get as far as to start leaves who waits in its queue to the next. */
int roost_bridge_listener(struct roost_bridge *b, const uint8_t ip[16], uint16_t port, bool transparent);
/* Closes the listening sockets of a port: they are in the way of another address. */
void roost_bridge_forget_listeners(struct roost_bridge *b, uint16_t port);

#endif
