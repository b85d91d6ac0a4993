// SPDX-License-Identifier: Apache-2.0
/*
 * Freezing, in batches: mark (XDP holds from now on), one grace period for all that gathered, then snapshot, publish,
 * close. A connection of the persistent interface freezes with its server's leg: both or none. The grace period (some
 * 10 ms) is waited for by a thread of its own, so that the engine goes on; what it gives is that no packet is on its way
 * between XDP and TCP any more. It only saves retransmissions: correctness rests on the socket filter that
 * roost_repair_snapshot puts in place before it reads.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "life.h"
#include "cext/socket/repair.h"

#define WITHOUT_MEMBARRIER_US 50000 /* what is on its way to TCP has arrived long before */
#define SNAPSHOTS_A_TURN 128        /* of a crowd: about a millisecond, for which others wait to be woken */
#define SPARES_TRIM_MS 50
#define SLICE 16 /* sockets for one worker at a time */
_Static_assert(SLICE <= ROOST_SURVEY_SLICE && 2 * SNAPSHOTS_A_TURN <= SLICE * ROOST_SURVEY_SLICES, "fits a survey");

static void *grace_thread(void *context) {
    struct roost_grace *g = context;
    uint64_t one = 1;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        while (!g->wanted && !g->stop)
            pthread_cond_wait(&g->cond, &g->lock);
        if (g->stop)
            break;
        g->wanted = false;
        pthread_mutex_unlock(&g->lock);
        if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0)) /* a nohz_full kernel refuses it */
            usleep(WITHOUT_MEMBARRIER_US);
        if (write(g->event_fd, &one, sizeof(one)) != sizeof(one)) {
            /* an eventfd refuses only at 2^64-1 */
        }
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

int roost_grace_start(struct roost_engine *e) {
    struct roost_grace *g = &e->grace;
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->event_fd < 0)
        return -errno;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->cond, NULL);
    return -pthread_create(&g->thread, NULL, grace_thread, g);
}

void roost_grace_stop(struct roost_engine *e) {
    struct roost_grace *g = &e->grace;
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    pthread_cond_signal(&g->cond);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    close(g->event_fd);
}

/* Such an address means something on one link alone, and the record has no place for the link. */
static bool is_link_local(const uint8_t ip[16]) {
    return ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80;
}

/* The server's leg as the table names it: the far end is the server. */
static int server_key(const struct roost_conn *c, struct roost_key *key) {
    int error = roost_address_of_peer(c->server.fd, key->client, &key->client_port);
    return error ? error : roost_address_of_socket(c->server.fd, key->local, &key->local_port);
}

/* Marks the server's leg, too. Its rest slot is there from now on: it is what leads from the leg to its client. */
static int mark_server(struct roost_engine *e, struct roost_conn *c) {
    int error = server_key(c, &c->server_key);
    if (error)
        return error;
    c->server_local = roost_address_is_ours(c->server_key.client);
    if (c->server_local && !e->path.loopback) /* its packets would not be heard */
        return -EOPNOTSUPP;
    if (is_link_local(c->server_key.client) || is_link_local(c->server_key.local) ||
        roost_table_find(&e->table, &c->server_key))
        return -EOPNOTSUPP;
    bool unprobed = c->server_local; /* when it ends, the kernel says so */
    struct roost_ka mark = {.ctl = ROOST_FREEZING | (ROOST_F_PAIRED | ROOST_F_SERVER) << 16,
                            .class = unprobed ? ROOST_CLASS_NONE : roost_class_of_service(c->service),
                            .rest = roost_table_rest_alloc(&e->table, false)};
    if (mark.rest == ROOST_NO_REST)
        return -ENOSPC;
    e->table.rest[mark.rest] = (struct roost_rest){.id = c->id};
    roost_table_pair(&e->table, &e->table.rest[mark.rest], c->slot);
    c->server_slot = roost_table_insert(&e->table, &c->server_key, &mark, c->service);
    if (c->server_slot)
        return 0;
    roost_table_rest_release(&e->table, mark.rest);
    return -ENOSPC;
}

static bool is_pair(struct roost_engine *e, const struct roost_conn *c) {
    return roost_service_of(e, c->service)->persistent && c->link == ROOST_LINKED;
}

