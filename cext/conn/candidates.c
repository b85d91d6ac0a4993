// SPDX-License-Identifier: Apache-2.0
/*
 * Connections that may sleep without a slot: of each there is a fingerprint in the filter (ebpf/shared/filter.h), and its
 * row. A key that is in no table and that the filter has is a candidate; recall.c asks for its row.
 */
#include <arpa/inet.h>
#include <string.h>

#include "cext/base/address.h"
#include "conn.h"

uint64_t roost_hash_of_key(const struct roost_engine *e, const struct roost_key *key) {
    return roost_key_is_v4(key) ? roost_hash4(&e->table.config, key) : roost_hash6(&e->table.config, key);
}

bool roost_is_candidate(const struct roost_engine *e, const struct roost_key *key) {
    uint64_t hash = roost_hash_of_key(e, key);
    return roost_filter_has(&e->filter, hash, key->local_port) && !roost_datapath_is_stranger(&e->path, hash);
}

/* A listener on every address has clients of its own family alone. */
static bool listens_at(const struct roost_service *s, const struct roost_key *key) {
    if (key->local_port != htons(s->listen_port))
        return false;
    return roost_address_is_any(s->listen) ? roost_address_is_v4(s->listen) == roost_address_is_v4(key->local)
                                           : !memcmp(s->listen, key->local, sizeof(key->local));
}

/* The index of the service that clients reach at the near end of this key; 0: none. Of several, which had the address in turn,
 * the one that takes new clients. */
static uint16_t service_at(const struct roost_engine *e, const struct roost_key *key) {
    uint16_t found = 0;
    for (int i = 0; i < e->listeners; i++) {
        if (!listens_at(&e->listener[i].service, key))
            continue;
        if (e->listener[i].fd >= 0)
            return e->listener[i].service.index;
        found = e->listener[i].service.index;
    }
    return found;
}

void roost_event_of_candidate(struct roost_engine *e, const struct roost_key *key, struct roost_event *event) {
    memset(event, 0, sizeof(*event));
    event->at_ms = roost_realtime_ms();
    event->from_state = event->to_state = ROOST_ST_SLEEP;
    event->count = 1;
    event->record.key = *key;
    event->record.service = service_at(e, key);
}

bool roost_sleep_without_slot(struct roost_engine *e, const struct roost_key *key, uint32_t ctl, uint32_t class,
                              bool again) {
    if (roost_classes_need_slot(&e->table.classes, class) || ROOST_FLAGS(ctl) & ROOST_F_PAIRED)
        return false;
    uint64_t hash = roost_hash_of_key(e, key);
    roost_datapath_mark_stranger(&e->path, hash, false); /* first: XDP must not let its packets pass */
    if (roost_filter_insert(&e->filter, hash, key->local_port))
        return true;
    e->stat[ROOST_E_FILTER_FULL] += !again;
    return false;
}

void roost_candidate_left(struct roost_engine *e, const struct roost_key *key) {
    uint64_t hash = roost_hash_of_key(e, key);
    if (roost_filter_has(&e->filter, hash, key->local_port))
        roost_datapath_mark_stranger(&e->path, hash, true);
}
