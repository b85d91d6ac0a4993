// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "../fuzz/host/kernel.h"
#include "../fuzz/reference.h"
#include "cext/socket/heard.h"
#include "cext/socket/repair.h"
#include "heap.h"
#include "loop.h"
#include "scheduler.h"

#define RING 8
#define FIRST_FD 100
#define FDS 16
#define GRACE_FD 50
#define HEAP (64u << 20)
#define POISONED 4096 /* bytes of what is freed */

struct roost_engine engine;
struct leg legs[CONNS];
struct roost_births_gate gate = {.secret = {3, 4}, .open_until_s = 0x7fffffff, .services = 1};
struct roost_cookies cookies;
static struct roost_limits limits; /* all zeros: there are none */
uint64_t counts[HOST_CPUS][ROOST_N_COUNT];
bool flying[THREADS_MAX];

extern char strangers; /* a map: only its address */

static struct roost_outbox_item outbox[ROOST_OUTBOX_ITEMS];
static struct held {
    size_t size;
    uint8_t bytes[sizeof(struct roost_frame) + ROOST_FRAME_SMALL] __attribute__((aligned(8)));
} ring[RING];
static int held;
static bool waited_for[THREADS_MAX], grace_runs;
/* What stands for things of the kernel's, for use(). */
static struct { uint32_t socket[CONNS], ring; } things SHARED;
static int fds;
static uint64_t watched_as[FDS]; /* by descriptor: a spare socket's stays */

/* The engine's memory: given out from one end to the other, and all of it again in the next run. */

static uint8_t heap[HEAP] __attribute__((aligned(16)));
static size_t heap_used;

static size_t *size_of(void *memory) {
    return (size_t *)memory - 2;
}

void *heap_malloc(size_t size) {
    size_t all = (size + 31) & ~(size_t)15;
    holds(heap_used + all <= HEAP, "the heap is too small for this scenario");
    uint8_t *memory = heap + heap_used + 16;
    heap_used += all;
    *size_of(memory) = size;
    return memory;
}

void *heap_calloc(size_t count, size_t size) {
    return memset(heap_malloc(count * size), 0, count * size);
}

void *heap_realloc(void *old, size_t size) {
    void *memory = heap_malloc(size);
    if (old)
        memcpy(memory, old, *size_of(old) < size ? *size_of(old) : size);
    return memory;
}

void heap_free(void *memory) {
    if (memory)
        memset(memory, 0xdd, *size_of(memory) < POISONED ? *size_of(memory) : POISONED);
}

static void describe_thing(const void *at, char *text, size_t size) {
    ptrdiff_t i = (const uint32_t *)at - things.socket;
    snprintf(text, size, i < CONNS ? "%s's socket" : "the ring", i < CONNS ? legs[i].name : "");
}

void machine_begins(void) {
    share(&things, sizeof(things), describe_thing);
}

/* Records. */

static uint32_t stamp(const struct leg *l, int number, uint32_t field) {
    return (uint32_t)(l - legs + 1) << 28 | (uint32_t)number << 24 | field << 16;
}

__u32 cookie_for(const struct roost_births_gate *gate, const struct roost_key *key, __u32 isn, __u64 now_ms);

struct roost_ka record_of(const struct leg *l, int number) {
    if (number == BORN)
        return (struct roost_ka){.snd_nxt = cookie_for(&gate, &l->key, ISN, NOW_MS) + 1,
                                 .rcv_nxt = ISN + 1,
                                 .window = BORN_WINDOW,
                                 .rest = ROOST_NO_REST};
    return (struct roost_ka){.snd_nxt = stamp(l, number, 1),
                             .rcv_nxt = stamp(l, number, 2),
                             .ts_offset = stamp(l, number, 3),
                             .heard = ROOST_HEARD(1, 0, 0),
                             .window = (uint16_t)(stamp(l, number, 4) >> 16),
                             .rest = ROOST_NO_REST};
}

