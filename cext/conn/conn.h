/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an awake connection is made of, and what is known of any: found, told of, its legs, its policy, where it is noted.
 * Nothing here decides what becomes of it: cext/life/ does.
 *
 *     connection.c  the awake ones, by id and key       events.c      what the control plane is told
 *     legs.c        sockets and what waits for them     find.c        what has a 4-tuple, or an address
 *     waiting.c     commands that wait                  candidates.c  what may sleep without a slot
 *     classes.c     what is in force                    servers.c     the servers of a service
 *     acks.c        ACKs that wait for an answer        listing.c     lists that are taken while connections move
 *     notes.c       sockets that XDP must know of       ports.c       local ports of links that may sleep
 *     steering.c    what a router steers               ruling.c      which class a client's network gives
 *     tallies.c     what those of a class do
 */
#ifndef ROOST_CEXT_CONN_H
#define ROOST_CEXT_CONN_H

#include "state.h"

/* connection.c: the awake ones, by id and by key */
int roost_conns_init(struct roost_engine *e, uint32_t expected);
struct roost_conn *roost_conn_new(struct roost_engine *e, const struct roost_key *key, uint64_t id, uint16_t service,
                                  uint16_t class);
struct roost_conn *roost_conn_by_id(struct roost_engine *e, uint64_t id);
struct roost_conn *roost_conn_by_key(struct roost_engine *e, const struct roost_key *key);
void roost_conn_touch(struct roost_engine *e, struct roost_conn *c); /* payload moved: now the most recently active */
void roost_conn_set_id(struct roost_engine *e, struct roost_conn *c, uint64_t id);
/* Its slot while it is moved, NULL: none. The slot is counted ([limits] connections), and so the connection is not then. */
void roost_conn_set_slot(struct roost_engine *e, struct roost_conn *c, struct roost_ka *slot);
void roost_conn_forget(struct roost_engine *e, struct roost_conn *c); /* out of every index; freed after this turn */
void roost_conn_run(struct roost_engine *e, struct roost_conn *c);    /* into the queue of next.c */
/* The server that waits for it, if any. */
void roost_conn_refuse_server(struct roost_engine *e, struct roost_conn *c, int error);
const struct roost_service *roost_service_of(struct roost_engine *e, uint16_t index);
void roost_conn_transition(struct roost_engine *e, struct roost_conn *c, enum roost_state to, enum roost_cause cause);
/* An awake connection ends at its next look: CLOSED. reset: towards both ends by RST, else by the close that is already
 * under way. Later reasons change nothing. */
void roost_conn_end(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause, bool reset);
/* The same: its client's socket has failed. */
void roost_client_failed(struct roost_engine *e, struct roost_conn *c);
/* When the client of a connection that has a socket was heard last. */
uint64_t roost_conn_heard_ms(const struct roost_engine *e, struct roost_conn *c);
void roost_conn_count(struct roost_engine *e, struct roost_conn *c, bool to_server, uint64_t bytes); /* of payload */

/* legs.c */
enum roost_moved {
    ROOST_MOVED_ALL,
    ROOST_MOVED_AGAIN, /* there may be more, but others wait */
    ROOST_BLOCKED,     /* the sink takes no more just now */
    ROOST_SOURCE_BROKEN,
    ROOST_SINK_BROKEN
};

void roost_leg_fresh(struct roost_leg *leg, int fd);
int roost_leg_flush(struct roost_leg *leg); /* 0 nothing pending any more, -EAGAIN, or -errno */
int roost_leg_queue(struct roost_leg *leg, const uint8_t *data, uint32_t length);
/* Keep-alives of the kernel, as this class says. */
void roost_leg_probe(struct roost_leg *leg, const struct roost_class *class);
void roost_leg_failed(struct roost_leg *leg, int error); /* an errno of recv() or send() */
void roost_leg_acknowledge(const struct roost_leg *leg); /* now, and for a while at once */
/* Sends, behind what is pending; what is not taken is queued: ROOST_BLOCKED. flags: MSG_MORE or 0. */
enum roost_moved roost_leg_send(struct roost_leg *leg, const uint8_t *data, uint32_t length, int flags);
/* For how long bytes have waited to be taken by the far end of either leg, and none was; 0: they are, or none wait. */
uint64_t roost_conn_stuck_ms(const struct roost_conn *c);
int roost_watch(struct roost_engine *e, int fd, struct roost_conn *c, bool server);
/* The client's socket is watched for reading alone until bytes wait for it: a new one can always be written to, and an
 * event that says so would cost every client a turn of the loop. */
