/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the engine share. Everything here belongs to the engine thread; others may look at it only while
 * they hold engine->lock.
 *
 *     engine.c      the thread, its loop, the C face          links.c   server links: connect, retry, unlink
 *     listeners.c   services: listen, accept, hold back       stats.c   the counters' names
 *     commands.c    what the control plane asks for           relay.c   bytes between the two legs
 *     freeze.c      socket -> record                          thaw.c    record -> socket
 *     sweep.c       what sleeping connections need by time    connection.c  the awake ones, by id and by key
 *     waiting.c     servers whose client is not to be had     mailbox.c     batches in, batches out
 *     ports.c       local ports of links that may sleep       listing.c     what exists, while it moves
 *     policy.c      what is in force for one connection
 *     perhaps.c     those that sleep without a slot: going there, and coming back (filter.c)
 *     inband_relay.c, inband_requests.c                       what the ends ask for in the payload (inband.c)
 */
#ifndef ROOST_CEXT_INTERNAL_H
#define ROOST_CEXT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ebpf/shared/frame.h"
#include "ebpf/shared/judge.h"
#include "ebpf/shared/steer.h"
#include "cext/conn/born.h"
#include "cext/path/datapath.h"
#include "cext/table/filter.h"
#include "cext/conn/growth.h"
#include "cext/table/hosts.h"
#include "cext/base/clock.h"
#include "cext/base/hash.h"
#include "cext/base/mailbox.h"
#include "cext/conn/overrides.h"
#include "cext/conn/perhaps.h"
#include "cext/conn/servers.h"
#include "cext/socket/spares.h"
#include "cext/socket/survey.h"
#include "cext/table/table.h"
#include "cext/base/wheel.h"
#include "cext/base/workers.h"

#include "engine.h"

#define ROOST_MAX_SERVICES 1024
#define ROOST_SCRATCH (256 * 1024)
#define ROOST_PENDING_MAX (64 * 1024) /* most that is ever buffered for a slow reader, per direction */

/* What epoll's data names: these, or a connection (an address, the lowest bit set for its server leg); or, of a client's
 * socket that was rebuilt, TAG_REBUILT and its descriptor, by which roost_engine.rebuilt has its connection: as a spare
 * socket it has none, and stays in the epoll instance nevertheless. */
enum {
    TAG_WAKE = 1,
    TAG_RING = 2,
    TAG_GRACE = 3,
    TAG_DOOR = 4, /* and the next: enum roost_door */
    TAG_LISTENER = 16,
    TAG_END = TAG_LISTENER + ROOST_MAX_SERVICES
};

#define TAG_REBUILT (1ULL << 63)

struct roost_held { /* a frame that waits for its connection */
    struct roost_held *next;
    uint32_t ifindex, queue;
    uint32_t length, l3;
    bool server; /* of the server's leg */
    bool local;  /* from this machine: it has no checksum, and goes back by a raw socket */
    uint8_t data[];
};

struct roost_pending { /* read from one leg, not yet taken by the other */
    uint32_t from, to;
    uint8_t data[];
};

/* The ACK that ends the handshake with a server. It is the kernel's to send within 200 ms if nobody does before. */
enum roost_greeting {
    ROOST_GREETED = 0,     /* the server has spoken */
    ROOST_GREETING_HELD,   /* to go with the client's first bytes: a packet and a wake-up of the server less */
    ROOST_GREETING_SENT,   /* by itself: the server may be the one to speak first, or begins while a client is woken */
    ROOST_GREETING_PASSED, /* the client has spoken */
};

struct roost_leg {
    int fd; /* -1: none */
    bool readable, writable;
    bool more;                     /* its end or urgent data may stand behind what a short read gave */
    bool urgent;                   /* ... or an error: not the end alone */
    bool ends;                     /* the peer's FIN is here: behind what there is to read, nothing comes any more */
    bool eof;                      /* the peer's FIN was read */
    bool shut;                     /* we sent ours */
    bool refused;                  /* a send to it failed with bytes in hand */
    uint8_t greeting;              /* enum roost_greeting */
    bool watched_out;              /* epoll tells when it can be written to again */
    uint64_t turn;                 /* of the loop in which it was made: that turn's events are of an earlier socket */
    bool rebuilt;                  /* from a record, not accepted or connected */
    struct roost_pending *pending; /* to be written to this leg */
};