struct leg *leg_of(const struct roost_key *key) {
    for (struct leg *l = legs; l < legs + CONNS; l++)
        if (!memcmp(&l->key, key, sizeof(*key)))
            return l;
    holds(false, "a key that nobody has");
    return NULL;
}

static struct leg *leg_with(int fd) {
    for (struct leg *l = legs; l < legs + CONNS; l++)
        if (l->fd == fd && l->socket != NO_SOCKET)
            return l;
    return NULL;
}

void check_answer(const struct leg *l, const uint8_t *ip, size_t length, int from, int to) {
    const uint8_t *tcp = ip + 20;
    holds(length >= 40 && !memcmp(ip + 12, l->key.local + 12, 4) && !memcmp(ip + 16, l->key.client + 12, 4) &&
              !memcmp(tcp, &l->key.local_port, 2) && !memcmp(tcp + 2, &l->key.client_port, 2),
          "an answer to somebody else than %s's client", l->name);
    for (int number = from; number <= to; number++) {
        struct roost_ka ka = record_of(l, number);
        if (get32(tcp + 4) == ka.snd_nxt && get32(tcp + 8) == ka.rcv_nxt && get16(tcp + 14) == ka.window &&
            (length < 52 || get32(tcp + 24) == (uint32_t)NOW_MS + ka.ts_offset))
            return;
    }
    holds(false, "an answer for %s from no record of its own: seq %08x ack %08x window %04x", l->name, get32(tcp + 4),
          get32(tcp + 8), get16(tcp + 14));
}

/* Packets that come to the stack. */

int roost_guard(struct __sk_buff *skb);

/* The stack's answer to a packet that there is no socket for, on its way out. */
static bool is_guarded(const struct leg *l, uint32_t ack) {
    struct __sk_buff skb;
    uint8_t rst[54] = {[12] = 0x08, [14] = 0x45, [17] = 40, [22] = 64, [23] = 6, [46] = 0x50, [47] = ROOST_RST};
    size_t length;
    memcpy(rst + 26, l->key.local + 12, 4);
    memcpy(rst + 30, l->key.client + 12, 4);
    put16(rst + 24, reference_sum(rst + 14, 20, NULL, 0));
    memcpy(rst + 34, &l->key.local_port, 2);
    memcpy(rst + 36, &l->key.client_port, 2);
    put32(rst + 38, ack);
    put16(rst + 50, reference_tcp_sum(rst + 26, 8, rst + 34, 20));
    host_begin_skb(&skb, rst, sizeof(rst));
    bool stopped = roost_guard(&skb) == TC_ACT_SHOT;
    host_frame(&length);
    return stopped;
}

enum socket socket_of(const struct leg *l, const char *what) {
    use(&things.socket[l - legs], false, what);
    return l->socket;
}

bool deliver(struct leg *l, const uint8_t *frame, size_t length, const char *what) {
    holds(socket_of(l, what) != NO_SOCKET || l->closed || (l->late && is_guarded(l, get32(frame + 42))),
          "a packet of %s came to the stack, and there is no socket: RST", l->name);
    if (l->socket != LIVE)
        return false;
    if (length > 54 + 1) { /* one byte may be a probe's */
        l->unread++;
        l->news = true;
    }
    return true;
}

void hold_frame(const struct roost_frame *frame, size_t size) {
    holds(held < RING && size <= sizeof(ring[0].bytes), "the ring is too small for this scenario");
    use(&things.ring, true, "is held");
    ring[held].size = size;
    memcpy(ring[held++].bytes, frame, size);
}

int roost_datapath_drain(struct roost_datapath *d) {
    int done = 0;
    use(&things.ring, true, "takes what is held");
    for (bool more = true; more && held; done++) {
        struct held first = ring[0];
        memmove(ring, ring + 1, (size_t)--held * sizeof(ring[0]));
        more = !roost_on_frame(&engine, first.bytes, first.size);
    }
    return done;
}

