/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes between Python and the engine: states and causes, commands, events, rows, and the description of a service. Every
 * room knows these; cext/base/face.h declares the functions. cext/build_engine.py hands both to cffi: keep to plain
 * declarations that it can parse.
 */
#ifndef ROOST_CEXT_TYPES_H
#define ROOST_CEXT_TYPES_H

#include <stdint.h>

#include "ebpf/shared/birth.h"
#include "ebpf/shared/class.h"
#include "ebpf/shared/record.h"

/* States and causes: the numbers of control/core/states.py (a unit test holds them together). */
enum roost_state {
    ROOST_ST_NONE = 0,
    ROOST_ST_ACTIVE = 1,
    ROOST_ST_STANDBY = 2,
    ROOST_ST_IDLE = 3,
    ROOST_ST_SLEEP = 4,
    ROOST_ST_CLOSED = 5
};
enum roost_cause {
    ROOST_C_NONE = 0,
    ROOST_C_CLIENT_CONNECT = 1,
    ROOST_C_CLIENT_DATA = 2,
    ROOST_C_CLIENT_CLOSE = 3,
    ROOST_C_SERVER_ATTACH = 4,
    ROOST_C_SERVER_CLOSE = 5,
    ROOST_C_QUIET = 6,
    ROOST_C_PRESSURE = 7,
    ROOST_C_COMMAND = 8,
    ROOST_C_PROBE_TIMEOUT = 9,
    ROOST_C_RESTORE = 10,
    ROOST_C_SHUTDOWN = 11,
    ROOST_C_SERVER_DATA = 12,
    ROOST_C_WRITE_TIMEOUT = 13
};

enum roost_op {
    ROOST_OP_STANDBY = 1, /* id: close the server link, keep the client socket (ACTIVE -> STANDBY) */
    ROOST_OP_IDLE = 2,    /* id: freeze (STANDBY -> IDLE; an ACTIVE one goes through STANDBY first, or, of a persistent
                             service, with its server's leg: ACTIVE -> IDLE) */
    ROOST_OP_SLEEP = 3,   /* id + record of an IDLE connection whose row IS committed: IDLE -> SLEEP. EAGAIN when the
                             connection has moved on since the record was taken */
    ROOST_OP_WAKE = 4,  /* key (or id if awake): thaw and leave in STANDBY. From SLEEP: ROOST_EV_NEED_RECORD follows, or
                            ROOST_EV_CANDIDATE; as it does for ROOST_OP_CLOSE and ROOST_OP_ATTACH */
    ROOST_OP_CLOSE = 5, /* key or id: close towards the client (RST) and the server, whatever the state */
    ROOST_OP_ATTACH = 6,     /* key + fd: link this connected server socket to the client, waking it. The engine owns fd
                             from then on; preamble is written to the server first, early to the client first. count: how
                               many ms its client may take to answer, where it must; 0: 10 s */
    ROOST_OP_RESTORE = 7,    /* key + record: the record ROOST_EV_NEED_RECORD asked for; error != 0: there is none */
    ROOST_OP_INSERT = 9,     /* key + record: put a SLEEP record from the store into the table (after a reboot); with
                                 peer: both legs of a pair, which are IDLE then */
    ROOST_OP_PRESSURE = 10,  /* count: freeze the count least recently active STANDBY/ACTIVE connections */
    ROOST_OP_ANSWER = 11,    /* id + count: the answer to ROOST_EV_IN_BAND; error: refused; preamble: the name */
    ROOST_OP_TELL = 12,      /* id or key of an awake connection: its client is told in band to stay connected.
                                 ROOST_EV_DONE follows; EPERM where the service does not let clients be told */
    ROOST_OP_OVERRIDE = 13,  /* key + id + overrides: what ROOST_EV_OVERRIDES told to an earlier engine */
    ROOST_OP_CANDIDATE = 14, /* key + record: the answer to ROOST_EV_CANDIDATE; error ENOENT: the key has no row;
                                  another: it is not known now */
    ROOST_OP_DESCEND = 15,   /* count: so many in IDLE that have been quiet longest, nearly, are due for SLEEP, and
                                  ROOST_EV_SLEEP_DUE follows with this cause */
    ROOST_OP_GIVE = 16,  /* key + id, whatever the state: of the values in count, bits as in `given`, the connection has
                                 those that overrides gives, and its policy's in place of the others; with
                                 ROOST_GIVEN_GROUP, that group. ROOST_EV_DONE follows */
    ROOST_OP_ADOPT = 17, /* key + fd + count, a service: this socket, connected to a client (roost_dial_client), is a
                             connection in STANDBY, and the engine's. With error: the client, as ROOST_EV_WANTED named
                             it, could not be dialled, and servers wait no longer for that */
};