enum roost_conn_phase {
    ROOST_LIVE = 0,  /* the client socket is ours */
    ROOST_MARKED,    /* FREEZING slot in the table; waiting for the grace period */
    ROOST_HELD_LINK, /* client leg frozen (IDLE slot), server link kept */
    ROOST_ASKED,     /* SLEEP: the store was asked for the record */
    ROOST_THAWING,   /* IDLE: in the waking queue */
};

enum roost_link {
    ROOST_UNLINKED = 0,
    ROOST_CONNECTING,
    ROOST_LINKED,
    ROOST_UNLINKING
};

struct roost_conn {
    struct roost_timer timer; /* first: the wheel hands back its address */
    struct roost_key key;
    uint64_t id;
    struct roost_conn *older, *newer; /* all awake connections */
    struct roost_conn *next_ready;    /* run queue of the relay */
    struct roost_conn *next_unacked;  /* clients whose first bytes the answer may acknowledge */
    bool unacked;                     /* it is one of them */
    struct roost_leg client, server;
    uint64_t ack_ms;    /* when it waits for the answer no longer */
    uint64_t active_ms; /* last payload byte */
    uint64_t since_ms;  /* last transition */
    uint64_t rx, tx;    /* since the last transition */
    uint64_t link_deadline_ms;
    uint64_t retry_ms;      /* the next server's turn: this one does not answer, or none was to be had */
    uint64_t tried;         /* places of servers that this link was tried at */
    uint64_t told_quiet_ms; /* active_ms for which QUIET was told */
    uint64_t token;         /* of the command that waits for this connection */
    struct roost_held *held, **held_tail;
    uint32_t held_frames;
    int attach_fd; /* a server that waits until the connection is awake, or unlinked from another; -1 none */
    uint64_t attach_token, attach_until_ms;
    char *preamble;
    uint32_t preamble_len;
    uint8_t *early;
    uint32_t early_len;
    uint16_t service;
    uint8_t place; /* of the server in the service's pool, counted from 1; 0: linked to none of them */
    uint8_t state; /* enum roost_state as told to the control plane */
    uint8_t phase, link;
    uint8_t wake_cause;
    uint8_t freeze_cause, unlink_cause;
    bool asked;       /* the last payload was the client's */
    bool attached;    /* the link is a server's own (attach): not to be reconnected */
    bool want_freeze; /* freeze as soon as it is unlinked */
    bool keep_link;   /* of this freeze */
    bool in_batch;    /* linked by next_frozen */
    bool want_close;
    uint8_t close_cause;            /* of want_close; ROOST_C_NONE: command */
    bool speaks;                    /* the frame that wakes it has payload: a server will be needed */
    bool ready;                     /* in the run queue */
    bool dead;                      /* freed at the end of the turn */
    uint8_t queued;                 /* queues it stands in: not to be freed */
    struct roost_conn *next_frozen; /* grace batches */
    struct roost_conn *next_waking; /* to be thawed in the next turn */
    struct roost_conn *next_dead;
    bool waking;
    struct roost_ka *slot;            /* in MARKED, HELD_LINK, ASKED, THAWING */
    struct roost_ka *server_slot;     /* of a pair, in MARKED and THAWING */
    struct roost_key server_key;      /* of server_slot */
    bool server_local;                /* it runs on this machine */
    struct roost_in_band *in_band;    /* what in-band requests need just now; NULL: nothing */
    struct roost_override *overrides; /* NULL: its service's policy holds */
};

struct roost_grace {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int event_fd;
    bool wanted, stop, running;
};

struct roost_waiting;

struct roost_listener {
    struct roost_service service;
    struct roost_pool pool;
    int fd;
    bool paused;
};

