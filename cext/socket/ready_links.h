/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links to the servers of a service that no client has: so many to each server are made before a client needs one, and so
 * many may be left by clients that need them no longer. One is closed after ready_ms, before the server takes it for
 * abandoned, and one of the former kind made anew.
 */
#ifndef ROOST_CEXT_READY_LINKS_H
#define ROOST_CEXT_READY_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/types.h"

struct roost_ready_link {
    struct roost_server to;
    int fd;           /* -1: none; it is to be made, or left */
    bool left;        /* a place for one that a client leaves */
    bool made;        /* else the server has not answered yet */
    uint8_t failures; /* in a row: it could not be made, or the server ended it */
    uint64_t since_ms;
    uint64_t again_ms; /* not to be made before */
};

struct roost_ready_links {
    struct roost_ready_link *link;
    uint32_t count;
    uint32_t next; /* to be looked at */
};

/* Takes a configuration over: links to servers that stay are kept. 0 or -ENOMEM: nothing has changed. */
int roost_ready_links_set(struct roost_ready_links *r, const struct roost_service *service);
/* The descriptor of a link to this server that is made and has not ended, the caller's from then on; -1: there is none. */
int roost_ready_links_take(struct roost_ready_links *r, const struct roost_server *to);
/* Keeps a link that its client leaves, and which has nothing more to say to that one. False: there is no place for it. */
bool roost_ready_links_leave(struct roost_ready_links *r, const struct roost_server *to, int fd, uint64_t now_ms);
/* Looks after one of them: makes it, or ends it when that is due. wanted: its server may have links, and there is room. from: its
 * address, or NULL (roost_connect). */
void roost_ready_link_tend(struct roost_ready_link *l, bool wanted, const uint8_t *from, uint32_t ready_ms,
                           uint64_t now_ms);
/* How many are made, to this server. */
uint32_t roost_ready_links_made(const struct roost_ready_links *r, const struct roost_server *to);
void roost_ready_links_close(struct roost_ready_links *r);

#endif
