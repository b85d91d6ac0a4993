/* SPDX-License-Identifier: Apache-2.0 */
/* In-band requests of one connection on their way: between inband_relay.c (bytes), inband_requests.c (what is asked) and
 * conn/classes.c (what stays of it). The engine thread's own. */
#ifndef ROOST_CEXT_INBAND_RELAY_H
#define ROOST_CEXT_INBAND_RELAY_H

#include "cext/conn/conn.h"
#include "inband.h"

struct roost_inband_end { /* what one end sends */
    struct roost_inband filter;
    uint64_t held_ms;           /* when the last of the bytes came that the filter holds */
    struct roost_pending *rest; /* read from it and not looked at yet, since it has to be answered first */
    uint32_t asked;             /* number of the question to the control plane that waits, 0: none */
    uint16_t number;            /* of the request behind that question */
    uint8_t verb;
    bool answer;
    bool answering; /* an answer stands in its leg's pending */
    bool stopped;   /* was not read, though it may have said something */
};

struct roost_in_band {
    struct roost_inband_end client, server;
    uint8_t goal;                /* DONE, SLEEP, RELEASE: the client is not read until that is done; 0: none */
    bool begun;                  /* to go down for it; it may have to be tried again */
    bool unlinked;               /* the server link went for it */
    uint64_t retry_ms, until_ms; /* of the goal */
};

/* inband_requests.c */
#define ROOST_INBAND_LATER (-1) /* the control plane answers */
/* enum roost_inband_result, or ROOST_INBAND_LATER. */
int roost_inband_carry_out(struct roost_engine *e, struct roost_conn *c, bool client,
                           const struct roost_inband_request *r);

/* inband_relay.c */
/* Bits 1 << verb: what an end may ask for. */
uint16_t roost_inband_allowed(const struct roost_engine *e, const struct roost_conn *c, bool client);
bool roost_inband_looks(struct roost_engine *e, const struct roost_conn *c, bool client); /* into what this end sends */
/* A chunk that was read from an end: payload to the other one, requests carried out. data: not e->scratch past
 * ROOST_PENDING_MAX. */
enum roost_moved roost_inband_chunk(struct roost_engine *e, struct roost_conn *c, bool client, const uint8_t *data,
                                    uint32_t length);
/* Before an end is read: what of it waits goes on, if it may. *stop: nothing may be read from it now. */
enum roost_moved roost_inband_resume(struct roost_engine *e, struct roost_conn *c, bool client, bool *stop);
enum roost_moved roost_inband_end(struct roost_engine *e, struct roost_conn *c,
                                  bool client); /* before its FIN goes on */
/* The first bytes of a server that attached, read before it was linked. 0 or -ENOMEM. */
int roost_inband_early(struct roost_engine *e, struct roost_conn *c, const uint8_t *data, uint32_t length);
void roost_inband_turn(struct roost_engine *e, struct roost_conn *c);       /* after its relay */
int roost_inband_unlinked(struct roost_engine *e, struct roost_conn *c);    /* the server link goes; 0 or -ENOMEM */
bool roost_inband_wants_link(const struct roost_conn *c);                   /* bytes of the client wait for a server */
bool roost_inband_releases(const struct roost_conn *c);                     /* its server is about to leave it */
bool roost_inband_has_rest(const struct roost_conn *c);                     /* bytes of the server were read ahead */
void roost_inband_forget_rest(struct roost_conn *c);                        /* they are no payload */
bool roost_inband_unfinished(const struct roost_conn *c);                   /* a frame, or the answer to one */
void roost_inband_frozen(struct roost_engine *e, struct roost_conn *c);     /* it is IDLE now */
uint64_t roost_inband_due_ms(struct roost_engine *e, struct roost_conn *c); /* when roost_inband_timer wants to run */
void roost_inband_timer(struct roost_engine *e, struct roost_conn *c);
void roost_inband_free(struct roost_conn *c);
/* For a hand-over: what an end has said that is not looked at yet, the beginning of a frame included, is the caller's, NULL:
 * nothing is; -ENOMEM: nothing has changed. And the way back, with which it is looked at anew. 0 or -ENOMEM. */
int roost_inband_take(struct roost_conn *c, bool client, struct roost_pending **bytes);
int roost_inband_give(struct roost_conn *c, bool client, struct roost_pending *bytes);
struct roost_in_band *roost_inband_open(struct roost_conn *c); /* NULL: no memory */
/* inband_requests.c */
int roost_inband_answered(struct roost_engine *e, const struct roost_command *command);
int roost_inband_tell(struct roost_engine *e, struct roost_conn *c);

/* Writes a frame of ours to an end, or nothing if that cannot be written to. */
enum roost_moved roost_inband_write(struct roost_engine *e, struct roost_conn *c, bool client, const uint8_t *frames,
                                    size_t length);

/* conn/classes.c. 0, or nothing is changed: -EPERM, out of the policy's bounds; -ENOSPC, no room for another class. */
int roost_class_set(struct roost_engine *e, struct roost_conn *c, const struct roost_inband_request *r);
void roost_class_tell(struct roost_engine *e, struct roost_conn *c); /* to the control plane, if need be */

#endif
