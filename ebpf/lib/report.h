/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Word to the engine about a connection, without a frame. */
#ifndef ROOST_REPORT_H
#define ROOST_REPORT_H

#include "verifier.h"
#include "maps.h"

/* ack: what the packet acknowledged; why: enum roost_why. 0: the ring is full. */
GLOBAL int report(const struct roost_key *key, __u32 ack, __u32 why) {
    if (!key)
        return 0;
    struct roost_frame *f = bpf_ringbuf_reserve(&ring, sizeof(*f), 0);
    if (!f) {
        count(ROOST_N_RING_FULL);
        return 0;
    }
    __builtin_memset(f, 0, sizeof(*f));
    f->key = *key;
    f->ack = ack;
    f->why = why;
    bpf_ringbuf_submit(f, 0);
    return 1;
}

#endif