/* What the engine knows by itself; the snapshot finds out what the kernel still has to do. */
static uint32_t obstacles_of(struct roost_engine *e, const struct roost_conn *c) {
    bool session_begins = roost_service_of(e, c->service)->persistent && c->link == ROOST_CONNECTING;
    bool server_speaks = is_pair(e, c) && (c->server.eof || c->server.shut || c->server.readable);
    return (c->phase != ROOST_LIVE ? ROOST_OB_MOVING : 0) | (c->in_batch ? ROOST_OB_GRACE : 0) |
           (session_begins ? ROOST_OB_CONNECTING : 0) | (server_speaks ? ROOST_OB_SERVER_SPEAKS : 0) |
           (c->client.eof || c->client.shut ? ROOST_OB_ENDED : 0) | (c->client.pending ? ROOST_OB_CLIENT_BLOCKED : 0) |
           (c->server.pending ? ROOST_OB_SERVER_BLOCKED : 0) | (c->server_waits ? ROOST_OB_SERVER_WAITS : 0) |
           (roost_inband_unfinished(c) || roost_inband_wants_link(c) ? ROOST_OB_IN_BAND : 0) |
           (is_link_local(c->key.local) || is_link_local(c->key.client) ? ROOST_OB_LINK_LOCAL : 0);
}

static int refusal(uint32_t obstacles) {
    switch (obstacles & -obstacles) {
    case 0:
        return 0;
    case ROOST_OB_MOVING:
        return -EALREADY;
    case ROOST_OB_GRACE:
    case ROOST_OB_SERVER_SPEAKS:
        return -EAGAIN;
    case ROOST_OB_LINK_LOCAL:
        return -EOPNOTSUPP;
    default:
        return -EBUSY;
    }
}

static int begin(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    bool pair = is_pair(e, c);
    int error = refusal(obstacles_of(e, c) & (ROOST_OB_MOVING | ROOST_OB_GRACE | ROOST_OB_CONNECTING));
    if (error)
        return error;
    if (!pair && c->link != ROOST_UNLINKED) {
        const bool wanted = c->want_freeze;
        c->want_freeze = true; /* the STANDBY on the way answers no command */
        error = roost_link_end(e, c, cause);
        if (error) {
            c->want_freeze = wanted;
            return error;
        }
        c->freeze_cause = (uint8_t)cause;
        if (c->link != ROOST_UNLINKED)
            return 0;
        c->want_freeze = false;
    }
    error = refusal(obstacles_of(e, c));
    if (error)
        return error;
    roost_class_renew(e, c);
    struct roost_ka mark = {
        .ctl = ROOST_FREEZING | (pair ? ROOST_F_PAIRED << 16 : 0), .class = c->class, .rest = ROOST_NO_REST};
    struct roost_ka *slot = roost_table_insert(&e->table, &c->key, &mark, c->service);
    if (!slot && roost_crowd_gives_way(e, &c->key))
        slot = roost_table_insert(&e->table, &c->key, &mark, c->service);
    roost_conn_set_slot(e, c, slot);
    error = !slot ? -ENOSPC : pair ? mark_server(e, c) : 0;
    if (error) {
        if (slot)
            roost_table_remove(&e->table, slot);
        roost_conn_set_slot(e, c, NULL);
        e->stat[ROOST_E_TABLE_FULL] += error == -ENOSPC;
        return error;
    }
    c->phase = ROOST_MARKED;
    c->freeze_cause = (uint8_t)cause;
    c->next_frozen = e->gathering;
    e->gathering = c;
    c->in_batch = true;
    c->queued++;
    e->freezes++;
    roost_wheel_cancel(&e->wheel, &c->timer);
    return 0;
}

int roost_freeze(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    int error = begin(e, c, cause);
    if (error)
        c->refused = (uint8_t)-error;
    return error;
}

static uint32_t queued(int fd, unsigned long which) {
    int bytes = 0;
    return fd < 0 || ioctl(fd, which, &bytes) ? 0 : (uint32_t)bytes;
}

int roost_find_obstacles(roost_engine *e, const struct roost_key *key, struct roost_obstacles *obstacles) {
    roost_lock(e);
    const struct roost_conn *c = roost_conn_by_key(e, key);
    if (c)
        *obstacles = (struct roost_obstacles){.now = obstacles_of(e, c),
                                              .refused = c->refused,
                                              .client_unread = queued(c->client.fd, SIOCINQ),
                                              .client_unacknowledged = queued(c->client.fd, SIOCOUTQ),
                                              .server_unread = queued(c->server.fd, SIOCINQ),
                                              .server_unacknowledged = queued(c->server.fd, SIOCOUTQ)};
    roost_unlock(e);
    return c != NULL;
}

