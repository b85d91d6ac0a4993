/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The maps that programs share by their pins, the counters among them, and the clock that they share. */
#ifndef ROOST_MAPS_H
#define ROOST_MAPS_H

#include "ebpf/shared/birth.h"
#include "ebpf/shared/class.h"
#include "ebpf/shared/filter.h"
#include "ebpf/shared/frame.h"
#include "ebpf/shared/sockets.h"
#include "ebpf/shared/table.h"
#include "define_map.h"

ROOST_SHARED_MAPS(ROOST_DEFINE_MAP)

static __always_inline void count(__u32 what) {
    __u64 *n = bpf_map_lookup_elem(&counters, &what);
    if (n)
        *n += 1;
}

/* CLOCK_MONOTONIC in ms, of the last tick (some ms ago at most): a fifth of what reading the clock itself costs. A TSval may
 * thereby be behind one that a socket sent in the same tick; its receiver then waits for the next one (RFC 7323 5.3 R1). */
static __always_inline __u64 coarse_ms(void) {
    return bpf_ktime_get_coarse_ns() / 1000000;
}

#endif
