/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The record of an inactive connection: the ONE definition, shared by the BPF programs, the C engine and (through
 * cffi) the Python control plane.
 *
 * An inactive connection is split by use:
 *
 *     table slot  = far end + struct roost_ka    what answering and sending a keep-alive needs   (IDLE and SLEEP)
 *     endpoint    = struct roost_endpoint        the near end, shared by all connections that have it
 *     rest slot   = struct roost_rest            what only rebuilding the socket needs           (IDLE alone;
 *                                                for SLEEP it is a row of the database)
 *
 * In SLEEP without keep-alives there is no slot: ebpf/shared/filter.h.
 *
 * IPv4 slot 40 bytes, IPv6 slot 52 bytes, rest slot 40 bytes. A connection that was born asleep (born.h) has no rest
 * slot: what it needs of one is in roost_ka.rest itself, until the engine has to do with it for the first time.
 *
 * A connection of the persistent interface has two legs, its client's and its server's, and each is a slot with the other's
 * position. The client's leg stands for the connection: it is what has a state. The server's keeps its rest slot in
 * memory when the connection goes to SLEEP.
 *
 * Writers: the engine thread is the only writer of the table, and of every field, except for those marked X,
 * which XDP alone writes while the connection is inactive (single aligned stores; a lost update costs nothing).
 * Numbers are in host byte order, addresses and ports in network byte order.
 */
#ifndef ROOST_RECORD_H
#define ROOST_RECORD_H

#include <linux/types.h>

#define ROOST_NO_REST 0xffffffffu

/* Phase of a table slot: the low byte of roost_ka.ctl. The connection states of control/core/states.py are IDLE and SLEEP;
 * the other phases exist only while the engine moves a connection, and every one of them makes XDP hold packets. */
enum roost_phase {
    ROOST_FREE = 0,
    ROOST_FREEZING = 1, /* the socket still lives; packets are held until the snapshot is taken or given up */
    ROOST_IDLE = 2,     /* full record in memory */
    ROOST_SLEEP = 3,    /* rest of the record in the database */
    ROOST_WAKING = 4,   /* record intact, socket being rebuilt (or the database being asked) */
    ROOST_THAWED = 5,   /* the rebuilt socket lives; held packets are being replayed; never adopted after a crash */
};

/* Flags: the third byte of roost_ka.ctl. */
enum roost_flag {
    ROOST_F_TIMESTAMPS = 1, /* RFC 7323 timestamps negotiated */
    ROOST_F_SACK = 2,       /* RFC 2018 */
    ROOST_F_WSCALE = 4,     /* RFC 7323 window scaling negotiated */
    ROOST_F_PAIRED = 8,     /* one of two legs that sleep and wake together; the other is at rest.peer */
    ROOST_F_SERVER = 16,    /* the server's leg of a pair: "client" of its key is the server's end of it */
    ROOST_F_ATTACHED = 32,  /* of a server's leg: that server came by itself */
};

/* ctl = phase | version << 8 | flags << 16 | scales << 24; scales = rcv_wscale << 4 | snd_wscale. One 32-bit word, so
 * that a reader sees one moment of it; version changes each time a slot gets a new owner. */
#define ROOST_PHASE(ctl) (0xffu & (ctl))
#define ROOST_VERSION(ctl) (((ctl) >> 8) & 0xffu)
#define ROOST_FLAGS(ctl) (((ctl) >> 16) & 0xffu)
#define ROOST_SND_WSCALE(ctl) (((ctl) >> 24) & 0xfu)
#define ROOST_RCV_WSCALE(ctl) (((ctl) >> 28) & 0xfu)

struct roost_ka { /* 32 bytes */
    __u32 ctl;
    __u32 snd_nxt;   /* our next sequence number; everything before it is acknowledged */
    __u32 rcv_nxt;   /* the next one we expect */
    __u32 ts_offset; /* our TSval = CLOCK_MONOTONIC in ms + ts_offset */
    __u32 ts_recent; /* X: the newest TSval heard while inactive, 0 = none yet */
    __u32 heard;     /* X: see ROOST_HEARD */
    __u16 window;    /* our advertised window as it goes on the wire (already scaled down) */
    __u16 class;     /* its policy: ebpf/shared/class.h */
    __u32 rest;      /* index of the rest slot, below 2^30; in SLEEP see ROOST_ROW; or see ROOST_BORN */
};

