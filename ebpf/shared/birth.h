/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The services whose clients may be born asleep (ebpf/xdp/born.h). The engine writes, XDP reads.
 */
#ifndef ROOST_BIRTH_H
#define ROOST_BIRTH_H

#include "record.h"

#define ROOST_MAX_BIRTHS 256   /* services whose clients may be born asleep */
#define ROOST_BIRTH_RATES 1024 /* numbers that a service may have; a power of two */

enum roost_born {
    ROOST_BORN_NEVER = 0,
    ROOST_BORN_STORM = 1,  /* while more clients connect than `rate` */
    ROOST_BORN_ALWAYS = 2, /* all */
};

/* Where clients connect to. */
struct roost_birth_place { /* 20 bytes */
    __u8 address[16];
    __be16 port;
    __u16 reserved;
};

struct roost_birth {
    __u32 endpoint; /* of the table: it is never given away */
    __u16 mss;      /* our MSS option */
    __u16 class;    /* of those that are born (class.h) */
    __u32 rate;     /* SYNs for it in ROOST_BIRTH_TICK_MS, on one processor, from which on it is a storm; 0: always */
    __u32 service;  /* its number */
};

#define ROOST_BIRTH_TICK_MS 128

/* The one value of the map `births_gate`, memory-mapped. */
struct roost_births_gate {
    __u64 secret[2];    /* of the SYN cookies */
    __u32 open_until_s; /* CLOCK_MONOTONIC seconds. No births without a daemon to wake them, or without room */
    __u16 services;     /* how many there are in the map `births` */
    __u16 ruled;        /* the map `rules` has a class for some newborn: it need not be asked else */
};

#endif