static struct leg *leg_of_frame(const uint8_t *frame) {
    for (struct leg *l = legs; l < legs + CONNS; l++)
        if (!memcmp(frame + 26, l->key.client + 12, 4) && !memcmp(frame + 34, &l->key.client_port, 2))
            return l;
    holds(false, "a frame that nobody has sent");
    return NULL;
}

uint32_t roost_datapath_replay(struct roost_datapath *d, uint32_t count, uint32_t ifindex, uint32_t queue) {
    for (uint32_t i = 0; i < count; i++)
        deliver(leg_of_frame(d->out[i].data), d->out[i].data, d->out[i].length, "hands a held packet to the stack");
    return count;
}

bool roost_datapath_send(struct roost_datapath *d, const uint8_t *packet, size_t length) {
    for (struct leg *l = legs; l < legs + CONNS; l++)
        if (!memcmp(packet + 16, l->key.client + 12, 4))
            check_answer(l, packet, length, l->number, l->number);
    return true;
}

/* Sockets. */

static void change(const struct leg *l, const char *what) {
    use(&things.socket[l - legs], true, what);
}

void read_all(int fd) {
    struct leg *l = leg_with(fd);
    if (!l)
        return;
    l->got += l->unread;
    l->unread = 0;
}

static void dies(struct leg *l) {
    l->closed |= l->socket == LIVE; /* by a FIN; else without a word */
    l->socket = NO_SOCKET;
    l->unread = 0;
    l->news = false;
}

void legs_die(void) {
    for (struct leg *l = legs; l < legs + CONNS; l++) {
        dies(l);
        l->unmade = false;
    }
}

int close(int fd) {
    struct leg *l = leg_with(fd);
    if (!l)
        return 0;
    change(l, "closes a socket");
    dies(l);
    return 0;
}

ssize_t recv(int fd, void *data, size_t size, int flags) {
    const struct leg *l = leg_with(fd);
    if (l && l->unread)
        return 1;
    errno = EAGAIN;
    return -1;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
    return 0;
}

int socket(int domain, int type, int protocol) {
    return FIRST_FD - 1;
}

int bind(int fd, const struct sockaddr *address, socklen_t size) { /* no server is on this machine */
    errno = EADDRNOTAVAIL;
    return -1;
}

static void name_of(const uint8_t ip[16], __be16 port, struct sockaddr *address) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = port};
    memcpy(&in.sin_addr, ip + 12, 4);
    memcpy(address, &in, sizeof(in));
}

int getsockname(int fd, struct sockaddr *address, socklen_t *size) {
    const struct leg *l = leg_with(fd);
    name_of(l->key.local, l->key.local_port, address);
    return 0;
}

int getpeername(int fd, struct sockaddr *address, socklen_t *size) {
    const struct leg *l = leg_with(fd);
    name_of(l->key.client, l->key.client_port, address);
    return 0;
}

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event) {
    struct leg *l = leg_with(fd);
    if (l && event) {
        watched_as[fd - FIRST_FD] = event->data.u64;
        l->news |= l->unread != 0;
    }
    return 0;
}

void roost_repair_snapshots(const struct roost_survey *s, uint32_t slice, int closed_filter,
                            struct roost_taking *taking, uint32_t count) {
    for (struct roost_taking *t = taking; t < taking + count; t++) {
        struct leg *l = leg_with(t->fd);
        holds(l && l == leg_of(t->key) && l->socket == LIVE, "the socket of %s is not its own", l ? l->name : "nobody");
        change(l, "reads a socket's numbers, which takes nothing in any more");
        t->error = l->unread || l->unacked ? -EAGAIN : 0;
        l->unacked = false;
        if (t->error)
            continue;
        l->socket = MUTE;
        t->ka = record_of(l, ++l->number);
        t->rest = (struct roost_rest){.mss = 1460};
    }
}

