/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Rules that choose the class of a connection by its client's network, as XDP asks them for those that are born asleep: the map
 * `rules`, longest prefix first, from a key to the number of a class. The engine has the same in cext/table/rules.h.
 */
#ifndef ROOST_RULE_H
#define ROOST_RULE_H

#include <linux/types.h>

enum {
    ROOST_RULES_MAX = 262144, /* networks of services */
    ROOST_RULE_CLASSES = 1024 /* that rules may give */
};

struct roost_rule_key { /* 24 bytes; of the first four the kernel takes the length of the prefix, in bits */
    __u32 bits;         /* of what follows: ROOST_RULE_BITS and those of the network */
    __u32 service;
    __u8 network[16]; /* an IPv4 one is IPv4-mapped */
};

#define ROOST_RULE_BITS 32u /* of the service */

#endif
