/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The client simulator: what its BPF program (simulator.bpf.c), its C driver (driver.c) and, through cffi, Python
 * share.
 *
 * A client is 32 bytes, found from a packet without a search: client i has the address base + i % addresses and the
 * port first_port + i / addresses. All else follows from i, or is common to all.
 *
 * The BPF program alone writes clients, under the lock bit of ctl, since a packet may be judged on one processor while
 * the driver sends for the same client on another. The driver reads them.
 */
#ifndef ROOST_SIMULATOR_H
#define ROOST_SIMULATOR_H

#include <linux/types.h>

enum sim_size {
    SIM_LIVE_FRAME = 16,
    SIM_SETTLING = 4, /* counters by which a client is done with */
    SIM_MAX_CPUS = 256,
    SIM_BATCH = 64,              /* frames between two looks at what has come: a veth's ring holds 256 */
    SIM_RUN = 4096,              /* frames of one run, whose setting up takes some 20 us; entries of the list */
    SIM_MAX_SEGMENT = 1448,      /* payload bytes; with any option that we send a frame of 1514 bytes */
    SIM_PATTERN = 65536,         /* period of what clients say, bytes */
    SIM_PATTERN_SLACK = 2048,    /* the first bytes again, so that a segment is one piece of memory */
    SIM_OFFENCE_FRAME = 128,     /* bytes kept of an offending frame */
    SIM_WSCALE = 7,              /* the shift that clients offer */
    SIM_WINDOW = 64240,          /* what clients advertise, bytes; all that comes is taken at once */
    SIM_TSECR_SPAN_MS = 7200000, /* an echo that need not be exact is at most so much older than our newest clock */
};

/* State of a client: the low byte of sim_client.ctl. */
enum sim_state {
    SIM_CLOSED = 0,
    SIM_SYN_SENT = 1,
    SIM_ESTABLISHED = 2,
    SIM_FIN_WAIT_1 = 3,
    SIM_FIN_WAIT_2 = 4,
    SIM_CLOSING = 5,
    SIM_CLOSE_WAIT = 6,
    SIM_LAST_ACK = 7,
    SIM_DONE = 8,  /* both FINs acknowledged; a FIN that comes again is acknowledged again */
    SIM_RESET = 9, /* by the peer's RST, or by ours */
    SIM_REFUSED = 10,
    SIM_LOST = 11, /* no answer, however often asked */
    SIM_STATES = 12,
};

enum sim_flag {
    SIM_F_TIMESTAMPS = 1, /* negotiated */
    SIM_F_WSCALE = 2,     /* negotiated */
    SIM_F_PROBED = 4,     /* a keep-alive probe has no answer yet */
    SIM_F_CROSSED = 8,    /* something else was sent after that probe: its echo need not be exact */
    SIM_F_ASKING = 16,    /* what was said is not acknowledged, or not all of the answer has come */
    SIM_F_ENDING = 32,    /* close() is not done */
};

/* ctl = state | flags << 8 | retries << 16 | the peer's window scale << 24 | lock << 31 */
#define SIM_STATE(ctl) ((ctl)&0xffu)
#define SIM_FLAGS(ctl) (((ctl) >> 8) & 0xffu)
#define SIM_RETRIES(ctl) (((ctl) >> 16) & 0xffu)
#define SIM_SCALE(ctl) (((ctl) >> 24) & 0xfu)
#define SIM_LOCK 0x80000000u

struct sim_client { /* 32 bytes; host byte order */
    __u32 ctl;
    __u32 snd_nxt;
    __u32 snd_una;
    __u32 rcv_nxt;
    __u32 ts_recent; /* the peer's newest TSval */
    __u32 sent_ms;   /* CLOCK_MONOTONIC ms of our newest segment, from which its TSval follows */
    __u16 irs;       /* low half of the peer's initial sequence number: a position in its stream modulo SIM_PATTERN */
    __u16 window;    /* the peer's, not scaled */
    union {
        struct {           /* SIM_F_ASKING */
            __u16 unsent;  /* bytes to be said beyond snd_nxt */
            __u16 unheard; /* bytes of the answer that have not come */
        };
        /* Otherwise: sent_ms of the newest segment that was not a keep-alive probe. A probe's sequence number is an old
         * one, and not every peer takes its clock for that (RFC 7323 4.3): Linux does not. */
        __u32 settled_ms;
    };
};

enum sim_action {
    SIM_CONNECT = 0,
    SIM_PROBE = 1,
    SIM_SAY = 2,
    SIM_FINISH = 3, /* FIN */
    SIM_ABORT = 4,  /* RST */
    SIM_AGAIN = 5,  /* whatever was not answered, once more */
    SIM_GIVE_UP = 6,
    SIM_SPOOF_SYN = 7,     /* from here on: what an attacker sends in a client's name, knowing nothing of it */
    SIM_SPOOF_SEGMENT = 8, /* an ACK outside of the window */
    SIM_SPOOF_WRONG = 9,   /* the same with a wrong checksum */
    SIM_ACTIONS = 10,
};

/* What the live frames of one run do: the next one is for client list[next], or first + next. In the list SIM_MORE marks
 * a further segment of what a client says. While in_flight clients wait for their answer a frame is dropped, and next
 * stays; waiting = begun - settled, and settled is the sum of some counters since the phase began. */
