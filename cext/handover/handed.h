/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a daemon that is restarted hands over to the next one: its awake connections, as the very sockets that they have, and
 * its listening sockets. Each is one message of a SOCK_SEQPACKET socketpair, in whose queue all of them wait between the two
 * processes: facts, then bytes, and the descriptors beside them (SCM_RIGHTS). The kernel goes on acknowledging meanwhile.
 *
 * The next daemon may be of another version. Facts grow at their end only: what a shorter message lacks is zero, what a longer
 * one has besides is left out. Where that does not do, ROOST_HANDED_VERSION is raised, and what is of another one is refused.
 */
#ifndef ROOST_CEXT_HANDED_H
#define ROOST_CEXT_HANDED_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/pending.h"
#include "ebpf/shared/record.h"

#define ROOST_HANDED_VERSION 1
#define ROOST_HANDED_MAX (1 << 20) /* bytes of a message */

enum roost_handed_kind {
    ROOST_HANDED_CONNECTION = 1,
    ROOST_HANDED_LISTENER = 2
};

enum roost_handed_link { /* what to do about the server */
    ROOST_HANDED_NONE = 0,
    ROOST_HANDED_LINKED = 1,
    ROOST_HANDED_ENDING = 2, /* our FIN is sent, the server's awaited */
    ROOST_HANDED_WANTED = 3  /* it was being linked: begin anew */
};

enum roost_handed_bytes {
    ROOST_HANDED_TO_CLIENT, /* read from the server, to be sent */
    ROOST_HANDED_TO_SERVER,
    ROOST_HANDED_OF_CLIENT, /* read from the client, to be searched for in-band requests first */
    ROOST_HANDED_OF_SERVER,
    ROOST_HANDED_BYTES
};

struct roost_handed_leg {
    uint8_t eof, shut;     /* its FIN was read; ours was sent */
    uint8_t broken;        /* met by the bridge: it is of no use any more */
    uint8_t error;         /* errno by which it failed first */
    uint8_t lost, refused; /* as in struct roost_leg */
    uint8_t probed, rebuilt;
};

struct roost_handed_facts {
    uint16_t version, size; /* of this struct, in bytes */
    uint8_t kind;           /* enum roost_handed_kind; of a listener nothing else is said: its socket knows it */
    uint8_t state;          /* enum roost_state; all times are CLOCK_MONOTONIC */
    uint8_t link;           /* enum roost_handed_link */
    uint8_t moves;          /* the bridge may move bytes */
    uint32_t length[ROOST_HANDED_BYTES];
    struct roost_key key;
    uint16_t service, server_port;
    uint8_t server[16];
    uint64_t id;
    uint64_t active_ms, since_ms, silent_ms, link_deadline_ms;
    uint64_t rx, tx;     /* since the last transition */
    uint64_t bridged[2]; /* bytes that bridges moved: from the client, from the server */
    uint32_t heard_mark;
    uint8_t asked, sinks, attached, unlink_cause;
    uint8_t closes, close_cause, close_resets;
    uint8_t goal, goal_begun, goal_unlinked; /* what was asked for in band */
    uint8_t cut;                             /* as in struct roost_conn */
    uint8_t wake_cause;                      /* in IDLE or SLEEP: it has its socket, and is not looked at yet */
    uint64_t goal_retry_ms, goal_until_ms;
    struct roost_handed_leg leg[2]; /* the client's, the server's */
};

struct roost_handed {
    struct roost_handed *next;
    struct roost_handed_facts facts;
    int fd[2]; /* the client's or the listener's, the server's; -1: none */
    struct roost_pending *bytes[ROOST_HANDED_BYTES];
    void *taker; /* of the engine that takes it over */
};

struct roost_handed *roost_handed_new(enum roost_handed_kind kind); /* NULL: no memory */
void roost_handed_free(struct roost_handed *h);                     /* closes its descriptors */
/* 0 or -errno: nothing was sent. */
int roost_handed_send(int to, const struct roost_handed *h);
/* The next one, or NULL with *error: 0: there is none any more; -EPROTO: it was of no use, and there may be more; -errno.
 * room: ROOST_HANDED_MAX bytes. */
struct roost_handed *roost_handed_receive(int from, uint8_t *room, int *error);

#endif
