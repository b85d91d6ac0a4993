/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of the filter of those that sleep without a slot (filter.h says how it is laid out). XDP reads at
 * any moment; one thread writes. A key that is a member is always found; one that is none may be.
 */
#ifndef ROOST_CEXT_FILTER_H
#define ROOST_CEXT_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/shared/filter.h"

struct roost_filter {
    __u64 *bucket; /* a memory-mapped BPF array, or plain memory in unit tests; NULL: there is no filter */
    uint32_t buckets;
    struct roost_filter_gate *gate;
    uint64_t refused; /* insertions for which there was no room */
    uint64_t moves;   /* of fingerprints that made room for another */
};

/* How many buckets so many connections need, so that nearly every insertion succeeds; 0: none. */
uint32_t roost_filter_buckets(uint32_t connections);

/* Takes over what is there: an earlier engine's, or zeros. */
void roost_filter_begin(struct roost_filter *f, __u64 *bucket, uint32_t buckets, struct roost_filter_gate *gate);

/* hash: of the key, roost_hash4 or roost_hash6; port: its local_port. The key must not be in it yet. False: there is no
 * room. */
bool roost_filter_insert(struct roost_filter *f, uint64_t hash, uint16_t port);
/* The member is where it is going to be found from now on. False: it is none. */
bool roost_filter_remove(struct roost_filter *f, uint64_t hash);
bool roost_filter_has(const struct roost_filter *f, uint64_t hash, uint16_t port);
/* Lets the caches begin with what looking for it will need. */
void roost_filter_prefetch(const struct roost_filter *f, uint64_t hash);

#endif
