/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's state: itself, its connections and their legs. All of it belongs to the engine thread; others may look at it
 * only while they hold engine->lock.
 */
#ifndef ROOST_CEXT_STATE_H
#define ROOST_CEXT_STATE_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>

#include "ebpf/shared/frame.h"
#include "ebpf/shared/judge.h"
#include "ebpf/shared/steer.h"
#include "cext/path/datapath.h"
#include "cext/table/filter.h"
#include "cext/table/hosts.h"
#include "cext/table/rules.h"
#include "cext/base/clock.h"
#include "cext/base/fair_lock.h"
#include "ebpf/shared/silence.h"
#include "cext/base/hash.h"
#include "cext/base/mailbox.h"
#include "cext/base/pending.h"
#include "candidates.h"
#include "servers.h"
#include "waiting.h"
#include "cext/socket/ready_links.h"
#include "cext/socket/spares.h"
#include "cext/socket/survey.h"
#include "cext/table/table.h"
#include "cext/base/wheel.h"
#include "cext/base/workers.h"

#include "cext/base/face.h"

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
    bool local;  /* from this machine: it goes back by a raw socket */
    uint8_t data[];
};

/* The ACK that ends the handshake with a server. The kernel sends it within 200 ms if the engine does not. */
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
    bool probed;                   /* the kernel sends keep-alives, as the connection's class says */
    bool lost;                     /* it failed without a word of its far end: no FIN, no RST */
    uint8_t error;                 /* errno by which it failed first, or was not made last */
    bool rebuilt;                  /* from a record, or dialled: bound to its local address */
    struct roost_pending *pending; /* to be written to this leg */
};

enum roost_conn_phase {
    ROOST_LIVE = 0, /* the client socket is ours */
    ROOST_MARKED,   /* FREEZING slot in the table; waiting for the grace period */
    ROOST_ASKED,    /* SLEEP: the store was asked for the record */
    ROOST_THAWING,  /* IDLE: in the waking queue */
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
    struct roost_conn *next_ready;    /* the queue of next.c */
    struct roost_conn *next_unacked;  /* clients whose first bytes the answer may acknowledge */
    bool unacked;                     /* it is one of them */
    struct roost_leg client, server;
    struct roost_conn *next_asked;        /* clients that are to answer a probe (life/ask.c) */
    bool asked_for;                       /* it is one of them */
    bool must_answer;                     /* before the server that waits has it */
    uint32_t heard_mark;                  /* of silent_ms (socket/heard.h) */
    uint64_t silent_ms;                   /* its client has not been heard since then; 0: as its socket knows */
    uint64_t asked_ms, again_ms, look_ms; /* the first probe, the next one, the next look for an answer */
    uint64_t ack_ms;                      /* when it waits for the answer no longer */
    uint64_t active_ms;                   /* last payload byte */
    uint64_t since_ms;                    /* last transition */
    uint64_t taken_ms;                    /* nothing that was to be written then has waited in vain */
    uint64_t half_closed_ms;              /* one end's FIN was passed on to the other; 0: none was */
    uint64_t rx, tx;                      /* since the last transition */
    uint64_t link_deadline_ms;
    uint64_t retry_ms;      /* the next server's turn: this one does not answer, or none was to be had */
    uint64_t tried;         /* places of servers that this link was tried at */
    uint64_t told_quiet_ms; /* active_ms for which QUIET was told */
    uint64_t token;         /* of the command that waits for this connection */
    struct roost_held *held, **held_tail;
    uint32_t held_frames;
    struct roost_waiting *server_waits; /* until the connection is awake, or unlinked from another; NULL: none */
    struct roost_waiting *served;       /* it is linked to; NULL: to none that has asked, or that was told already */
    uint16_t service;
    uint8_t place;                 /* of the server in the service's pool, counted from 1; 0: linked to none of them */
    uint8_t probes;                /* unanswered when it was roused */
    struct roost_server linked_to; /* in ACTIVE, or it is tried; zeros: none that has an address */
    uint8_t state;                 /* enum roost_state as told to the control plane */
    uint8_t phase, link;
    uint8_t wake_cause;
    uint8_t freeze_cause, unlink_cause;
    bool asked;       /* the last payload was the client's */
    bool cut;         /* what woke it is not all that its client wrote, and its server has said nothing since */
    bool sinks;       /* its link was ended by the server, and there was no other since: class.on_server_close */
    bool attached;    /* the link is a server's own (attach): not to be reconnected */
    bool want_freeze; /* freeze as soon as it is unlinked */
    bool in_batch;    /* linked by next_frozen */
    bool want_close;
    uint8_t close_cause;            /* of want_close */
    bool close_resets;              /* likewise: by RST */
    bool speaks;                    /* the frame that wakes it has payload: a server will be needed */
    bool crowds;                    /* its source did much at once when it came, or woke (limits.h): others go first */
    bool ready;                     /* in the queue of next.c */
    bool dead;                      /* freed at the end of the turn */
    uint8_t queued;                 /* queues it stands in: not to be freed */
    struct roost_conn *next_frozen; /* grace batches */
    struct roost_conn *next_waking; /* to be thawed in the next turn */
    struct roost_conn *next_dead;
    bool waking;
    struct roost_ka *slot;         /* in MARKED, ASKED, THAWING */
    struct roost_ka *server_slot;  /* of a pair, in MARKED and THAWING */
    struct roost_key server_key;   /* of server_slot */
    bool server_local;             /* it runs on this machine */
    struct roost_in_band *in_band; /* what in-band requests need just now; NULL: nothing */
    uint16_t class;                /* its policy; a use of it is counted */
    bool own_untold;               /* what it set in band changed since the control plane was told */
    uint8_t refused;               /* roost_obstacles.refused */
    uint32_t row;                  /* of one that was in SLEEP: its slot's ka.rest then */
};

