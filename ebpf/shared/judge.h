/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What to do with a segment of an inactive connection: one pure function, compiled into the XDP program and into the
 * engine, and tested on the host by itself (tests/unit/test_judge.py).
 *
 * The kernel's TCP makes every real decision. This one only separates what may be answered from the record (a
 * keep-alive probe, an unacceptable segment), what must be brought to the kernel (WAKE), and what is dropped.
 *
 * Freezing demands that nothing is in flight in either direction, so a genuine segment always acknowledges exactly
 * snd_nxt. We demand that too: together with a sequence number in the window it keeps an off-path sender from waking
 * the connection (RFC 5961 asks for less). A genuine segment that was overtaken by its own successor
 * carries an older acknowledgement; it is answered like any unacceptable one and its sender retransmits it.
 */
#ifndef ROOST_JUDGE_H
#define ROOST_JUDGE_H

#include "record.h"

enum roost_tcp_flag {
    ROOST_FIN = 1,
    ROOST_SYN = 2,
    ROOST_RST = 4,
    ROOST_PSH = 8,
    ROOST_ACK = 16,
    ROOST_URG = 32
};

struct roost_segment {
    __u32 seq;
    __u32 ack;
    __u32 payload; /* bytes */
    __u32 tsval, tsecr;
    __u16 window; /* as on the wire */
    __u8 flags;   /* enum roost_tcp_flag */
    __u8 has_ts;
};

enum roost_verdict {
    ROOST_V_HOLD = 0,      /* the connection is being moved: the engine decides when it has been */
    ROOST_V_ANSWER = 1,    /* keep-alive probe: answer with an ACK from the record */
    ROOST_V_HEARD = 2,     /* a valid ACK without payload (the answer to our own probe): note and drop */
    ROOST_V_CHALLENGE = 3, /* unacceptable: an ACK, rate-limited (RFC 9293 3.10.7.4, RFC 5961 3.2, 4.2, 5.2) */
    ROOST_V_WAKE = 4,      /* new data, FIN or a valid RST: the kernel must judge it */
    ROOST_V_DROP = 5,      /* silently */
};

/* seq in [from, from + size) */
static inline __attribute__((always_inline)) int roost_within(__u32 seq, __u32 from, __u32 size) {
    return seq - from < size;
}

static inline __attribute__((always_inline)) enum roost_verdict roost_judge(const struct roost_ka *ka,
                                                                            const struct roost_segment *s) {
    __u32 phase = ROOST_PHASE(ka->ctl);
    if (phase != ROOST_IDLE && phase != ROOST_SLEEP)
        return ROOST_V_HOLD;

    __u32 window = (__u32)ka->window << ROOST_RCV_WSCALE(ka->ctl);
    if (s->flags & ROOST_RST) { /* RFC 5961 3.2 */
        if (s->seq == ka->rcv_nxt)
            return ROOST_V_WAKE;
        return roost_within(s->seq, ka->rcv_nxt, window) ? ROOST_V_CHALLENGE : ROOST_V_DROP;
    }
    if (s->flags & ROOST_SYN) /* RFC 5961 4.2 */
        return ROOST_V_CHALLENGE;
    if (!(s->flags & ROOST_ACK))
        return ROOST_V_DROP;
    if (s->ack != ka->snd_nxt)
        return ROOST_V_CHALLENGE;

    if (s->seq == ka->rcv_nxt - 1 && s->payload <= 1 && !(s->flags & ROOST_FIN)) /* RFC 9293 3.8.4 */
        return ROOST_V_ANSWER;
    __u32 length = s->payload + (s->flags & ROOST_FIN ? 1 : 0);
    if (!length) /* ahead of rcv_nxt: what it has said was lost, and is sent again when that is due (RFC 6298 5.5) */
        return s->seq == ka->rcv_nxt || roost_within(s->seq, ka->rcv_nxt, window) ? ROOST_V_HEARD : ROOST_V_CHALLENGE;
    __u32 last = s->seq + length - 1;
    if (roost_within(s->seq, ka->rcv_nxt, window) ||
        (roost_within(last, ka->rcv_nxt, window) && (__s32)(ka->rcv_nxt - s->seq) > 0))
        return ROOST_V_WAKE;
    return ROOST_V_CHALLENGE; /* old data too: our ACK of it may have been lost */
}

#endif
