// SPDX-License-Identifier: Apache-2.0
/* The policy in force for a connection: its class (ebpf/shared/class.h), what its ends set in band included. */
#include <errno.h>
#include <string.h>

#include "cext/inband/inband_relay.h"
#include "conn.h"

_Static_assert(ROOST_GIVEN_PROBE == 1 << ROOST_INBAND_QUIETS, "behind the quiet intervals");

uint16_t roost_class_of_service(uint16_t service) {
    return service < ROOST_CLASS_SERVICES ? service : ROOST_CLASS_NONE;
}

uint16_t roost_class_for(const struct roost_engine *e, const struct roost_key *key, uint16_t service) {
    uint32_t ruled = roost_rules_find(&e->rules.in_force, service, key->client);
    return ruled == ROOST_NO_RULE ? roost_class_of_service(service) : (uint16_t)ruled;
}

const struct roost_class *roost_class_of(const struct roost_engine *e, uint32_t class) {
    return &e->table.classes.entry[class % ROOST_CLASSES];
}

uint32_t roost_quiet_ms(const struct roost_engine *e, const struct roost_conn *c, enum roost_state state) {
    int i = state == ROOST_ST_ACTIVE ? ROOST_INBAND_ACTIVE
            : state == ROOST_ST_IDLE ? ROOST_INBAND_IDLE
                                     : ROOST_INBAND_STANDBY;
    return roost_class_of(e, c->class)->quiet_ms[i];
}

bool roost_is_quiet(const struct roost_engine *e, const struct roost_conn *c) {
    uint32_t quiet_ms = roost_quiet_ms(e, c, (enum roost_state)c->state);
    return quiet_ms && e->now_ms >= c->active_ms + quiet_ms;
}

void roost_conn_set_class(struct roost_engine *e, struct roost_conn *c, uint32_t class) {
    roost_classes_drop(&e->table.classes, c->class);
    c->class = (uint16_t) class;
}

/* The class of these values in place of the base's; ROOST_CLASS_FULL: there is no room, which is counted. */
static uint32_t intern(struct roost_engine *e, uint32_t base, const struct roost_overrides *own) {
    uint32_t class = roost_classes_take(&e->table.classes, base, own);
    e->stat[ROOST_E_CLASSES_FULL] += class == ROOST_CLASS_FULL;
    return class;
}

/* What is to stand in place of this class, with a use of it taken; the same one, without, where nothing changes or there is no
 * room for what was set in band. */
static uint32_t renewed(struct roost_engine *e, const struct roost_key *key, uint16_t service, uint32_t class) {
    uint32_t base = roost_class_for(e, key, service);
    if (base == roost_classes_base(&e->table.classes, class))
        return class;
    uint32_t fresh = intern(e, base, &roost_class_of(e, class)->own);
    return fresh == ROOST_CLASS_FULL ? class : fresh;
}

void roost_class_renew(struct roost_engine *e, struct roost_conn *c) {
    uint32_t fresh = e->rules.walking ? renewed(e, &c->key, c->service, c->class) : c->class;
    if (fresh != c->class)
        roost_conn_set_class(e, c, fresh);
}

void roost_class_renew_slot(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    if (!e->rules.walking || ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER)
        return;
    uint32_t fresh = renewed(e, key, roost_table_service(&e->table, slot), slot->class);
    if (fresh == slot->class)
        return;
    roost_classes_drop(&e->table.classes, slot->class);
    slot->class = (uint16_t)fresh;
}

static bool within_bounds(const struct roost_class *class, const struct roost_overrides *own, uint8_t asked) {
    for (int i = 0; i < ROOST_INBAND_QUIETS; i++)
        if (asked & 1 << i && own->quiet_ms[i] && own->quiet_ms[i] < class->least_quiet_ms)
            return false;
    return !(asked & ROOST_GIVEN_PROBE) || !own->probe_interval_s || own->probe_interval_s >= class->least_probe_s;
}