enum roost_engine_counter {
    ROOST_E_ACCEPTED,
    ROOST_E_CLOSED,
    ROOST_E_FROZEN,
    ROOST_E_FREEZE_CANCELLED,
    ROOST_E_THAWED,
    ROOST_E_THAW_FAILED,
    ROOST_E_SURVEYED,
    ROOST_E_REUSED,
    ROOST_E_HELD_DROPPED,
    ROOST_E_REPLAYED,
    ROOST_E_STRAY_REPLAYED,
    ROOST_E_FRAME_BAD,
    ROOST_E_LINKED,
    ROOST_E_LINK_FAILED,
    ROOST_E_DOOR_REFUSED,
    ROOST_E_PROBES,
    ROOST_E_PROBE_LOST,
    ROOST_E_PROBE_DEAD,
    ROOST_E_TABLE_FULL,
    ROOST_E_ACCEPT_PAUSED,
    ROOST_E_RUSH_PAUSES,
    ROOST_E_FREEZE_NS,
    ROOST_E_THAW_NS,
    ROOST_E_BYTES_IN,
    ROOST_E_BYTES_OUT,
    ROOST_E_IN_BAND,
    ROOST_E_IN_BAND_REFUSED,
    ROOST_E_BORN_SPOKE,
    ROOST_E_BORN_GONE,
    ROOST_E_GROWN,
    ROOST_E_GROWTH_FAILED,
    ROOST_E_PERHAPS_ASKED,
    ROOST_E_PERHAPS_DROPPED,
    ROOST_E_PERHAPS_SLEPT,
    ROOST_E_PERHAPS_STRANGERS,
    ROOST_E_FILTER_FULL,
    ROOST_E_COUNT
};

struct roost_engine {
    pthread_t thread;
    pthread_mutex_t lock;
    int lock_waiters;
    bool started, stopping;
    int epoll_fd, wake_fd;
    struct roost_mailbox box;
    struct roost_datapath path;
    struct roost_survey survey;
    struct roost_workers workers;
    uint32_t worker_threads;
    struct roost_spares spares;
    uint64_t spares_trim_ms;
    struct roost_conn **rebuilt; /* by descriptor; see TAG_REBUILT */
    uint32_t rebuilt_size;
    struct roost_table table;
    struct roost_wheel wheel;
    struct roost_grace grace;
    struct roost_listener listener[ROOST_MAX_SERVICES];
    int listeners;
    struct roost_listener *by_index[ROOST_MAX_SERVICES]; /* by the index of the service */
    int door[ROOST_DOORS];                               /* a router's listening sockets for servers; -1: none */
    struct roost_hosts hosts;
    struct roost_override_table overrides;
    char name[64];                         /* the manager's */
    uint32_t in_band_asked;                /* questions to the control plane, ever */
    struct roost_waiting *waiting_servers; /* oldest first */
    uint32_t servers_waiting, server_wait_ms;
    uint64_t servers_retry_ms;
    struct roost_hash by_id, by_key; /* the awake */
    struct roost_listing *listings;  /* those that are being taken */
    struct roost_conn *oldest, *newest;
    uint64_t awake, max_awake;
    bool pressure_told;
    uint64_t next_id;
    uint16_t link_port_first, link_port_last, link_port_next; /* of links that may sleep (ports.c) */
    uint8_t *link_ports_reserved;                             /* a bit for each; NULL: none */
    uint64_t now_ms;
    uint64_t turn;
    uint64_t accept_resume_ms;
    uint64_t rush_ms, rush_accepted; /* of the last look at how many clients connect */
    uint64_t rush_stayed_ms;         /* those that went since then, all together */
    bool rush;
    struct roost_conn *unacked, **unacked_tail;
    struct roost_conn *ready, **ready_tail;
    struct roost_conn *gathering, *in_grace, *graced; /* freeze batches */
    struct roost_conn *dead;
    struct roost_conn *waking, **waking_tail; /* their records are at hand */
    int frame_budget;
    uint32_t strays;
    struct roost_held *stray, **stray_tail; /* frames of connections that need no thaw: to the stack */
    uint64_t sweep_at, sweep_ms, swept_ms;  /* a bucket; the next slice's time, and the last one's */
    uint64_t probe_room_ms;                 /* when there was room for a bucket's probes */
    uint64_t stat[ROOST_E_COUNT];
    struct roost_growth growth;
    struct roost_filter filter;
    struct roost_perhaps perhaps;
    const struct roost_command *at_hand; /* a record that was read just now: who wakes needs not ask for it */
    uint64_t births_ms;                  /* when XDP is told the next time that we live */
    uint64_t sockets_ms;                 /* when the sockets that live are noted the next time */
    uint64_t born_before[2];             /* IPv4, IPv6: of XDP's counters when the tables were adopted */
    uint8_t scratch[ROOST_SCRATCH];
};

