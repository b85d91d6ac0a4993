// SPDX-License-Identifier: Apache-2.0
/*
 * Thawing: frames out of the ring, sockets out of records, frames back into the stack.
 *
 * A frame that wakes makes an awake connection at once, so that every later frame of it queues up behind; the
 * sockets are then rebuilt in batches. Per batch: rebuild all, replay what is held, remove the slots (from then on
 * packets go straight to the stack), and replay what was held in between. The kernel judges every frame as received
 * from the wire. With generic XDP, and on the loopback interface, a replayed frame meets our own program again, so there
 * the slot goes first.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cext/internal.h"
#include "cext/socket/repair.h"
#include "cext/socket/segment.h"

#define THAWS_A_BATCH 128
#define SLICE 8 /* sockets for one worker at a time */

/* Frames held for one connection: few while none of them has proved genuine (anybody can send those), then what a
 * client may have in flight. What is more is dropped and comes again. */
#define HELD_UNPROVEN_MAX 32
#define HELD_MAX 512
#define STRAYS_MAX 1024
#define FRAMES_A_DRAIN 512
#define BATCHES_A_TURN 2

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
    return h;
}

static void hold_for(struct roost_engine *e, struct roost_conn *c, const struct roost_frame *f, bool server) {
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

void roost_wake_queue(struct roost_engine *e, struct roost_conn *c) {
    if (c->waking)
        return;
    c->waking = true;
    c->queued++;
    c->next_waking = NULL;
    *e->waking_tail = c;
    e->waking_tail = &c->next_waking;
}

/* The other leg of a pair wakes with it. Without it (a predecessor was killed at a bad moment) the session is lost, and
 * the client must learn it. */
static void rouse_server(struct roost_engine *e, struct roost_conn *c) {
    if (!(ROOST_FLAGS(c->slot->ctl) & ROOST_F_PAIRED))
        return;
    c->server_slot = roost_table_peer(&e->table, c->slot, &c->server_key);
    if (c->server_slot) {
        roost_table_set_phase(c->server_slot, ROOST_WAKING);
    } else {
        roost_conn_end(e, c, ROOST_C_SERVER_CLOSE, true);
    }
}

void roost_slot_wakes(struct roost_engine *e, struct roost_conn *c) {
    roost_table_set_phase(c->slot, ROOST_WAKING);
    roost_datapath_retract_probe(&e->path, &c->key);
}

/* An inactive connection becomes an awake one. Its slot stays until its socket is there: IDLE as WAKING, which holds
 * its packets; SLEEP as it is, answering keep-alives, for the store may take its time. */
static struct roost_conn *rouse(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot,
                                enum roost_cause cause) {
    bool sleeping = ROOST_PHASE(slot->ctl) == ROOST_SLEEP;
    if (ROOST_IS_BORN(slot->rest) && roost_born_settle(e, key, slot))
        return NULL; /* it stays asleep, and is asked again */
    const struct roost_rest *rest = sleeping ? NULL : &e->table.rest[slot->rest];
    struct roost_conn *c = roost_conn_new(e, key, rest ? rest->id : 0, roost_table_service(&e->table, slot));
    if (!c)
        return NULL;
    if (rest)
        c->active_ms = rest->active_ms;
    c->state = sleeping ? ROOST_ST_SLEEP : ROOST_ST_IDLE;
    c->phase = sleeping ? ROOST_ASKED : ROOST_THAWING;
    c->wake_cause = (uint8_t)cause;
    c->slot = slot;
    if (sleeping && e->at_hand) {
        /* roost_perhaps_answered restores it as soon as all that waited has been looked at. */
    } else if (sleeping) {
        struct roost_event event;
        roost_event_of_conn(e, c, &event);
        event.type = ROOST_EV_NEED_RECORD;
        roost_mailbox_post(&e->box, &event);
    } else {
        roost_slot_wakes(e, c);
        rouse_server(e, c);
        roost_wake_queue(e, c);
    }
    return c;
}

struct roost_conn *roost_wake(struct roost_engine *e, const struct roost_key *key, enum roost_cause cause, int *error) {
    struct roost_holder h = roost_whose(e, key);
    struct roost_ka *slot = h.slot;
    uint32_t phase = slot ? ROOST_PHASE(slot->ctl) : ROOST_FREE;
    if (h.by != ROOST_BY_SLOT || (phase != ROOST_IDLE && phase != ROOST_SLEEP)) {
        *error = h.by == ROOST_BY_CONN || h.by == ROOST_BY_SLOT ? EAGAIN : ENOENT;
        return NULL;
    }
    struct roost_conn *c = rouse(e, key, slot, cause);
    *error = c ? 0 : ROOST_IS_BORN(slot->rest) ? ENOSPC : ENOMEM;
    return c;
}

void roost_answer_probe(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *ka) {
    uint8_t packet[ROOST_PROBE_MAX];
    roost_datapath_send(&e->path, packet, roost_segment_ack(key, ka, roost_coarse_ms(), ka->snd_nxt, packet));
}

enum roost_verdict roost_judge_held(const struct roost_held *h, const struct roost_ka *ka) {
    struct roost_segment segment;
    struct roost_ka idle = *ka;
    idle.ctl = (ka->ctl & ~0xffu) | ROOST_IDLE;
    if ((!h->local && !roost_segment_checksums_good(h->data, h->length, h->l3)) ||
        !roost_segment_parse(h->data, h->length, h->l3, &segment))
        return ROOST_V_DROP;
    return roost_judge(&idle, &segment);
}

/* A frame that met a freeze. Only a genuine one ends the freeze at once; anybody can send the others. */
static void meet_freeze(struct roost_engine *e, struct roost_conn *c, const struct roost_frame *f, bool server) {
    struct roost_ka now;
    hold_for(e, c, f, server);
    if (!c->held || c->waking)
        return;
    struct roost_held *newest = c->held;
    while (newest->next)
        newest = newest->next;
    if (!roost_repair_peek(newest->server ? c->server.fd : c->client.fd, &now) &&
        roost_judge_held(newest, &now) == ROOST_V_WAKE)
        roost_wake_queue(e, c);
}

/* A frame of an inactive connection that was held because the slot was being moved just then: judged again now that it
 * has been. */
static bool wakes_now(struct roost_engine *e, const struct roost_frame *f, const struct roost_ka *slot, bool *speaks) {
    struct roost_segment segment;
    *speaks = false;
    if (f->why == ROOST_WHY_GUARD)
        return true;
    if (f->why == ROOST_WHY_WAKE && !f->length) /* too long to be held, but judged */
        return true;
    bool local = f->why == ROOST_WHY_LOCAL;
    if ((!local && !roost_segment_checksums_good(f->data, f->length, f->l3)) ||
        !roost_segment_parse(f->data, f->length, f->l3, &segment)) {
        e->stat[ROOST_E_FRAME_BAD]++;
        return false;
    }
    switch (roost_judge(slot, &segment)) {
    case ROOST_V_WAKE:
        *speaks = segment.payload && !(segment.flags & ROOST_RST);
        return true;
    case ROOST_V_ANSWER:
        roost_answer_probe(e, &f->key, slot);
        return false;
    case ROOST_V_CHALLENGE: /* XDP's to do, but it has not seen this slot; it does so once for each that comes back */
        if (f->why == ROOST_WHY_PERHAPS)
            roost_answer_probe(e, &f->key, slot);
        return false;
    default:
        return false;
    }
}

/* Whom a frame is for. */
struct addressee {
    struct roost_conn *conn;     /* awake, or on its way; NULL: inactive, or not ours */
    struct roost_ka *slot;       /* of the leg that the frame is for */
    struct roost_ka *client;     /* of the connection */
    const struct roost_key *key; /* of the connection */
    struct roost_key peer;
    bool server; /* it is the server's leg */
};

static void find_addressee(struct roost_engine *e, const struct roost_key *key, struct addressee *a) {
    memset(a, 0, sizeof(*a));
    a->key = key;
    struct roost_holder h = roost_whose(e, key);
    a->conn = h.conn;
    a->slot = a->client = h.slot;
    if (h.by != ROOST_BY_LEG)
        return;
    a->client = roost_table_peer(&e->table, a->slot, &a->peer);
    if (a->client) {
        a->server = true;
        a->key = &a->peer;
        a->conn = roost_conn_by_key(e, a->key);
    } else { /* a leg that nobody wakes any more: the stack tells its server */
        roost_table_remove(&e->table, a->slot);
        a->slot = NULL;
    }
}

void roost_take_frame(struct roost_engine *e, const struct roost_frame *f) {
    struct addressee a;
    bool speaks;
    find_addressee(e, &f->key, &a);
    struct roost_conn *c = a.conn;
    if (!c && !a.slot) {
        roost_perhaps_frame(e, f);
    } else if (!a.slot || (c && c->phase == ROOST_LIVE)) {
        if (f->why == ROOST_WHY_PERHAPS) /* the filter takes it for another one */
            roost_datapath_mark_stranger(&e->path, roost_hash_of_key(e, &f->key), true);
        roost_stray(e, f);
    } else if (c && c->phase == ROOST_MARKED) {
        meet_freeze(e, c, f, a.server);
    } else if (c && c->phase == ROOST_THAWING) {
        hold_for(e, c, f, a.server);
    } else if (wakes_now(e, f, a.slot, &speaks)) {
        if (!c)
            c = rouse(e, a.key, a.client, a.server ? ROOST_C_SERVER_DATA : ROOST_C_CLIENT_DATA);
        if (!c)
            return;
        c->speaks |= speaks;
        hold_for(e, c, f, a.server);
    }
}

int roost_on_frame(void *context, void *data, size_t size) {
    struct roost_engine *e = context;
    e->frame_budget--;
    if (size >= sizeof(struct roost_frame))
        roost_take_frame(e, data);
    /* libbpf has moved past this frame; what is left makes epoll report the ring again. */
    return e->frame_budget > 0 ? 0 : -EAGAIN;
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

static void into_outbox(struct roost_engine *e, struct batch *b, const struct roost_held *h) {
    if (b->count == ROOST_OUTBOX_ITEMS || (b->count && (b->ifindex != h->ifindex || b->queue != h->queue)))
        flush(e, b);
    b->ifindex = h->ifindex;
    b->queue = h->queue;
    struct roost_outbox_item *item = &e->path.out[b->count++];
    item->length = h->length;
    memcpy(item->data, h->data, h->length);
}

/* Sent once more: received from the loopback interface without its route, it would be a martian. */
static void replay_local(struct roost_engine *e, struct roost_held *h) {
    roost_segment_checksum(h->data, h->length, h->l3);
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

static void replay_held(struct roost_engine *e, struct roost_conn **conns, int count) {
    struct batch b = {0};
    for (int i = 0; i < count; i++) {
        conns[i]->client.readable |= conns[i]->held != NULL;
        replay(e, &b, &conns[i]->held);
        conns[i]->held_tail = &conns[i]->held;
        conns[i]->held_frames = 0;
    }
    flush(e, &b);
}

static void remove_slots(struct roost_engine *e, struct roost_conn **conns, int count) {
    for (int i = 0; i < count; i++) {
        if (conns[i]->server_slot)
            roost_table_remove(&e->table, conns[i]->server_slot);
        if (conns[i]->slot)
            roost_table_remove(&e->table, conns[i]->slot);
        conns[i]->slot = conns[i]->server_slot = NULL;
    }
}

static void release(struct roost_engine *e, struct roost_conn **conns, int count) {
    bool met_again = e->path.loopback;
    for (int i = 0; i < e->path.interfaces; i++)
        met_again |= e->path.interface[i].generic;
    if (met_again)
        remove_slots(e, conns, count);
    replay_held(e, conns, count);
    remove_slots(e, conns, count);
    roost_drain(e);
    replay_held(e, conns, count);
    for (int i = 0; i < count; i++)
        conns[i]->phase = ROOST_LIVE;
}

void roost_hold_release(struct roost_engine *e, struct roost_conn *c) {
    release(e, &c, 1);
}

/* The phase of both legs. The server's last when they rise, for a leg without its client is what the next engine would
 * remove. */
static void set_phases(struct roost_conn *c, enum roost_phase phase) {
    roost_table_set_phase(c->slot, phase);
    if (c->server_slot)
        roost_table_set_phase(c->server_slot, phase);
}

/* A socket that is made again from its record. */
struct rebuilding {
    struct roost_conn *conn;
    const struct roost_key *key;
    const struct roost_ka *slot;
    const struct roost_rest *rest;
    int fd; /* first a spare socket or -1, then the rebuilt one or -errno */
    int error;
    bool spare, bound, server;
};

/* Of one turn: connections, and the legs of each one after the other. */
struct thaws {
    struct roost_engine *engine;
    struct roost_conn *conn[THAWS_A_BATCH];
    uint32_t first_leg[THAWS_A_BATCH]; /* the client's; a pair's server's is next to it */
    struct rebuilding leg[2 * THAWS_A_BATCH];
    uint32_t conns, legs;
};

static void add_leg(struct thaws *b, struct roost_conn *c, bool server) {
    struct roost_engine *e = b->engine;
    struct rebuilding *leg = &b->leg[b->legs++];
    *leg = (struct rebuilding){.conn = c,
                               .key = server ? &c->server_key : &c->key,
                               .slot = server ? c->server_slot : c->slot,
                               .fd = -1,
                               .server = server};
    leg->rest = &e->table.rest[leg->slot->rest];
    if (!server)
        leg->fd = roost_spares_take(&e->spares, leg->key, &leg->bound);
    leg->spare = leg->fd >= 0;
}

static void rebuild_slice(void *context, uint32_t slice, uint32_t from, uint32_t to) {
    struct thaws *b = context;
    (void)slice;
    for (struct rebuilding *leg = &b->leg[from]; leg < &b->leg[to]; leg++)
        leg->fd = leg->spare ? roost_repair_reuse(leg->fd, leg->bound, leg->key, leg->slot, leg->rest)
                             : roost_repair_rebuild(leg->key, leg->slot, leg->rest);
}

static int watch(struct roost_engine *e, const struct rebuilding *leg) {
    struct epoll_event event = roost_rebuilt_event(leg->fd);
    if (leg->server)
        return roost_watch(e, leg->fd, leg->conn, true);
    if (leg->spare) /* it was never out of the epoll instance */
        return 0;
    return epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, leg->fd, &event) ? -errno : 0;
}

/* Out of repair mode, and watched from then on. */
static void finish_slice(void *context, uint32_t slice, uint32_t from, uint32_t to) {
    struct thaws *b = context;
    (void)slice;
    for (struct rebuilding *leg = &b->leg[from]; leg < &b->leg[to]; leg++) {
        if (leg->fd < 0)
            continue;
        leg->error = roost_repair_finish(leg->fd, leg->spare);
        if (!leg->error)
            leg->error = watch(b->engine, leg);
    }
}

static struct rebuilding *server_leg(const struct roost_conn *c, struct rebuilding *client) {
    return c->server_slot ? client + 1 : NULL;
}

/* Either both legs were rebuilt, or neither is there afterwards: 0 or the error. */
static int rebuilt(struct roost_engine *e, const struct roost_conn *c, struct rebuilding *client) {
    struct rebuilding *server = server_leg(c, client);
    int error = client->fd < 0 ? client->fd : server && server->fd < 0 ? server->fd : 0;
    if (!error)
        error = roost_rebuilt_reserve(e, client->fd);
    if (!error)
        return 0;
    if (client->fd >= 0)
        close(client->fd); /* in repair mode: silent */
    if (server && server->fd >= 0)
        close(server->fd);
    client->fd = error;
    if (server)
        server->fd = error;
    return error;
}

/* The connection is awake: its sockets are there. One that is not out of repair mode, or not watched, ends it: both ends
 * learn it. */
static void awake(struct roost_engine *e, struct roost_conn *c, struct rebuilding *client) {
    struct rebuilding *server = server_leg(c, client);
    int zero = 0;
    e->stat[ROOST_E_THAWED]++;
    e->stat[ROOST_E_REUSED] += client->spare;
    roost_leg_fresh(&c->client, client->fd);
    c->client.writable = c->client.rebuilt = true; /* readable when something is replayed, or epoll says so */
    if (server) {
        roost_leg_fresh(&c->server, server->fd);
        c->server.readable = c->server.writable = c->server.rebuilt = true;
        c->link = ROOST_LINKED;
        c->attached = ROOST_FLAGS(c->server_slot->ctl) & ROOST_F_ATTACHED;
        roost_link_resumed(e, c);
    }
    if (client->error || (server && server->error))
        roost_conn_end(e, c, ROOST_C_CLIENT_CLOSE, true);
    else if (c->link == ROOST_CONNECTING && !setsockopt(client->fd, IPPROTO_TCP, TCP_QUICKACK, &zero, sizeof(zero)))
        roost_acknowledge_later(e, c); /* the server's answer may be the ACK, a packet less */
}

/* It stays asleep: who woke it retransmits and so asks again. */
static void stay_asleep(struct roost_engine *e, struct roost_conn *c, int error) {
    const struct roost_rest *rest = &e->table.rest[c->slot->rest];
    e->stat[ROOST_E_THAW_FAILED]++;
    if (c->link == ROOST_CONNECTING)
        roost_link_abandon(e, c);
    if (error == EMFILE || error == ENFILE)
        roost_tell_pressure(e);
    set_phases(c, ROOST_IDLE);
    c->server_slot = NULL;
    roost_conn_refuse_server(e, c, error);
    roost_refuse(e, ROOST_OP_WAKE, c->token, c->id, &c->key, error);
    c->token = 0;
    if (!rest->id) { /* its record is lost and there is no telling the client: it learns when it speaks next */
        roost_table_remove(&e->table, c->slot);
        c->slot = NULL;
        roost_conn_transition(e, c, ROOST_ST_CLOSED, ROOST_C_COMMAND);
        roost_conn_forget(e, c);
        return;
    }
    if (c->state == ROOST_ST_SLEEP) { /* its record is in memory now */
        roost_conn_transition(e, c, ROOST_ST_IDLE, (enum roost_cause)c->wake_cause);
    }
    c->slot = NULL;
    roost_conn_forget(e, c);
}

/* Those that are to be rebuilt in one go. */
static void gather(struct roost_engine *e, struct thaws *b) {
    while (e->waking && b->conns < THAWS_A_BATCH) {
        struct roost_conn *c = e->waking;
        e->waking = c->next_waking;
        if (!e->waking)
            e->waking_tail = &e->waking;
        c->waking = false;
        c->queued--;
        if (!c->slot) /* it was cancelled, or sleeps on */
            continue;
        if (c->phase == ROOST_MARKED) {
            roost_freeze_cancel(e, c, EAGAIN);
            continue;
        }
        bool paired = ROOST_FLAGS(c->slot->ctl) & ROOST_F_PAIRED;
        /* The server's handshake goes on while the socket is rebuilt and the frame replayed. */
        if (c->speaks && !paired && c->link == ROOST_UNLINKED && !c->server_waits && !c->want_close)
            roost_link_open(e, c);
        c->speaks = false;
        if (e->awake > e->max_awake) { /* there would be no descriptor left for its server */
            stay_asleep(e, c, EMFILE);
            continue;
        }
        b->first_leg[b->conns] = b->legs;
        b->conn[b->conns++] = c;
        add_leg(b, c, false);
        if (c->server_slot)
            add_leg(b, c, true);
    }
}

/* Rebuilds what was gathered. How many connections are awake then, and in awake_ones which. */
static int rebuild(struct roost_engine *e, struct thaws *b, struct roost_conn **awake_ones) {
    int count = 0;
    roost_workers_run(&e->workers, rebuild_slice, b, b->legs, SLICE);
    for (uint32_t i = 0; i < b->conns; i++) {
        struct rebuilding *leg = &b->leg[b->first_leg[i]];
        if (rebuilt(e, b->conn[i], leg))
            continue;
        roost_rebuilt_name(e, leg->fd, b->conn[i]);
        /* Before they leave repair mode: were we killed in between, the close would be silent, and the next daemon
         * removes the slot; after it the close sends a FIN that the record knows nothing of. */
        set_phases(b->conn[i], ROOST_THAWED);
    }
    roost_workers_run(&e->workers, finish_slice, b, b->legs, SLICE);
    for (uint32_t i = 0; i < b->conns; i++) {
        struct rebuilding *leg = &b->leg[b->first_leg[i]];
        if (leg->fd < 0)
            stay_asleep(e, b->conn[i], -leg->fd);
        else
            awake(e, awake_ones[count++] = b->conn[i], leg);
    }
    return count;
}

void roost_thaw_turn(struct roost_engine *e) {
    struct roost_conn *batch[THAWS_A_BATCH];
    struct timespec from, to;
    for (int turn = 0; e->waking && turn < BATCHES_A_TURN; turn++) {
        struct thaws b;
        b.engine = e;
        b.conns = b.legs = 0;
        clock_gettime(CLOCK_MONOTONIC, &from);
        gather(e, &b);
        int count = rebuild(e, &b, batch);
        release(e, batch, count);
        clock_gettime(CLOCK_MONOTONIC, &to);
        e->stat[ROOST_E_THAW_NS] +=
            (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000 + (uint64_t)(to.tv_nsec - from.tv_nsec);
        for (int i = 0; i < count; i++)
            roost_conn_run(e, batch[i]);
    }
    struct batch b = {0};
    if (e->stray) {
        for (const struct roost_held *h = e->stray; h; h = h->next)
            e->stat[ROOST_E_STRAY_REPLAYED]++;
        replay(e, &b, &e->stray);
        e->stray_tail = &e->stray;
        e->strays = 0;
        flush(e, &b);
    }
}

/* Where the server's leg of a pair is now: since the row was written the table may have grown. */
static void find_leg(struct roost_engine *e, const struct roost_key *key, struct roost_rest *rest) {
    const struct roost_ka *leg = roost_table_find(&e->table, key);
    if (leg && ROOST_FLAGS(leg->ctl) & ROOST_F_SERVER && roost_table_has_rest(leg) &&
        e->table.rest[leg->rest].id == rest->id)
        roost_table_pair(&e->table, rest, leg);
}

/* The store's answer to ROOST_EV_NEED_RECORD. */
void roost_restore(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = roost_conn_by_key(e, &command->record.key);
    if (!c || c->phase != ROOST_ASKED)
        return;
    struct roost_rest rest = command->record.rest;
    bool usable = !command->error && rest.id && command->record.ka.snd_nxt == c->slot->snd_nxt &&
                  command->record.ka.rcv_nxt == c->slot->rcv_nxt;
    if (!usable) {
        /* The record is lost. What is left is enough to tell the client: a socket good for one RST. */
        memset(&rest, 0, sizeof(rest));
        rest.snd_wnd = rest.max_window = 1460;
        rest.mss = 536;
        roost_conn_end(e, c, ROOST_C_COMMAND, true);
    }
    uint32_t index = roost_table_rest_alloc(&e->table);
    if (index == ROOST_NO_REST) { /* none free: back to sleep; the client retransmits */
        roost_refuse(e, ROOST_OP_RESTORE, c->token, c->id, &c->key, ENOSPC);
        roost_conn_refuse_server(e, c, ENOSPC);
        c->slot = NULL;
        roost_conn_forget(e, c);
        return;
    }
    if (usable && command->peer.rest.id)
        find_leg(e, &command->peer.key, &rest);
    if (usable) {
        roost_conn_set_id(e, c, rest.id);
        c->active_ms = rest.active_ms;
    }
    e->table.rest[index] = rest;
    c->slot->rest = index;
    roost_perhaps_left(e, &c->key);
    roost_slot_wakes(e, c);
    if (usable)
        rouse_server(e, c);
    c->phase = ROOST_THAWING;
    roost_wake_queue(e, c);
}