struct roost_grace {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int event_fd;
    bool wanted, stop, running;
};

struct roost_listener {
    struct roost_service service;
    struct roost_pool pool;
    struct roost_ready_links ready; /* of by_index alone, where several are of one service */
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
    ROOST_E_LINKS_LEFT,
    ROOST_E_DOOR_REFUSED,
    ROOST_E_PROBES,
    ROOST_E_PROBE_LOST,
    ROOST_E_PROBE_DEAD,
    ROOST_E_ANSWERS, /* ACKs in answer to what XDP did not answer itself */
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
    ROOST_E_BORN_EXPIRED,
    ROOST_E_GROWN,
    ROOST_E_GROWTH_FAILED,
    ROOST_E_CANDIDATES_ASKED,
    ROOST_E_CANDIDATES_DROPPED,
    ROOST_E_CANDIDATES_SLEPT,
    ROOST_E_CANDIDATES_STRANGERS,
    ROOST_E_CANDIDATES_REFUSED,
    ROOST_E_FILTER_FULL,
    ROOST_E_CLASSES_FULL,
    ROOST_E_WAKES_REFUSED,
    ROOST_E_STUCK_RESET,
    ROOST_E_WRITE_TIMEOUTS,
    ROOST_E_CLIENTS_DENIED,
    ROOST_E_CLIENTS_REFUSED,
    ROOST_E_UNTALLIED, /* transitions and probes that snapshots do not have */
    ROOST_E_COUNT
};

/* A table, or the rest slots, that grows: life/growth.c. */
enum roost_growth_step {
    ROOST_GROWTH_NONE,
    ROOST_GROWTH_MAKING, /* a thread of its own makes the map: the kernel clears its memory, which takes a while */
    ROOST_GROWTH_MOVING
};

struct roost_growth {
    enum roost_growth_step step;
    bool allowed;
    bool rests;      /* the rest slots grow */
    bool v4;         /* which table */
    bool legs_moved; /* every server's leg has been looked at once */
    uint32_t which, buckets;
    uint32_t slots;                                       /* of the rests: more */
    int fd;                                               /* of the map; -errno: it could not be made */
    int made;                                             /* atomic: the thread is done */
    uint64_t at;                                          /* the position to be moved next */
    uint64_t left;                                        /* slots that this pass had to leave where they are */
    uint64_t retry_ms, table_retry_ms[2], rests_retry_ms; /* the next look; of those that could not grow */
    pthread_t thread;
    struct roost_engine *engine;
};

/* Which class a client's network gives (conn/ruling.c). */
struct roost_ruling {
    struct roost_rules in_force;
    struct roost_rule *told; /* to XDP, sorted; by roost_rules_set alone */
    uint32_t told_count;
    bool walking; /* a round of the sweep gives what exists its class */
};

/* Connections in IDLE that are to go to SLEEP, quiet longest first (life/pressure.c). */
enum {
    ROOST_DESCENT_SAMPLE = 1024
};
struct roost_descent {
    uint32_t left; /* to be asked for; 0: it is done */
    uint8_t cause; /* enum roost_cause */
    uint32_t sampled;
    uint64_t tries;      /* positions that were looked at for the sample */
    uint64_t to_look_at; /* positions, of this sample's round; 0: the sample is being taken */
    uint64_t at;         /* the last one */
    uint64_t most;       /* the rank of the last that goes */
    uint64_t moved;      /* in this round */
    uint64_t random;
    uint64_t rank[ROOST_DESCENT_SAMPLE];
};