/* engine.c. The lock is fair to others than the engine thread. */
void roost_lock(struct roost_engine *e);
void roost_unlock(struct roost_engine *e);
int roost_watch_plain(struct roost_engine *e, int fd, uint64_t tag);

/* router.c */
int roost_router_manage(struct roost_engine *e, const struct roost_service *service, char *err, uint32_t err_len);
void roost_router_accept(struct roost_engine *e, int door);
/* Links a server that a door has accepted (command->fd) to the client whose address it connected to. As
 * roost_attach_server; a client that is not there may come. */
int roost_router_link(struct roost_engine *e, struct roost_command *command, uint64_t since_ms, uint32_t *wait_ms);
void roost_router_turn_away(struct roost_engine *e, int fd);

/* waiting.c */
/* Links a server to its client, or lets it wait for that client. 0, or an errno: then fd and early are still the
 * caller's. door: see roost_router_link, else roost_attach_server. */
int roost_attach_or_wait(struct roost_engine *e, struct roost_command *command, bool door);
void roost_waiting_turn(struct roost_engine *e);
void roost_waiting_close(struct roost_engine *e);

/* listeners.c */
int roost_listen(const uint8_t ip[16], uint16_t port, bool transparent, char *err, uint32_t err_len); /* fd or -errno */
void roost_accept_turn(struct roost_engine *e, struct roost_listener *l);
/* With the answer, if that comes soon. The kernel is to hold the ACK back (TCP_QUICKACK 0) by itself. */
void roost_acknowledge_later(struct roost_engine *e, struct roost_conn *c);
void roost_unacked_turn(struct roost_engine *e);
void roost_accept_pause(struct roost_engine *e); /* no room: new clients and servers wait in the kernel */
void roost_accept_resume(struct roost_engine *e);
void roost_tell_pressure(struct roost_engine *e); /* descriptors run short */
void roost_conn_timer(struct roost_engine *e, struct roost_conn *c);

/* sockets.c: what XDP must know of sockets. When the engine starts; in each turn; before somebody gets one. */
void roost_sockets_begin(struct roost_engine *e);
void roost_sockets_turn(struct roost_engine *e);
void roost_sockets_note(struct roost_engine *e, const struct roost_key *key);

/* listing.c: of somebody who is awake from now on, or no more, while others list (e->listings). place: of the hash. */
void roost_listings_awake(struct roost_engine *e, const struct roost_key *key);
void roost_listings_asleep(struct roost_engine *e, const struct roost_key *key); /* or gone */
/* A slot for one that slept without. */
void roost_listings_back(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot);

/* connection.c */
int roost_conns_init(struct roost_engine *e, uint32_t expected);
struct roost_conn *roost_conn_new(struct roost_engine *e, const struct roost_key *key, uint64_t id, uint16_t service);
struct roost_conn *roost_conn_by_id(struct roost_engine *e, uint64_t id);
struct roost_conn *roost_conn_by_key(struct roost_engine *e, const struct roost_key *key);
void roost_conn_touch(struct roost_engine *e, struct roost_conn *c); /* payload moved: now the most recently active */
void roost_conn_set_id(struct roost_engine *e, struct roost_conn *c, uint64_t id);
void roost_conn_forget(struct roost_engine *e, struct roost_conn *c); /* out of every index; freed after this turn */
void roost_conn_set_timer(struct roost_engine *e, struct roost_conn *c);
void roost_conns_free_dead(struct roost_engine *e);
void roost_conn_run(struct roost_engine *e, struct roost_conn *c); /* into the run queue */
const struct roost_service *roost_service_of(struct roost_engine *e, uint16_t index);
void roost_conn_transition(struct roost_engine *e, struct roost_conn *c, enum roost_state to, enum roost_cause cause);
/* Ends an awake connection: CLOSED. reset: towards both ends by RST, else by the close that is already under way. */
void roost_conn_close(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause, bool reset);
int roost_watch(struct roost_engine *e, int fd, struct roost_conn *c, bool server);
/* The client's socket is watched for reading alone until bytes wait for it: a new one can always be written to, and an
 * event that says so would cost every client a turn of the loop. */