/* A sentence for people: why something failed, of which object, and what to do. */
struct roost_reason {
    char text[512];
};

enum roost_event_type {
    ROOST_EV_TRANSITION = 1,  /* from, to, cause, key, id, service, rx/tx bytes and gap since the last transition */
    ROOST_EV_QUIET = 2,       /* id: ACTIVE or STANDBY (from) has been quiet as long as its service allows */
    ROOST_EV_SLEEP_DUE = 3,   /* key + id + record: an IDLE connection is due for SLEEP; commit, then ROOST_OP_SLEEP */
    ROOST_EV_NEED_RECORD = 4, /* key: a SLEEP connection must wake; answer with ROOST_OP_RESTORE */
    ROOST_EV_REFUSED = 5,     /* op, token, key, id, error (errno): the command was not carried out; why: see error */
    ROOST_EV_PRESSURE = 6,    /* count of awake connections; the descriptor high-water mark is passed */
    ROOST_EV_FATAL = 7,       /* error (errno): the engine thread stopped */
    ROOST_EV_SERVER_DOWN =
        8,                /* service, key.local and key.local_port: this server; count links in a row failed, the last
                                 by error (errno). It is not chosen any more until roost_server_mark */
    ROOST_EV_IN_BAND = 9, /* asked, id: op (STATUS, NAME) needs the control plane; ROOST_OP_ANSWER with this count */
    ROOST_EV_OVERRIDES = 10, /* overridden, id: differs from what was told; comes when the connection goes IDLE */
    ROOST_EV_DONE = 11,      /* op, token, id: carried out, and no transition tells of it; for commands with a token */
    ROOST_EV_ROWS = 12, /* count: so many transitions for the history alone, each in place of an event: roost_rows */
    ROOST_EV_CANDIDATE = 13, /* key: wanted, and it may sleep without a slot; answer with ROOST_OP_CANDIDATE */
    ROOST_EV_ILLEGAL = 14,   /* from, to, cause, key, id: a fault of the engine's; the transition was refused, the
                             connection ends */
    ROOST_EV_NOT_GROWN = 15, /* count: 4, 6: the table of that IP version, 0: the rest slots; error (errno): they are
                             nearly full and could not grow; it is tried again. EFBIG: no table is larger; ENOBUFS: as
                             much memory as must stay available would not */
    ROOST_EV_LINK = 16, /* key, id: a link of a service `by_daemon`; count: the descriptor of its other end, the taker's
                             from then on */
    ROOST_EV_SERVED = 17, /* served, id, token, at_ms when it asked, count ms until the answer: a server that wanted a
                             client. It was linked, to one that was in this state (from) until then, and the client's
                             first byte has come, or the link has ended without; or it came through a door and was
                             refused: error (errno) */
    ROOST_EV_WANTED = 18, /* served: key, server, server_port; a server came through a door, its client is not there,
                             and it waits until that is dialled: ROOST_OP_ADOPT */
    ROOST_EV_RELEASED =
        19, /* key, id: a server has released this client; count: its descriptor, the taker's from then on */
    ROOST_EV_PUT_BACK = 20 /* count: so many more are in SLEEP, by roost_put_back; it is no transition */
};

/* Verbs of in-band requests (docs/in-band.md). */
enum roost_inband_verb {
    ROOST_INBAND_UNKNOWN = 0, /* no verb of this version: answer "unknown" */
    ROOST_INBAND_BAD,         /* arguments or flags that are none: do nothing, answer "bad" */
    ROOST_INBAND_PING,
    ROOST_INBAND_DONE,          /* transfer complete: the server link may be closed now */
    ROOST_INBAND_QUIET,         /* set the quiet intervals that are given */
    ROOST_INBAND_KEEPALIVE,     /* on, interval_ms: the manager's probes of the inactive client */
    ROOST_INBAND_ALWAYS_ACTIVE, /* on */
    ROOST_INBAND_NAME,          /* register name for this client */
    ROOST_INBAND_SLEEP,
    ROOST_INBAND_STATUS, /* answered whether or not answer is set */
    ROOST_INBAND_RELEASE /* of a server: it is done with this client, and will ask for another one */
};

struct roost_record { /* all of an inactive connection: what the store keeps for SLEEP */
    struct roost_key key;
    struct roost_ka ka;
    uint16_t service; /* index of the service it came in by; in the table its endpoint has it */
    uint16_t reserved;
    struct roost_rest rest;
};

