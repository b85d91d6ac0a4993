// SPDX-License-Identifier: Apache-2.0
/* The policy in force for one connection: what its ends set in band, else what its service says. */
#include <errno.h>
#include <string.h>

#include "cext/inband/inband_relay.h"
#include "conn.h"

#define SLEEP_RETRY_S 30 /* asked again, should the store not have managed */

enum {
    GIVEN_PROBE = 1 << ROOST_INBAND_QUIETS /* of roost_overrides.given; below it the quiet intervals */
};

uint32_t roost_quiet_ms(struct roost_engine *e, const struct roost_conn *c, enum roost_state state) {
    const struct roost_service *s = roost_service_of(e, c->service);
    const uint32_t policy[ROOST_INBAND_QUIETS] = {s->standby_quiet_ms, s->idle_quiet_ms, s->sleep_quiet_ms};
    int i = state == ROOST_ST_ACTIVE ? ROOST_INBAND_ACTIVE
            : state == ROOST_ST_IDLE ? ROOST_INBAND_IDLE
                                     : ROOST_INBAND_STANDBY;
    if (!c->overrides)
        return policy[i];
    const struct roost_overrides *own = &c->overrides->set;
    if (own->always_active && i != ROOST_INBAND_IDLE)
        return 0;
    return own->given & 1 << i ? own->quiet_ms[i] : policy[i];
}

uint16_t roost_probe_interval_s(struct roost_engine *e, const struct roost_conn *c) {
    if (c->overrides && c->overrides->set.given & GIVEN_PROBE)
        return (uint16_t)c->overrides->set.probe_interval_s;
    return roost_service_of(e, c->service)->probe_interval_s;
}

uint32_t roost_sleep_due_s(struct roost_engine *e, const struct roost_conn *c) {
    uint32_t quiet_ms = roost_quiet_ms(e, c, ROOST_ST_IDLE);
    if (c->in_band && c->in_band->goal == ROOST_INBAND_SLEEP)
        return (uint32_t)(e->now_ms / 1000) + SLEEP_RETRY_S;
    return quiet_ms ? (uint32_t)((c->active_ms + quiet_ms + 999) / 1000) : 0;
}

int roost_policy_set(struct roost_engine *e, struct roost_conn *c, const struct roost_inband_request *r) {
    struct roost_override *o = roost_overrides_make(&e->overrides, &e->table.config, &c->key, c->id);
    if (!o)
        return -ENOMEM;
    struct roost_overrides before = o->set, *own = &o->set;
    if (r->verb == ROOST_INBAND_QUIET) {
        own->given |= r->given;
        for (int i = 0; i < ROOST_INBAND_QUIETS; i++)
            if (r->given & 1 << i)
                own->quiet_ms[i] = r->quiet_ms[i];
    } else if (r->verb == ROOST_INBAND_KEEPALIVE) {
        bool as_policy = r->on && !r->interval_ms;
        own->given = (uint8_t)(as_policy ? own->given & ~GIVEN_PROBE : own->given | GIVEN_PROBE);
        own->probe_interval_s = r->interval_ms / 1000 + (r->interval_ms % 1000 != 0);
    } else {
        own->always_active = r->on;
    }
    o->untold |= memcmp(&before, own, sizeof(before)) != 0;
    c->overrides = o;
    return 0;
}

void roost_policy_tell(struct roost_engine *e, struct roost_conn *c) {
    struct roost_event event;
    if (!c->overrides || !c->overrides->untold)
        return;
    roost_event_of_conn(e, c, &event);
    memset(&event.record, 0, sizeof(event.record));
    event.type = ROOST_EV_OVERRIDES;
    event.overridden.key = c->key;
    event.overridden.overrides = c->overrides->set;
    roost_mailbox_post(&e->box, &event);
    c->overrides->untold = false;
}

int roost_policy_restore(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = roost_conn_by_key(e, &command->record.key);
    if (c && c->id && c->id != command->id)
        return ENOENT; /* another connection has this 4-tuple now */
    if (roost_overrides_find(&e->overrides, &e->table.config, &command->record.key, command->id))
        return 0; /* it has set others since */
    struct roost_override *o = roost_overrides_make(&e->overrides, &e->table.config, &command->record.key, command->id);
    if (!o)
        return ENOMEM;
    o->set = command->overrides;
    if (c && c->id)
        c->overrides = o;
    return 0;
}