void roost_watch_blocked(struct roost_engine *e, struct roost_conn *c);
/* Room for what is rebuilt with these descriptors. 0 or -ENOMEM. */
int roost_rebuilt_reserve(struct roost_engine *e, int fd);
void roost_rebuilt_name(struct roost_engine *e, int fd, struct roost_conn *c); /* NULL: it is nobody's from now on */
/* How a rebuilt client's socket is to be watched, named or not. */
struct epoll_event roost_rebuilt_event(int fd);
void roost_reset_fd(int fd); /* close with RST */
void roost_leg_close(struct roost_engine *e, struct roost_leg *leg, bool reset);

/* ports.c */
typedef int roost_connect_from(const struct roost_server *to, bool held, const uint8_t *local, uint16_t port_be);
/* Begins a link that may sleep, from a port that no other has. A descriptor or -errno. */
int roost_ports_connect(struct roost_engine *e, const struct roost_server *to, bool held,
                        roost_connect_from *connect_from);

/* links.c */
void roost_leg_fresh(struct roost_leg *leg, int fd);
struct roost_pool *roost_pool_of(struct roost_engine *e, uint16_t service); /* NULL: it is not configured any more */
void roost_link_start(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause);
void roost_link_open(struct roost_engine *e, struct roost_conn *c);    /* connects; the transition is the caller's */
void roost_link_abandon(struct roost_engine *e, struct roost_conn *c); /* undoes it; no transition */
void roost_link_attach(struct roost_engine *e, struct roost_conn *c);
void roost_link_event(struct roost_engine *e, struct roost_conn *c, uint32_t events);       /* while it is CONNECTING */
void roost_link_drop(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause); /* -> STANDBY */
int roost_link_end(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause);   /* orderly, -> STANDBY */
/* The same for the sake of another server, at once: what the present one has sent may still wait for a slow client. */
int roost_link_yield(struct roost_engine *e, struct roost_conn *c);
void roost_link_resumed(struct roost_engine *e, struct roost_conn *c); /* its server's leg slept, and is a link again */
/* Those that ended in this turn are no links of their servers any more. Before they are freed. */
void roost_links_turn(struct roost_engine *e);
void roost_link_settle(struct roost_engine *e, struct roost_conn *c);
int roost_link_unacknowledged(const struct roost_conn *c);                          /* bytes; our FIN counts as one */
void roost_attach_refused(struct roost_engine *e, struct roost_conn *c, int error); /* closes the waiting server */
void roost_link_timer(struct roost_engine *e, struct roost_conn *c);

/* relay.c */
enum roost_moved {
    ROOST_MOVED_ALL,
    ROOST_MOVED_AGAIN, /* there may be more, but others wait */
    ROOST_BLOCKED,     /* the sink takes no more just now */
    ROOST_SOURCE_BROKEN,
    ROOST_SINK_BROKEN
};

void roost_relay(struct roost_engine *e, struct roost_conn *c);
int roost_leg_flush(struct roost_leg *leg); /* 0 nothing pending any more, -EAGAIN, or -errno */
int roost_leg_queue(struct roost_leg *leg, const uint8_t *data, uint32_t length);
/* Sends, behind what is pending; what is not taken is queued: ROOST_BLOCKED. */
void roost_leg_acknowledge(const struct roost_leg *leg); /* now, and for a while at once */
enum roost_moved roost_leg_send(struct roost_leg *leg, const uint8_t *data, uint32_t length);
void roost_relay_count(struct roost_engine *e, struct roost_conn *c, bool to_server, uint64_t bytes); /* of payload */

/* inband_relay.c */
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
bool roost_inband_unfinished(const struct roost_conn *c);                   /* a frame, or the answer to one */
void roost_inband_frozen(struct roost_engine *e, struct roost_conn *c);     /* it is IDLE now */
uint64_t roost_inband_due_ms(struct roost_engine *e, struct roost_conn *c); /* when roost_inband_timer wants to run */
void roost_inband_timer(struct roost_engine *e, struct roost_conn *c);
void roost_inband_free(struct roost_conn *c);
int roost_inband_answered(struct roost_engine *e, const struct roost_command *command);
int roost_inband_tell(struct roost_engine *e, struct roost_conn *c);