enum {
    ROOST_SERVERS_MAX = 32,  /* of one service */
    ROOST_PLACES = 64,       /* for them, and for those that have left it but still have links */
    ROOST_WAITING_MAX = 1024 /* servers that wait for a client; what comes then is refused at once */
};

enum roost_obstacle {             /* why an awake connection cannot be frozen just now; of several the lowest is told */
    ROOST_OB_MOVING = 1 << 0,     /* it is being frozen or thawed */
    ROOST_OB_GRACE = 1 << 1,      /* the grace period of a freeze that was cancelled is not over */
    ROOST_OB_CONNECTING = 1 << 2, /* persistent: its link is being made */
    ROOST_OB_SERVER_SPEAKS = 1 << 3,  /* persistent: the server has said something, or has ended */
    ROOST_OB_ENDED = 1 << 4,          /* a FIN went or came on the client's side */
    ROOST_OB_CLIENT_BLOCKED = 1 << 5, /* bytes wait until the client takes them */
    ROOST_OB_SERVER_BLOCKED = 1 << 6,
    ROOST_OB_SERVER_WAITS = 1 << 7, /* a server wants it */
    ROOST_OB_IN_BAND = 1 << 8,      /* an in-band request is not finished */
    ROOST_OB_LINK_LOCAL = 1 << 9    /* its addresses mean something on one link alone */
};

struct roost_obstacles { /* of an awake connection */
    uint32_t now;        /* enum roost_obstacle */
    int32_t refused;     /* errno of the last freeze that was begun and did not come about, 0: none was */
    /* bytes in the kernel's queues: not read by us; not sent, or not acknowledged by the peer */
    uint32_t client_unread, client_unacknowledged, server_unread, server_unacknowledged;
};

enum roost_balance { /* which server a link goes to */
    ROOST_LEAST_CONNECTIONS = 0,
    ROOST_SOURCE_HASH = 1
};

enum roost_second_server { /* that wants a client which is linked */
    ROOST_SECOND_REFUSED = 0,
    ROOST_SECOND_WAITS = 1,
    ROOST_SECOND_TAKES_OVER = 2
};

enum roost_on_server_close { /* what follows it */
    ROOST_CLOSE_STANDBY = 0,
    ROOST_CLOSE_CLIENT = 1, /* the FIN is passed on to the client, unless the server had asked for it */
    ROOST_CLOSE_IDLE = 2,   /* down to there without the quiet intervals */
    ROOST_CLOSE_SLEEP = 3
};

struct roost_server {
    uint8_t address[16]; /* IPv4-mapped for IPv4 */
    uint16_t port;       /* host byte order */
};

struct roost_server_status {
    struct roost_server server;
    uint8_t up;
    uint8_t leaving; /* not configured any more, but it has links still */
    uint32_t links;  /* now; those being made count */
    uint32_t ready;  /* links that no client has yet; they do not count */
    uint64_t linked; /* links made since it is here */
    uint64_t failed; /* links that could not be made */
};

struct roost_service {
    uint16_t index;       /* 1.. ; index of the service in the configuration */
    uint8_t listen[16];   /* address, IPv4-mapped for IPv4; all zeros or ::ffff:0.0.0.0 = every local address */
    uint16_t listen_port; /* host byte order */
    uint8_t servers;      /* how many; 0: of a transparent service whichever the client connected to, else links wait */
    struct roost_server server[ROOST_SERVERS_MAX];
    uint8_t by_daemon;    /* the daemon itself is the server, without an address: ROOST_EV_LINK hands it each link */
    uint8_t balance;      /* enum roost_balance */
    uint8_t max_fails;    /* a server is down after so many failed links in a row; 0: never by that */
    uint16_t ready_links; /* to each server; none where each client has its own: as_client, persistent, by_daemon */
    uint16_t reuse_links; /* likewise: so many that clients need no longer are left to the next ones */
    uint32_t ready_ms;    /* after so long one that was not needed is closed, and a ready one made anew */
    uint8_t refuse_down;  /* a client that connects while no server is up is reset at once; else it waits for one */
    struct roost_class policy;   /* the class of its connections; `service` and `own` are the engine's */
    uint32_t connect_timeout_ms; /* how long a link to the server is tried before the client is reset */
    uint8_t transparent;         /* listen is the server's own address, for which a router answers */
    uint8_t as_client;           /* servers see the client's address, and its port where that is free */
    uint8_t source[16];          /* else this one, those of its family; all zeros: the one that the kernel chooses */
    uint8_t proxy_header;        /* version of the PROXY protocol that a link to the server begins with; 0: none */
    uint8_t persistent;          /* a linked connection freezes with its server's leg, and both thaw together */
    uint8_t unreachable;         /* no server that comes by itself reaches its clients: they are the appliance's own */
    uint8_t fail_closed;         /* transparent: without a daemon new clients are refused, not routed to the server */
    uint8_t in_band_forward;     /* requests are forwarded whether or not they ask for it */
    uint8_t in_band_stay;        /* clients may be told to stay connected (ROOST_OP_TELL) */
    uint8_t born;                /* enum roost_born (ebpf/shared/birth.h): whether clients may be born asleep */
    uint32_t born_rate;          /* clients a second, on one processor, from which on it is a storm */
    uint32_t born_silence_s;     /* one that was born asleep and has said nothing for so long is reset; 0: never */
    /* Of births, handshakes and wakes (ebpf/shared/limit.h), of an address and of a network: one in so long; 0: there is no limit. */
    uint32_t limit_us[3][2];
    uint32_t connections[2]; /* of an address and of a network: so many, with this service; 0: as many as come */
};

