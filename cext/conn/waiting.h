/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command that cannot be carried out yet, and the one owner of the socket and the bytes that came with it. It stands in
 * one place at a time: with a key whose row is being looked for (recall.c), among the servers that are tried again
 * (attach.c), or at the connection that it will be linked to (struct roost_conn); then it is linked, or refused. A server that was
 * linked stays there until its client has said something, or the link has ended: then the control plane is told (ROOST_EV_SERVED).
 */
#ifndef ROOST_CEXT_WAITING_H
#define ROOST_CEXT_WAITING_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/types.h"

struct roost_engine;
struct roost_conn;

struct roost_waiting {
    struct roost_waiting *next;
    struct roost_command command; /* fd: the server's socket, of ROOST_OP_ATTACH */
    uint64_t since_ms, until_ms;  /* until: for the second server's turn at a connection */
    struct roost_server server;   /* that came through a door; port 0: not known */
    uint32_t linked_after_ms;     /* of a server that is linked */
    uint8_t found;                /* likewise: enum roost_state of its client until then */
    bool told;                    /* ROOST_EV_WANTED */
    bool dialled;                 /* likewise, and its client may be there soon: not answered yet */
    bool door;                    /* it came through a door, and is refused by RST; else by the answer to its command */
};

/* Takes over the command's socket and early bytes. NULL: no memory, and they are still the caller's. */
struct roost_waiting *roost_waiting_new(struct roost_engine *e, const struct roost_command *command, bool door);
/* Its socket is another's (or closed: fd -1) by now. */
void roost_waiting_free(struct roost_waiting *w);
/* Answers the command with the error, and closes its socket. */
void roost_waiting_refuse(struct roost_engine *e, struct roost_waiting *w, int error);
/* The same without a word: the engine ends. */
void roost_waiting_drop(struct roost_waiting *w);
/* It is linked, and the connection has its socket; it stays at the connection as c->served. */
void roost_waiting_linked(struct roost_engine *e, struct roost_conn *c, struct roost_waiting *w);
/* Tells of c->served, if any. spoken: its client has said something; else the link is over. */
void roost_waiting_served(struct roost_engine *e, struct roost_conn *c, bool spoken);

#endif
