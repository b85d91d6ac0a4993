// SPDX-License-Identifier: Apache-2.0
/* Which connection is meant: by its 4-tuple, or by a client's address alone. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "cext/base/address.h"
#include "conn.h"

struct roost_holder roost_whose(struct roost_engine *e, const struct roost_key *key) {
    struct roost_holder h = {.conn = roost_conn_by_key(e, key)};
    h.slot = h.conn ? h.conn->slot : roost_table_find(&e->table, key);
    h.by = h.conn                                      ? ROOST_BY_CONN
           : !h.slot                                   ? ROOST_BY_NONE
           : ROOST_FLAGS(h.slot->ctl) & ROOST_F_SERVER ? ROOST_BY_LEG
                                                       : ROOST_BY_SLOT;
    return h;
}

static bool is_there(struct roost_engine *e, const struct roost_key *key) {
    return roost_whose(e, key).by != ROOST_BY_NONE;
}

/* At a service of every local address: those that programs on this machine reach clients by (roost_local_connect_at). */
static bool complete_locally(struct roost_engine *e, struct roost_key *key, const struct roost_service *s) {
    struct roost_key tried = *key;
    for (uint32_t i = 0; i < e->near_ends; i++) {
        const struct roost_managed_key *end = &e->near_end[i];
        if (end->port != htons(s->listen_port))
            continue;
        memcpy(tried.local, end->address, sizeof(tried.local));
        tried.local_port = end->port;
        if (is_there(e, &tried)) {
            *key = tried;
            return true;
        }
    }
    return false;
}

/* Whether there is a connection with this client address, client port and local port; completes the key. The services
 * are few. */
static bool complete(struct roost_engine *e, struct roost_key *key, const uint8_t server[16], bool any_port) {
    for (int i = 0; i < e->listeners; i++) {
        const struct roost_service *s = &e->listener[i].service;
        bool every = roost_address_is_any(s->listen); /* then its own server asks for it */
        if (s->unreachable || (!any_port && key->local_port != htons(s->listen_port)))
            continue;
        if (every && !s->transparent) {
            if (complete_locally(e, key, s))
                return true;
            continue;
        }
        memcpy(key->local, every ? server : s->listen, sizeof(key->local));
        key->local_port = htons(s->listen_port);
        if (is_there(e, key))
            return true;
    }
    return false;
}

/* The only connection with this client address, where the index names an earlier one. */
static bool scan(struct roost_engine *e, struct roost_key *key) {
    struct roost_key other;
    const struct roost_ka *slot;
    uint64_t p = 0;
    for (struct roost_conn *c = e->oldest; c; c = c->newer)
        if (!memcmp(c->key.client, key->client, sizeof(key->client)) && !roost_service_of(e, c->service)->unreachable) {
            *key = c->key;
            return true;
        }
    while ((slot = roost_table_walk(&e->table, &p, UINT64_MAX, &other))) {
        if (!(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) &&
            !roost_service_of(e, roost_table_service(&e->table, slot))->unreachable &&
            !memcmp(other.client, key->client, sizeof(key->client))) {
            *key = other;
            return true;
        }
    }
    return false;
}

/* The connection that a server means by the address it connected to: the one with this address and port, else the only
 * one with this address. 0, ENOENT, or ENOTUNIQ: it has several. */
int roost_find_by_address(struct roost_engine *e, struct roost_key *key, const uint8_t server[16]) {
    if (complete(e, key, server, true))
        return 0;
    struct roost_host *host = roost_hosts_find(&e->hosts, key->client);
    if (!host || host->count > 1)
        return host ? ENOTUNIQ : ENOENT;
    key->client_port = host->client_port;
    key->local_port = host->local_port;
    if (host->client_port && complete(e, key, server, false))
        return 0;
    if (!scan(e, key))
        return ENOENT;
    host->client_port = key->client_port;
    host->local_port = key->local_port;
    return 0;
}