int roost_watch_blocked(struct roost_engine *e, struct roost_conn *c); /* 0 or -errno */
/* Room for what is rebuilt with these descriptors. 0 or -ENOMEM. */
int roost_rebuilt_reserve(struct roost_engine *e, int fd);
void roost_rebuilt_name(struct roost_engine *e, int fd, struct roost_conn *c); /* NULL: no connection's from now on */
/* How a rebuilt client's socket is to be watched, named or not. */
struct epoll_event roost_rebuilt_event(int fd);
void roost_reset_fd(int fd); /* close with RST */
void roost_leg_close(struct roost_engine *e, struct roost_leg *leg, bool reset);

/* acks.c: the ACK goes with the answer, if that comes soon. The kernel is to hold it back (TCP_QUICKACK 0) by itself. */
void roost_acknowledge_later(struct roost_engine *e, struct roost_conn *c);
void roost_unacked_turn(struct roost_engine *e);

/* find.c */
enum roost_held_by {
    ROOST_BY_NONE, /* or by a candidate: roost_is_candidate() */
    ROOST_BY_CONN, /* awake, or on its way up or down */
    ROOST_BY_SLOT, /* inactive: a client's */
    ROOST_BY_LEG,  /* the server's leg of a pair */
};
struct roost_holder {
    enum roost_held_by by;
    struct roost_conn *conn;
    struct roost_ka *slot; /* of a connection: the one it keeps on its way */
};
/* What has a 4-tuple. */
struct roost_holder roost_whose(struct roost_engine *e, const struct roost_key *key);
/* The connection that a server means by the address it connected to: key's client and client_port; completes the key. The
 * one with this address and port, else the only one with this address. 0, ENOENT, or ENOTUNIQ: it has several. */
int roost_find_by_address(struct roost_engine *e, struct roost_key *key, const uint8_t server[16]);

/* events.c */
void roost_refuse(struct roost_engine *e, uint8_t op, uint64_t token, uint64_t id, const struct roost_key *key,
                  int error);
void roost_event_of_conn(struct roost_engine *e, const struct roost_conn *c, struct roost_event *event);
/* As this cause would end its state. */
void roost_ends_of_conn(const struct roost_engine *e, const struct roost_conn *c, enum roost_cause cause,
                        struct roost_ends *ends);
uint8_t roost_state_of_slot(const struct roost_ka *slot); /* enum roost_state */
/* Since the last payload byte; 0 where the store alone knows. */
uint64_t roost_slot_quiet_ms(const struct roost_engine *e, const struct roost_ka *slot);
void roost_event_of_slot(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot,
                         struct roost_event *event);
/* by: not ROOST_BY_NONE */
void roost_event_of_holder(struct roost_engine *e, const struct roost_key *key, const struct roost_holder *h,
                           struct roost_event *event);
bool roost_is_legal(uint8_t from, uint8_t to, uint8_t cause); /* enum roost_state, enum roost_cause */
/* Tells a transition of what the event describes, of this class. False: it is not legal, and ROOST_EV_ILLEGAL was told instead. */
bool roost_post_transition(struct roost_engine *e, struct roost_event *event, uint32_t class, enum roost_state from,
                           enum roost_state to, enum roost_cause cause, uint64_t token);

