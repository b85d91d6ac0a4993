// SPDX-License-Identifier: Apache-2.0
/* The policy in force for a connection: its class (ebpf/shared/class.h), what its ends set in band included. */
#include <errno.h>
#include <string.h>

#include "cext/inband/inband_relay.h"
#include "conn.h"

#define CUT_MS 120000 /* a time-out of a client's is no longer (Linux: TCP_RTO_MAX) */

/* After its server's close, on the way down at once: the client acknowledges what the server said last. A freeze that is too early
 * for that is tried again after as long. */
#define SINK_MS 100
#define SINK_FOR_MS 5000 /* then its quiet interval begins */

/* The intervals, as bits of `given`, that this stands for. */
#define ALWAYS_ACTIVE (1 << ROOST_INBAND_ACTIVE | 1 << ROOST_INBAND_STANDBY)

_Static_assert(ROOST_GIVEN_PROBE == 1 << ROOST_INBAND_QUIETS, "behind the quiet intervals");

uint16_t roost_class_of_service(uint16_t service) {
    return service < ROOST_CLASS_SERVICES ? service : ROOST_CLASS_NONE;
}

static uint16_t class_for(const struct roost_engine *e, const struct roost_key *key, uint16_t service, uint8_t group) {
    uint32_t ruled = roost_rules_find(&e->rules.in_force, key, service, group);
    return ruled == ROOST_NO_RULE ? roost_class_of_service(service) : (uint16_t)ruled;
}

uint16_t roost_class_for(const struct roost_engine *e, const struct roost_key *key, uint16_t service) {
    return class_for(e, key, service, 0);
}

const struct roost_class *roost_class_of(const struct roost_engine *e, uint32_t class) {
    return &e->table.classes.entry[class % ROOST_CLASSES];
}

/* Not for as long as bytes may be under way to a client that has gone, nor past what the connection has of its own. */
static bool sinks(const struct roost_engine *e, const struct roost_conn *c) {
    const struct roost_class *class = roost_class_of(e, c->class);
    return c->sinks && class->on_server_close >= ROOST_CLOSE_IDLE && e->now_ms < c->since_ms + SINK_FOR_MS &&
           !class->always_active && !(class->own.given & 1 << ROOST_INBAND_STANDBY);
}

