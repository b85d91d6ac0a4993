/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What passes between the BPF programs and the engine: frames held for it (ring buffer), frames and packets it sends
 * (live-frame BPF_PROG_RUN: ebpf/xdp/outbox.h), and the counters.
 */
#ifndef ROOST_FRAME_H
#define ROOST_FRAME_H

#include "record.h"

/* Why a frame was handed to the engine. */
enum roost_why {
    ROOST_WHY_HOLD = 1,      /* the connection was being moved when it came */
    ROOST_WHY_WAKE = 2,      /* judged WAKE */
    ROOST_WHY_LOCAL = 4,     /* for a leg of this machine's own: the engine judges it */
    ROOST_WHY_FRAGMENT = 3,  /* no frame: it was the first of several fragments, judged WAKE. The client retransmits. */
    ROOST_WHY_ANSWER = 6,    /* to be answered, and XDP has no way for that (ebpf/xdp/way.h), or no room */
    ROOST_WHY_CANDIDATE = 5, /* in no table, and a hit in the filter (ebpf/shared/filter.h). Without a frame: as above,
                           but nothing is proved */
};

/* Places in the ring. */
#define ROOST_FRAME_SMALL 320
#define ROOST_FRAME_MAX 2048 /* the most that one replayed frame has: longer ones are cut into segments */
#define ROOST_FRAME_JUMBO 9216
#define ROOST_FRAME_LARGE (65536 + 64) /* of the loopback interface, or merged before generic XDP (GRO) */

struct roost_frame {
    struct roost_key key;
    __u32 ifindex;
    union {
        __u32 queue;
        __u32 ack; /* without a frame, of a candidate: what the packet acknowledged */
    };
    __u32 length; /* bytes in data; 0 = no frame */
    __u8 why;
    __u8 l3; /* offset of the IP header in data */
    __u8 pad[2];
    __u8 data[];
};

/* A whole frame for the stack (the outbox of live-frame BPF_PROG_RUN). */
struct roost_outbox_item {
    __u32 length;
    __u32 failed;
    __u8 data[ROOST_FRAME_MAX];
};
#define ROOST_OUTBOX_ITEMS 64

/* The frame that a run of the outbox starts from; secret is that of struct roost_config. */
#define ROOST_ERRAND_ETHERTYPE 0x88b5 /* IEEE 802 local experimental */
struct roost_errand {
    __u8 mac[12];
    __be16 ethertype;
    __u16 pad;
    __u64 secret[2];
};

/* A packet of ours for the wire, without payload: IPv4 or IPv6 without options, a TCP header, timestamps as RFC 7323
 * appendix A lays them out or none. Its TSval is that of the moment 0 of our clock: the sender adds the time (stamp.h). */
#define ROOST_PROBE_MAX 72
enum roost_probe_state {
    ROOST_PROBE_WAITS = 0,
    ROOST_PROBE_TAKEN = 1,  /* sent by now, or in this moment; or the engine took it back */
    ROOST_PROBE_NO_WAY = 2, /* the program found none, or could not send so */
};
struct roost_probe {
    __u32 length; /* bytes of packet: 40, 52 (IPv4 with timestamps), 60 or 72 (IPv6 with timestamps) */
    __u32 state;
    __be32 packet[ROOST_PROBE_MAX / 4];
};
#define ROOST_PROBES 4096 /* half of them are offered while the other half is filled */

/* What the frames of runs take: probes next, next + 1, ... below count; of the outbox, the item `cursor`. */
#define ROOST_PROBE_INTERFACES 8
struct roost_runs {
    __u32 next, count;
    __u32 now_s; /* CLOCK_MONOTONIC seconds: a route that was looked up in them is good */
    __u32 interfaces;
    __u32 ifindex[ROOST_PROBE_INTERFACES]; /* that clients are behind */
    __u32 cursor;
};

/* The engine's own frames for them: from no interface that a program can be attached to, and shorter than a packet. */
#define ROOST_PROBE_IFINDEX 1 /* the loopback interface */
#define ROOST_PROBE_FRAME 16  /* bytes */

enum roost_counter { /* names: cext/stats.c */
    ROOST_N_ANSWERED,
    ROOST_N_HEARD,
    ROOST_N_CHALLENGED,
    ROOST_N_CHALLENGE_LIMITED,
    ROOST_N_WOKEN,
    ROOST_N_HELD,
    ROOST_N_DROPPED,
    ROOST_N_BAD_CHECKSUM,
    ROOST_N_MALFORMED,
    ROOST_N_RING_FULL,
    ROOST_N_OVERSIZE,
    ROOST_N_RST_GUARDED,
    ROOST_N_FRAGMENT_WOKEN,
    ROOST_N_COOKIES,
    ROOST_N_BORN4,
    ROOST_N_BORN6,
    ROOST_N_BORN_REFUSED,
    ROOST_N_CANDIDATES,
    ROOST_N_COUNT,
};

#endif
