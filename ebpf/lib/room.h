/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Who may have the last room in the ring. */
#ifndef ROOST_ROOM_H
#define ROOST_ROOM_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "maps.h"

#define TCP_DATA_OFFSET 12   /* in the header; the flags are behind it */
#define ENDS (1 | 2 | 4 | 8) /* FIN, SYN, RST, PSH */

/* Payload that ends nothing its sender has written leaves a quarter of the ring to what follows it. Else a request's head
 * may be taken, and acknowledged seconds later when there is room again, without its end: that, its sender sends again when a
 * time-out is over which has grown to as many seconds, longer than active_quiet. at: the TCP header's bytes
 * from TCP_DATA_OFFSET on. length: of header and payload. */
static __always_inline int has_room(const __u8 at[2], __u32 length) {
    if (at[1] & ENDS || length <= (__u32)(at[0] >> 4) * 4)
        return 1;
    return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) <= bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE) / 4 * 3;
}

#endif