/* Limits by source that are of no service, and what is a source. */
struct roost_bounds {
    uint32_t burst_us;       /* what was not used of a limit for so long may be used at once */
    uint8_t connections;     /* a service has such a limit: connections are counted */
    uint8_t bits[2][2];      /* of IPv4 and IPv6: how many bits of an address count, of an address and of a network */
    uint32_t limit_us[2][2]; /* of attaches and of agents' first words, likewise */
};

/* Of the clients of a service in this network a policy is in force; a longer network of the service goes before. */
struct roost_rule {
    uint8_t network[16]; /* IPv4-mapped for IPv4; what lies behind its bits is 0 */
    /* For those alone that connect to this address; all zeros: to one that has no rules of its own. */
    uint8_t local[16];
    uint8_t bits;  /* of these 128 */
    uint8_t group; /* of the connections that it is for; 0: of those without one, and of groups without rules there */
    uint16_t service;
    uint32_t policy; /* which of those that are given with it */
};

struct roost_options {
    const char *pin_dir; /* below a bpffs; made if missing */
    const char *bpf_dir; /* where the compiled *.bpf.o lie */
    uint32_t ipv4_slots; /* capacity of the tables; an adopted table keeps the size it has */
    uint32_t ipv6_slots;
    uint32_t idle_slots;   /* rest slots */
    uint32_t filter_slots; /* connections that sleep without a slot; an adopted filter that is in use keeps its size */
    uint32_t ring_bytes;   /* a power of two */
    uint32_t max_awake;    /* client connections with a socket; above 7/8 of it: ROOST_EV_PRESSURE */
    uint32_t workers;      /* threads that help the engine thread to freeze and thaw in bulk */
    uint64_t next_id;      /* first number to give (the engine also looks at the adopted table) */
    uint8_t grow;          /* whether the tables may grow */
    const char *name;      /* the manager's own, for in-band requests to it alone; NULL: none */
};

/* A bit of tokens whose outcomes are counted, and none of them waited for. */
#define ROOST_TOKEN_COUNTED 0x4000000000000000

struct roost_command {
    uint8_t op;
    uint8_t cause;
    int32_t fd;
    int32_t error;
    uint32_t count;
    uint64_t id;
    uint64_t token;             /* comes back in ROOST_EV_REFUSED and in the transition event the command caused */
    struct roost_record record; /* record.key is the key of the command */
    struct roost_record peer;   /* ROOST_OP_INSERT of a pair: its server's leg; otherwise rest.id is 0 */
    char preamble[64];
    uint32_t preamble_len;
    const uint8_t *early; /* copied by roost_submit */
    uint32_t early_len;
    struct roost_overrides overrides;
};

struct roost_asked {
    struct roost_key key;
    char name[64]; /* of NAME */
};

struct roost_overridden {
    struct roost_key key;
    struct roost_overrides overrides;
};

struct roost_served {
    struct roost_key key; /* of a server that was refused at a door: the client's address and port alone, perhaps */
    uint8_t server[16];   /* that came through a door; else zeros */
    uint16_t server_port;
    uint16_t service;  /* 0: not known */
    uint32_t first_ms; /* from being asked to the client's first byte; UINT32_MAX: there was none */
};

