// SPDX-License-Identifier: Apache-2.0
/* Records of the store that go into the table: in SLEEP, or, both legs of a pair, in IDLE. */
#include <errno.h>

#include "cext/base/address.h"
#include "life.h"

/* A slot out of a record, IDLE; NULL: no room. */
static struct roost_ka *insert_idle(struct roost_engine *e, const struct roost_record *record, uint16_t class) {
    struct roost_ka ka = record->ka;
    ka.ctl = (ka.ctl & ~0xffu) | ROOST_IDLE;
    ka.class = class;
    ka.heard &= ~0xfu; /* no probe of ours is under way */
    ka.rest = roost_table_rest_alloc(&e->table, false);
    if (ka.rest == ROOST_NO_REST)
        return NULL;
    e->table.rest[ka.rest] = record->rest;
    e->table.rest[ka.rest].sleep_asked_s = e->table.rest[ka.rest].sleep_wanted = 0; /* of another daemon's time */
    struct roost_ka *slot = roost_table_insert(&e->table, &record->key, &ka, record->service);
    if (!slot)
        roost_table_rest_release(&e->table, ka.rest);
    return slot;
}

/* Both legs of a pair: IDLE, for each must know where the other is, and the store does not. */
static struct roost_ka *insert_pair(struct roost_engine *e, const struct roost_command *command) {
    const struct roost_key *key = &command->record.key, *leg = &command->peer.key;
    uint16_t service = command->record.service;
    uint16_t leg_class = roost_address_is_ours(leg->client) ? ROOST_CLASS_NONE : roost_class_of_service(service);
    struct roost_ka *server = insert_idle(e, &command->peer, leg_class);
    struct roost_ka *client = server ? insert_idle(e, &command->record, roost_class_for(e, key, service)) : NULL;
    if (client) {
        roost_table_pair(&e->table, &e->table.rest[server->rest], client);
        roost_table_pair(&e->table, &e->table.rest[client->rest], server);
    } else if (server) {
        roost_table_remove(&e->table, server);
    }
    return client;
}

struct roost_ka *roost_insert_sleeping(struct roost_engine *e, const struct roost_record *record) {
    struct roost_ka ka = record->ka;
    ka.ctl = (ka.ctl & ~0xffu) | ROOST_SLEEP;
    ka.class = roost_class_for(e, &record->key, record->service);
    ka.rest = ROOST_ROW_OF(record->ka.rest);
    ka.heard &= ~0xfu;
    return roost_table_insert(&e->table, &record->key, &ka, record->service);
}

int roost_insert(struct roost_engine *e, const struct roost_command *command) {
    bool pair = command->peer.rest.id;
    if (roost_whose(e, &command->record.key).by != ROOST_BY_NONE ||
        (pair && roost_whose(e, &command->peer.key).by != ROOST_BY_NONE))
        return EEXIST;
    if (!roost_is_legal(ROOST_ST_NONE, pair ? ROOST_ST_IDLE : ROOST_ST_SLEEP, command->cause))
        return EINVAL;
    const struct roost_record *record = &command->record;
    uint16_t class = roost_class_for(e, &record->key, record->service);
    bool by_key = ROOST_ROW_OF(record->ka.rest) == ROOST_NO_REST;
    bool without_slot = !pair && by_key && roost_sleep_without_slot(e, &record->key, record->ka.ctl, class, false);
    const struct roost_ka *slot = without_slot ? NULL
                                  : pair       ? insert_pair(e, command)
                                               : roost_insert_sleeping(e, record);
    if (!slot && !without_slot)
        return ENOSPC;
    roost_hosts_add(&e->hosts, &command->record.key);
    struct roost_event event;
    if (slot)
        roost_event_of_slot(e, &command->record.key, slot, &event);
    else
        roost_event_of_candidate(e, &command->record.key, &event);
    event.id = command->id;
    roost_post_transition(e, &event, class, ROOST_ST_NONE, (enum roost_state)event.to_state,
                          (enum roost_cause)command->cause, command->token);
    return 0;
}
