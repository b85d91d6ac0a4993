// SPDX-License-Identifier: Apache-2.0
/*
 * What inactive connections need by time: keep-alive probes of the appliance's own, the death of those that do not
 * answer, and SLEEP when IDLE has lasted. Each bucket of the table says when the first of its slots is due; once a
 * second all buckets are asked, a slice at a time, and those that are due are walked. Nothing is kept per connection but
 * what the record has. A slot may be looked at later than it is due by an eighth of its interval, or else a bucket full
 * of slots with times of their own would be walked every second.
 */
#include <errno.h>
#include <linux/if_ether.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "repair.h"
#include "segment.h"

#define SLICE_MS 50
#define LARGE_BUCKETS 20000 /* a slice of more than that would keep who wakes waiting */
#define SLICE_OF_LARGE_MS 5
#define LOOK_MAX_S 3600
#define LOOK_AT_LEGS_S 60 /* servers' legs that have lost their clients */
#define LATE 8            /* a slot may be late by this part of its interval */
#define AHEAD_S 64 /* how far ahead of the engine's clock a client may have been heard: its turn may have been long */
#define LEAVE_TABLE_S 60 /* where nothing sleeps by itself, and until there may be room in the filter */
#define SLEEP_RETRY_S 30 /* asked again, should the store not have managed */

static void send_probes(struct roost_engine *e, uint32_t *count) {
    if (!*count)
        return;
    e->stat[ROOST_E_PROBES] += *count;
    e->stat[ROOST_E_PROBE_LOST] += roost_datapath_probe(&e->path, *count);
    *count = 0;
}

/* A server's leg that has lost its client (its record was lost, or a predecessor was killed at a bad moment): the server
 * is told by a socket that is good for one RST. */
static void end_orphan(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    int fd = roost_repair_rebuild(key, slot, &e->table.rest[slot->rest]);
    if (fd == -EMFILE || fd == -ENFILE)
        return;                          /* tried again in a second */
    roost_table_remove(&e->table, slot); /* the guard stops an RST of what is in the table */
    if (fd >= 0 && !roost_repair_finish(fd, false))
        roost_reset_fd(fd);
    else if (fd >= 0)
        close(fd);
}

/* One end of a pair is gone: the other learns it, and for that both wake. */
static void dead_pair(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    struct roost_key client;
    int error;
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) {
        if (!roost_table_peer(&e->table, slot, &client))
            return; /* end_orphan's */
        key = &client;
    }
    struct roost_conn *c = roost_conn_by_key(e, key);
    if (!c)
        c = roost_wake(e, key, ROOST_C_PROBE_TIMEOUT, &error);
    if (!c)
        return; /* no memory; it is tried again in a second */
    c->want_close = true;
    c->close_cause = ROOST_C_PROBE_TIMEOUT;
}

static void dead(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    struct roost_event event;
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_PAIRED) {
        dead_pair(e, key, slot);
        return;
    }
    struct roost_conn *c = roost_conn_by_key(e, key);
    if (c) { /* its server link was kept, or its record is being asked for */
        roost_conn_close(e, c, ROOST_C_PROBE_TIMEOUT, true);
        return;
    }
    if (ROOST_IS_BORN(slot->rest)) { /* nobody knew it by a number */
        e->stat[ROOST_E_BORN_GONE]++;
        roost_table_remove(&e->table, slot);
        return;
    }
    roost_event_of_slot(e, key, slot, &event);
    event.type = ROOST_EV_TRANSITION;
    event.to_state = ROOST_ST_CLOSED;
    event.cause = ROOST_C_PROBE_TIMEOUT;
    roost_mailbox_post(&e->box, &event);
    roost_hosts_remove(&e->hosts, key);
    roost_overrides_remove(&e->overrides, &e->table.config, key);
    roost_table_remove(&e->table, slot);
}

/* How long a slot that is due in so many seconds may be left alone. */
static uint32_t may_wait(uint32_t due_s, uint32_t interval_s) {
    uint32_t late_s = interval_s / LATE;
    return due_s > late_s ? due_s : late_s ? late_s : 1;
}

/* Puts a probe into the outbox, which has *count already, when one is due. Seconds until the slot is to be looked at
 * again for the next. */
