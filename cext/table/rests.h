/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of struct roost_rest: pinned memory-mapped maps (below pin_dir: rest, rest-1, rest-2, ...), one behind the other
 * in one range of addresses, so that it grows and every slot stays where it is. Only the engine looks into it.
 */
#ifndef ROOST_CEXT_RESTS_H
#define ROOST_CEXT_RESTS_H

#include <stddef.h>
#include <stdint.h>

#include "cext/base/pins.h"
#include "ebpf/shared/record.h"

#define ROOST_RESTS_PARTS 64

struct roost_rests {
    struct roost_rest *base; /* NULL: not open */
    uint32_t slots;          /* in use: from the first on */
    uint32_t mapped;         /* there is memory for */
    int fd[ROOST_RESTS_PARTS];
    int parts;
};

/* Takes what an earlier daemon left, or makes the first part with so many slots. 0 or -errno with a sentence in why. */
int roost_rests_open(struct roost_rests *r, const char *pin_dir, uint32_t slots, struct roost_reason *why);
void roost_rests_close(struct roost_rests *r);

/* A part more, mapped behind the others: its map's descriptor, or -errno. Any thread's, one at a time: that the kernel
 * clears the memory and maps it takes a while. */
int roost_rests_make(const struct roost_rests *r, uint32_t slots);
/* Lets it be used, and takes the descriptor. 0 or -errno, and nothing has changed. */
int roost_rests_add(struct roost_rests *r, const char *pin_dir, int fd);

uint64_t roost_rests_memory(const struct roost_rests *r); /* bytes */

#endif