struct roost_engine {
    pthread_t thread;
    struct roost_fair_lock lock;
    bool started, stopping;
    bool wakes_none, bears_none; /* the daemon ends */
    uint64_t lease_ms;           /* see roost_lease() */
    int epoll_fd, wake_fd;
    struct roost_mailbox box;
    struct roost_datapath path;
    struct roost_survey survey;
    struct roost_workers workers;
    struct roost_crowd { /* cext/life/crowd.c */
        uint64_t network, at_ms, random;
        bool v4;
    } crowd;
    uint32_t limits_at; /* the next of the cells of limits that is cleaned */
    uint32_t worker_threads;
    uint32_t limit_us[ROOST_LIMIT_RATES - ROOST_LIMITS_OF_SERVICES][ROOST_LIMIT_LEVELS]; /* of struct roost_bounds */
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
    struct roost_managed_key near_end[ROOST_NEAR_ENDS];  /* where clients connect to, for programs on this machine */
    uint32_t near_ends;
    int door[ROOST_DOORS]; /* a router's listening sockets for servers; -1: none */
    struct roost_hosts hosts;
    struct roost_ruling rules;
    char name[64];                         /* the manager's */
    uint32_t in_band_asked;                /* questions to the control plane, ever */
    struct roost_waiting *waiting_servers; /* oldest first */
    uint32_t servers_waiting, server_wait_ms, dial_ms;
    uint64_t servers_retry_ms;
    struct roost_hash by_id, by_key; /* the awake */
    struct roost_listing *listings;  /* being taken */
    struct roost_conn *oldest, *newest;
    uint64_t awake, max_awake;
    bool pressure_told;
    struct roost_descent descent;
    uint64_t next_id;
    uint16_t link_port_first, link_port_last, link_port_next; /* of links that may sleep (ports.c) */
    uint8_t *link_ports_reserved;                             /* a bit for each; NULL: none */
    uint64_t now_ms;
    uint64_t turn;
    uint64_t accept_resume_ms;
    uint32_t tended;                 /* the listener whose ready links are looked after next */
    uint64_t tended_ms;              /* the last look after ready links */
    uint64_t rush_ms, rush_accepted; /* of the last look at how many clients connect */
    uint64_t crowd_accepted;         /* of ROOST_E_ACCEPTED, those of crowds */
    uint64_t rush_stayed_ms;         /* by connections that ended since then, in all */
    bool rush;
    uint64_t used_ms, used_ns; /* processor time of the engine thread at the last look */
    bool light;                /* it used little before that */
    struct roost_conn *unacked, **unacked_tail;
    struct roost_conn *asked; /* clients that are to answer a probe */
    uint64_t answer_ms;       /* the next look for an answer */
    struct roost_ready {
        struct roost_conn *first, **last;
    } ready[2];                                       /* the second: of crowds */
    struct roost_conn *gathering, *in_grace, *graced; /* freeze batches */
    uint32_t freezes, wakes;                          /* in these queues, and in those of `waking` */
    struct roost_conn *dead;
    struct roost_waking {
        struct roost_conn *first, **last;
        uint32_t count;
    } waking[2];       /* their records are at hand; the second: of crowds (limits.h) */
    uint64_t crowd_ns; /* CLOCK_MONOTONIC: none of the second one wakes before */
    int frame_budget;
    uint32_t strays;
    struct roost_held *stray, **stray_tail; /* frames of connections that need no thaw: to the stack */
    uint64_t sweep_at, sweep_end;           /* buckets: the next, and the first behind the slice */
    uint64_t sweep_ms, swept_ms;            /* the next slice's time, and the last one's */
    uint64_t sweep_all;                     /* so many buckets more are looked into, due or not */
    uint32_t sweep_awake;                   /* awake connections whose hash begins so have their timers set anew then */
    uint64_t probe_room_ms;                 /* when there was room for a bucket's probes */
    uint64_t stat[ROOST_E_COUNT];
    struct roost_hash tallies;       /* struct roost_tally */
    struct roost_silences *silences; /* of each class; what is `answered` there is given up here. NULL: no memory */
    struct roost_growth growth;
    void (*resume)(struct roost_engine *e,
                   struct roost_waiting *w); /* a command that waited for a row; takes it over */
    struct roost_filter filter;
    struct roost_recall recall;
    struct roost_bridge *bridge; /* what the daemon before has handed over, until the engine runs; NULL: nothing */
    const struct roost_command *at_hand; /* a record that was read just now: a wake-up of it asks for none */
    uint64_t births_ms;                  /* when XDP is told the next time that we live */
    uint64_t sockets_ms;                 /* when the sockets that live are noted the next time */
    uint64_t born_before[2];             /* IPv4, IPv6: of XDP's counters when the tables were adopted */
    uint64_t births_ahead_ms;            /* the clock of cookies less CLOCK_MONOTONIC */
    struct {                             /* connections with lower numbers came before their cookies' time was over */
        uint64_t next_id, before;
        uint64_t at_ms;
    } old;
    uint8_t scratch[ROOST_SCRATCH];
};

/* Of others than the engine thread. */
static inline void roost_lock(struct roost_engine *e) {
    roost_fair_lock(&e->lock);
}

static inline void roost_unlock(struct roost_engine *e) {
    roost_fair_unlock(&e->lock);
}

/* A descriptor other than a leg's, for reading. 0 or -errno. */
static inline int roost_watch_plain(struct roost_engine *e, int fd, uint64_t tag) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = tag};
    return epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

#endif
