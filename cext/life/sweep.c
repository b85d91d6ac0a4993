// SPDX-License-Identifier: Apache-2.0
/*
 * What inactive connections need by time: keep-alive probes of the appliance's own, the death of those that do not
 * answer, and SLEEP when IDLE has lasted. Each bucket of the table says when the first of its slots is due; once a
 * second all buckets are asked, a slice at a time, and those that are due are walked. Nothing is kept per connection but
 * what the record has.
 *
 * A bucket full of slots with times of their own would be walked every second. So a probe may be early or late by an eighth of
 * its interval, and each bucket has a moment of its own in every interval, towards which the times of its clients are
 * moved: after four rounds at most it is walked once for all their probes, and once more for those that did not answer. The
 * moments lie evenly: clients that all came within seconds are probed all through the interval after those four rounds.
 *
 * In an experiment (class.most_probe_s) each silence has an interval of its own instead, and a bucket with so many of them is walked
 * for each.
 *
 * When a policy changes, one round looks into every bucket, due or not, and sets the timers of awake connections anew, in
 * shorter slices, which let the loop turn after each AT_ONCE_OF_ALL buckets: 10,000,000 slots in two seconds, of which it takes the
 * engine less than half. When rules change, it also gives slots and connections their classes.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "life.h"
#include "next.h"
#include "cext/socket/repair.h"
#include "cext/socket/segment.h"

#define SLICE_MS 50
#define LARGE_BUCKETS 20000 /* a slice of more than that would delay wake-ups */
#define SLICE_OF_LARGE_MS 10
#define SLICE_OF_MANY_MS 2 /* while more than FEW_PROBES wait for their turn, or a class changed */
#define FEW_PROBES 128
#define AT_ONCE_OF_ALL 12 /* buckets of a round over all, some 26 us: then what waits at a socket has its turn */
#define LOOK_MAX_S 3600
#define LOOK_AT_LEGS_S 60 /* servers' legs that have lost their clients */
#define PREFETCHED 8      /* buckets: they lie so far apart that the processor fetches none by itself */
#define LATE 8            /* a slot may be early or late by this part of its interval */
#define SPREAD 0x9e3779b1u
#define WAITS_FOR_ROOM_MS 1000
#define LEAVE_TABLE_S 60 /* where nothing sleeps by itself, and until there may be room in the filter */
#define EXPIRE_A_TURN 16 /* of clients that never spoke: 50 us each */
#define AWAKE_PARTS 4096 /* ranges of the hashes of their keys */

/* A slice of the walk over all buckets. */
struct walk {
    struct roost_engine *e;
    uint32_t now_s;
    uint32_t salt; /* by which the bucket's moment differs from others' */
    struct {
        uint32_t heard_s, interval_s, due_s;
    } last;          /* what first_probe_s() said last of this bucket; interval_s 0: nothing */
    bool waits;      /* for room for probes */
    uint32_t expire; /* clients that may be reset in this turn */
};

/* One end of a pair is gone: the other learns it, and for that both wake. */
static void dead_pair(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    struct roost_key client;
    int error;
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) {
        if (!roost_table_peer(&e->table, slot, &client))
            return; /* look() ends it */
        key = &client;
    }
    struct roost_conn *c = roost_conn_by_key(e, key);
    if (!c)
        c = roost_wake(e, key, ROOST_C_PROBE_TIMEOUT, &error);
    if (!c) /* no memory: it is tried again in a second */
        return;
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) { /* it is not the client that was silent */
        c->probes = 0;
        c->silent_ms = 0;
    }
    roost_conn_end(e, c, ROOST_C_PROBE_TIMEOUT, true);
}