#define SIM_MORE 0x80000000u
struct sim_job {
    __u32 action;
    __u32 next;
    __u32 first;
    __u32 use_list;
    __u32 say;    /* bytes */
    __u32 answer; /* bytes expected back */
    __u32 tries;  /* SIM_GIVE_UP: clients that have been asked again so often */
    __u32 in_flight;
    __u32 begun; /* by this run and those before it */
    __u32 settled;
    __u32 base;                   /* what the counters were, added up */
    __u32 settling[SIM_SETTLING]; /* the counters; SIM_COUNTERS: none */
    __u32 processors;
};

struct sim_config {
    __u32 ifindex;
    __u32 clients;
    __u32 addresses;
    __u32 first_port;
    __u32 base[4];   /* the first client's address, network byte order; IPv4: the last word. The last word counts up */
    __u32 server[4]; /* likewise */
    __u8 mac[12];    /* Ethernet header of what we send: the server's next hop, and the interface's own */
    __be16 server_port;
    __u8 v6;
    __u8 offer_timestamps;
    __u8 offer_wscale;
    __u8 offer_sack;
    __u8 answer_fin;   /* a FIN is answered by ours at once */
    __u32 segment;     /* payload bytes of a full segment, <= SIM_MAX_SEGMENT */
    __u32 secret;      /* sequence numbers and clocks follow from it */
    __u32 drop_every;  /* of the frames received drop each n-th, unread; 0 = none */
    __u32 lose_every;  /* of the frames to be sent lose each n-th; 0 = none */
    __u32 expect_loss; /* the network loses frames: no gap in the sequence, nor an older clock's echo, is an offence */
};

enum sim_counter { /* Python has these names in small letters, without SIM_N_ */
    /* what was done */
    SIM_N_ESTABLISHED,
    SIM_N_REFUSED,
    SIM_N_ANSWERED,   /* keep-alive probes */
    SIM_N_SPOKEN,     /* asked, and answered in full */
    SIM_N_CLOSED,     /* as the driver wanted: by both FINs, or by an RST */
    SIM_N_ENDED,      /* both FINs acknowledged, whichever end began */
    SIM_N_RESET,      /* by the peer */
    SIM_N_CUT_PROBES, /* the connection ended before the answer */
    SIM_N_CUT_ASKING,
    SIM_N_LOST_CONNECTING, /* given up after the last retransmission */
    SIM_N_LOST_PROBED,
    SIM_N_LOST_ASKING,
    SIM_N_LOST_ENDING,
    /* frames and bytes */
    SIM_N_RECEIVED,
    SIM_N_SENT,
    SIM_N_SKIPPED, /* frames of a run for clients that are in no state for it */
    SIM_N_SAID_BYTES,
    SIM_N_HEARD_BYTES,
    SIM_N_UNASKED_BYTES, /* that came without being waited for */
    SIM_N_RETRANSMITTED,
    /* what the peer did that is legal */
    SIM_N_PROBED_BY_PEER,
    SIM_N_DUPLICATE,
    SIM_N_OUT_OF_ORDER,
    SIM_N_HALF_OPEN,   /* the challenge ACK of a connection that only the peer still has */
    SIM_N_CHALLENGED,  /* our challenge ACKs */
    SIM_N_STRAY,       /* for a client without a connection; answered by RST */
    SIM_N_LOST_FRAMES, /* on purpose: lose_every */
    SIM_N_DROPPED,     /* on purpose: drop_every */
    SIM_N_CONTENDED,   /* dropped since the client's lock was held too long */
    SIM_N_UNPARSED,    /* not TCP, fragments, IP options: given to the stack */
    /* offences */
    SIM_N_BAD_IP_CHECKSUM,
    SIM_N_BAD_CHECKSUM,
    SIM_N_MALFORMED,
    SIM_N_BAD_PEER, /* for a client, but not from the server's address and port */
    SIM_N_BAD_SEQ,
    SIM_N_BAD_ACK,
    SIM_N_BAD_FLAGS,
    SIM_N_BAD_OPTIONS, /* in the SYN-ACK: not offered, or an MSS below our segments */
    SIM_N_NO_TIMESTAMP,
    SIM_N_OLD_TSVAL,
    SIM_N_BAD_TSECR,
    SIM_N_ZERO_TSECR,
    SIM_N_BAD_PAYLOAD,
    SIM_N_BAD_RESET, /* RST in the window, but not at its edge (RFC 5961 3.2) */
    SIM_COUNTERS,
};
#define SIM_FIRST_OFFENCE SIM_N_BAD_IP_CHECKSUM
#define SIM_OFFENCES (SIM_COUNTERS - SIM_FIRST_OFFENCE)

struct sim_counters { /* of one processor */
    __u64 n[SIM_COUNTERS];
    __u64 drop_turn, lose_turn;
};

/* The first frame that offended so. */
struct sim_offence {
    __u32 taken;
    __u32 index;  /* client */
    __u32 length; /* of the frame, bytes */
    __u32 now_ms;
    struct sim_client client; /* as it was */
    __u8 frame[SIM_OFFENCE_FRAME];
};

#endif
