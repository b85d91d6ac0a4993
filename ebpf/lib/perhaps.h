/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Who is in no table, but may be asleep without a slot: a look into the filter (filter.h), and at whom the engine has
 * found to be a stranger.
 */
#ifndef ROOST_PERHAPS_H
#define ROOST_PERHAPS_H

#include "find.h"

enum perhaps {
    PERHAPS_NOT,
    PERHAPS,
    PERHAPS_MOVED, /* nothing was seen, but something moved meanwhile: whoever looks again sees it */
};

/* Whether a key that find() did not find may be that of a connection that sleeps without a slot. port: the key's
 * local_port. */
static __noinline int perhaps_asleep(const struct found *found, __be16 port) {
    __u32 zero = 0;
    struct roost_filter_gate *gate = bpf_map_lookup_elem(&filter_gate, &zero);
    if (!gate)
        return PERHAPS_NOT;
#ifndef ROOST_LOADS_IN_ORDER
    if (moves_of(gate) != found->moved) /* orders the look at the tags before that at the filter */
        return PERHAPS_MOVED;
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
        return moves_of(gate) == found->moved ? PERHAPS_NOT : PERHAPS_MOVED;
    return bpf_map_lookup_elem(&strangers, &found->hash) ? PERHAPS_NOT : PERHAPS;
}

#endif