static void dead(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    struct roost_event event;
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_PAIRED) {
        dead_pair(e, key, slot);
        return;
    }
    struct roost_conn *c = roost_conn_by_key(e, key);
    if (c) { /* its record is being asked for */
        c->probes = (uint8_t)ROOST_HEARD_PROBES(slot->heard);
        roost_conn_end(e, c, ROOST_C_PROBE_TIMEOUT, true);
        return;
    }
    if (ROOST_IS_BORN(slot->rest)) { /* it had no number */
        e->stat[ROOST_E_BORN_GONE]++;
        roost_births_ended(e, key, 0);
        roost_table_remove(&e->table, slot);
        return;
    }
    roost_event_of_slot(e, key, slot, &event);
    event.ends.error = ETIMEDOUT;
    roost_post_transition(e, &event, slot->class, (enum roost_state)event.from_state, ROOST_ST_CLOSED,
                          ROOST_C_PROBE_TIMEOUT, 0);
    roost_hosts_remove(&e->hosts, key);
    roost_births_ended(e, key, event.id);
    roost_candidate_left(e, key);
    roost_table_remove(&e->table, slot);
}

/* How long a slot that is due in so many seconds may be left alone. */
static uint32_t may_wait(uint32_t due_s, uint32_t interval_s) {
    uint32_t late_s = interval_s / LATE;
    return due_s > late_s ? due_s : late_s ? late_s : 1;
}

/* Whether each silence has an interval of its own: an experiment. */
static bool varies(const struct roost_class *class) {
    return class->probe_interval_s && class->most_probe_s > class->probe_interval_s;
}

uint32_t roost_probe_interval_s(const struct roost_class *class, uint32_t rcv_nxt, uint32_t ts_recent) {
    const double least_s = class->probe_interval_s, most_s = class->most_probe_s;
    if (!varies(class))
        return class->probe_interval_s;
    const uint64_t random = roost_hash_of_number((uint64_t)rcv_nxt << 32 | ts_recent);
    return (uint32_t)(least_s * pow(most_s / least_s, (double)random / (double)UINT64_MAX));
}

/* How far to go of so many seconds: to the next of the places, an eighth apart, that lie on the way. */
static uint32_t step(uint32_t seconds, uint32_t eighth_s) {
    return seconds ? (seconds - 1) % eighth_s + 1 : 0;
}

uint32_t roost_first_probe_s(uint32_t salt, uint32_t heard_s, uint32_t interval_s) {
    uint32_t eighth_s = interval_s / LATE, after_s = (heard_s + salt) % interval_s;
    if (!eighth_s)
        return interval_s;
    return after_s < interval_s / 2 ? interval_s - step(after_s, eighth_s)
                                    : interval_s + step(interval_s - after_s, eighth_s);
}

/* The same, of a client of the bucket that is walked: most were heard at the same time, when they answered the probe before. */
static uint32_t first_probe_s(struct walk *w, uint32_t heard_s, uint32_t interval_s) {
    if (w->last.heard_s != heard_s || w->last.interval_s != interval_s) {
        w->last.heard_s = heard_s;
        w->last.interval_s = interval_s;
        w->last.due_s = roost_first_probe_s(w->salt, heard_s, interval_s);
    }
    return w->last.due_s;
}

/* What could not be sent is not unanswered, and is tried again after the time between two probes: there is no route, or no
 * interface. */
