// SPDX-License-Identifier: Apache-2.0
/*
 * Frames that were held because their connection had no socket just then: kept for it in order, judged again by its record,
 * and given to the stack once the socket lives. Strays are those of connections that need no thaw.
 */
#include <stdlib.h>
#include <string.h>

#include "life.h"
#include "cext/socket/repair.h"
#include "cext/socket/segment.h"

/* Frames held for one connection: few while none has proved genuine (they can be forged), then what a
 * client may have in flight. What is more is dropped and comes again. */
#define HELD_UNPROVEN_MAX 32
#define HELD_MAX 512
#define STRAYS_MAX 1024
#define FRAMES_A_DRAIN 64

static struct roost_held *hold(const struct roost_frame *f, bool server) {
    struct roost_held *h = malloc(sizeof(*h) + f->length);
    if (!h)
        return NULL; /* its sender retransmits */
    h->next = NULL;
    h->ifindex = f->ifindex;
    h->queue = f->queue;
    h->length = f->length;
    h->l3 = f->l3;
    h->server = server;
    h->local = f->why == ROOST_WHY_LOCAL;
    memcpy(h->data, f->data, f->length);
    roost_segment_complete(h->data, h->length, h->l3); /* the kernel would not take it from us as it is */
    return h;
}

void roost_hold(struct roost_engine *e, struct roost_conn *c, const struct roost_frame *f, bool server) {
    bool proven = c->phase != ROOST_MARKED || c->waking;
    if (c->held_frames >= (proven ? HELD_MAX : HELD_UNPROVEN_MAX)) {
        e->stat[ROOST_E_HELD_DROPPED]++;
        return;
    }
    struct roost_held *h = f->length ? hold(f, server) : NULL;
    if (h) {
        *c->held_tail = h;
        c->held_tail = &h->next;
        c->held_frames++;
    }
}

void roost_drop_held(struct roost_conn *c) {
    while (c->held) {
        struct roost_held *h = c->held;
        c->held = h->next;
        free(h);
    }
    c->held_tail = &c->held;
    c->held_frames = 0;
}

void roost_stray(struct roost_engine *e, const struct roost_frame *f) {
    if (e->strays >= STRAYS_MAX) {
        e->stat[ROOST_E_HELD_DROPPED]++;
        return;
    }
    struct roost_held *h = f->length ? hold(f, false) : NULL;
    if (h) {
        *e->stray_tail = h;
        e->stray_tail = &h->next;
        e->strays++;
    }
}

void roost_slot_wakes(struct roost_engine *e, struct roost_conn *c) {
    roost_table_set_phase(c->slot, ROOST_WAKING);
    roost_datapath_retract_probe(&e->path, &c->key);
}

void roost_answer_probe(struct roost_engine *e, const struct roost_key *key, struct roost_ka *ka,
                        const struct roost_segment *probe) {
    uint8_t packet[ROOST_PROBE_MAX];
    if (probe && probe->has_ts && (!ka->ts_recent || (int32_t)(probe->tsval - ka->ts_recent) > 0))
        ka->ts_recent = probe->tsval;
    size_t length = roost_segment_ack(key, ka, roost_coarse_ms(), ka->snd_nxt, packet);
    e->stat[roost_datapath_send(&e->path, packet, length) ? ROOST_E_ANSWERS : ROOST_E_PROBE_LOST]++;
}

enum roost_verdict roost_judge_kept(const uint8_t *frame, size_t length, size_t l3, const struct roost_ka *ka,
                                    struct roost_segment *segment) {
    struct roost_ka idle = *ka;
    idle.ctl = (ka->ctl & ~0xffu) | ROOST_IDLE;
    if (!roost_segment_checksums_good(frame, length, l3) || !roost_segment_parse(frame, length, l3, segment))
        return ROOST_V_DROP;
    return roost_judge(&idle, segment);
}

void roost_drain(struct roost_engine *e) {
    e->frame_budget = FRAMES_A_DRAIN;
    roost_datapath_drain(&e->path);
}

/* The outbox being filled for one interface. */
struct batch {
    uint32_t count, ifindex, queue;
};

static void flush(struct roost_engine *e, struct batch *b) {
    if (b->count)
        e->stat[ROOST_E_REPLAYED] += roost_datapath_replay(&e->path, b->count, b->ifindex, b->queue);
    b->count = 0;
}

/* The next item for a frame like this. */
static struct roost_outbox_item *next_item(struct roost_engine *e, struct batch *b, const struct roost_held *h) {
    if (b->count == ROOST_OUTBOX_ITEMS || (b->count && (b->ifindex != h->ifindex || b->queue != h->queue)))
        flush(e, b);
    b->ifindex = h->ifindex;
    b->queue = h->queue;
    return &e->path.out[b->count++];
}

