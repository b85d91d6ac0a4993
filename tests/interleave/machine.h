/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is around the engine's own code: the sockets of the connections and of their clients, frames on their way to the
 * stack and to the engine, grace periods, and the control plane's rows. Everything here is shared by the threads of a
 * scenario, and each step of it is a point where they may be switched.
 */
#ifndef ROOST_INTERLEAVE_MACHINE_H
#define ROOST_INTERLEAVE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cext/loop.h"
#include "../fuzz/host/kernel.h"

#define CONNS 4
#define ENDPOINTS 4
#define RESTS 8
#define NOW_MS 3600000ull
#define BORN 14 /* the number of a record that its cookie made */
#define BORN_WINDOW 65152
#define ISN 0x50000000u

enum socket {
    NO_SOCKET,
    LIVE,
    MUTE /* in repair mode, behind a filter that lets nothing in; its end is silent */
};

enum service { /* index */
    PLAIN = 1,
    PERSISTENT = 2
};

/* A leg: two ends that have a connection with each other, whatever the engine has of it. */
struct leg {
    const char *name;
    struct roost_key key;
    uint64_t id; /* of the connection */
    enum socket socket;
    int fd;           /* of the socket */
    bool news;        /* an event that was not taken yet */
    bool unmade;      /* the next attempt to rebuild its socket fails */
    bool lost;        /* packets that were held for it were dropped: they are sent again */
    struct leg *peer; /* the other one of a pair */
    bool unacked;     /* something of ours is not acknowledged yet, at the next snapshot */
    int number;       /* of its present record: every sleep has other numbers */
    bool asleep;      /* the control plane was told so: its record is all that is left of it */
    bool closed;      /* both ends know that it is over */
    bool unborn;      /* the handshake is not over yet */
    bool late;  /* put back from the store, or moved, while its packets come: those on their way are not waited for */
    int sent;   /* packets with payload that its socket took, or that are held for the engine */
    int unread; /* of those: in its socket */
    int got;    /* of those: read */
};
extern struct leg legs[CONNS];

extern struct roost_engine engine;
extern struct roost_births_gate gate;
extern struct roost_cookies cookies;
extern uint64_t counts[HOST_CPUS][ROOST_N_COUNT]; /* of the data path */
extern bool flying[];                             /* threads: a packet is between XDP and TCP */

/* All of the engine's memory is new, and it knows nothing; the table and the filter are as they were. */
void engine_starts(void);
/* No sockets, nothing on its way, and all memory that was asked for is free again. */
void machine_starts(void);
/* Once. */
void machine_begins(void);

/* Every number of a record tells whose it is and which. */
struct roost_ka record_of(const struct leg *l, int number);
struct leg *leg_of(const struct roost_key *key);

void hold_frame(const struct roost_frame *frame, size_t size); /* for the engine */
/* What the running thread finds; what: for people. */
enum socket socket_of(const struct leg *l, const char *what);
/* What the stack does with a packet: whether a socket takes it in. */
bool deliver(struct leg *l, const uint8_t *frame, size_t length, const char *what);
void read_all(int fd);
/* An answer in the name of a leg, an IP packet: made from one of its records from..to. */
void check_answer(const struct leg *l, const uint8_t *ip, size_t length, int from, int to);
/* Waits until what is between XDP and TCP now has arrived: membarrier. */
void grace(void);

/* The client has connected, a while ago, and has no server now; or this one, with which it may sleep. */
void leg_opens(struct leg *l, struct leg *server);
/* The engine is killed: the kernel closes its sockets. */
void legs_die(void);

/* Of the control plane. */
void command(enum roost_op op, struct leg *l);
void take_turn(void);
/* A turn in which the engine looks at all slots for what is due. */
void sweep(void);
/* Turns of the engine until all that it has begun is done, and nothing is held for it. */
void work(void);
/* The same until no packet comes any more. */
void serve(void);

#endif