static uint32_t probe(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot, uint32_t now_s,
                      uint32_t *count) {
    const struct roost_service *s = roost_service_of(e, roost_table_service(&e->table, slot));
    uint32_t heard = __atomic_load_n(&slot->heard, __ATOMIC_RELAXED), sent = ROOST_HEARD_PROBES(heard);
    uint32_t quiet_s = ROOST_SILENCE_S(heard, now_s), interval_s = slot->probe_interval_s;
    if (quiet_s > ROOST_HEARD_WRAP_S - AHEAD_S) /* XDP's clock is a moment ahead */
        quiet_s = 0;
    if (quiet_s < interval_s)
        return may_wait(interval_s - quiet_s, interval_s);
    uint32_t retry_s = s->probe_retry_s ? s->probe_retry_s : interval_s;
    uint32_t due_s = interval_s + sent * retry_s;
    if (quiet_s < due_s)
        return may_wait(due_s - quiet_s, retry_s);
    uint32_t since_s = now_s - quiet_s;
    if (quiet_s >= due_s + may_wait(retry_s, interval_s)) /* nobody probed for a while (no daemon): not its silence */
        since_s = now_s - due_s;
    if (sent >= (s->probe_count ? s->probe_count : 3)) {
        e->stat[ROOST_E_PROBE_DEAD]++;
        send_probes(e, count); /* what ends a connection may need the outbox */
        dead(e, key, slot);
        return 1;
    }
    if (!__atomic_compare_exchange_n(&slot->heard, &heard, ROOST_HEARD(since_s, ROOST_HEARD_TICK(heard), sent + 1),
                                     false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return 1; /* heard in this very moment */
    struct roost_outbox_item *item = &e->path.out[*count];
    item->length = ETH_HLEN + (uint32_t)roost_segment_probe(key, slot, e->now_ms, item->data + ETH_HLEN);
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) { /* to another interface than the batch's */
        e->stat[ROOST_E_PROBES]++;
        e->stat[ROOST_E_PROBE_LOST] += !roost_datapath_send(&e->path, item->data + ETH_HLEN, item->length - ETH_HLEN);
    } else if (++*count == ROOST_OUTBOX_ITEMS) {
        send_probes(e, count);
    }
    uint32_t next_s = retry_s < interval_s ? retry_s : interval_s; /* when it answers, its interval begins anew */
    return may_wait(next_s, next_s);
}

/* The time since a client was heard has 20 bits. Before it runs over, it stays where it is: more than six days. */
static void keep_silence_known(struct roost_ka *slot, uint32_t now_s) {
    uint32_t heard = __atomic_load_n(&slot->heard, __ATOMIC_RELAXED), silence_s = ROOST_SILENCE_S(heard, now_s);
    if (silence_s > ROOST_SILENCE_MAX_S && silence_s < ROOST_HEARD_WRAP_S - AHEAD_S)
        __atomic_compare_exchange_n(
            &slot->heard, &heard,
            ROOST_HEARD(now_s - ROOST_SILENCE_MAX_S, ROOST_HEARD_TICK(heard), ROOST_HEARD_PROBES(heard)), false,
            __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Says that it is due for SLEEP; seconds until it is, or is to be said again. */
static uint32_t sleep_due(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot, uint32_t now_s) {
    struct roost_rest *rest = &e->table.rest[slot->rest];
    if (!rest->sleep_due_s)
        return LOOK_MAX_S;
    if ((int32_t)(now_s - rest->sleep_due_s) < 0)
        return rest->sleep_due_s - now_s;
    if (roost_mailbox_crowded(&e->box))
        return 1;
    struct roost_event event;
    roost_event_of_slot(e, key, slot, &event);
    event.type = ROOST_EV_SLEEP_DUE;
    roost_mailbox_post(&e->box, &event);
    rest->sleep_due_s = now_s + SLEEP_RETRY_S;
    return SLEEP_RETRY_S;
}

/* It came back into the table because somebody wanted it, or there was no room in the filter: lets it go when it has been
 * silent as long as it must be to sleep. Seconds until it has, 0: it is gone. */
static uint32_t leave_table(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot,
                            uint32_t now_s) {
    uint16_t service = roost_table_service(&e->table, slot);
    const struct roost_service *s = roost_service_of(e, service);
    uint32_t quiet_s = s->sleep_quiet_ms ? (s->sleep_quiet_ms + 999) / 1000 : LEAVE_TABLE_S;
    uint32_t silence_s = ROOST_SILENCE_S(__atomic_load_n(&slot->heard, __ATOMIC_RELAXED), now_s);
    if (!s->no_keepalives || slot->probe_interval_s)
        return LOOK_MAX_S;
    if (silence_s > ROOST_HEARD_WRAP_S - AHEAD_S)
        silence_s = 0;
    if (silence_s < quiet_s)
        return may_wait(quiet_s - silence_s, quiet_s);
    if (roost_conn_by_key(e, key) || !roost_sleep_without_slot(e, key, slot, service))
        return LEAVE_TABLE_S;
    roost_table_remove(&e->table, slot);
    return 0;
}

/* Does what is due of a slot; seconds until it is to be looked at again. */
static uint32_t look(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot, uint32_t now_s,
                     uint32_t *count) {
    uint32_t phase = ROOST_PHASE(slot->ctl), next_s = LOOK_MAX_S;
    if (phase != ROOST_IDLE && phase != ROOST_SLEEP)
        return 1; /* on its way to or from there */
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) {
        if (phase == ROOST_IDLE && roost_table_orphan(&e->table, slot)) {
            end_orphan(e, key, slot);
            return 1;
        }
        next_s = LOOK_AT_LEGS_S;
    }
    if (phase == ROOST_IDLE && roost_table_has_rest(slot)) {
        uint32_t due_s = sleep_due(e, key, slot, now_s);
        next_s = due_s < next_s ? due_s : next_s;
    }
    if (phase == ROOST_SLEEP) {
        uint32_t leave_s = leave_table(e, key, slot, now_s);
        if (!leave_s)
            return LOOK_MAX_S;
        next_s = leave_s < next_s ? leave_s : next_s;
    }
    keep_silence_known(slot, now_s);
    if (slot->probe_interval_s) {
        uint32_t due_s = probe(e, key, slot, now_s, count);
        next_s = due_s < next_s ? due_s : next_s;
    }
    return next_s;
}

static void look_into_bucket(struct roost_engine *e, uint64_t bucket, struct roost_bucket_head *head, uint32_t now_s,
                             uint32_t *count) {
    uint32_t next_s = LOOK_MAX_S;
    __atomic_store_n(&head->due_s, UINT32_MAX,
                     __ATOMIC_RELAXED); /* first: what comes in meanwhile says when it is due */
    for (uint32_t i = 0; i < ROOST_BUCKET_SLOTS; i++) {
        struct roost_key key;
        struct roost_ka *slot = roost_table_at(&e->table, bucket * ROOST_BUCKET_SLOTS + i, &key);
        uint32_t due_s = slot ? look(e, &key, slot, now_s, count) : LOOK_MAX_S;
        next_s = due_s < next_s ? due_s : next_s;
    }
    roost_table_due(head, now_s + next_s);
}

void roost_sweep_turn(struct roost_engine *e) {
    if (e->now_ms < e->sweep_ms)
        return;
    roost_births_turn(e);
    roost_sockets_turn(e);
    uint64_t buckets = roost_table_buckets(&e->table);
    uint32_t slice_ms = buckets > LARGE_BUCKETS ? SLICE_OF_LARGE_MS : SLICE_MS;
    uint64_t end = e->sweep_at + (buckets * slice_ms + 999) / 1000;
    uint32_t now_s = (uint32_t)(e->now_ms / 1000), count = 0;
    e->sweep_ms = e->now_ms + slice_ms;
    if (end > buckets)
        end = buckets;
    for (uint64_t n = e->sweep_at; n < end; n++) {
        struct roost_bucket_head *head = roost_table_bucket(&e->table, n);
        if (__atomic_load_n(&head->due_s, __ATOMIC_RELAXED) <= now_s)
            look_into_bucket(e, n, head, now_s, &count);
    }
    send_probes(e, &count);
    e->sweep_at = end == buckets ? 0 : end;
}
