/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the engine writes for the steering programs (steer.bpf.c). */
#ifndef ROOST_STEER_H
#define ROOST_STEER_H

#include <linux/types.h>

/* Set in the mark of packets that are to be delivered to this machine, whatever address they carry; a routing rule of
 * appliance/box/router.py acts on it. The other bits of the mark are left as they are. */
#define ROOST_MARK 0x52000000u
#define ROOST_MARK_MASK 0xff000000u

/* An address and port of servers that clients are answered for. All zeros (IPv4-mapped for IPv4): every address. */
struct roost_managed_key {
    __u8 address[16];
    __be16 port;
    __u16 zero;
};

struct roost_managed {
    __u32 fail_closed; /* without a daemon new clients are refused; else they are routed to their server */
};

struct roost_own { /* the daemon, as programs at connect() know it */
    __u64 netns;   /* cookie of its network namespace */
    __u64 cookie;  /* of the socket by which its process is found */
    __u32 process; /* 0: not found */
    __u32 zero;
};

#define ROOST_NEAR_ENDS 256 /* where clients connect to this machine, that its own programs reach them at */

enum roost_door { /* sockets that accept connections of servers to clients, by family */
    ROOST_DOOR_IPV4,
    ROOST_DOOR_IPV6,
    ROOST_DOORS
};

#endif