static void take_back(struct roost_engine *e, struct roost_ka *slot) {
    uint32_t heard = __atomic_load_n(&slot->heard, __ATOMIC_RELAXED), sent = ROOST_HEARD_PROBES(heard);
    const uint32_t now_s = (uint32_t)(e->now_ms / 1000), retry_s = roost_class_of(e, slot->class)->probe_retry_s;
    uint32_t quiet_s = roost_silence_s(heard, now_s);
    if (!sent)
        return; /* heard meanwhile */
    quiet_s -= retry_s < quiet_s ? retry_s : quiet_s;
    __atomic_compare_exchange_n(&slot->heard, &heard, ROOST_HEARD(now_s - quiet_s, ROOST_HEARD_TICK(heard), sent - 1),
                                false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static void unsent(void *of, const struct roost_key *key) {
    struct roost_engine *e = of;
    struct roost_ka *slot = roost_table_find(&e->table, key);
    if (slot && (ROOST_PHASE(slot->ctl) == ROOST_IDLE || ROOST_PHASE(slot->ctl) == ROOST_SLEEP))
        take_back(e, slot);
}

void roost_sweep_begin(struct roost_engine *e) {
    e->path.unsent = unsent;
    e->path.of = e;
}

static void send_probe(struct walk *w, struct roost_ka *slot, bool v4) {
    struct roost_engine *e = w->e;
    struct roost_key key;
    roost_table_key(&e->table, slot, v4, &key);
    e->stat[ROOST_E_PROBES]++;
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) { /* to another interface than clients' */
        uint8_t packet[ROOST_PROBE_MAX];
        if (!roost_datapath_send(&e->path, packet, roost_segment_probe(&key, slot, roost_coarse_ms(), packet))) {
            e->stat[ROOST_E_PROBE_LOST]++;
            if (e->path.unsent)
                take_back(e, slot);
        }
        return;
    }
    const uint8_t state = roost_state_of_slot(slot);
    roost_tally(e, slot->class, state, state, ROOST_C_NONE, 0, 0);
    struct roost_probe *probe = roost_datapath_probe(&e->path); /* there is room: look_along() */
    probe->length = (uint32_t)roost_segment_probe(&key, slot, 0, (uint8_t *)probe->packet);
}

_Static_assert(ROOST_HEARD_PROBES(ROOST_PROBE_COUNT_MAX + 1) == 0,
               "more could never be counted, and nothing be found dead");

/* Sends a probe when one is due. Seconds until the slot is to be looked at again for the next. */
static uint32_t probe(struct walk *w, struct roost_ka *slot, bool v4) {
    struct roost_engine *e = w->e;
    uint32_t heard = __atomic_load_n(&slot->heard, __ATOMIC_RELAXED), sent = ROOST_HEARD_PROBES(heard);
    const struct roost_class *class = roost_class_of(e, slot->class);
    uint32_t quiet_s = roost_silence_s(heard, w->now_s), since_s = w->now_s - quiet_s;
    uint32_t interval_s = roost_probe_interval_s(class, slot->rcv_nxt, slot->ts_recent);
    uint32_t due_s = varies(class) ? interval_s : first_probe_s(w, since_s, interval_s);
    if (quiet_s < due_s) {
        /* Of an experiment the interval that follows when it is heard may be shorter than this one, and XDP, which notes that it is
         * heard, does not bring the bucket's due time forward. */
        uint32_t most_s = varies(class) ? class->probe_interval_s : due_s;
        return due_s - quiet_s < most_s ? due_s - quiet_s : most_s;
    }
    uint32_t retry_s = class->probe_retry_s;
    due_s += sent * retry_s;
    if (quiet_s < due_s)
        return may_wait(due_s - quiet_s, retry_s);
    if (quiet_s >= due_s + may_wait(retry_s, interval_s)) /* no probes for a while (no daemon): not its silence */
        since_s = w->now_s - due_s;
    if (sent >= class->probe_count) {
        struct roost_key key;
        e->stat[ROOST_E_PROBE_DEAD]++;
        if (!(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER)) /* as long as before its first probe, which none has answered */
            roost_tally_silence(e, slot->class, quiet_s - sent * retry_s, true);
        roost_table_key(&e->table, slot, v4, &key);
        dead(e, &key, slot);
        return 1;
    }
    if (!roost_datapath_probes_room(&e->path))
        return 1;
    if (!__atomic_compare_exchange_n(&slot->heard, &heard, ROOST_HEARD(since_s, ROOST_HEARD_TICK(heard), sent + 1),
                                     false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return 1; /* heard in this very moment */
    send_probe(w, slot, v4);
    /* When it answers, its interval begins anew. */
    uint32_t next_s = retry_s < interval_s - interval_s / LATE ? retry_s : interval_s - interval_s / LATE;
    return may_wait(next_s, next_s);
}

/* The time since a client was heard has 20 bits. Before it runs over, it stays where it is: more than six days. */
static void keep_silence_known(struct roost_ka *slot, uint32_t now_s) {
    uint32_t heard = __atomic_load_n(&slot->heard, __ATOMIC_RELAXED), silence_s = roost_silence_s(heard, now_s);
    if (silence_s > ROOST_SILENCE_MAX_S)
        __atomic_compare_exchange_n(
            &slot->heard, &heard,
            ROOST_HEARD(now_s - ROOST_SILENCE_MAX_S, ROOST_HEARD_TICK(heard), ROOST_HEARD_PROBES(heard)), false,
            __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Seconds until SLEEP is due. What lies ahead of now was not asked: an earlier layout kept the time when it is due there. */
static uint32_t sleep_wait_s(const struct walk *w, const struct roost_rest *rest, uint32_t quiet_ms) {
    uint32_t asked_since_s = w->now_s - rest->sleep_asked_s;
    uint64_t due_s = (rest->active_ms + quiet_ms + 999) / 1000;
    if (rest->sleep_asked_s && asked_since_s < ROOST_SLEEP_RETRY_S)
        return ROOST_SLEEP_RETRY_S - asked_since_s;
    if (rest->sleep_wanted)
        return 0;
    if (!quiet_ms)
        return LOOK_MAX_S;
    return due_s <= w->now_s ? 0 : due_s - w->now_s < LOOK_MAX_S ? (uint32_t)(due_s - w->now_s) : LOOK_MAX_S;
}

/* Says that it is due for SLEEP; seconds until it is, or is to be said again. */
static uint32_t sleep_due(struct walk *w, struct roost_ka *slot, bool v4) {
    struct roost_engine *e = w->e;
    struct roost_rest *rest = &e->table.rest[slot->rest];
    uint32_t wait_s = sleep_wait_s(w, rest, roost_class_of(e, slot->class)->quiet_ms[ROOST_INBAND_IDLE]);
    if (wait_s)
        return wait_s;
    if (roost_mailbox_crowded(&e->box))
        return 1;
    struct roost_event event;
    struct roost_key key;
    roost_table_key(&e->table, slot, v4, &key);
    roost_event_of_slot(e, &key, slot, &event);
    event.type = ROOST_EV_SLEEP_DUE;
    roost_mailbox_post(&e->box, &event);
    rest->sleep_asked_s = w->now_s;
    return ROOST_SLEEP_RETRY_S;
}

/* It came back into the table for a packet or a command, or there was no room in the filter: lets it go when it has been
 * silent as long as it must be to sleep. Seconds until it has, 0: it is gone. */
static uint32_t leave_table(const struct walk *w, struct roost_ka *slot, bool v4) {
    struct roost_engine *e = w->e;
    struct roost_key key;
    if (roost_classes_need_slot(&e->table.classes, slot->class) || ROOST_IS_ROW(slot->rest))
        return LOOK_MAX_S;
    uint32_t quiet_ms = roost_class_of(e, slot->class)->quiet_ms[ROOST_INBAND_IDLE];
    uint32_t quiet_s = quiet_ms ? (uint32_t)(((uint64_t)quiet_ms + 999) / 1000) : LEAVE_TABLE_S;
    quiet_s = quiet_s < ROOST_SILENCE_MAX_S ? quiet_s : ROOST_SILENCE_MAX_S - 1; /* more is not known of a silence */
    uint32_t silence_s = roost_silence_s(__atomic_load_n(&slot->heard, __ATOMIC_RELAXED), w->now_s);
    if (silence_s < quiet_s)
        return may_wait(quiet_s - silence_s, quiet_s);
    roost_table_key(&e->table, slot, v4, &key);
    if (roost_conn_by_key(e, &key) || !roost_sleep_without_slot(e, &key, slot->ctl, slot->class, true))
        return LEAVE_TABLE_S;
    roost_table_remove(&e->table, slot);
    return 0;
}

static bool outstays(const struct walk *w, const struct roost_ka *slot) {
    uint32_t age_s = roost_born_age_s(slot->rest, w->now_s);
    uint32_t most_s = roost_service_of(w->e, roost_table_service(&w->e->table, slot))->born_silence_s;
    return most_s && age_s > most_s;
}

/* Does what is due of a slot; seconds until it is to be looked at again. */
static uint32_t look(struct walk *w, struct roost_ka *slot, bool v4) {
    uint32_t phase = ROOST_PHASE(slot->ctl), next_s = LOOK_MAX_S;
    if (w->e->rules.walking) {
        struct roost_key key;
        roost_table_key(&w->e->table, slot, v4, &key);
        roost_class_renew_slot(w->e, &key, slot);
    }
    if (phase != ROOST_IDLE && phase != ROOST_SLEEP)
        return 1; /* on its way to or from there */
    if (ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) {
        if (phase == ROOST_IDLE && roost_table_orphan(&w->e->table, slot)) {
            struct roost_key key;
            roost_table_key(&w->e->table, slot, v4, &key);
            /* It has lost its client: its record was lost, or a predecessor was killed at a bad moment. */
            roost_slot_reset(w->e, &key, slot, &w->e->table.rest[slot->rest]);
            return 1;
        }
        next_s = LOOK_AT_LEGS_S;
    }
    if (phase == ROOST_IDLE && !(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) && roost_table_has_rest(slot)) {
        uint32_t due_s = sleep_due(w, slot, v4);
        next_s = due_s < next_s ? due_s : next_s;
    }
    if (phase == ROOST_SLEEP) {
        uint32_t leave_s = leave_table(w, slot, v4);
        if (!leave_s)
            return LOOK_MAX_S;
        next_s = leave_s < next_s ? leave_s : next_s;
    }
    if (ROOST_IS_BORN(slot->rest) && outstays(w, slot)) {
        struct roost_key key;
        if (!w->expire)
            return 1;
        w->expire--;
        roost_table_key(&w->e->table, slot, v4, &key);
        roost_births_expire(w->e, &key, slot);
        return 1;
    }
    keep_silence_known(slot, w->now_s);
    if (roost_class_of(w->e, slot->class)->probe_interval_s) {
        uint32_t due_s = probe(w, slot, v4);
        next_s = due_s < next_s ? due_s : next_s;
    }
    return next_s;
}

static void look_into_bucket(struct walk *w, struct roost_bucket_head *head, bool v4) {
    uint32_t next_s = LOOK_MAX_S;
    __atomic_store_n(&head->due_s, UINT32_MAX,
                     __ATOMIC_RELAXED);                 /* first: what comes in meanwhile says when it is due */
    for (uint32_t i = 0; i < ROOST_BUCKET_SLOTS; i++) { /* rests lie anywhere */
        const struct roost_ka *slot = roost_table_slot(head, v4, i);
        if (slot && roost_table_has_rest(slot))
            __builtin_prefetch(&w->e->table.rest[slot->rest]);
    }
    for (uint32_t i = 0; i < ROOST_BUCKET_SLOTS; i++) {
        struct roost_ka *slot = roost_table_slot(head, v4, i);
        uint32_t due_s = slot ? look(w, slot, v4) : LOOK_MAX_S;
        next_s = due_s < next_s ? due_s : next_s;
    }
    roost_table_due(head, w->now_s + next_s);
}

/* Looks into what is due of the first so many buckets of a stretch, which begins with bucket `first`. Returns how many
 * it got past: it stops where a bucket's probes may find no room in the offer. But not for long: what is due besides
 * probes does not wait for clients that are gone. */
static uint64_t look_along(struct walk *w, const struct roost_stretch *s, uint64_t first, uint64_t buckets) {
    char *at = s->first;
    for (uint64_t n = 0; n < buckets; n++, at += s->bucket_size) {
        struct roost_bucket_head *head = (struct roost_bucket_head *)at;
        if (n + PREFETCHED < s->buckets)
            __builtin_prefetch(&((struct roost_bucket_head *)(at + PREFETCHED * s->bucket_size))->due_s);
        if (!w->e->sweep_all && __atomic_load_n(&head->due_s, __ATOMIC_RELAXED) > w->now_s)
            continue;
        w->e->sweep_all -= w->e->sweep_all > 0;
        if (w->waits && roost_datapath_probes_room(&w->e->path) < ROOST_BUCKET_SLOTS)
            return n;
        w->salt = (uint32_t)(first + n) * SPREAD >> 16;
        w->last.interval_s = 0;
        look_into_bucket(w, head, s->v4);
    }
    return buckets;
}

/* Of the awake as large a part as the round has done of all buckets. */
static void rearm_awake(struct roost_engine *e, uint64_t left, uint64_t buckets) {
    const uint64_t width = UINT64_MAX / AWAKE_PARTS + 1;
    uint32_t until = (uint32_t)((buckets - (left < buckets ? left : buckets)) * AWAKE_PARTS / buckets);
    for (; e->sweep_awake < until; e->sweep_awake++) {
        uint64_t from = e->sweep_awake * width, step = 0;
        const struct roost_hash_slot *slot;
        while ((slot = roost_hash_walk(&e->by_key, from, from + width - 1, &step))) {
            roost_class_renew(e, slot->item);
            roost_next_rearm(e, slot->item);
        }
    }
}

void roost_sweep_restart(struct roost_engine *e) {
    e->sweep_at = e->sweep_end = 0;
    if (e->sweep_all)
        e->sweep_all = roost_table_buckets(&e->table);
}

/* As far as time has gone on: the turn may be late, and so would be each walk. */
static uint64_t slice_end(const struct roost_engine *e, uint64_t buckets, uint32_t slice_ms) {
    uint64_t passed_ms = e->now_ms - e->swept_ms, most_ms = 2 * slice_ms;
    uint64_t end = e->sweep_at + (buckets * (passed_ms < most_ms ? passed_ms : most_ms) + 999) / 1000;
    return end < buckets ? end : buckets;
}

void roost_sweep_turn(struct roost_engine *e) {
    bool under_way = e->sweep_at < e->sweep_end;
    if (!under_way && e->now_ms < e->sweep_ms)
        return;
    if (roost_lease_is_over(e)) {
        e->sweep_ms = e->now_ms + SLICE_MS;
        return; /* nor are there births then: nothing opens their gate again */
    }
    roost_limits_turn(e);
    roost_sockets_turn(e); /* before the gate opens */
    roost_births_turn(e);
    uint64_t buckets = roost_table_buckets(&e->table);
    uint32_t slice_ms = buckets <= LARGE_BUCKETS ? SLICE_MS : SLICE_OF_LARGE_MS;
    bool all = e->sweep_all > 0;
    if (!under_way)
        e->sweep_end = slice_end(e, buckets, slice_ms);
    uint64_t end = e->sweep_end;
    struct walk w = {.e = e, .now_s = (uint32_t)(e->now_ms / 1000), .expire = EXPIRE_A_TURN};
    bool room = true;
    if (all && end - e->sweep_at > AT_ONCE_OF_ALL)
        end = e->sweep_at + AT_ONCE_OF_ALL;
    e->stat[ROOST_E_PROBE_LOST] += roost_datapath_probes_begin(&e->path);
    if (roost_datapath_probes_room(&e->path) >= ROOST_BUCKET_SLOTS)
        e->probe_room_ms = e->now_ms;
    w.waits = !all && e->now_ms - e->probe_room_ms < WAITS_FOR_ROOM_MS; /* what finds no room is due a second later */
    while (e->sweep_at < end && room) {
        struct roost_stretch s = roost_table_stretch(&e->table, e->sweep_at);
        uint64_t here = s.buckets < end - e->sweep_at ? s.buckets : end - e->sweep_at;
        uint64_t passed = look_along(&w, &s, e->sweep_at, here);
        room = passed == here;
        e->sweep_at += passed;
    }
    e->stat[ROOST_E_PROBE_LOST] += roost_datapath_probes_end(&e->path, w.now_s);
    if (!under_way)
        e->swept_ms = e->now_ms;
    if (!room) { /* what there was none for is the next slice's */
        e->swept_ms -= (e->sweep_end - e->sweep_at) * 1000 / buckets;
        e->sweep_end = e->sweep_at;
    }
    bool many = e->path.probes_left > FEW_PROBES || !room || e->sweep_all;
    e->sweep_ms = e->now_ms + (e->sweep_at < e->sweep_end ? 0 : many ? SLICE_OF_MANY_MS : slice_ms);
    if (all)
        rearm_awake(e, e->sweep_all, buckets);
    if (e->rules.walking && !e->sweep_all) {
        e->rules.walking = false;
        roost_classes_retired_end(&e->table.classes);
    }
    if (e->sweep_at == buckets)
        e->sweep_at = e->sweep_end = 0;
}