void roost_repair_undo(int fd, int closed_filter) {
    struct leg *l = leg_with(fd);
    change(l, "lets the socket take packets in again");
    l->socket = LIVE;
    l->number--;
}

int roost_repair_peek(int fd, struct roost_ka *ka) {
    const struct leg *l = leg_with(fd);
    holds(l->socket == LIVE, "the socket of %s is to live on, and its record was taken", l->name);
    *ka = record_of(l, l->number + 1);
    return 0;
}

int roost_heard_ask(int fd, uint32_t *mark) {
    *mark = 0;
    return 0;
}

bool roost_heard_since(int fd, uint32_t mark) {
    return true;
}

uint32_t roost_heard_ago_ms(int fd) {
    return 0;
}

int roost_repair_disconnect(int fd, const struct roost_key *key, bool rebuilt) {
    change(leg_with(fd), "lets go of a socket, which becomes a spare one");
    dies(leg_with(fd));
    return 0;
}

int roost_repair_reuse(int spare, bool bound, const struct roost_key *key, const struct roost_ka *ka,
                       const struct roost_rest *rest) {
    struct leg *l = leg_of(key);
    change(l, l->unmade ? "cannot rebuild a socket" : "rebuilds a socket");
    if (l->unmade) {
        l->unmade = false;
        l->lost = true;
        return -EMFILE;
    }
    struct roost_ka own = record_of(l, l->number);
    holds(l->socket == NO_SOCKET, "%s has a socket already", l->name);
    holds(ka->snd_nxt == own.snd_nxt && ka->rcv_nxt == own.rcv_nxt && ka->ts_offset == own.ts_offset &&
              ka->window == own.window && (l->number == BORN || rest->id == l->id),
          "the socket of %s is rebuilt from another record", l->name);
    l->socket = MUTE;
    l->fd = spare;
    l->asleep = false;
    return spare;
}

int roost_repair_rebuild(const struct roost_key *key, const struct roost_ka *ka, const struct roost_rest *rest) {
    holds(fds < FDS, "too many sockets for this scenario");
    return roost_repair_reuse(FIRST_FD + fds++, false, key, ka, rest);
}

int roost_repair_finish(int fd, bool spare) {
    change(leg_with(fd), "lets the socket live");
    leg_with(fd)->socket = LIVE;
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    *now = (struct timespec){.tv_sec = NOW_MS / 1000, .tv_nsec = NOW_MS % 1000 * 1000000};
    return 0;
}

/* The rest of the data path. */

int is_stranger(uint64_t hash);
void put_stranger(uint64_t hash);

/* The map has room for one. */
static void forget_strangers(void) {
    host_map_hash(&strangers, 1, sizeof(uint64_t), sizeof(uint32_t));
}

bool roost_datapath_is_stranger(const struct roost_datapath *d, uint64_t hash) {
    return is_stranger(hash);
}

void roost_datapath_mark_stranger(struct roost_datapath *d, uint64_t hash, bool stranger) {
    if (!!is_stranger(hash) == stranger)
        return;
    if (running() >= 0)
        step("tells XDP who is a stranger");
    if (stranger)
        put_stranger(hash);
    else
        forget_strangers();
}

void roost_datapath_retract_probe(struct roost_datapath *d, const struct roost_key *key) {
}

void roost_datapath_counters(const struct roost_datapath *d, uint64_t *values) {
    memset(values, 0, ROOST_N_COUNT * sizeof(*values));
    for (int i = 0; i < HOST_CPUS; i++)
        for (int n = 0; n < ROOST_N_COUNT; n++)
            values[n] += counts[i][n];
}

/* Grace periods. */

static bool has_landed(void) {
    for (int i = 0; i < THREADS_MAX; i++)
        if (waited_for[i] && flying[i])
            return false;
    return true;
}

/* What was between XDP and TCP when it begins has arrived when it ends. */
int pthread_cond_signal(pthread_cond_t *condition) {
    if (condition == &engine.grace.cond) {
        memcpy(waited_for, flying, sizeof(waited_for));
        grace_runs = true;
    }
    return 0;
}