/* policy.c: what is in force for one connection. */
int roost_policy_restore(struct roost_engine *e, const struct roost_command *command);
uint32_t roost_quiet_ms(struct roost_engine *e, const struct roost_conn *c, enum roost_state state); /* 0 = never */
uint16_t roost_probe_interval_s(struct roost_engine *e, const struct roost_conn *c);
uint32_t roost_sleep_due_s(struct roost_engine *e, const struct roost_conn *c); /* for its record */

/* freeze.c */
int roost_grace_start(struct roost_engine *e);
void roost_grace_stop(struct roost_engine *e);
int roost_freeze(struct roost_engine *e, struct roost_conn *c, bool keep_link, enum roost_cause cause);
void roost_freeze_cancel(struct roost_engine *e, struct roost_conn *c, int error);
void roost_freeze_turn(struct roost_engine *e);
void roost_grace_done(struct roost_engine *e);

/* thaw.c */
int roost_on_frame(void *context, void *data, size_t size);
void roost_drain(struct roost_engine *e); /* frames out of the ring, at most so many */
void roost_take_frame(struct roost_engine *e, const struct roost_frame *f);
void roost_stray(struct roost_engine *e, const struct roost_frame *f); /* to the stack, at the end of the thaws */
/* Whether a held frame would wake a leg with this record. */
enum roost_verdict roost_judge_held(const struct roost_held *h, const struct roost_ka *ka);
/* The slot of a connection that wakes holds packets from now on, and no probe goes out for it any more. */
void roost_slot_wakes(struct roost_engine *e, struct roost_conn *c);
void roost_answer_probe(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *ka);
void roost_drop_held(struct roost_conn *c);
void roost_thaw_turn(struct roost_engine *e);
/* Wakes a connection of the table for the control plane or a server: thawed in this turn's roost_thaw_turn when IDLE,
 * after the store answered when SLEEP. NULL with *error when there is none. */
struct roost_conn *roost_wake(struct roost_engine *e, const struct roost_key *key, enum roost_cause cause, int *error);
void roost_wake_queue(struct roost_engine *e, struct roost_conn *c);
void roost_restore(struct roost_engine *e, const struct roost_command *command);
void roost_hold_release(struct roost_engine *e, struct roost_conn *c); /* replays what was held, removes the slot */
void roost_awake(struct roost_engine *e, struct roost_conn *c);        /* go on after a thaw or a cancelled freeze */
void roost_look(struct roost_engine *e, struct roost_conn *c, enum roost_cause otherwise); /* what does it want? */

/* commands.c */
/* Links a server's socket to the client, waking it, or as soon as the link is ended that it takes over. 0, or an errno:
 * then fd and early are still the caller's, and it may be tried again until wait_ms have passed since since_ms. */
int roost_attach_server(struct roost_engine *e, struct roost_command *command, uint64_t since_ms, uint32_t *wait_ms);
void roost_commands_turn(struct roost_engine *e);
/* Carries one out, unless error says why not; whoever gave one that is refused is told. */
void roost_command(struct roost_engine *e, struct roost_command *command, int error);
void roost_refuse(struct roost_engine *e, uint8_t op, uint64_t token, uint64_t id, const struct roost_key *key,
                  int error);
void roost_event_of_conn(struct roost_engine *e, const struct roost_conn *c, struct roost_event *event);
uint8_t roost_state_of_slot(const struct roost_ka *slot); /* enum roost_state */
void roost_event_of_slot(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot,
                         struct roost_event *event);

/* A slot in SLEEP out of a record; NULL: no room. */
struct roost_ka *roost_insert_sleeping(struct roost_engine *e, const struct roost_record *record);

/* sweep.c */
void roost_sweep_turn(struct roost_engine *e);
/* Seconds from when a client was heard until its first probe: its interval, moved by an eighth at most towards the moment
 * of its bucket, in every interval when seconds + salt are a multiple of it. interval_s > 0. */
uint32_t roost_first_probe_s(uint32_t salt, uint32_t heard_s, uint32_t interval_s);

#endif