int roost_class_set(struct roost_engine *e, struct roost_conn *c, const struct roost_inband_request *r) {
    const struct roost_class *class = roost_class_of(e, c->class);
    struct roost_overrides own = class->own;
    uint8_t asked = 0;
    if (r->verb == ROOST_INBAND_QUIET) {
        asked = r->given;
        own.given |= r->given;
        for (int i = 0; i < ROOST_INBAND_QUIETS; i++)
            if (r->given & 1 << i)
                own.quiet_ms[i] = r->quiet_ms[i];
    } else if (r->verb == ROOST_INBAND_KEEPALIVE) {
        bool as_policy = r->on && !r->interval_ms;
        asked = as_policy ? 0 : ROOST_GIVEN_PROBE;
        own.given = (uint8_t)((own.given & ~ROOST_GIVEN_PROBE) | asked);
        own.probe_interval_s = r->interval_ms / 1000 + (r->interval_ms % 1000 != 0);
    } else {
        own.always_active = r->on;
    }
    if (!within_bounds(class, &own, asked))
        return -EPERM;
    bool changed = memcmp(&own, &class->own, sizeof(own)) != 0;
    uint32_t base = roost_classes_base(&e->table.classes, c->class);
    uint32_t interned = changed ? intern(e, base, &own) : c->class;
    if (interned == ROOST_CLASS_FULL)
        return -ENOSPC;
    if (changed)
        roost_conn_set_class(e, c, interned);
    c->own_untold |= changed;
    return 0;
}

void roost_class_tell(struct roost_engine *e, struct roost_conn *c) {
    struct roost_event event;
    if (!c->own_untold)
        return;
    roost_event_of_conn(e, c, &event);
    memset(&event.record, 0, sizeof(event.record));
    event.type = ROOST_EV_OVERRIDES;
    event.overridden.key = c->key;
    event.overridden.overrides = roost_class_of(e, c->class)->own;
    roost_mailbox_post(&e->box, &event);
    c->own_untold = false;
}

int roost_class_restore(struct roost_engine *e, const struct roost_command *command) {
    struct roost_holder h = roost_whose(e, &command->record.key);
    bool conn = h.by == ROOST_BY_CONN, slot = h.slot != NULL;
    uint64_t id = conn ? h.conn->id : slot && roost_table_has_rest(h.slot) ? e->table.rest[h.slot->rest].id : 0;
    if ((!conn && h.by != ROOST_BY_SLOT) || (id && id != command->id))
        return ENOENT; /* another connection has this 4-tuple now */
    uint16_t service = conn ? h.conn->service : roost_table_service(&e->table, h.slot);
    uint32_t has = conn ? h.conn->class : h.slot->class, base = roost_classes_base(&e->table.classes, has);
    if (base != has || (conn && h.conn->own_untold))
        return 0; /* it has set others since, or kept these */
    uint32_t class = intern(e, roost_class_for(e, &command->record.key, service), &command->overrides);
    if (class == ROOST_CLASS_FULL)
        return ENOSPC;
    if (conn)
        roost_conn_set_class(e, h.conn, class);
    if (conn && slot) /* two that hold it */
        roost_classes_hold(&e->table.classes, class);
    if (slot)
        roost_table_set_class(&e->table, h.slot, class);
    return 0;
}

void roost_class_change(struct roost_engine *e, const struct roost_service *service) {
    if (roost_classes_change(&e->table.classes, service->index, &service->policy)) {
        e->sweep_all = roost_table_buckets(&e->table);
        e->sweep_awake = 0;
    }
}

/* The class of the connection with this key; without one, that of the service it would come in by, 0: none. */
static uint32_t class_at(struct roost_engine *e, const struct roost_key *key) {
    struct roost_holder h = roost_whose(e, key);
    struct roost_event event;
    if (h.by == ROOST_BY_CONN)
        return h.conn->class;
    if (h.by != ROOST_BY_NONE)
        return h.slot->class;
    roost_event_of_candidate(e, key, &event);
    return roost_class_for(e, key, event.record.service);
}

int roost_find_class(roost_engine *e, const struct roost_key *key, struct roost_class *class) {
    roost_lock(e);
    uint32_t at = class_at(e, key);
    *class = *roost_class_of(e, at);
    roost_unlock(e);
    return at != ROOST_CLASS_NONE;
}

int roost_find_overrides(roost_engine *e, const struct roost_key *key, uint64_t id, struct roost_overrides *overrides) {
    static const struct roost_overrides nothing;
    roost_lock(e);
    struct roost_holder h = roost_whose(e, key);
    uint64_t found = h.by == ROOST_BY_CONN                                   ? h.conn->id
                     : h.by == ROOST_BY_SLOT && roost_table_has_rest(h.slot) ? e->table.rest[h.slot->rest].id
                                                                             : 0;
    if (h.by == ROOST_BY_NONE || h.by == ROOST_BY_LEG || (found && found != id))
        *overrides = nothing;
    else
        *overrides = roost_class_of(e, h.by == ROOST_BY_CONN ? h.conn->class : h.slot->class)->own;
    roost_unlock(e);
    return memcmp(overrides, &nothing, sizeof(nothing)) != 0;
}