uint32_t roost_quiet_ms(const struct roost_engine *e, const struct roost_conn *c, enum roost_state state) {
    if (state == ROOST_ST_STANDBY && sinks(e, c))
        return SINK_MS;
    int i = state == ROOST_ST_ACTIVE ? ROOST_INBAND_ACTIVE
            : state == ROOST_ST_IDLE ? ROOST_INBAND_IDLE
                                     : ROOST_INBAND_STANDBY;
    uint32_t quiet_ms = roost_class_of(e, c->class)->quiet_ms[i];
    return state == ROOST_ST_ACTIVE && c->cut && quiet_ms && quiet_ms < CUT_MS ? CUT_MS : quiet_ms;
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
    const struct roost_overrides *own = &roost_class_of(e, class)->own;
    uint32_t base = class_for(e, key, service, own->group);
    if (base == roost_classes_base(&e->table.classes, class))
        return class;
    uint32_t fresh = intern(e, base, own);
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
    uint8_t asked = 0, changed_by_it = r->verb == ROOST_INBAND_QUIET       ? r->given
                                       : r->verb == ROOST_INBAND_KEEPALIVE ? ROOST_GIVEN_PROBE
                                                                           : ALWAYS_ACTIVE;
    if (changed_by_it & own.by_command)
        return -EPERM;
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

/* What outlives the pins: the control plane knows the group of a connection by its name. */
static struct roost_overrides lasting(struct roost_overrides own) {
    own.group = 0;
    return own;
}

static bool lasts(const struct roost_overrides *own) {
    static const struct roost_overrides nothing;
    struct roost_overrides kept = lasting(*own);
    return memcmp(&kept, &nothing, sizeof(nothing)) != 0;
}

/* In place of a record the event has what is set for the connection alone. */
static void post_own(struct roost_engine *e, struct roost_event *event, const struct roost_key *key, uint32_t class) {
    memset(&event->record, 0, sizeof(event->record));
    event->type = ROOST_EV_OVERRIDES;
    event->overridden.key = *key;
    event->overridden.overrides = lasting(roost_class_of(e, class)->own);
    roost_mailbox_post(&e->box, event);
}

void roost_class_tell(struct roost_engine *e, struct roost_conn *c) {
    struct roost_event event;
    if (!c->own_untold)
        return;
    roost_event_of_conn(e, c, &event);
    post_own(e, &event, &c->key, c->class);
    c->own_untold = false;
}

/* 0: the engine does not know it, of one that sleeps. */
static uint64_t number_of(const struct roost_engine *e, const struct roost_holder *h) {
    if (h->by == ROOST_BY_CONN)
        return h->conn->id;
    return h->by == ROOST_BY_SLOT && roost_table_has_rest(h->slot) ? e->table.rest[h->slot->rest].id : 0;
}

static uint32_t class_held(const struct roost_holder *h) {
    return h->by == ROOST_BY_CONN ? h->conn->class : h->slot->class;
}

/* Who has the connection of a command about its class; false: another one has this 4-tuple now. */
static bool meant(struct roost_engine *e, const struct roost_command *command, struct roost_holder *h) {
    *h = roost_whose(e, &command->record.key);
    uint64_t number = number_of(e, h);
    return (h->by == ROOST_BY_CONN || h->by == ROOST_BY_SLOT) && (!number || number == command->id);
}

/* The connection has this class, of which a use was taken. */
static void put_class(struct roost_engine *e, const struct roost_holder *h, uint32_t class) {
    if (h->by == ROOST_BY_CONN)
        roost_conn_set_class(e, h->conn, class);
    if (h->by == ROOST_BY_CONN && h->slot) /* two that hold it */
        roost_classes_hold(&e->table.classes, class);
    if (h->slot)
        roost_table_set_class(&e->table, h->slot, class);
}

int roost_class_restore(struct roost_engine *e, const struct roost_command *command) {
    struct roost_holder h;
    if (!meant(e, command, &h))
        return ENOENT;
    bool conn = h.by == ROOST_BY_CONN;
    uint16_t service = conn ? h.conn->service : roost_table_service(&e->table, h.slot);
    const struct roost_overrides *has = &roost_class_of(e, class_held(&h))->own;
    struct roost_overrides own = command->overrides;
    if (lasts(has) || (conn && h.conn->own_untold))
        return 0; /* it has set others since, or kept these */
    own.group = has->group;
    uint32_t class = intern(e, class_for(e, &command->record.key, service, own.group), &own);
    if (class == ROOST_CLASS_FULL)
        return ENOSPC;
    put_class(e, &h, class);
    return 0;
}

/* Of the values in `asked` the connection has those that are given, and none of its own in place of the others. */
static struct roost_overrides give(struct roost_overrides own, const struct roost_overrides *given, uint8_t asked) {
    for (int i = 0; i < ROOST_INBAND_QUIETS; i++)
        if (asked & 1 << i)
            own.quiet_ms[i] = given->given & 1 << i ? given->quiet_ms[i] : 0;
    if (asked & ROOST_GIVEN_PROBE)
        own.probe_interval_s = given->given & ROOST_GIVEN_PROBE ? given->probe_interval_s : 0;
    if (asked & ALWAYS_ACTIVE)
        own.always_active = 0;
    if (asked & ROOST_GIVEN_GROUP)
        own.group = given->group;
    own.given = (uint8_t)((own.given & ~asked) | (given->given & asked));
    own.by_command = (uint8_t)((own.by_command & ~asked) | (given->given & asked));
    return own;
}

int roost_class_give(struct roost_engine *e, const struct roost_command *command) {
    struct roost_holder h;
    if (!meant(e, command, &h))
        return ENOENT;
    uint32_t has = class_held(&h);
    const struct roost_overrides *before = &roost_class_of(e, has)->own;
    struct roost_overrides own = give(*before, &command->overrides, (uint8_t)command->count);
    if (!memcmp(&own, before, sizeof(own)))
        return 0;
    struct roost_overrides kept = lasting(own), kept_before = lasting(*before);
    bool untold = memcmp(&kept, &kept_before, sizeof(kept)) != 0;
    uint16_t service = h.by == ROOST_BY_CONN ? h.conn->service : roost_table_service(&e->table, h.slot);
    uint32_t base = own.group == before->group ? roost_classes_base(&e->table.classes, has)
                                               : class_for(e, &command->record.key, service, own.group);
    uint32_t class = intern(e, base, &own);
    if (class == ROOST_CLASS_FULL)
        return ENOSPC;
    put_class(e, &h, class);
    if (!untold)
        return 0;
    if (h.by == ROOST_BY_CONN) {
        h.conn->own_untold = true; /* said when it goes IDLE */
        return 0;
    }
    struct roost_event event;
    roost_event_of_slot(e, &command->record.key, h.slot, &event);
    event.id = command->id;
    post_own(e, &event, &command->record.key, class);
    return 0;
}

void roost_class_round(struct roost_engine *e) {
    if (e->started || e->table.used4 || e->table.used6) /* else it is empty, without births before the start */
        e->sweep_all = roost_table_buckets(&e->table);
    e->sweep_awake = 0;
}

void roost_class_change(struct roost_engine *e, const struct roost_service *service) {
    if (roost_classes_change(&e->table.classes, service->index, &service->policy))
        roost_class_round(e);
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
    const struct roost_command asked = {.id = id, .record.key = *key};
    struct roost_holder h;
    roost_lock(e);
    *overrides = meant(e, &asked, &h) ? roost_class_of(e, class_held(&h))->own : nothing;
    roost_unlock(e);
    return memcmp(overrides, &nothing, sizeof(nothing)) != 0;
}

void roost_groups_in_use(roost_engine *e, uint8_t in_use[256]) {
    memset(in_use, 0, 256);
    roost_lock(e);
    for (uint32_t i = ROOST_CLASS_SERVICES; i < ROOST_CLASSES; i++)
        if (e->table.classes.uses[i])
            in_use[roost_class_of(e, i)->own.group] = 1;
    roost_unlock(e);
}
