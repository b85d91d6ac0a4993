/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What in-band requests set for single connections, for as long as those live, whatever their state: some 100 bytes for
 * each of them, nothing for others. The control plane keeps a copy for the time after this process (ROOST_EV_OVERRIDES).
 */
#ifndef ROOST_CEXT_OVERRIDES_H
#define ROOST_CEXT_OVERRIDES_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/hash.h"
#include "cext/base/types.h"

struct roost_config;

struct roost_override {
    uint64_t id; /* of the connection: a later one with the same 4-tuple does not inherit */
    struct roost_key key;
    struct roost_overrides set;
    bool untold; /* changed since the control plane was told */
};

struct roost_override_table { /* all zeros: empty */
    struct roost_hash by_key;
};

/* Of the connection with this key and number; NULL: it has none. Good until it is removed. */
struct roost_override *roost_overrides_find(const struct roost_override_table *t, const struct roost_config *config,
                                            const struct roost_key *key, uint64_t id);
/* The same, made if need be; NULL: out of memory. */
struct roost_override *roost_overrides_make(struct roost_override_table *t, const struct roost_config *config,
                                            const struct roost_key *key, uint64_t id);
void roost_overrides_remove(struct roost_override_table *t, const struct roost_config *config,
                            const struct roost_key *key);
void roost_overrides_close(struct roost_override_table *t);

#endif
