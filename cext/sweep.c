// SPDX-License-Identifier: Apache-2.0
/*
 * What inactive connections need by time: keep-alive probes of the appliance's own, the death of those that do not
 * answer, and SLEEP when IDLE has lasted. The table is walked a slice at a time, all of it once a second; nothing is
 * kept per connection but what the record has.
 */
#include <errno.h>
#include <linux/if_ether.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "repair.h"
#include "segment.h"

#define SLICE_MS 50
#define SLICES (1000 / SLICE_MS)
#define AHEAD_S 64 /* how far ahead of the engine's clock a client may have been heard: its turn may have been long */
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
    if (fd >= 0 && !roost_repair_finish(fd))
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

/* Puts a probe into the outbox when one is due, which has count already. */
static void probe(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot, uint32_t now_s,
                  uint32_t *count) {
    const struct roost_service *s = roost_service_of(e, roost_table_service(&e->table, slot));
    uint32_t heard = __atomic_load_n(&slot->heard, __ATOMIC_RELAXED), sent = ROOST_HEARD_PROBES(heard);
    uint32_t quiet_s = ROOST_SILENCE_S(heard, now_s);
    if (quiet_s < slot->probe_interval_s || quiet_s > ROOST_HEARD_WRAP_S - AHEAD_S) /* XDP's clock is a moment ahead */
        return;
    uint32_t retry_s = s->probe_retry_s ? s->probe_retry_s : slot->probe_interval_s;
    uint32_t due_s = slot->probe_interval_s + sent * retry_s;
    if (quiet_s < due_s)
        return;
    uint32_t since_s = now_s - quiet_s;
    if (quiet_s >= due_s + retry_s) /* nobody probed for a while (no daemon): that is not the client's silence */
        since_s = now_s - due_s;
    if (sent >= (s->probe_count ? s->probe_count : 3)) {
        e->stat[ROOST_E_PROBE_DEAD]++;
        send_probes(e, count); /* what ends a connection may need the outbox */
        dead(e, key, slot);
        return;
    }
    if (!__atomic_compare_exchange_n(&slot->heard, &heard, ROOST_HEARD(since_s, ROOST_HEARD_TICK(heard), sent + 1),
                                     false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return; /* heard in this very moment */
    struct roost_outbox_item *item = &e->path.out[*count];
    item->length = ETH_HLEN + (uint32_t)roost_segment_probe(key, slot, e->now_ms, item->data + ETH_HLEN);
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) { /* to another interface than the batch's */
        e->stat[ROOST_E_PROBES]++;
        e->stat[ROOST_E_PROBE_LOST] += !roost_datapath_send(&e->path, item->data + ETH_HLEN, item->length - ETH_HLEN);
    } else if (++*count == ROOST_OUTBOX_ITEMS) {
        send_probes(e, count);
    }
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

static void sleep_due(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot, uint32_t now_s) {
    struct roost_rest *rest = &e->table.rest[slot->rest];
    if (!rest->sleep_due_s || (int32_t)(now_s - rest->sleep_due_s) < 0 || roost_mailbox_crowded(&e->box))
        return;
    struct roost_event event;
    roost_event_of_slot(e, key, slot, &event);
    event.type = ROOST_EV_SLEEP_DUE;
    roost_mailbox_post(&e->box, &event);
    rest->sleep_due_s = now_s + SLEEP_RETRY_S;
}

void roost_sweep_turn(struct roost_engine *e) {
    if (e->now_ms < e->sweep_ms)
        return;
    e->sweep_ms = e->now_ms + SLICE_MS;
    roost_births_turn(e);
    uint64_t positions = roost_table_positions(&e->table);
    uint64_t end = e->sweep_at + (positions + SLICES - 1) / SLICES;
    uint32_t now_s = (uint32_t)(e->now_ms / 1000), count = 0;
    if (end > positions)
        end = positions;
    for (uint64_t p = e->sweep_at; p < end; p++) {
        struct roost_key key;
        struct roost_ka *slot = roost_table_at(&e->table, p, &key);
        if (!slot)
            continue;
        uint32_t phase = ROOST_PHASE(slot->ctl);
        if (phase != ROOST_IDLE && phase != ROOST_SLEEP)
            continue;
        if (phase == ROOST_IDLE && roost_table_orphan(&e->table, slot)) {
            end_orphan(e, &key, slot);
            continue;
        }
        if (phase == ROOST_IDLE && roost_table_has_rest(slot))
            sleep_due(e, &key, slot, now_s);
        keep_silence_known(slot, now_s);
        if (slot->probe_interval_s)
            probe(e, &key, slot, now_s, &count);
    }
    send_probes(e, &count);
    e->sweep_at = end == positions ? 0 : end;
}
