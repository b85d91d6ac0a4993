// SPDX-License-Identifier: Apache-2.0
/*
 * The engine thread: one epoll loop over listeners, legs, the ring of held frames and the mailbox. A turn:
 *
 *     what epoll says -> commands -> frames and thaws -> next (relay) -> freezes -> timers -> sweep -> free the dead
 *
 * Thaws come before the relay and freezes after it, so that a burst of work that can wait never stands in front of a
 * connection that wakes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "cext/base/priority.h"
#include "cext/life/next.h"
#include "loop.h"
#include "cext/socket/repair.h"

#define SWEEP_PAUSE_US 60 /* between two parts of a slice: tasks on this processor run meanwhile */
#define EVENTS_A_TURN 512
#define AHEAD 16         /* keys whose memory is asked for before the first of them is looked for */
#define FOUND_AT_ONCE 64 /* while the lock is held once */
#define GIVES_WAY_NS 200000
#define USED_WINDOW_MS 10
#define USED_MOST_NS 920000 /* of each ms; the kernel takes real time away from what uses more than 950000 */
#define RUSH_WINDOW_MS 8
#define RUSH_A_MS 2     /* clients that connect */
#define RUSH_AT_ONCE 16 /* clients here at a time, on average, of those that come and go */
#define RUSH_PAUSE_NS 150000
#define RUSH_AWAKE_NS 250000 /* then there is no rush any more */

/* Events of this turn may still name a dead connection, and so may a queue (queued counts those): memory goes at the
 * end of a turn, when nothing names it any more. */
void roost_conns_free_dead(struct roost_engine *e) {
    struct roost_conn **at = &e->dead;
    while (*at) {
        struct roost_conn *c = *at;
        if (c->queued) {
            at = &c->next_dead;
            continue;
        }
        *at = c->next_dead;
        roost_drop_held(c);
        free(c->client.pending);
        free(c->server.pending);
        roost_inband_free(c);
        free(c);
    }
}

