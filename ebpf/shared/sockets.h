/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Whether the kernel may have a socket for a key, by 16 bits of the key's hash (table.h): until when it may, in units
 * of 16 s, 0 = never had. Asking the kernel itself costs as much as the rest of a birth; so it is asked only about keys
 * that this does not rule out. Whoever lets a SYN through or makes a socket notes it (XDP, the socket lookup program, the
 * engine), the engine goes on noting those that live and notes each at its end; what is left of it then (TIME-WAIT, or an
 * orphan whose client is gone) is over before the time is.
 */
#ifndef ROOST_SOCKETS_H
#define ROOST_SOCKETS_H

#include <linux/types.h>

#define ROOST_SOCKETS (1 << 16)
#define ROOST_SOCKETS_UNIT_S 16
#define ROOST_SOCKETS_KEPT 16     /* units */
#define ROOST_SOCKETS_AGAIN_S 120 /* how often those that live are noted */

struct roost_sockets {
    __u16 until[ROOST_SOCKETS];
};

static inline __attribute__((always_inline)) void roost_socket_note(struct roost_sockets *sockets, __u64 hash,
                                                                    __u32 now_s) {
    __u16 until = now_s / ROOST_SOCKETS_UNIT_S + ROOST_SOCKETS_KEPT;
    *(volatile __u16 *)&sockets->until[hash >> 48] = until ? until : 1;
}

static inline __attribute__((always_inline)) int roost_socket_perhaps(const struct roost_sockets *sockets, __u64 hash,
                                                                      __u32 now_s) {
    /* One more than was noted: the clock of who asks may be a tick behind, and an `until` of 0 is kept as 1. */
    __u16 until = *(volatile const __u16 *)&sockets->until[hash >> 48];
    return until && (__u16)(until - now_s / ROOST_SOCKETS_UNIT_S) <= ROOST_SOCKETS_KEPT + 1;
}

#endif