/* heard = when << 12 | tick << 4 | probes. when: the last valid segment, CLOCK_MONOTONIC seconds, the low 20 bits (12
 * days). tick: of the last challenge ACK, ROOST_TICK, 0: there was none. probes: sent since then, at most 15.
 * One word, so that hearing the client is one store. */
enum {
    ROOST_HEARD_SHIFT = 12,
    ROOST_HEARD_WRAP_S = 1 << 20,
    ROOST_HEARD_AHEAD_S = 64, /* of the reader's clock, at most: its turn may have been long */
    ROOST_SILENCE_MAX_S = ROOST_HEARD_WRAP_S / 2
};
#define ROOST_HEARD(when_s, tick, probes)                                                                              \
    ((__u32)(when_s) << ROOST_HEARD_SHIFT | (__u32)(__u8)(tick) << 4 | ((probes)&0xfu))
/* Of 512 ms of CLOCK_MONOTONIC, in 8 bits, never 0. */
#define ROOST_TICK(now_ms) ((__u8)((now_ms) / 512 % 255 + 1))
#define ROOST_HEARD_TICK(heard) (((heard) >> 4) & 0xffu)
#define ROOST_HEARD_PROBES(heard) ((heard)&0xfu)

/* Of an IDLE connection that was born asleep, until the engine gives it a number and a rest slot: what that would say, the class of
 * the client's MSS option (cookies.h) and its window as it stood in its acknowledgement (not scaled yet); and when it was born, in
 * units of 128 s, which come again after 72 h. An earlier layout had the MSS itself in place of the class and the time. */
enum {
    ROOST_BORN_UNIT_S = 128,
    ROOST_BORN_UNITS = 2047 /* one less than fit: a rest of ones alone is ROOST_NO_REST */
};
#define ROOST_BORN(class, now_s, window)                                                                               \
    (3u << 30 | (__u32)(class) << 27 | (__u32)(now_s) / ROOST_BORN_UNIT_S % ROOST_BORN_UNITS << 16 | (__u16)(window))
#define ROOST_IS_BORN(rest) ((rest) >> 31 && (rest) != ROOST_NO_REST)
#define ROOST_BORN_WINDOW(rest) ((rest)&0xffffu)

/* In SLEEP: the row that has the rest, by the low bits of the connection's number; the key tells it from the others
 * that have the same bits. ROOST_NO_REST: the row is found by the key alone. */
#define ROOST_ROW_BITS 30
#define ROOST_ROW(id) (1u << ROOST_ROW_BITS | ((__u32)(id) & ((1u << ROOST_ROW_BITS) - 1)))
#define ROOST_IS_ROW(rest) ((rest) >> ROOST_ROW_BITS == 1)
#define ROOST_ROW_OF(rest) (ROOST_IS_ROW(rest) ? (rest) : ROOST_NO_REST)
#define ROOST_IS_STORED(rest) ((rest) == ROOST_NO_REST || ROOST_IS_ROW(rest))

struct roost_rest {      /* 40 bytes; id 0 marks a free slot, whose snd_wnd then is the next free index */
    __u64 id;            /* the connection's number, never used again */
    __u64 active_ms;     /* CLOCK_MONOTONIC ms of the last payload byte, either direction */
    __u32 snd_wnd;       /* the client's last advertised window, bytes */
    __u32 max_window;    /* the largest it ever advertised, bytes */
    __u32 sleep_asked_s; /* CLOCK_MONOTONIC seconds when the store was asked for SLEEP last, 0 = not yet */
    __u16 mss;           /* the client's MSS option (mss_clamp), bytes */
    __u16
        sleep_wanted; /* SLEEP was asked for in band, or follows its server's close: the quiet interval does not matter */
    __u32 peer;       /* position in the table of the other leg (ROOST_F_PAIRED) */
    __u32 peer_version; /* of the slot there: it may have another owner by now */
};

/* 4-tuple as the engine and the control plane see it: IPv4 addresses are IPv4-mapped (::ffff:a.b.c.d). */
struct roost_key { /* 36 bytes */
    __u8 client[16];
    __u8 local[16];
    __be16 client_port;
    __be16 local_port;
};

/* A near end: the address and port that clients connect to, or, of servers' legs, the server's. */
struct roost_endpoint { /* 24 bytes: a multiple of 8, as the values of an array map lie */
    __u8 address[16];
    __be16 port;
    __u16 service;
    __u32 reserved;
};

#endif
