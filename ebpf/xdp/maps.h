/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The maps of the XDP program alone. The types of their values stand where they are used. */
#ifndef ROOST_XDP_MAPS_H
#define ROOST_XDP_MAPS_H

#include "ebpf/lib/maps.h"
#include "ebpf/shared/limit.h"
#include "ebpf/shared/rule.h"
#include "ebpf/shared/silence.h"
#include "ebpf/shared/vlan.h"

#define ROUTES 512 /* the highest 9 bits of a hash */

ROOST_XDP_MAPS(ROOST_DEFINE_MAP)

/* A client was heard. before: what its slot said of when it was until then. */
static __always_inline void count_silence(__u32 class, __u32 before, __u64 now_ms, int answered) {
    __u32 place = roost_silence_place(class); /* none: past the end */
    struct roost_silences *of = bpf_map_lookup_elem(&silences, &place);
    __u32 silence_s = roost_silence_s(before, now_ms / 1000);
    __u32 index = answered ? roost_answer_index(silence_s) : roost_silence_index(silence_s);
    asm volatile("" : "+r"(index)); /* or clang forgets that it is bounded */
    if (of && answered && index < ROOST_ANSWERS)
        of->answered[index]++;
    else if (of && index < ROOST_SILENCES)
        of->spoke[index]++;
}

#endif
