/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens next to an awake connection: decided here and nowhere else, by a table over facts. What changes a fact
 * (a packet, a command, a timer, a finished freeze or thaw) puts the connection into the queue (roost_conn_run); each turn
 * of the loop looks at every connection in it.
 */
#ifndef ROOST_CEXT_NEXT_H
#define ROOST_CEXT_NEXT_H

#include <stdint.h>

struct roost_engine;
struct roost_conn;

enum roost_fact {
    ROOST_LIVES = 1 << 0,           /* its client's socket is the engine's: no freeze or thaw is under way */
    ROOST_MUST_CLOSE = 1 << 1,      /* roost_conn_end() */
    ROOST_HAS_LINK = 1 << 2,        /* to a server, its end included */
    ROOST_CONNECTS = 1 << 3,        /* a link is being made */
    ROOST_SERVER_WAITS = 1 << 4,    /* attached, and not linked yet */
    ROOST_MUST_FREEZE = 1 << 5,     /* as soon as it has no link */
    ROOST_BYTES_WAIT = 1 << 6,      /* of the client, for a server */
    ROOST_CLIENT_ENDED = 1 << 7,    /* by FIN or RST */
    ROOST_CLIENT_READABLE = 1 << 8, /* data or an end: a peek tells which */
    ROOST_MUST_ANSWER = 1 << 9,     /* the client, before the server that waits has it */
    ROOST_FACTS = 1 << 10
};

enum roost_next {
    ROOST_NEXT_WAIT,   /* what has its sockets queues it when it is done */
    ROOST_NEXT_CLOSE,  /* CLOSED */
    ROOST_NEXT_RELAY,  /* bytes between the two legs */
    ROOST_NEXT_EXPECT, /* the link's event or timer */
    ROOST_NEXT_ASK,    /* whether the client is there: STANDBY, until it answers */
    ROOST_NEXT_ATTACH, /* link the server that waits */
    ROOST_NEXT_FREEZE, /* mark it for the next batch */
    ROOST_NEXT_LINK,   /* connect to a server of its service */
    ROOST_NEXT_END,    /* CLOSED, by the client */
    ROOST_NEXT_PEEK,   /* see what there is to read */
    ROOST_NEXT_STAND,  /* STANDBY, until its timer or an event */
};

/* facts: a bit for each enum roost_fact that holds. */
enum roost_next roost_next(uint32_t facts);

void roost_next_turn(struct roost_engine *e); /* looks at what is queued */
/* Its policy changed: when it is looked at next. */
void roost_next_rearm(struct roost_engine *e, struct roost_conn *c);
void roost_next_timers(struct roost_engine *e); /* queues what is due, and tells the control plane of what is quiet */

#endif
