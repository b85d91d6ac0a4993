/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of clients that went to sleep, for those that wake: to make a socket and to close it takes longer than all that
 * is between. A spare one is unconnected, in repair mode, behind the closed filter, and still bound to its local address
 * (what was accepted, and not rebuilt, is bound to none).
 */
#ifndef ROOST_CEXT_SPARES_H
#define ROOST_CEXT_SPARES_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/shared/record.h"
#include "cext/base/hash.h"

#define ROOST_SPARES_MAX 2048

struct roost_spare {
    uint8_t local[16];
    __be16 port;
    int fd;
    struct roost_spare *next; /* with the same local address, or the next free one */
};

struct roost_spares {
    struct roost_spare spare[ROOST_SPARES_MAX];
    struct roost_hash
        by_local;             /* the latest of each local address, which is taken first: its memory is in the caches */
    struct roost_spare *free; /* used before */
    uint32_t fresh;           /* from here on never used */
    uint32_t count, least;    /* least: fewest since the last roost_spares_trim */
    uint64_t trim_step;       /* of the walk through by_local */
};

/* Takes one that is bound to the key's local address (*bound), or to none, of the right family. -1: there is none. */
int roost_spares_take(struct roost_spares *s, const struct roost_key *key, bool *bound);
/* False: there is no place for more. */
bool roost_spares_put(struct roost_spares *s, const struct roost_key *key, bool bound, int fd);
/* Closes some of those that were not needed since the last time, and enough that no more than most are left. */
void roost_spares_trim(struct roost_spares *s, uint32_t most);
void roost_spares_close(struct roost_spares *s); /* all of them */

#endif