/* A frame that is longer than an item, as several: with checksums of their own, so that it is summed before. */
static void cut_into_outbox(struct roost_engine *e, struct batch *b, const struct roost_held *h) {
    struct roost_segment whole;
    if (!roost_segment_checksums_good(h->data, h->length, h->l3) ||
        !roost_segment_parse(h->data, h->length, h->l3, &whole)) {
        e->stat[ROOST_E_FRAME_BAD]++;
        return;
    }
    for (size_t at = 0, taken = 0; at < whole.payload; at += taken) {
        struct roost_outbox_item *item = next_item(e, b, h);
        item->length =
            (uint32_t)roost_segment_cut(h->data, h->length, h->l3, at, item->data, sizeof(item->data), &taken);
        if (!item->length) {
            b->count--;
            e->stat[ROOST_E_HELD_DROPPED]++;
            return;
        }
    }
}

static void into_outbox(struct roost_engine *e, struct batch *b, const struct roost_held *h) {
    if (h->length > ROOST_FRAME_MAX) {
        cut_into_outbox(e, b, h);
        return;
    }
    struct roost_outbox_item *item = next_item(e, b, h);
    item->length = h->length;
    memcpy(item->data, h->data, h->length);
}

/* Sent once more: received from the loopback interface without its route, it would be a martian. */
static void replay_local(struct roost_engine *e, struct roost_held *h) {
    if (roost_datapath_send(&e->path, h->data + h->l3, h->length - h->l3))
        e->stat[ROOST_E_REPLAYED]++;
}

static void replay(struct roost_engine *e, struct batch *b, struct roost_held **list) {
    while (*list) {
        struct roost_held *h = *list;
        *list = h->next;
        if (h->local)
            replay_local(e, h);
        else
            into_outbox(e, b, h);
        free(h);
    }
}

static bool replay_held(struct roost_engine *e, struct roost_conn **conns, int count) {
    struct batch b = {0};
    bool any = false;
    for (int i = 0; i < count; i++) {
        any |= conns[i]->held != NULL;
        conns[i]->client.readable |= conns[i]->held != NULL;
        replay(e, &b, &conns[i]->held);
        conns[i]->held_tail = &conns[i]->held;
        conns[i]->held_frames = 0;
    }
    flush(e, &b);
    return any;
}

/* Whether the ring, which may be full, lacks a part of what the client wrote. Its acknowledged head came late, by an ACK that
 * echoes the first transmission, so that the client takes its time-outs for spurious (RFC 3522) and keeps the rest back for
 * a time-out that was measured over the delay: for longer than active_quiet. */
static bool is_cut(const struct roost_conn *c) {
    struct roost_segment s;
    bool cut = false;
    uint32_t end = c->slot ? c->slot->rcv_nxt : 0;
    for (const struct roost_held *h = c->slot ? c->held : NULL; h; h = h->next) {
        if (h->server || !roost_segment_parse(h->data, h->length, h->l3, &s) || !s.payload)
            continue;
        if ((int32_t)(s.seq - end) <= 0 && (int32_t)(s.seq + s.payload - end) > 0) {
            end = s.seq + s.payload;
            cut = !(s.flags & (ROOST_PSH | ROOST_FIN));
        }
    }
    return cut;
}

static void remove_slots(struct roost_engine *e, struct roost_conn **conns, int count) {
    for (int i = 0; i < count; i++) {
        if (conns[i]->server_slot)
            roost_table_remove(&e->table, conns[i]->server_slot);
        if (conns[i]->slot)
            roost_table_remove(&e->table, conns[i]->slot);
        roost_conn_set_slot(e, conns[i], NULL);
        conns[i]->server_slot = NULL;
    }
}

/* Of frames that come while those before them are replayed. A client that has its first acknowledgement sends more at once;
 * those that the ring has when the slot goes would be overtaken by those behind them. */
#define RELEASES_MAX 8

void roost_release_held(struct roost_engine *e, struct roost_conn **conns, int count) {
    bool met_again = e->path.loopback;
    for (int i = 0; i < count; i++) {
        conns[i]->cut = is_cut(conns[i]);
        conns[i]->phase = ROOST_THAWING; /* what comes meanwhile is held, after a freeze that was cancelled, too */
    }
    for (int i = 0; i < e->path.interfaces; i++)
        met_again |= e->path.interface[i].generic;
    if (met_again)
        remove_slots(e, conns, count);
    bool more = replay_held(e, conns, count);
    for (int again = 0; more && !met_again && again < RELEASES_MAX; again++) {
        roost_drain(e);
        more = replay_held(e, conns, count) || e->frame_budget <= 0; /* theirs may be behind those of others */
    }
    remove_slots(e, conns, count);
    roost_drain(e); /* frames that were held meanwhile: strays now */
    for (int i = 0; i < count; i++)
        conns[i]->phase = ROOST_LIVE;
}

void roost_strays_turn(struct roost_engine *e) {
    struct batch b = {0};
    if (!e->stray)
        return;
    for (const struct roost_held *h = e->stray; h; h = h->next)
        e->stat[ROOST_E_STRAY_REPLAYED]++;
    replay(e, &b, &e->stray);
    e->stray_tail = &e->stray;
    e->strays = 0;
    flush(e, &b);
}
