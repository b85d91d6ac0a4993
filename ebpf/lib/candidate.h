/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Whether a key that is in no table may be that of a connection asleep without a slot: what the filter says (filter.h),
 * less the false positives that the engine has noted. */
#ifndef ROOST_CANDIDATE_H
#define ROOST_CANDIDATE_H

#include "find.h"

enum candidate {
    NO_CANDIDATE,
    CANDIDATE,
    LOOK_AGAIN, /* no hit, but something moved during the look: tables and filter must be read again */
};

/* enum candidate, of a key that find() did not find. port: the key's local_port. */
static __noinline int filter_says(const struct found *found, __be16 port) {
    __u32 zero = 0;
    struct roost_filter_gate *gate = bpf_map_lookup_elem(&filter_gate, &zero);
    if (!gate)
        return NO_CANDIDATE;
#ifndef ROOST_LOADS_IN_ORDER
    if (moves_of(gate) != found->moved) /* orders the look at the tags before that at the filter */
        return LOOK_AGAIN;
#endif
    __u32 buckets = *(volatile __u32 *)&gate->buckets;
    int hit = 0;
    if (buckets) {
        struct roost_filter_place place = roost_filter_place_of(found->hash, buckets);
        volatile __u64 *word = bpf_map_lookup_elem(&filter, &place.bucket[0]);
        hit = word && roost_filter_word_has(*word, place.fingerprint);
        if (!hit) {
            word = bpf_map_lookup_elem(&filter, &place.bucket[1]);
            hit = word && roost_filter_word_has(*word, place.fingerprint);
        }
    }
    if (!hit || !roost_filter_has_port(gate, port))
        return moves_of(gate) == found->moved ? NO_CANDIDATE : LOOK_AGAIN;
    return bpf_map_lookup_elem(&strangers, &found->hash) ? NO_CANDIDATE : CANDIDATE;
}

#endif