void roost_freeze_cancel(struct roost_engine *e, struct roost_conn *c, int error) {
    c->refused = (uint8_t)error;
    uint64_t token = c->token;
    e->stat[ROOST_E_FREEZE_CANCELLED]++;
    roost_refuse(e, ROOST_OP_IDLE, token, c->id, &c->key, error);
    c->token = 0;
    c->told_quiet_ms = e->now_ms; /* not at once again */
    roost_release_held(e, &c, 1);
    roost_conn_run(e, c);
}

/* A leg as its socket had it. */
struct taken {
    struct roost_taking taking;
    bool probed; /* a keep-alive was held: it is answered from the record */
    struct roost_segment probe;
};

/* Of one turn: connections, and the legs of each one after the other. */
struct batch {
    struct roost_engine *engine;
    struct roost_conn *conn[SNAPSHOTS_A_TURN];
    uint32_t first_leg[SNAPSHOTS_A_TURN]; /* the client's; a pair's server's is next to it */
    int error[SNAPSHOTS_A_TURN];
    struct roost_taking leg[2 * SNAPSHOTS_A_TURN];
    uint32_t conns, legs;
    struct spent {
        int fd;
        struct roost_key key;
        bool spare, rebuilt, server;
    } spent[2 * SNAPSHOTS_A_TURN]; /* sockets that are not needed any more */
    uint32_t spents;
};

static void add_leg(struct batch *b, const struct roost_key *key, int fd) {
    b->leg[b->legs++] = (struct roost_taking){.key = key, .fd = fd};
}

/* Whether the connection can still be frozen, as far as the engine knows. */
static bool fit(struct roost_engine *e, struct roost_conn *c) {
    if (c->phase != ROOST_MARKED)
        return false;
    if (!c->server_waits && !c->want_close && !(c->server_slot && (c->server.readable || c->server.eof)))
        return true;
    roost_freeze_cancel(e, c, EAGAIN);
    return false;
}

static void gather(struct roost_engine *e, struct batch *b) {
    const uint32_t most = roost_share_of(e->freezes, SLICE, SNAPSHOTS_A_TURN);
    for (uint32_t i = 0; i < most && e->graced; i++) {
        struct roost_conn *c = e->graced;
        e->graced = c->next_frozen;
        c->in_batch = false;
        c->queued--;
        e->freezes--;
        if (!fit(e, c))
            continue;
        b->first_leg[b->conns] = b->legs;
        b->conn[b->conns++] = c;
        add_leg(b, &c->key, c->client.fd);
        if (c->server_slot)
            add_leg(b, &c->server_key, c->server.fd);
    }
}

static void take_slice(void *context, uint32_t slice, uint32_t from, uint32_t to) {
    struct batch *b = context;
    roost_repair_snapshots(&b->engine->survey, slice, b->engine->path.closed_fd, &b->leg[from], to - from);
}

/* Both legs or neither. */
static int taken_of(struct roost_engine *e, const struct roost_conn *c, const struct roost_taking *leg) {
    int error = leg[0].error, closed = e->path.closed_fd;
    if (!c->server_slot)
        return error;
    if (!error && leg[1].error) {
        roost_repair_undo(leg[0].fd, closed);
        error = leg[1].error;
    } else if (error && !leg[1].error) {
        roost_repair_undo(leg[1].fd, closed);
    }
    return error;
}

static void give_back(struct roost_engine *e, struct roost_conn *c) {
    roost_repair_undo(c->client.fd, e->path.closed_fd);
    if (c->server_slot)
        roost_repair_undo(c->server.fd, e->path.closed_fd);
}

/* Whether a frame was held that the kernel must see. */
static bool wanted(const struct roost_conn *c, struct taken *client, struct taken *server) {
    for (const struct roost_held *h = c->held; h; h = h->next) {
        struct taken *leg = h->server ? server : client;
        struct roost_segment segment;
        enum roost_verdict verdict = roost_judge_kept(h->data, h->length, h->l3, &leg->taking.ka, &segment);
        if (verdict == ROOST_V_WAKE)
            return true;
        if (verdict == ROOST_V_ANSWER) {
            leg->probed = true;
            leg->probe = segment;
        }
    }
    return false;
}

