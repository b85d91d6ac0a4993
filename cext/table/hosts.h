/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many connections each client address has, and which one when it is the only one: 16 bytes an address, whatever the
 * state of its connections. Kept only with [router], where servers reach clients by address.
 */
#ifndef ROOST_CEXT_HOSTS_H
#define ROOST_CEXT_HOSTS_H

#include <stdint.h>

#include "ebpf/shared/record.h"
#include "cext/base/hash.h"

struct roost_host { /* in the place of a hash slot's number */
    uint32_t count;
    uint16_t client_port,
        local_port; /* network order, of the only one; 0: not known, as it is not the last that came */
} __attribute__((may_alias));

_Static_assert(sizeof(struct roost_host) == sizeof(uint64_t), "a slot has 8 bytes for it");

struct roost_hosts {        /* all zeros: not kept */
    struct roost_hash hash; /* by the address's keyed hash, which stands for the address */
    __u64 seed[2];
};

int roost_hosts_open(struct roost_hosts *h, const __u64 seed[2]); /* 0 or -ENOMEM */
void roost_hosts_close(struct roost_hosts *h);
/* Does nothing where they are not kept. Out of memory: the address is not found until it comes again. */
void roost_hosts_add(struct roost_hosts *h, const struct roost_key *key);
void roost_hosts_remove(struct roost_hosts *h, const struct roost_key *key);
struct roost_host *roost_hosts_find(struct roost_hosts *h, const uint8_t client[16]); /* good until the next change */

#endif
