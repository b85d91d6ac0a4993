/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the reflector (reflector.bpf.c) and its driver (cext/simulator/) share. */
#ifndef ROOST_REFLECTOR_H
#define ROOST_REFLECTOR_H

#include <linux/types.h>

/* What is wrong with the answers. */
enum reflector_fault {
    REFLECTOR_NONE = 0,
    REFLECTOR_CHECKSUM = 1,
    REFLECTOR_IP_CHECKSUM = 2,
    REFLECTOR_SEQ = 3, /* one byte ahead */
    REFLECTOR_ACK = 4, /* of a byte that was not sent */
    REFLECTOR_TSVAL = 5,
    REFLECTOR_TSECR = 6,
    REFLECTOR_ZERO_TSECR = 7,
    REFLECTOR_FLAGS = 8, /* a SYN */
    REFLECTOR_PORT = 9,  /* from another port than was asked */
    REFLECTOR_NO_TIMESTAMP = 10,
    REFLECTOR_RESET = 11, /* RST, one byte ahead */
    REFLECTOR_FAULTS = 12,
};

struct reflector_settings {
    __u32 fault;
    __u32 lines; /* of `memory`; 0: it is not looked at */
};

#endif