/* When the client was heard last. One that was woken without a word of its own may be gone: what the other end has sent since, it
 * has acknowledged. */
static uint64_t heard_ms(const struct roost_engine *e, const struct roost_conn *c) {
    if (!c->silent_ms)
        return e->now_ms;
    return c->silent_ms > c->active_ms ? c->silent_ms : c->active_ms;
}

static void publish(struct roost_engine *e, struct roost_conn *c, struct roost_ka *slot, struct taken *leg,
                    uint32_t index, uint32_t flags) {
    struct roost_ka *ka = &leg->taking.ka;
    ka->ctl |= flags << 16;
    ka->heard = ROOST_HEARD((slot == c->slot ? heard_ms(e, c) : e->now_ms) / 1000, 0, 0);
    ka->rest = index;
    leg->taking.rest.id = c->id;
    leg->taking.rest.active_ms = c->active_ms;
    e->table.rest[index] = leg->taking.rest;
    roost_table_publish(slot, ka, ROOST_IDLE);
}

/* Publishes a connection of which every leg was taken. */
static void publish_legs(struct roost_engine *e, struct roost_conn *c, struct taken *client, struct taken *server,
                         uint32_t index) {
    const struct roost_class *class = roost_class_of(e, c->class);
    /* The server's leg first: were we killed in between, it is one without a client, which the next engine removes. */
    if (c->server_slot) {
        roost_table_pair(&e->table, &server->taking.rest, c->slot);
        roost_table_pair(&e->table, &client->taking.rest, c->server_slot);
        publish(e, c, c->server_slot, server, c->server_slot->rest,
                ROOST_F_PAIRED | ROOST_F_SERVER | (c->attached ? ROOST_F_ATTACHED : 0));
    }
    if (c->in_band && c->in_band->goal == ROOST_INBAND_SLEEP) { /* roost_inband_frozen asks for it */
        client->taking.rest.sleep_asked_s = (uint32_t)(e->now_ms / 1000);
        client->taking.rest.sleep_wanted = 1;
    } else if (c->sinks && class->on_server_close == ROOST_CLOSE_SLEEP &&
               !(class->own.given & 1 << ROOST_INBAND_IDLE)) {
        client->taking.rest.sleep_wanted = 1;
    }
    publish(e, c, c->slot, client, index, c->server_slot ? ROOST_F_PAIRED : 0);
    if (client->probed)
        roost_answer_probe(e, &c->key, c->slot, &client->probe);
    if (server->probed)
        roost_answer_probe(e, &c->server_key, c->server_slot, &server->probe);
}

static void spend(struct batch *b, struct roost_leg *leg, const struct roost_key *key, bool server) {
    if (leg->probed) /* not as a spare socket */
        roost_leg_probe(leg, roost_class_of(b->engine, ROOST_CLASS_NONE));
    b->spent[b->spents++] =
        (struct spent){.fd = leg->fd, .key = *key, .spare = !server, .rebuilt = leg->rebuilt, .server = server};
    leg->fd = -1;
    leg->readable = leg->writable = false;
}

/* IDLE, or an error: then the sockets are as they were, and so is all else. */
static int finish(struct roost_engine *e, struct batch *b, uint32_t i) {
    struct roost_conn *c = b->conn[i];
    const struct roost_taking *leg = &b->leg[b->first_leg[i]];
    int error = taken_of(e, c, leg);
    if (error)
        return error;
    e->stat[ROOST_E_SURVEYED] += leg[0].surveyed + (c->server_slot && leg[1].surveyed);
    struct taken client = {.taking = leg[0]}, server = {0};
    if (c->server_slot)
        server.taking = leg[1];
    bool heard = wanted(c, &client, &server);
    uint32_t index = heard ? ROOST_NO_REST : roost_table_rest_alloc(&e->table, false);
    if (index == ROOST_NO_REST) {
        give_back(e, c);
        return heard ? -EAGAIN : -ENOSPC;
    }
    roost_drop_held(c); /* nothing that the kernel would act on */
    publish_legs(e, c, &client, &server, index);
    spend(b, &c->client, &c->key, false);
    if (c->server_slot)
        spend(b, &c->server, &c->server_key, true);
    e->stat[ROOST_E_FROZEN]++;
    roost_conn_transition(e, c, ROOST_ST_IDLE, (enum roost_cause)c->freeze_cause);
    roost_inband_frozen(e, c);
    c->server_slot = NULL;
    roost_conn_forget(e, c);
    return 0;
}

