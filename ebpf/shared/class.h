/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Policy classes: what is in force for a connection, named by a number that its slot has in roost_ka.class. Slots, rests,
 * births and timers hold no value of a policy; what is due is computed when it is looked at.
 *
 * The map `classes` is a memory-mapped array, pinned like the others. Class i below ROOST_CLASS_SERVICES is the default of
 * service i; those behind are interned, one for each set of values: what rules put in place of a default, and what connections
 * set in band in place of either, which is the `base` of theirs. Class 0 has all zeros: never quiet, never probed.
 *
 * The engine alone writes, while nothing of its own reads. XDP reads probe_interval_s, one aligned word, of a newborn
 * after its slot can be seen: so a reader needs no version, and a reader of the earlier interval has a slot that the round
 * of the sweep finds which follows the change.
 */
#ifndef ROOST_CLASS_H
#define ROOST_CLASS_H

#include <linux/types.h>

enum roost_class_number {
    ROOST_CLASS_NONE = 0,
    ROOST_CLASS_SERVICES = 1024, /* the first interned one */
    ROOST_CLASSES = 4096,
    ROOST_CLASS_OF_RULES = 0xffff /* roost_class.base of what rules say: it has none */
};

enum roost_class_default {
    ROOST_PROBE_RETRY_S = 10,  /* between unanswered probes */
    ROOST_PROBE_COUNT = 4,     /* dead after so many unanswered */
    ROOST_PROBE_COUNT_MAX = 15 /* ROOST_HEARD_PROBES counts no further */
};

enum roost_priority { /* under pressure those of a lower one are frozen first */
    ROOST_PRIORITY_LOW = 0,
    ROOST_PRIORITY_NORMAL = 1,
    ROOST_PRIORITY_HIGH = 2
};

/* What a connection has of its own: values that in-band requests and commands set, in place of its policy's, and its group. All
 * zeros: nothing. What is not given is 0. */
struct roost_overrides {    /* 20 bytes */
    __u32 quiet_ms[3];      /* where given: in ACTIVE, STANDBY, IDLE; 0 = never */
    __u32 probe_interval_s; /* where given; 0 = no probes */
    __u8 given;             /* bits: 1, 2, 4 the quiet intervals, 8 the probe interval */
    __u8 always_active;     /* ACTIVE and STANDBY do not end by time */
    __u8 by_command;        /* bits of `given`: by a command, and no in-band request changes them */
    __u8 group;             /* which rules by name and tag are for it: roost_rule.group; 0: none */
};

struct roost_class {        /* 64 bytes */
    __u32 quiet_ms[3];      /* since the last payload byte, in ACTIVE, STANDBY, IDLE; 0 = never */
    __u16 probe_interval_s; /* an inactive client is probed so long after it was heard; 0 = never */
    __u16 probe_retry_s;
    __u8 probe_count;
    __u8 no_keepalives : 1;   /* in SLEEP none is answered: no slot is needed, unless the class is probed or interned */
    __u8 always_active : 1;   /* quiet_ms of ACTIVE and STANDBY are 0 */
    __u8 priority : 2;        /* enum roost_priority */
    __u8 on_server_close : 2; /* enum roost_on_server_close */
    __u8 second_server : 2;   /* enum roost_second_server: what becomes of one that wants a client which is linked */
    __u16 in_band_clients;    /* bit 1 << verb: what clients may ask for in band; 0: their payload is not looked at */
    __u16 in_band_servers;    /* the same for servers */
    __u16 service : 15;       /* whose it is */
    __u16 refuses : 1;        /* a client that connects is reset */
    __u32 least_quiet_ms;     /* an in-band request for a shorter interval (but never) is refused */
    __u16 least_probe_s;      /* likewise */
    __u16 awake_probe_s;      /* an awake connection's ends are probed so long after they were heard; 0 = never */
    struct roost_overrides own; /* of an interned class; a service's has zeros */
    __u16
        attach_silence_s; /* a client that was not heard for so long answers a probe before a server has it; 0 = it need not */
    __u16 write_timeout_s;  /* an end that takes nothing of what waits for it for so long is reset; 0 = never */
    __u16 base;             /* of what was set in band: in place of which class; 0: the service's default */
    __u16 most_probe_s;     /* above probe_interval_s: each silence is probed after a time between the two, at random */
    __u32 second_server_ms; /* how long it waits at most, to be linked or to take over; then it is refused */
};

#endif
