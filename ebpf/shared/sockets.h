/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Whether the kernel may have a socket for a key, by 16 bits of the key's hash (table.h): until when it may, in units
 * of 16 s, 0 = never had. A socket look-up costs as much as the rest of a birth; so there is one only for keys that
 * this does not rule out. XDP notes a SYN that it passes, the socket lookup program one that reaches a listener, the engine
 * each socket that it makes, has, and closes; what is left of a closed one (TIME-WAIT, or an orphan without a client) is
 * over before the time is.
 */
#ifndef ROOST_SOCKETS_H
#define ROOST_SOCKETS_H

#include <linux/types.h>

#define ROOST_SOCKETS (1 << 16)
#define ROOST_SOCKETS_UNIT_S 16
#define ROOST_SOCKETS_KEPT 16     /* units */
#define ROOST_SOCKETS_AGAIN_S 120 /* how often open ones are noted */

struct roost_sockets {
    __u16 until[ROOST_SOCKETS];
};

static inline __attribute__((always_inline)) void roost_socket_note(struct roost_sockets *sockets, __u64 hash,
                                                                    __u32 now_s) {
    __u16 until = now_s / ROOST_SOCKETS_UNIT_S + ROOST_SOCKETS_KEPT;
    *(volatile __u16 *)&sockets->until[hash >> 48] = until ? until : 1;
}

static inline __attribute__((always_inline)) int roost_may_have_socket(const struct roost_sockets *sockets, __u64 hash,
                                                                       __u32 now_s) {
    /* One more than was noted: the reader's clock may be a tick behind, and an `until` of 0 is kept as 1. */
    __u16 until = *(volatile const __u16 *)&sockets->until[hash >> 48];
    return until && (__u16)(until - now_s / ROOST_SOCKETS_UNIT_S) <= ROOST_SOCKETS_KEPT + 1;
}

#endif