/* In repair mode: no FIN, no RST, whichever way the socket goes. */
static void spend_slice(void *context, uint32_t slice, uint32_t from, uint32_t to) {
    struct batch *b = context;
    int epoll_fd = b->engine->epoll_fd;
    (void)slice;
    for (struct spent *s = &b->spent[from]; s < &b->spent[to]; s++) {
        struct epoll_event event = roost_rebuilt_event(s->fd);
        /* Accepted, it is watched by its connection's address, which means nothing any more. */
        if (s->spare && ((!s->rebuilt && epoll_ctl(epoll_fd, EPOLL_CTL_MOD, s->fd, &event)) ||
                         roost_repair_disconnect(s->fd, &s->key, s->rebuilt)))
            s->spare = false;
        if (s->spare)
            continue;
        if (s->server) /* the control plane may still hold a duplicate: roost_leg_close */
            epoll_ctl(epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
        close(s->fd);
    }
}

/* For spare sockets: what is awake comes first. */
static uint32_t spares_room(const struct roost_engine *e) {
    return e->awake < e->max_awake ? (uint32_t)(e->max_awake - e->awake) : 0;
}

static void spend_all(struct roost_engine *e, struct batch *b) {
    uint32_t room = spares_room(e);
    room = room > e->spares.count ? room - e->spares.count : 0;
    for (uint32_t i = 0; i < b->spents; i++) {
        struct spent *s = &b->spent[i];
        if (s->spare)
            s->spare = room && !roost_rebuilt_reserve(e, s->fd) && room--;
        roost_rebuilt_name(e, s->fd, NULL);
    }
    roost_workers_run(&e->workers, spend_slice, b, b->spents, SLICE);
    for (uint32_t i = 0; i < b->spents; i++) {
        const struct spent *s = &b->spent[i];
        if (s->spare && !roost_spares_put(&e->spares, &s->key, s->rebuilt, s->fd))
            close(s->fd);
    }
}

/* All that can be frozen is, and its sockets are gone, before any freeze is cancelled: what is drained from the ring then
 * may meet them, and a peek would end the repair mode in which a socket whose record was taken is closed silently. */
static void snapshots(struct roost_engine *e) {
    struct batch b;
    b.engine = e;
    b.conns = b.legs = b.spents = 0;
    gather(e, &b);
    roost_workers_run(&e->workers, take_slice, &b, b.legs, SLICE);
    for (uint32_t i = 0; i < b.conns; i++)
        b.error[i] = finish(e, &b, i);
    spend_all(e, &b);
    for (uint32_t i = 0; i < b.conns; i++) {
        if (!b.error[i])
            continue;
        e->stat[ROOST_E_TABLE_FULL] += b.error[i] == -ENOSPC;
        roost_freeze_cancel(e, b.conn[i], -b.error[i]);
    }
}

void roost_grace_done(struct roost_engine *e) {
    uint64_t count;
    if (read(e->grace.event_fd, &count, sizeof(count)) != sizeof(count))
        return;
    e->grace.running = false;
    struct roost_conn **tail = &e->graced;
    while (*tail)
        tail = &(*tail)->next_frozen;
    *tail = e->in_grace;
    e->in_grace = NULL;
}

static void trim_spares(struct roost_engine *e) {
    if (e->now_ms < e->spares_trim_ms)
        return;
    e->spares_trim_ms = e->now_ms + SPARES_TRIM_MS;
    roost_spares_trim(&e->spares, spares_room(e));
}

void roost_freeze_turn(struct roost_engine *e) {
    trim_spares(e);
    if (e->graced) {
        uint64_t began_ns = roost_monotonic_ns();
        roost_drain(e); /* what was held until now has its say */
        snapshots(e);
        e->stat[ROOST_E_FREEZE_NS] += roost_monotonic_ns() - began_ns;
    }
    if (e->gathering && !e->grace.running) {
        e->in_grace = e->gathering;
        e->gathering = NULL;
        e->grace.running = true;
        pthread_mutex_lock(&e->grace.lock);
        e->grace.wanted = true;
        pthread_cond_signal(&e->grace.cond);
        pthread_mutex_unlock(&e->grace.lock);
    }
}