void grace(void) {
    memcpy(waited_for, flying, sizeof(flying));
    await(has_landed, "waits for a grace period");
}

int pthread_join(pthread_t thread, void **result) { /* which made a larger table */
    return 0;
}

ssize_t read(int fd, void *data, size_t size) { /* an eventfd's count */
    grace_runs &= fd != GRACE_FD;
    return (ssize_t)size;
}

/* The control plane. */

static struct roost_record row_of(const struct leg *l) {
    struct roost_record record = {
        .key = l->key, .ka = record_of(l, l->number), .service = PLAIN, .rest = {.id = l->id, .mss = 1460}};
    return record;
}

void command(enum roost_op op, struct leg *l) {
    struct roost_command c = {.op = (uint8_t)op, .cause = ROOST_C_COMMAND, .fd = -1, .id = l->id, .record = row_of(l)};
    if (op == ROOST_OP_INSERT)
        c.cause = ROOST_C_RESTORE;
    if (op == ROOST_OP_SLEEP)
        c.cause = ROOST_C_QUIET;
    if (op == ROOST_OP_CANDIDATE && !l->asleep)
        c.error = ENOENT;
    roost_mailbox_submit(&engine.box, &c, 1);
}

void __wrap_roost_mailbox_post(struct roost_mailbox *m, const struct roost_event *event);
void __wrap_roost_mailbox_post(struct roost_mailbox *m, const struct roost_event *event) {
    if (event->type == ROOST_EV_PRESSURE) /* of descriptors, and of no connection */
        return;
    struct leg *l = leg_of(&event->record.key);
    holds(event->type != ROOST_EV_ILLEGAL, "an illegal transition of %s: from %d to %d, cause %d", l->name,
          event->from_state, event->to_state, event->cause);
    if (event->type == ROOST_EV_NEED_RECORD)
        command(ROOST_OP_RESTORE, l);
    if (event->type == ROOST_EV_CANDIDATE)
        command(ROOST_OP_CANDIDATE, l);
    if (event->type != ROOST_EV_TRANSITION)
        return;
    if (event->from_state == ROOST_ST_NONE && event->cause == ROOST_C_CLIENT_CONNECT) {
        l->number = BORN;
        l->id = event->id;
        l->unborn = false;
    }
    const struct roost_conn *c = roost_conn_by_key(&engine, &l->key);
    holds(event->to_state != ROOST_ST_IDLE || !c || c->link == ROOST_UNLINKED || l->peer,
          "%s is asleep, and is linked to a server", l->name);
    for (; l; l = l == leg_of(&event->record.key) ? l->peer : NULL) {
        l->closed = event->to_state == ROOST_ST_CLOSED;
        l->asleep = event->to_state == ROOST_ST_IDLE || event->to_state == ROOST_ST_SLEEP;
    }
}

void __wrap_roost_mailbox_post_row(struct roost_mailbox *m, const struct roost_row *row);
void __wrap_roost_mailbox_post_row(struct roost_mailbox *m, const struct roost_row *row) {
}

/* The engine's thread. */

static bool grace_is_over(void) {
    return grace_runs && has_landed();
}

static int gather_events(struct epoll_event *events, bool take) {
    int count = 0;
    if (held)
        events[count++] = (struct epoll_event){.events = EPOLLIN, .data.u64 = TAG_RING};
    if (grace_is_over())
        events[count++] = (struct epoll_event){.events = EPOLLIN, .data.u64 = TAG_GRACE};
    for (struct leg *l = legs; l < legs + CONNS; l++) {
        if (!l->news)
            continue;
        events[count++] = (struct epoll_event){.events = EPOLLIN, .data.u64 = watched_as[l->fd - FIRST_FD]};
        l->news = !take;
    }
    return count;
}

static bool can_turn(void) {
    struct epoll_event events[CONNS + 2];
    return loop_is_busy(&engine) || gather_events(events, false);
}

