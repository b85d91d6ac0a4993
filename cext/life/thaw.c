// SPDX-License-Identifier: Apache-2.0
/*
 * Thawing: frames out of the ring, sockets out of records, frames back into the stack.
 *
 * A frame that wakes makes an awake connection at once, so that every later frame of it queues up behind; the
 * sockets are then rebuilt in batches. Per batch: rebuild all, replay what is held until no more comes, remove the slots
 * (from then on packets go straight to the stack), and replay what was held in between as strays. The kernel judges every
 * frame as received from the wire. With generic XDP, and on the loopback interface, a replayed frame meets our own
 * program again, so there the slot goes first.
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

#include "life.h"
#include "cext/socket/repair.h"
#include "cext/socket/segment.h"

#define THAWS_A_TURN 128
#define CROWD_A_TURN 1
#define CROWD_RESTS 4               /* times as long as it took */
#define CROWD_RESTS_MOST_NS 2000000 /* not as long as others have kept it */
#define THAWS_MAX (THAWS_A_TURN + CROWD_A_TURN)
#define SLICE 8 /* sockets for one worker at a time */

void roost_wake_queue(struct roost_engine *e, struct roost_conn *c) {
    if (c->waking)
        return;
    c->waking = true;
    c->queued++;
    c->next_waking = NULL;
    c->crowds = roost_limits_crowds(e, ROOST_LIMIT_WAKES, roost_service_of(e, c->service), c->key.client);
    struct roost_waking *queue = &e->waking[c->crowds];
    *queue->last = c;
    queue->last = &c->next_waking;
    queue->count++;
    e->wakes++;
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

/* When its client was heard last; never 0. */
static uint64_t silent_since_ms(const struct roost_engine *e, const struct roost_ka *slot) {
    uint64_t silence_ms = roost_silence_s(slot->heard, (uint32_t)(e->now_ms / 1000)) * 1000ULL;
    return silence_ms < e->now_ms ? e->now_ms - silence_ms : 1;
}

static bool wakes_none(const struct roost_engine *e) {
    return e->wakes_none || roost_lease_is_over(e);
}

/* An inactive connection becomes an awake one. Its slot stays until its socket is there: IDLE as WAKING, which holds
 * its packets; SLEEP as it is, answering keep-alives, for the store may take its time. */
struct roost_conn *roost_rouse(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot,
                               enum roost_cause cause) {
    bool sleeping = ROOST_PHASE(slot->ctl) == ROOST_SLEEP;
    if (wakes_none(e))
        return NULL; /* its packet is said again, to the next daemon */
    if (ROOST_IS_BORN(slot->rest) && roost_born_settle(e, key, slot))
        return NULL; /* it stays asleep, and is asked again */
    const struct roost_rest *rest = sleeping ? NULL : &e->table.rest[slot->rest];
    roost_class_renew_slot(e, key, slot);
    struct roost_conn *c =
        roost_conn_new(e, key, rest ? rest->id : 0, roost_table_service(&e->table, slot), slot->class);
    if (!c)
        return NULL;
    if (rest)
        c->active_ms = rest->active_ms;
    c->silent_ms = silent_since_ms(e, slot);
    c->probes = (uint8_t)ROOST_HEARD_PROBES(slot->heard);
    c->state = sleeping ? ROOST_ST_SLEEP : ROOST_ST_IDLE;
    c->phase = sleeping ? ROOST_ASKED : ROOST_THAWING;
    c->wake_cause = (uint8_t)cause;
    roost_conn_set_slot(e, c, slot);
    c->row = sleeping ? slot->rest : 0;
    if (sleeping && e->at_hand) {
        /* roost_recall_answered restores it as soon as all that waited has been looked at. */
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
    struct roost_conn *c = roost_rouse(e, key, slot, cause);
    *error = c ? 0 : wakes_none(e) ? ESHUTDOWN : ROOST_IS_BORN(slot->rest) ? ENOSPC : ENOMEM;
    return c;
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
    struct roost_conn *conn[THAWS_MAX];
    uint32_t first_leg[THAWS_MAX]; /* the client's; a pair's server's is next to it */
    struct rebuilding leg[2 * THAWS_MAX];
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
    c->heard_mark = client->slot->rcv_nxt - 1;     /* as roost_repair_rebuild leaves it */
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
    else if (!server && c->link != ROOST_UNLINKED &&
             !setsockopt(client->fd, IPPROTO_TCP, TCP_QUICKACK, &zero, sizeof(zero)))
        roost_acknowledge_later(e, c); /* the server's answer may be the ACK, a packet less */
}

/* It stays asleep: the sender of what woke it retransmits. */
static void stay_asleep(struct roost_engine *e, struct roost_conn *c, int error) {
    const struct roost_rest *rest = &e->table.rest[c->slot->rest];
    e->stat[ROOST_E_THAW_FAILED]++;
    if (c->link != ROOST_UNLINKED)
        roost_link_abandon(e, c);
    if (error == EMFILE || error == ENFILE) {
        e->stat[ROOST_E_WAKES_REFUSED]++;
        roost_tell_pressure(e);
    }
    set_phases(c, ROOST_IDLE);
    c->server_slot = NULL;
    roost_conn_refuse_server(e, c, error);
    roost_refuse(e, ROOST_OP_WAKE, c->token, c->id, &c->key, error);
    c->token = 0;
    if (!rest->id) { /* its record is lost and there is no telling the client: it learns when it speaks next */
        roost_births_ended(e, &c->key, 0);
        roost_table_remove(&e->table, c->slot);
        roost_conn_set_slot(e, c, NULL);
        roost_conn_transition(e, c, ROOST_ST_CLOSED, ROOST_C_COMMAND);
        roost_conn_forget(e, c);
        return;
    }
    if (c->state == ROOST_ST_SLEEP) { /* its record is in memory now */
        roost_conn_transition(e, c, ROOST_ST_IDLE, (enum roost_cause)c->wake_cause);
    }
    roost_conn_forget(e, c);
}

/* Those of a queue that are to be rebuilt in one go. */
static void gather(struct roost_engine *e, struct thaws *b, struct roost_waking *queue, uint32_t share) {
    for (; queue->first && share; share--) {
        struct roost_conn *c = queue->first;
        queue->first = c->next_waking;
        if (!queue->first)
            queue->last = &queue->first;
        c->waking = false;
        c->queued--;
        queue->count--;
        e->wakes--;
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

/* Its connections will be relayed, too, and freeze again: with all of that, some half of the processor is left for others. */
static void let_crowd_rest(struct roost_engine *e, uint64_t began_ns) {
    uint64_t now_ns = roost_monotonic_ns(), rest_ns = CROWD_RESTS * (now_ns - began_ns);
    e->crowd_ns = now_ns + (rest_ns < CROWD_RESTS_MOST_NS ? rest_ns : CROWD_RESTS_MOST_NS);
}

void roost_thaw_turn(struct roost_engine *e) {
    struct roost_conn *batch[THAWS_MAX];
    if (e->wakes) {
        struct thaws b;
        b.engine = e;
        b.conns = b.legs = 0;
        uint64_t began_ns = roost_monotonic_ns();
        gather(e, &b, &e->waking[0], roost_share_of(e->waking[0].count, SLICE, THAWS_A_TURN));
        const bool crowd = e->waking[1].count && began_ns >= e->crowd_ns;
        if (crowd)
            gather(e, &b, &e->waking[1], CROWD_A_TURN);
        int count = rebuild(e, &b, batch);
        roost_release_held(e, batch, count);
        e->stat[ROOST_E_THAW_NS] += roost_monotonic_ns() - began_ns;
        for (int i = 0; i < count; i++)
            roost_conn_run(e, batch[i]);
        if (crowd)
            let_crowd_rest(e, began_ns);
    }
    roost_strays_turn(e);
}

/* Where the server's leg of a pair is now: since the row was written the table may have grown. */
static void find_leg(struct roost_engine *e, const struct roost_key *key, struct roost_rest *rest) {
    const struct roost_ka *leg = roost_table_find(&e->table, key);
    if (leg && ROOST_FLAGS(leg->ctl) & ROOST_F_SERVER && roost_table_has_rest(leg) &&
        e->table.rest[leg->rest].id == rest->id)
        roost_table_pair(&e->table, rest, leg);
}

/* The client itself has ended it, which is said once. */
static bool is_reset(const struct roost_conn *c) {
    struct roost_segment segment;
    for (const struct roost_held *h = c->held; h; h = h->next) {
        if (!h->server && roost_judge_kept(h->data, h->length, h->l3, c->slot, &segment) == ROOST_V_WAKE &&
            segment.flags & ROOST_RST)
            return true;
    }
    return false;
}

/* The store's answer to ROOST_EV_NEED_RECORD. */
void roost_restore(struct roost_engine *e, const struct roost_command *command) {
    struct roost_conn *c = roost_conn_by_key(e, &command->record.key);
    if (!c || c->phase != ROOST_ASKED)
        return;
    struct roost_rest rest = command->record.rest;
    bool over = roost_lease_is_over(e); /* the row may be another machine's, which has woken the client */
    bool usable = !over && !command->error && rest.id && command->record.ka.snd_nxt == c->slot->snd_nxt &&
                  command->record.ka.rcv_nxt == c->slot->rcv_nxt;
    bool unread = over || (command->error && command->error != ENOENT && !c->want_close && !is_reset(c));
    if (!usable && !unread) {
        /* The record is lost. What is left is enough to tell the client: a socket good for one RST. */
        memset(&rest, 0, sizeof(rest));
        rest.snd_wnd = rest.max_window = 1460;
        rest.mss = 536;
        roost_conn_end(e, c, ROOST_C_COMMAND, true);
        if (ROOST_FLAGS(c->slot->ctl) & ROOST_F_PAIRED) /* the record alone named the server's leg */
            e->sweep_all = roost_table_buckets(&e->table);
    }
    uint32_t index = unread ? ROOST_NO_REST : roost_table_rest_alloc(&e->table, true);
    if (index == ROOST_NO_REST) { /* none free, or the row cannot be read now: back to sleep; the client retransmits */
        int error = over ? ESHUTDOWN : unread ? command->error : ENOSPC;
        roost_refuse(e, ROOST_OP_RESTORE, c->token, c->id, &c->key, error);
        roost_conn_refuse_server(e, c, error);
        roost_conn_forget(e, c);
        return;
    }
    rest.sleep_asked_s = rest.sleep_wanted = 0; /* of the time when the row was written */
    if (rest.active_ms > e->now_ms)             /* of an earlier boot, whose rows are just being put back */
        rest.active_ms = e->now_ms;
    if (usable && command->peer.rest.id)
        find_leg(e, &command->peer.key, &rest);
    if (usable) {
        roost_conn_set_id(e, c, rest.id);
        c->active_ms = rest.active_ms;
        if (roost_class_of(e, c->class)->no_keepalives && c->active_ms < c->silent_ms) /* its slot may be of just now */
            c->silent_ms = c->active_ms ? c->active_ms : 1;
    }
    e->table.rest[index] = rest;
    __atomic_store_n(&c->slot->rest, index, __ATOMIC_RELEASE); /* by the rest an adopted slot's row is named */
    roost_candidate_left(e, &c->key);
    roost_slot_wakes(e, c);
    if (usable)
        rouse_server(e, c);
    c->phase = ROOST_THAWING;
    roost_wake_queue(e, c);
}