/* What the history has of a transition beside states and bytes; zeros: there is nothing to say. */
struct roost_ends {
    uint8_t server[16]; /* to which an ACTIVE connection was linked, or was to be */
    uint16_t server_port;
    uint8_t error;      /* errno of the end whose fault the cause tells; 0: it ended by FIN, or did not end */
    uint8_t probes;     /* of a client that was not awake: of ours, in a row, that it did not answer */
    uint32_t silence_s; /* since it was heard, likewise, and of an awake one that answers no more */
};

struct roost_event {
    uint8_t type;
    uint8_t from_state;
    uint8_t to_state;
    uint8_t cause;
    uint8_t op;
    int32_t error;
    uint32_t count;
    uint64_t id;
    uint64_t token;
    uint64_t at_ms;    /* CLOCK_REALTIME ms */
    uint64_t rx_bytes; /* payload from the client since its last transition */
    uint64_t tx_bytes; /* payload to the client since its last transition */
    uint64_t gap_ms;   /* since the last payload byte, either direction */
    struct roost_ends ends;
    union {
        struct roost_record record; /* key always; ka and rest where the type says so */
        struct roost_asked asked;
        struct roost_overridden overridden;
        struct roost_served served;
    };
};

/* How often clients of a class were silent for so long (ebpf/shared/silence.h has what the places stand for) until they said
 * something by themselves, answered a probe, or were given up. Since the engine began; the numbers wrap. What has values set in
 * band is told under the class that it stands in place of. */
struct roost_silence_counts {
    uint16_t class;
    uint16_t service; /* whose it is */
    uint32_t spoke[16];
    uint32_t answered[120];
    uint32_t lost[120];
};

/* A transition that is of interest to the history alone, as the store keeps it (HISTORY of control/store/schema.py). */
struct roost_row {
    uint64_t id;
    uint64_t at_ms;
    struct roost_key key;
    uint16_t service;
    uint8_t from_state;
    uint8_t to_state;
    uint8_t cause;
    uint8_t unused[7];
    uint64_t rx_bytes; /* these as in struct roost_event */
    uint64_t tx_bytes;
    uint64_t gap_ms;
    struct roost_ends ends;
};

enum {
    ROOST_STATS = 96,      /* at most */
    ROOST_CANDIDATE = 0x80 /* of roost_states */
};

/* Which connections a listing has; zeros: all but those that were born asleep and have not spoken. */
struct roost_sought {
    uint64_t after;      /* how far an earlier listing got (roost_list_at) */
    uint8_t born;        /* those, too, that were born asleep and have not spoken */
    uint8_t states;      /* in one of these: bits, 1 << enum roost_state; 0: all */
    uint16_t service;    /* which came in by this one; 0: all */
    uint8_t bits;        /* whose client is as network in its first so many bits */
    uint8_t network[16]; /* IPv4-mapped for IPv4 */
    uint32_t quiet_s; /* without payload for so long at least; how long that is the store alone knows in SLEEP, and all
                            of these are listed */
    uint32_t silence_s;      /* not heard for so long at least; awake ones are heard */
    uint8_t by_class;        /* whose class, or the one that it stands in place of, is among `classes` */
    uint64_t classes[64];    /* of class c bit c % 64 of word c / 64 */
    uint32_t number_count;   /* whose number is among these, ascending; 0: all. The engine has none of those in SLEEP */
    const uint64_t *numbers; /* the caller's, until the listing ends */
};

/* What connections of a class did since it was last asked for (roost_tallies_take): so many went from one state to another by this
 * cause. Where the two are the same, they were sent so many probes in it. class: what was set in band is told under the class that
 * it stands in place of. */
struct roost_tally {
    uint16_t class;
    uint16_t service; /* whose it is */
    uint8_t from_state;
    uint8_t to_state;
    uint8_t cause;
    uint8_t unused;
    uint64_t count;
    uint64_t rx_bytes; /* payload from and to their clients since each one's transition before */
    uint64_t tx_bytes;
};

enum {
    ROOST_TALLIES = 65536,     /* at most at a time; there are some twenty of a class that is used */
    ROOST_SILENCE_COUNTS = 256 /* at most */
};

/* How many connections of a class are in each state (roost_census). */
struct roost_census {
    uint64_t service;     /* whose it is */
    uint64_t in_state[6]; /* enum roost_state; IDLE without those in `born`, SLEEP without those that have no slot */
    uint64_t born;        /* were born asleep, and have not spoken */
};

/* Per-verdict counters of the BPF programs and counters of the engine, by name (see roost_stat_name). */
struct roost_stats {
    uint64_t value[ROOST_STATS];
};

#endif