void take_turn(void) {
    struct epoll_event events[CONNS + 2];
    int count = gather_events(events, true);
    loop_turn(&engine, events, count);
}

void work(void) {
    while (grace_runs || can_turn()) {
        if (can_turn())
            use(&things.ring, false, "looks for what to do");
        else
            await(can_turn, "waits for what there is to do");
        take_turn();
    }
}

static bool can_turn_or_end(void) {
    return can_turn() || others_are_done();
}

void serve(void) {
    for (;;) {
        await(can_turn_or_end, "looks for what to do");
        if (!can_turn())
            return;
        take_turn();
    }
}

void sweep(void) {
    engine.sweep_ms = 0;
    take_turn();
    engine.sweep_ms = UINT64_MAX;
    work();
}

void machine_starts(void) {
    heap_used = 0;
    held = fds = 0;
    grace_runs = false;
    memset(flying, 0, sizeof(flying));
    memset(waited_for, 0, sizeof(waited_for));
    forget_strangers();
}

static void open_socket(struct leg *l) {
    l->fd = FIRST_FD + fds++;
    l->socket = LIVE;
    l->closed = false;
}

void leg_opens(struct leg *l, struct leg *server) {
    open_socket(l);
    enum service service = server ? PERSISTENT : PLAIN;
    struct roost_conn *c = roost_conn_new(&engine, &l->key, l->id, service, service);
    roost_leg_fresh(&c->client, l->fd);
    c->client.writable = true;
    c->state = server ? ROOST_ST_ACTIVE : ROOST_ST_STANDBY;
    roost_watch(&engine, l->fd, c, false);
    if (!server)
        return;
    open_socket(server);
    roost_leg_fresh(&c->server, server->fd);
    c->server.writable = true;
    c->link = ROOST_LINKED;
    roost_watch(&engine, server->fd, c, true);
    server->id = l->id;
    server->peer = l;
    l->peer = server;
}

/* What an engine starts with, or what is large, and looked at in those places alone that were written before. */
static const struct part {
    const void *from;
    size_t size;
} parts[] = {
    {engine.path.stranger_bloom, sizeof(engine.path.stranger_bloom)},
    {engine.spares.spare, sizeof(engine.spares.spare)},
    {&engine.table, sizeof(engine.table)},
    {engine.listener, sizeof(engine.listener)},
    {&engine.filter, sizeof(engine.filter)},
    {engine.scratch, sizeof(engine.scratch)},
};

static void clear_engine(void) {
    char *from = (char *)&engine;
    for (const struct part *p = parts; p < parts + sizeof(parts) / sizeof(parts[0]); p++) {
        memset(from, 0, (size_t)((const char *)p->from - from));
        from = (char *)p->from + p->size;
    }
}

void engine_starts(void) {
    clear_engine();
    roost_mailbox_init(&engine.box);
    engine.resume = roost_command_resume;
    for (int i = 0; i < 2; i++) {
        engine.ready[i].last = &engine.ready[i].first;
        engine.waking[i].last = &engine.waking[i].first;
    }
    engine.unacked_tail = &engine.unacked;
    engine.stray_tail = &engine.stray;
    engine.now_ms = NOW_MS;
    roost_wheel_init(&engine.wheel, NOW_MS);
    engine.max_awake = 64;
    engine.started = true;
    engine.next_id = 100;
    engine.grace.event_fd = GRACE_FD;
    engine.sweep_ms = UINT64_MAX;
    engine.path.out = outbox;
    engine.path.births_gate = &gate;
    engine.path.births_cookies = &cookies;
    engine.path.limits = &limits;
    engine.by_index[PLAIN] = &engine.listener[0];
    engine.by_index[PERSISTENT] = &engine.listener[1];
    engine.listener[1].service.persistent = 1;
    roost_conns_init(&engine, 1);
    roost_growth_resume(&engine);
}
