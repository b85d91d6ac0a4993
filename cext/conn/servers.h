/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The servers of one service: which of them a link goes to, and what became of the links. No input or output here; the
 * control plane says which are down (roost_server_mark), and links.c what it met.
 *
 * A server has a place. Links name it by its place, so a server that is taken out of the configuration keeps it until
 * its last link has gone; it is not chosen any more.
 */
#ifndef ROOST_CEXT_SERVERS_H
#define ROOST_CEXT_SERVERS_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/types.h"

#define ROOST_NO_PLACE (-1)
#define ROOST_SURELY_CLIENT_FIRST 16

struct roost_member {
    struct roost_server server;
    bool used;       /* configured, or it still has links */
    bool configured; /* else it leaves */
    bool down;
    uint32_t links;          /* now; those being made count */
    uint32_t failed_in_row;  /* since the last link that was made */
    uint64_t linked, failed; /* since it is here */
};

struct roost_pool {
    struct roost_member place[ROOST_PLACES];
    uint8_t balance;      /* enum roost_balance */
    uint8_t max_fails;    /* down after so many failed links in a row; 0: never by that */
    bool as_accepted;     /* no servers: a link goes to the one that the client connected to */
    uint8_t client_first; /* links in a row on which the client spoke first, up to ROOST_SURELY_CLIENT_FIRST */
    int last;             /* chosen place: ties go round from there */
};

/* Takes a configuration over: a server that stays keeps its state. 0; or -EINVAL: more than ROOST_SERVERS_MAX, -ENOSPC: too
 * many that leave still have links; then nothing has changed. */
int roost_pool_set(struct roost_pool *pool, const struct roost_service *service);
/* The place of a server, or ROOST_NO_PLACE. */
int roost_pool_find(const struct roost_pool *pool, const struct roost_server *server);
bool roost_pool_is_up(const struct roost_pool *pool, const struct roost_server *server); /* links may go to it */
void roost_pool_mark(struct roost_pool *pool, int place, bool up);
/* Fills status, all but `ready`; how many it filled, at most max. */
int roost_pool_read(const struct roost_pool *pool, struct roost_server_status *status, uint32_t max);
/* The place for a link of this client among those that are up and not in tried (a bit for each place), or ROOST_NO_PLACE. */
int roost_pool_choose(struct roost_pool *pool, const uint8_t client[16], uint64_t tried);
/* How many that are up are not in tried. */
uint32_t roost_pool_left(const struct roost_pool *pool, uint64_t tried);

void roost_pool_enter(struct roost_pool *pool, int place); /* a link is begun */
void roost_pool_leave(struct roost_pool *pool, int place); /* it is over, or came to nothing */
void roost_pool_linked(struct roost_pool *pool, int place);
void roost_pool_given(struct roost_pool *pool, int place); /* a link that was made before: no proof that it is up now */
void roost_pool_spoken(struct roost_pool *pool, bool client_first); /* the first bytes on a link */
bool roost_pool_failed(struct roost_pool *pool, int place);         /* true: so it is down now */

#endif
