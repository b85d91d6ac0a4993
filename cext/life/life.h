/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a connection: how it comes, is linked, relayed, frozen, held, thawed, probed and ended.
 *
 *     next.c       what happens next to an awake one     listeners.c  services: listen, accept, hold back
 *     links.c      the server's side                     attach.c     a server wants a client
 *     relay.c      bytes between the legs                doors.c      servers that connect to a client's address
 *     freeze.c     sockets -> records                    thaw.c       records -> sockets
 *     held.c       frames that wait for a socket         received.c   frames out of the ring
 *     births.c     those that are born asleep            insert.c     records that the store puts back
 *     recall.c     rows that candidates are asked for    sweep.c      what inactive ones need by time
 *     pressure.c   something runs short                  handover.c   to the next daemon, from the one before
 *     limits.c     what one source may do in a time      crowd.c      births that make room for others
 */
#ifndef ROOST_CEXT_LIFE_H
#define ROOST_CEXT_LIFE_H

#include "births.h"
#include "cext/conn/conn.h"
#include "cext/inband/inband_relay.h"
#include "limits.h"

#define ROOST_TURNS 8

/* How many of those that wait to be frozen, or thawed, one turn takes: so few that what arrives meanwhile hardly waits, and
 * of a crowd so many that the workers have their share, as each of it waits for the others anyway. */
static inline uint32_t roost_share_of(uint32_t waiting, uint32_t least, uint32_t most) {
    uint32_t share = waiting / ROOST_TURNS;
    return share < least ? least : share > most ? most : share;
}

/* links.c: the server's side */
struct roost_pool *roost_pool_of(struct roost_engine *e, uint16_t service); /* NULL: it is not configured any more */
void roost_link_start(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause);
void roost_link_open(struct roost_engine *e, struct roost_conn *c);    /* connects; the transition is the caller's */
void roost_link_abandon(struct roost_engine *e, struct roost_conn *c); /* undoes it; no transition */
void roost_link_attach(struct roost_engine *e, struct roost_conn *c);
void roost_link_event(struct roost_engine *e, struct roost_conn *c, uint32_t events); /* while it is CONNECTING */
/* -> STANDBY. It does not queue the connection for another look: callers outside of one do. */
void roost_link_drop(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause);
int roost_link_end(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause); /* orderly, -> STANDBY */
/* Gives an attached server back to the control plane (ROOST_EV_RELEASED) when all is through: 0 or -EBUSY. One that spoke on
 * without waiting, or where it is too late, is reset. */
int roost_link_release(struct roost_engine *e, struct roost_conn *c, bool late);
/* The same for the sake of another server, at once: what the present one has sent may still wait for a slow client. */
int roost_link_yield(struct roost_engine *e, struct roost_conn *c);
void roost_link_resumed(struct roost_engine *e, struct roost_conn *c); /* its server's leg slept, and is a link again */
/* Those that ended in this turn are no links of their servers any more. Before they are freed. */
void roost_links_turn(struct roost_engine *e);
/* Links that are made before they are needed. */
void roost_ready_turn(struct roost_engine *e);
void roost_link_settle(struct roost_engine *e, struct roost_conn *c);
int roost_link_unacknowledged(const struct roost_conn *c); /* bytes; our FIN counts as one */
void roost_link_timer(struct roost_engine *e, struct roost_conn *c);

/* relay.c: of a connection that has a link */
void roost_relay(struct roost_engine *e, struct roost_conn *c);
void roost_server_failed(struct roost_engine *e, struct roost_conn *c);

/* ask.c */
/* For the server that waits: whether the client must still answer. */
bool roost_ask(struct roost_engine *e, struct roost_conn *c);
void roost_asked_turn(struct roost_engine *e);

/* attach.c. Links the server to its client, waking it, or as soon as the link is ended that it takes over; else it waits or
 * is refused. Takes it over. */
void roost_attach_server(struct roost_engine *e, struct roost_waiting *w);
void roost_attach_turn(struct roost_engine *e);
/* Servers wait for this client no longer on account of being told ROOST_EV_WANTED. */
void roost_attach_undialled(struct roost_engine *e, const struct roost_key *key);
void roost_attach_close(struct roost_engine *e);

/* listeners.c */
/* A descriptor, the one that was handed over where there is one, or -errno. */
int roost_listen(struct roost_engine *e, const uint8_t ip[16], uint16_t port, bool transparent,
                 struct roost_reason *why);
/* Carries ROOST_OP_ADOPT out, and has its socket: 0 or an errno. */
int roost_adopt(struct roost_engine *e, const struct roost_command *command);
void roost_accept_turn(struct roost_engine *e, struct roost_listener *l);
bool roost_turns_away(const struct roost_listener *l); /* new clients, since none of its servers is up */
void roost_accept_pause(struct roost_engine *e);       /* no room: new clients and servers wait in the kernel */
void roost_accept_resume(struct roost_engine *e);

/* crowd.c: this key has found no room. true: now it may. */
bool roost_crowd_gives_way(struct roost_engine *e, const struct roost_key *key);

/* handover.c: before the engine's thread runs, the connections that were handed over are its own. */
void roost_inherited_begin(struct roost_engine *e);

/* doors.c */
void roost_router_accept(struct roost_engine *e, int door);