static void leg_event(struct roost_engine *e, struct roost_conn *c, bool server, uint32_t events) {
    if (c->dead)
        return;
    struct roost_leg *leg = server ? &c->server : &c->client;
    if (leg->fd < 0 || leg->turn == e->turn)
        return; /* of a socket that is closed by now */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        leg->readable = true;
    if (events & (EPOLLPRI | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        leg->more = true;
    if (events & (EPOLLPRI | EPOLLERR))
        leg->urgent = true;
    if (events & EPOLLRDHUP)
        leg->ends = true;
    if (events & EPOLLOUT)
        leg->writable = true;
    if (server && c->link == ROOST_CONNECTING) {
        roost_link_event(e, c, events);
        return;
    }
    if (c->phase == ROOST_LIVE)
        roost_conn_run(e, c);
}

static void rebuilt_event(struct roost_engine *e, uint32_t fd, uint32_t events) {
    struct roost_conn *c = fd < e->rebuilt_size ? e->rebuilt[fd] : NULL;
    if (c) /* else it is a spare socket */
        leg_event(e, c, false, events);
}

static void dispatch(struct roost_engine *e, const struct epoll_event *event) {
    uint64_t tag = event->data.u64, drained;
    if (tag & TAG_REBUILT)
        rebuilt_event(e, (uint32_t)tag, event->events);
    else if (tag >= TAG_END)
        leg_event(e, (struct roost_conn *)(uintptr_t)(tag & ~1ULL), tag & 1, event->events);
    else if (tag >= TAG_LISTENER)
        roost_accept_turn(e, &e->listener[tag - TAG_LISTENER]);
    else if (tag == TAG_RING)
        return; /* the turn has begun with it */
    else if (tag == TAG_GRACE)
        roost_grace_done(e);
    else if (tag == TAG_DOOR + ROOST_DOOR_IPV4 || tag == TAG_DOOR + ROOST_DOOR_IPV6)
        roost_router_accept(e, (int)(tag - TAG_DOOR));
    else if (read(e->wake_fd, &drained, sizeof(drained)) < 0)
        return; /* it was read already */
}

static uint32_t timeout_us(struct roost_engine *e) {
    if (e->ready[0].first || e->ready[1].first || e->graced || e->waking[0].count || e->stray ||
        __atomic_load_n(&e->box.commands.first, __ATOMIC_RELAXED))
        return 0;
    if (roost_growth_busy(e) || roost_descent_busy(e))
        return 0;
    int wait = e->wheel.armed || e->accept_resume_ms || e->waiting_servers ? ROOST_WHEEL_TICK_MS : 50;
    if (e->unacked)
        wait = e->unacked->ack_ms > e->now_ms ? (int)(e->unacked->ack_ms - e->now_ms) : 0;
    if (e->asked && e->answer_ms < e->now_ms + (uint64_t)wait)
        wait = e->answer_ms > e->now_ms ? (int)(e->answer_ms - e->now_ms) : 0;
    uint64_t sweep_us = e->sweep_ms > e->now_ms      ? (e->sweep_ms - e->now_ms) * 1000
                        : e->sweep_at < e->sweep_end ? SWEEP_PAUSE_US
                                                     : 0;
    uint64_t wait_us = sweep_us < wait * 1000ULL ? sweep_us : wait * 1000ULL, now_ns = roost_monotonic_ns();
    uint64_t crowd_us = !e->waking[1].count ? wait_us : e->crowd_ns > now_ns ? (e->crowd_ns - now_ns) / 1000 + 1 : 0;
    return (uint32_t)(crowd_us < wait_us ? crowd_us : wait_us);
}

static void turn(struct roost_engine *e, const struct epoll_event *events, int count) {
    e->now_ms = roost_monotonic_ms();
    e->turn++;
    roost_drain(e); /* before what else has come: those that wake wait for it */
    for (int i = 0; i < count; i++)
        dispatch(e, &events[i]);
    roost_commands_turn(e);
    roost_thaw_turn(e);
    roost_mailbox_flush(&e->box); /* records that are asked for, before the rest of the turn */
    roost_next_turn(e);
    roost_freeze_turn(e);
    roost_next_timers(e);
    roost_attach_turn(e);
    roost_asked_turn(e);
    roost_unacked_turn(e);
    roost_sweep_turn(e);
    roost_recall_turn(e);
    roost_growth_turn(e);
    roost_descent_turn(e);
    roost_accept_resume(e);
    if (e->pressure_told && e->awake <= e->max_awake - e->max_awake / 4)
        e->pressure_told = false;
    roost_links_turn(e);
    roost_ready_turn(e);
    roost_conns_free_dead(e);
    roost_mailbox_flush(&e->box);
}

/* True if churn is high enough that batching accepts pays: RUSH_A_MS accepts a millisecond, those of crowds left out, and
 * RUSH_AT_ONCE short-lived connections at a time (Little's law: the sum of their stays over the time that passed). A few clients that connect one
 * after the other as fast as they can would only be slowed down. */
static bool rush(struct roost_engine *e) {
    uint64_t passed_ms = e->now_ms - e->rush_ms, accepted = e->stat[ROOST_E_ACCEPTED] - e->crowd_accepted;
    if (passed_ms >= RUSH_WINDOW_MS) {
        e->rush = accepted - e->rush_accepted >= passed_ms * RUSH_A_MS && e->rush_stayed_ms >= passed_ms * RUSH_AT_ONCE;
        e->rush_ms = e->now_ms;
        e->rush_accepted = accepted;
        e->rush_stayed_ms = 0;
    }
    return e->rush;
}

/* Without a pause each step of a connection that comes and goes would be a turn of its own, since this thread runs before
 * the processes that make the next step. With a short pause a turn has the steps of many connections, and a server's last
 * bytes and its end come together, as a network card moderates its interrupts. Wake-ups and commands end the pause.
 *
 * The thread stays runnable meanwhile and yields: after so short a sleep the scheduler would put it back on its processor
 * in front of the task that was moved there, and leave the other processor idle until the next tick. The number of events,
 * 0: none came. *paused: the pause was taken to its end. */
static int wait_in_rush(struct roost_engine *e, struct epoll_event *events, uint64_t began_ns, bool *paused) {
    struct pollfd prompt[] = {
        {.fd = roost_datapath_ring_fd(&e->path), .events = POLLIN},
        {.fd = e->grace.event_fd, .events = POLLIN},
        {.fd = e->wake_fd, .events = POLLIN},
    };
    const uint64_t gathered_ns = began_ns + RUSH_PAUSE_NS, given_up_ns = roost_monotonic_ns() + RUSH_AWAKE_NS;
    int count;
    *paused = false;
    while (roost_monotonic_ns() < gathered_ns) {
        *paused = poll(prompt, sizeof(prompt) / sizeof(prompt[0]), 0) == 0;
        if (!*paused)
            break;
        sched_yield();
    }
    while ((count = epoll_wait(e->epoll_fd, events, EVENTS_A_TURN, 0)) == 0 && roost_monotonic_ns() < given_up_ns)
        sched_yield();
    return count;
}

/* Real time, unless this thread uses all of its processor: a client that wakes waits for no other thread on the box. With all of
 * it, the tasks that make the work and those that wait for it are to run, too, and steps that gather meanwhile are done together. */
static void choose_scheduling(struct roost_engine *e) {
    uint64_t passed_ms = e->now_ms - e->used_ms;
    bool light = e->light;
    if (passed_ms >= USED_WINDOW_MS) {
        uint64_t used_ns = roost_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        light = used_ns - e->used_ns < passed_ms * USED_MOST_NS;
        e->used_ms = e->now_ms;
        e->used_ns = used_ns;
    }
    light &= !e->rush; /* sched_yield() in its pauses would not let an ordinary thread run */
    if (light != e->light)
        roost_run_first(light);
    e->light = light;
}

static void *engine_thread(void *context) {
    struct roost_engine *e = context;
    struct epoll_event events[EVENTS_A_TURN];
    const bool several = roost_has_several_processors();
    roost_run_first(false);
    prctl(PR_SET_TIMERSLACK, 1UL); /* ns: else 50 us are added to each pause */
    uint64_t began_ns = 0;
    pthread_mutex_lock(&e->lock.mutex);
    while (!e->stopping) {
        uint32_t wait_us = timeout_us(e);
        const struct timespec wait = {.tv_sec = wait_us / 1000000, .tv_nsec = wait_us % 1000000 * 1000};
        bool pause = rush(e) && wait_us && several;
        if (several)
            choose_scheduling(e);
        pthread_mutex_unlock(&e->lock.mutex);
        roost_fair_give_way(&e->lock, GIVES_WAY_NS);
        int count = pause ? wait_in_rush(e, events, began_ns, &pause) : 0;
        if (count == 0)
            count = epoll_pwait2(e->epoll_fd, events, EVENTS_A_TURN, &wait, NULL);
        int error = errno;
        began_ns = roost_monotonic_ns();
        pthread_mutex_lock(&e->lock.mutex);
        e->stat[ROOST_E_RUSH_PAUSES] += pause;
        if (count < 0 && error != EINTR) {
            struct roost_event event = {.type = ROOST_EV_FATAL, .error = error};
            roost_mailbox_post(&e->box, &event);
            roost_mailbox_flush(&e->box);
            break;
        }
        turn(e, events, count > 0 ? count : 0);
    }
    pthread_mutex_unlock(&e->lock.mutex);
    return NULL;
}

/* ---- the C face ---- */

roost_engine *roost_open(const struct roost_options *options, struct roost_reason *why) {
    struct roost_engine *e = calloc(1, sizeof(*e));
    uint64_t max_id;
    if (!e) {
        roost_complain(why, ENOMEM, "%m");
        return NULL;
    }
    struct roost_sizes sizes = {options->ipv4_slots, options->ipv6_slots, options->idle_slots, options->ring_bytes,
                                options->filter_slots};
    pthread_mutex_init(&e->lock.mutex, NULL);
    roost_mailbox_init(&e->box);
    e->resume = roost_command_resume;
    for (int i = 0; i < 2; i++) {
        e->ready[i].last = &e->ready[i].first;
        e->waking[i].last = &e->waking[i].first;
    }
    e->unacked_tail = &e->unacked;
    e->stray_tail = &e->stray;
    e->now_ms = roost_monotonic_ms();
    roost_wheel_init(&e->wheel, e->now_ms);
    e->growth.allowed = options->grow;
    e->max_awake = options->max_awake ? options->max_awake : 8192;
    e->worker_threads = options->workers;
    snprintf(e->name, sizeof(e->name), "%s", options->name ? options->name : "");
    e->epoll_fd = e->wake_fd = -1;
    roost_link_ports(e, 10240, 32767);
    e->door[ROOST_DOOR_IPV4] = e->door[ROOST_DOOR_IPV6] = -1;
    e->silences = calloc(ROOST_SILENCE_PLACES, sizeof(*e->silences));
    int error =
        roost_datapath_open(&e->path, &e->table, options->pin_dir, options->bpf_dir, &sizes, roost_on_frame, e, why);
    if (!error) {
        roost_survey_open(&e->survey, options->bpf_dir); /* without it, sockets are asked one by one */
        roost_births_forget(e);
        int64_t removed = roost_table_adopt(&e->table, &max_id);
        roost_born_adopted(e);
        roost_filter_begin(&e->filter, e->path.filter, e->path.filter_buckets, e->path.filter_gate);
        error = removed < 0 ? (int)removed : roost_limits_begin(e);
    }
    if (!error) {
        e->next_id = options->next_id > max_id ? options->next_id : max_id + 1;
        error = roost_conns_init(e, options->max_awake);
    }
    if (!error) {
        e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (e->epoll_fd < 0 || e->wake_fd < 0 || (error = roost_watch_plain(e, e->wake_fd, TAG_WAKE)) ||
            (error = roost_watch_plain(e, roost_datapath_ring_fd(&e->path), TAG_RING)))
            error = error ? error : -errno;
    }
    if (!error)
        return e;
    if (!why->text[0])
        roost_complain(why, error, "cannot start the engine: %m");
    roost_close(e);
    return NULL;
}

int roost_attach(roost_engine *e, const char *ifname, const char *mode, int servers, struct roost_reason *why) {
    roost_lock(e);
    int result = roost_datapath_attach(&e->path, ifname, mode, servers, why);
    roost_unlock(e);
    return result;
}

int roost_vlan(roost_engine *e, uint32_t ifindex, uint16_t protocol, uint16_t id, uint32_t device) {
    struct roost_vlan vlan = {ROOST_VLAN_BITS, ifindex, htons(protocol), htons(id)};
    int map = e->path.map_fd[ROOST_MAP_vlans];
    return (device ? bpf_map_update_elem(map, &vlan, &device, BPF_ANY) : bpf_map_delete_elem(map, &vlan)) ? -errno : 0;
}

int roost_start(roost_engine *e, struct roost_reason *why) {
    sigset_t all, old;
    roost_datapath_end_old_steering(&e->path); /* every interface has been named */
    int error = roost_grace_start(e);
    if (!error)
        error = roost_watch_plain(e, e->grace.event_fd, TAG_GRACE);
    if (!error) {
        roost_growth_resume(e);
        e->now_ms = roost_monotonic_ms();
        roost_inherited_begin(e);
        roost_sweep_begin(e);
        roost_sockets_begin(e);
        roost_births_turn(e); /* births from now on */
        sigfillset(&all);     /* signals are Python's */
        pthread_sigmask(SIG_SETMASK, &all, &old);
        error = roost_workers_start(&e->workers, e->worker_threads);
        if (!error)
            error = -pthread_create(&e->thread, NULL, engine_thread, e);
        if (!error)
            pthread_setname_np(e->thread, "roost-engine");
        else
            roost_workers_stop(&e->workers);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (error)
        return roost_complain(why, error, "cannot start the engine thread: %m");
    e->started = true;
    e->path.births_cookies->running = 1;
    roost_datapath_keep_pins(&e->path);
    return 0;
}

void roost_wake_none(roost_engine *e) {
    roost_lock(e);
    e->wakes_none = true;
    roost_unlock(e);
}

void roost_lease(roost_engine *e, uint64_t until_ms) {
    __atomic_store_n(&e->lease_ms, until_ms, __ATOMIC_RELAXED);
}

void roost_next_number(roost_engine *e, uint64_t number) {
    roost_lock(e);
    if (e->next_id < number)
        e->next_id = number;
    roost_unlock(e);
}

static void kick(struct roost_engine *e) {
    uint64_t one = 1;
    if (write(e->wake_fd, &one, sizeof(one)) < 0)
        return; /* full: it is awake */
}

int roost_submit(roost_engine *e, const struct roost_command *commands, uint32_t count) {
    int error = roost_mailbox_submit(&e->box, commands, count);
    kick(e);
    return error;
}

int roost_submit_many(roost_engine *e, uint8_t op, uint8_t cause, uint64_t token, const uint64_t *ids,
                      const struct roost_key *keys, uint32_t count) {
    struct roost_command some[32];
    const uint32_t most = sizeof(some) / sizeof(some[0]);
    int error = 0;
    for (uint32_t i = 0; i < most; i++)
        some[i] = (struct roost_command){.op = op, .cause = cause, .fd = -1, .token = token};
    for (uint32_t from = 0, n; from < count && !error; from += n) {
        n = count - from < most ? count - from : most;
        for (uint32_t i = 0; i < n; i++) {
            if (ids)
                some[i].id = ids[from + i];
            if (keys)
                some[i].record.key = keys[from + i];
        }
        error = roost_mailbox_submit(&e->box, some, n);
    }
    kick(e);
    return error;
}

int roost_events(roost_engine *e, struct roost_event *events, uint32_t max, uint32_t timeout_ms, uint32_t patience_ms) {
    return roost_mailbox_take(&e->box, events, max, timeout_ms, patience_ms);
}

int roost_rows(roost_engine *e, struct roost_row *rows, uint32_t max) {
    return (int)roost_mailbox_rows(&e->box, rows, max);
}

int roost_wake_events(roost_engine *e) {
    roost_mailbox_poke(&e->box);
    return 0;
}

uint64_t roost_slots_in_sleep(roost_engine *e) {
    struct roost_key key;
    const struct roost_ka *slot;
    uint64_t count = 0, p = 0;
    roost_lock(e);
    while ((slot = roost_table_walk(&e->table, &p, UINT64_MAX, &key)))
        count += ROOST_PHASE(slot->ctl) == ROOST_SLEEP && !(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER);
    roost_unlock(e);
    return count;
}

static bool find(struct roost_engine *e, const struct roost_key *key, struct roost_event *event) {
    struct roost_holder h = roost_whose(e, key);
    if (h.by != ROOST_BY_CONN && h.by != ROOST_BY_SLOT)
        return false;
    roost_event_of_holder(e, key, &h, event);
    return true;
}

static bool find_candidate(struct roost_engine *e, const struct roost_key *key, struct roost_event *event) {
    bool candidate = roost_is_candidate(e, key);
    if (candidate)
        roost_event_of_candidate(e, key, event);
    return candidate;
}

uint32_t roost_find(roost_engine *e, const struct roost_key *keys, uint32_t count, struct roost_event *events,
                    uint8_t *found) {
    uint32_t filled = 0;
    for (uint32_t from = 0; from < count; from += FOUND_AT_ONCE) {
        roost_lock(e);
        for (uint32_t i = from; i < count && i < from + FOUND_AT_ONCE; i++) {
            found[i] = find(e, &keys[i], &events[filled]) || find_candidate(e, &keys[i], &events[filled]);
            filled += found[i];
        }
        roost_unlock(e);
    }
    return filled;
}

/* As far as it can be told. */
static bool has_another_id(const struct roost_engine *e, const struct roost_ka *slot, uint64_t id) {
    if (roost_table_has_rest(slot))
        return e->table.rest[slot->rest].id != id;
    return ROOST_IS_ROW(slot->rest) && slot->rest != ROOST_ROW(id);
}

static uint8_t state_of(struct roost_engine *e, const struct roost_key *key, uint64_t id) {
    struct roost_holder h = roost_whose(e, key);
    if (h.by == ROOST_BY_CONN)
        return h.conn->state;
    if (h.by == ROOST_BY_SLOT)
        return has_another_id(e, h.slot, id) ? ROOST_ST_NONE : roost_state_of_slot(h.slot);
    return roost_is_candidate(e, key) ? ROOST_ST_SLEEP | ROOST_CANDIDATE : ROOST_ST_NONE;
}

void roost_states(roost_engine *e, const struct roost_key *keys, const uint64_t *ids, uint32_t count, uint8_t *states) {
    roost_lock(e);
    for (uint32_t i = 0; i < count; i++) {
        /* One after the other each would wait for memory twice and more. */
        for (uint32_t next = i; i % AHEAD == 0 && next < i + AHEAD && next < count; next++) {
            roost_table_prefetch(&e->table, &keys[next]);
            roost_filter_prefetch(&e->filter, roost_hash_of_key(e, &keys[next]));
        }
        states[i] = state_of(e, &keys[i], ids[i]);
    }
    roost_unlock(e);
}

#define KNOWN_MAX 64 /* of one client's port: a router's client may have as many as there are servers */

/* Connections of one client that are sought by its address and port: those that were found, at most max. */
struct sought {
    roost_engine *engine;
    struct roost_key key; /* of the client */
    bool (*look)(struct roost_engine *, const struct roost_key *, struct roost_event *);
    struct roost_event *events;
    uint32_t found, max;
};

/* Where this is the near end. A service that was taken out may have listened where another does now. */
static void seek(struct sought *s, const uint8_t local[16]) {
    memcpy(s->key.local, local, sizeof(s->key.local));
    for (uint32_t i = 0; i < s->found; i++)
        if (!memcmp(&s->events[i].record.key, &s->key, sizeof(s->key)))
            return;
    if (s->found < s->max)
        s->found += s->look(s->engine, &s->key, &s->events[s->found]);
}

/* At a transparent service of every address: its clients' servers are the near ends of those that sleep, and of the awake. Looks at
 * all of these where the client's host has a connection. */
static void seek_at_servers(struct sought *s, const struct roost_service *service) {
    const struct roost_engine *e = s->engine;
    const struct roost_endpoints *ends = &e->table.endpoints;
    if (e->hosts.hash.size && !roost_hosts_find(&s->engine->hosts, s->key.client))
        return;
    for (uint32_t i = 0; i < ends->slots && s->found < s->max; i++)
        if (ends->uses[i] && ends->entry[i].service == service->index && ends->entry[i].port == s->key.local_port)
            seek(s, ends->entry[i].address);
    for (const struct roost_conn *c = e->oldest; c && s->found < s->max; c = c->newer)
        if (c->service == service->index && c->key.client_port == s->key.client_port &&
            !memcmp(c->key.client, s->key.client, sizeof(s->key.client))) {
            s->key.local_port = c->key.local_port;
            seek(s, c->key.local);
        }
}

/* locals: count addresses, for services of every local one. */
static void seek_at_services(struct sought *s, const uint8_t *locals, uint32_t count) {
    bool v4 = roost_address_is_v4(s->key.client);
    for (int i = 0; i < s->engine->listeners && s->found < s->max; i++) {
        const struct roost_service *service = &s->engine->listener[i].service;
        bool every = roost_address_is_any(service->listen);
        if (roost_address_is_v4(service->listen) != v4)
            continue;
        s->key.local_port = htons(service->listen_port);
        if (every && service->transparent) {
            if (s->look == find) /* a router's clients keep their slots */
                seek_at_servers(s, service);
            continue;
        }
        const uint8_t *candidates = every ? locals : service->listen;
        for (uint32_t j = 0; j < (every ? count : 1); j++)
            if (roost_address_is_v4(candidates + j * sizeof(s->key.local)) == v4)
                seek(s, candidates + j * sizeof(s->key.local));
    }
}

uint32_t roost_find_client(roost_engine *e, const uint8_t client[16], uint16_t port, const uint8_t *locals,
                           uint32_t count, int one, struct roost_event *events, uint32_t max) {
    struct sought s = {.engine = e, .key = {.client_port = htons(port)}, .look = find, .events = events};
    memcpy(s.key.client, client, sizeof(s.key.client));
    s.max = one && max ? 1 : max < KNOWN_MAX ? max : KNOWN_MAX;
    roost_lock(e);
    seek_at_services(&s, locals, count);
    if (!one || !s.found) {
        s.look = find_candidate;
        s.max = max;
        seek_at_services(&s, locals, count);
    }
    roost_unlock(e);
    return s.found;
}

int roost_find_peer(roost_engine *e, const struct roost_key *key, struct roost_record *record) {
    struct roost_ka *peer = NULL;
    roost_lock(e);
    struct roost_holder h = roost_whose(e, key);
    if (h.by != ROOST_BY_LEG && roost_is_pair(h.slot) && roost_table_has_rest(h.slot))
        peer = roost_table_peer(&e->table, h.slot, &record->key);
    if (peer) {
        record->ka = *peer;
        record->service = roost_table_service(&e->table, peer);
        record->rest = e->table.rest[peer->rest];
    }
    roost_unlock(e);
    return peer != NULL;
}

uint64_t roost_memory(roost_engine *e) {
    return roost_datapath_memory(&e->path) + roost_survey_memory(&e->survey);
}

void roost_stop(roost_engine *e) {
    if (!e->started)
        return;
    roost_lock(e);
    e->stopping = true;
    roost_unlock(e);
    kick(e);
    pthread_join(e->thread, NULL);
    roost_workers_stop(&e->workers);
    roost_grace_stop(e);
    roost_growth_stop(e);
    e->started = false;
}

int roost_unpin(const char *pin_dir, struct roost_reason *why) {
    return roost_datapath_unpin(pin_dir, why);
}

int roost_enter_namespace(const char *pin_dir, struct roost_reason *why) {
    int place = roost_datapath_enter(pin_dir, why);
    return place < 0 ? place : place != ROOST_NAMESPACE_GONE;
}

int roost_foreign_xdp(const char *ifname, const char *pin_dir, struct roost_reason *why) {
    return roost_datapath_find_foreign(ifname, pin_dir, why);
}

int roost_pin_dir(const char *pin_dir, struct roost_reason *why) {
    return roost_make_pin_dir(pin_dir, why);
}

void roost_close(roost_engine *e) {
    if (!e)
        return;
    roost_stop(e);
    roost_stop_listening(e);
    roost_attach_close(e);
    while (e->oldest) {
        struct roost_conn *c = e->oldest;
        /* On its way to wake: it sleeps on, and is answered for. On its way to sleep: its socket ends here, and no
         * slot may swallow what the client has to say to that. */
        struct roost_ka *slots[] = {c->slot, c->server_slot};
        for (int i = 0; i < 2; i++) {
            if (c->phase == ROOST_THAWING && slots[i])
                roost_table_set_phase(slots[i], ROOST_IS_STORED(slots[i]->rest) ? ROOST_SLEEP : ROOST_IDLE);
            else if (c->phase == ROOST_MARKED && slots[i])
                roost_table_remove(&e->table, slots[i]);
        }
        if (c->client.fd >= 0) {
            roost_births_ended(e, &c->key, c->id);
            close(c->client.fd);
        }
        if (c->server.fd >= 0)
            close(c->server.fd);
        if (c->server_waits)
            roost_waiting_drop(c->server_waits);
        c->queued = 0;
        roost_conn_forget(e, c);
    }
    for (struct roost_conn *c = e->dead; c; c = c->next_dead)
        c->queued = 0; /* the queues end here, too */
    roost_conns_free_dead(e);
    roost_spares_close(&e->spares);
    roost_survey_close(&e->survey);
    if (e->path.births_cookies)
        e->path.births_cookies->running = 0;
    roost_datapath_close(&e->path);
    roost_endpoints_free(&e->table.endpoints);
    roost_recall_close(e);
    roost_hosts_close(&e->hosts);
    roost_rules_close(e);
    roost_tallies_free(e);
    roost_classes_free(&e->table.classes);
    roost_mailbox_destroy(&e->box);
    if (e->epoll_fd >= 0)
        close(e->epoll_fd);
    if (e->wake_fd >= 0)
        close(e->wake_fd);
    while (e->listings)
        roost_list_end(e, e->listings);
    roost_hash_free(&e->by_id);
    roost_hash_free(&e->by_key);
    free(e->rebuilt);
    free(e->link_ports_reserved);
    pthread_mutex_destroy(&e->lock.mutex);
    free(e);
}