void roost_tell_pressure(struct roost_engine *e); /* descriptors run short */
/* With so many awake connections or fewer there is no pressure. */
static inline uint64_t roost_room_without_pressure(const struct roost_engine *e) {
    return e->max_awake - e->max_awake / 8;
}

/* Another machine may have the connections now. Of the clock that goes on while this one is suspended. */
static inline bool roost_lease_is_over(const struct roost_engine *e) {
    uint64_t until_ms = __atomic_load_n(&e->lease_ms, __ATOMIC_RELAXED);
    return until_ms && roost_clock_ms(CLOCK_BOOTTIME) >= until_ms;
}

static inline bool roost_is_pair(const struct roost_ka *slot) {
    return slot && ROOST_FLAGS(slot->ctl) & ROOST_F_PAIRED;
}

/* tallies.c: one more connection of this class went from one state to another; where both are the same, it was sent a probe. */
void roost_tally(struct roost_engine *e, uint32_t class, uint8_t from, uint8_t to, uint8_t cause, uint64_t rx,
                 uint64_t tx);
void roost_tallies_free(struct roost_engine *e);
/* A client of this class, not awake, has said something after so many seconds, or does not answer the probe that came then. */
void roost_tally_silence(struct roost_engine *e, uint32_t class, uint32_t silence_s, bool lost);

/* notes.c: sockets that XDP must know of. When the engine starts; in each turn; before one is made. */
void roost_sockets_begin(struct roost_engine *e);
void roost_sockets_turn(struct roost_engine *e);
void roost_sockets_note(struct roost_engine *e, const struct roost_key *key);

/* listing.c: a key is awake from now on, or not any more, while lists are being taken (e->listings). */
void roost_listings_awake(struct roost_engine *e, const struct roost_key *key);
void roost_listings_asleep(struct roost_engine *e, const struct roost_key *key); /* or gone */
/* A slot for a connection that slept without one. */
void roost_listings_back(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot);

/* ports.c */
/* Begins a link that may sleep, from a port that no other has. A descriptor or -errno. */
int roost_ports_connect(struct roost_engine *e, const struct roost_service *s, const struct roost_server *to,
                        bool held);

/* steering.c. 0 or -errno with a sentence in why. */
int roost_router_manage(struct roost_engine *e, const struct roost_service *service, struct roost_reason *why);

/* classes.c: what is in force for a connection. */
/* The class of a connection that is new to the engine, by accept or out of a row, as rules have it for its client; of those that
 * are born asleep XDP asks the same. */
uint16_t roost_class_for(const struct roost_engine *e, const struct roost_key *key, uint16_t service);
uint16_t roost_class_of_service(uint16_t service); /* its default: of servers' legs, to which no rule applies */
/* While a round gives every connection the class that new rules have for it: to one that the round may miss, since it goes from a slot
 * to a socket, the other way, or to another slot. */
void roost_class_renew(struct roost_engine *e, struct roost_conn *c);
void roost_class_renew_slot(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot);
const struct roost_class *roost_class_of(const struct roost_engine *e, uint32_t class);
/* Whether its last payload byte lies as far back as its policy says for its state. */
bool roost_is_quiet(const struct roost_engine *e, const struct roost_conn *c);
uint32_t roost_quiet_ms(const struct roost_engine *e, const struct roost_conn *c,
                        enum roost_state state); /* 0 = never */
/* An awake connection has this class, with the use of it that the caller took, and holds its own no more. */
void roost_conn_set_class(struct roost_engine *e, struct roost_conn *c, uint32_t class);
/* ROOST_OP_OVERRIDE, ROOST_OP_GIVE: 0 or an errno. */
int roost_class_restore(struct roost_engine *e, const struct roost_command *command);
int roost_class_give(struct roost_engine *e, const struct roost_command *command);
void roost_rules_close(struct roost_engine *e);
void roost_class_round(struct roost_engine *e); /* the sweep looks at every connection that there is, due or not */
/* A service's policy from now on, for every connection that there is. */
void roost_class_change(struct roost_engine *e, const struct roost_service *service);

#endif