/* freeze.c */
int roost_grace_start(struct roost_engine *e);
void roost_grace_stop(struct roost_engine *e);
int roost_freeze(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause);
void roost_freeze_cancel(struct roost_engine *e, struct roost_conn *c, int error);
void roost_freeze_turn(struct roost_engine *e);
void roost_grace_done(struct roost_engine *e);

/* pressure.c: count of the awake connections are to go down. */
void roost_relieve(struct roost_engine *e, uint32_t count, enum roost_cause cause);
/* Count of those in IDLE are to go to SLEEP: ROOST_EV_SLEEP_DUE is told of each. In place of what is left of the last call. */
void roost_descend(struct roost_engine *e, uint32_t count, enum roost_cause cause);
void roost_descent_turn(struct roost_engine *e);
bool roost_descent_busy(struct roost_engine *e); /* whether turns should follow each other at once */

/* held.c */
void roost_hold(struct roost_engine *e, struct roost_conn *c, const struct roost_frame *f, bool server);
void roost_drop_held(struct roost_conn *c);
/* Replays what was held for these connections, and removes their slots. */
void roost_release_held(struct roost_engine *e, struct roost_conn **conns, int count);
void roost_stray(struct roost_engine *e, const struct roost_frame *f); /* to the stack, at the end of the thaws */
void roost_strays_turn(struct roost_engine *e);
/* What an inactive leg with this record would make of a frame that was kept; the segment that it is. DROP: it is none. */
enum roost_verdict roost_judge_kept(const uint8_t *frame, size_t length, size_t l3, const struct roost_ka *ka,
                                    struct roost_segment *segment);
/* The slot of a connection that wakes holds packets from now on, and no probe goes out for it any more. */
void roost_slot_wakes(struct roost_engine *e, struct roost_conn *c);
/* probe: it is acceptable, and its timestamp is echoed; NULL: it is not. */
void roost_answer_probe(struct roost_engine *e, const struct roost_key *key, struct roost_ka *ka,
                        const struct roost_segment *probe);
void roost_drain(struct roost_engine *e); /* frames out of the ring, at most so many */

/* thaw.c */
void roost_thaw_turn(struct roost_engine *e);
/* Wakes a connection of the table for the control plane or a server: thawed in this turn's roost_thaw_turn when IDLE,
 * after the store answered when SLEEP. NULL with *error when there is none. */
struct roost_conn *roost_wake(struct roost_engine *e, const struct roost_key *key, enum roost_cause cause, int *error);
/* The same of a slot that is at hand, IDLE or SLEEP. NULL: no room. */
struct roost_conn *roost_rouse(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot,
                               enum roost_cause cause);
void roost_wake_queue(struct roost_engine *e, struct roost_conn *c);
void roost_restore(struct roost_engine *e, const struct roost_command *command); /* ROOST_OP_RESTORE */

/* received.c */
int roost_on_frame(void *context, void *data, size_t size);
void roost_take_frame(struct roost_engine *e, const struct roost_frame *f);

/* insert.c: ROOST_OP_INSERT: 0 or an errno; a slot in SLEEP out of a record: NULL: no room. */
int roost_insert(struct roost_engine *e, const struct roost_command *command);
struct roost_ka *roost_insert_sleeping(struct roost_engine *e, const struct roost_record *record);

/* recall.c */
/* A frame of a key that is in no table. */
void roost_recall_frame(struct roost_engine *e, const struct roost_frame *f);
/* True: the command waits for its candidate's row from now on. *error: it should wait, and cannot. */
bool roost_recall_command(struct roost_engine *e, struct roost_command *command, int *error);
/* Ends questions that have no answer, and asks again where an RST came while the store could not answer. */
void roost_recall_turn(struct roost_engine *e);
/* ROOST_OP_CANDIDATE */
void roost_recall_answered(struct roost_engine *e, const struct roost_command *command);
void roost_recall_close(struct roost_engine *e);

/* growth.c */
/* In each turn. */
void roost_growth_turn(struct roost_engine *e);
/* Whether turns should follow each other at once. */
bool roost_growth_busy(const struct roost_engine *e);
/* Something grows, or this table is about to: what can wait does, rather than be refused. */
bool roost_growth_due(struct roost_engine *e, bool v4);
/* The engine has been started; a predecessor may have been killed while a table grew. */
void roost_growth_resume(struct roost_engine *e);
void roost_growth_stop(struct roost_engine *e);
/* Bytes of memory that the machine could give: free, or taken by files alone. */
uint64_t roost_growth_available(void);

/* sweep.c */
#define ROOST_SLEEP_RETRY_S 30                  /* the store is asked again, should it not have managed */
void roost_sweep_begin(struct roost_engine *e); /* probes that cannot be sent do not count, from now on */
void roost_sweep_turn(struct roost_engine *e);
void roost_sweep_restart(struct roost_engine *e); /* buckets have other numbers now */
/* The probe interval of a slot. Where the class has two bounds, at random between them, as likely in one octave as in another; the
 * same until the client is heard again, and of one without timestamps until it says something. */
uint32_t roost_probe_interval_s(const struct roost_class *class, uint32_t rcv_nxt, uint32_t ts_recent);
/* Seconds from when a client was heard until its first probe: its interval, moved by an eighth at most towards the moment
 * of its bucket, in every interval when seconds + salt are a multiple of it. interval_s > 0. */
uint32_t roost_first_probe_s(uint32_t salt, uint32_t heard_s, uint32_t interval_s);

#endif
