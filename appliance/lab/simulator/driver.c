// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "driver.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NS_A_S 1000000000ull
#define NS_A_MS 1000000ull
#define SPINS 200    /* looks at the counters, before sleeping */
#define NAP_NS 50000 /* between looks, when nothing may be sent */
#define NAPS 40
#define LONG_NAP_NS 500000 /* after so many of the short ones */
#define SWEEPS_A_TIMEOUT 4 /* how late a retransmission may be */
#define LEAST_SWEEP_NS 5000000ull
#define MAPS 7

struct simulator {
    struct bpf_object *object;
    struct bpf_link *link;
    int program_fd;
    int cpus;
    struct sim_config *config;
    struct sim_job *job;
    uint64_t *list;
    const struct sim_client *clients;
    struct sim_counters *counters; /* one of each processor */
    struct sim_offence *offences;
    uint8_t *pattern;
    pthread_mutex_t running; /* job and list belong to one run */
    struct {
        void *address;
        size_t size;
    } mapped[MAPS];
    int maps_mapped;
};

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * NS_A_S + (uint64_t)t.tv_nsec;
}

static void nap(uint64_t ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / NS_A_S), .tv_nsec = (long)(ns % NS_A_S)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static int quiet(enum libbpf_print_level level, const char *format, va_list args) {
    return getenv("ROOST_DEBUG_BPF") && level != LIBBPF_DEBUG ? vfprintf(stderr, format, args) : 0;
}

/* Opening */

static void *map_memory(struct simulator *s, const char *name, char *err, size_t err_len) {
    struct bpf_map *map = bpf_object__find_map_by_name(s->object, name);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t value = (bpf_map__value_size(map) + 7) / 8 * 8;
    size_t size = (value * bpf_map__max_entries(map) + page - 1) / page * page;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);
    if (memory == MAP_FAILED) {
        snprintf(err, err_len, "cannot map the simulator's %s, %zu bytes: %s", name, size, strerror(errno));
        return NULL;
    }
    s->mapped[s->maps_mapped].address = memory;
    s->mapped[s->maps_mapped++].size = size;
    return memory;
}

static bool map_all(struct simulator *s, char *err, size_t err_len) {
    return (s->config = map_memory(s, "sim_settings", err, err_len)) &&
           (s->job = map_memory(s, "sim_jobs", err, err_len)) && (s->list = map_memory(s, "sim_list", err, err_len)) &&
           (s->clients = map_memory(s, "sim_clients", err, err_len)) &&
           (s->counters = map_memory(s, "sim_counts", err, err_len)) &&
           (s->offences = map_memory(s, "sim_offences", err, err_len)) &&
           (s->pattern = map_memory(s, "sim_pattern", err, err_len));
}

static uint64_t scramble(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static void fill_pattern(uint8_t *pattern) {
    for (uint32_t i = 0; i < SIM_PATTERN / 8; i++) {
        uint64_t word = scramble(i);
        memcpy(pattern + i * 8, &word, 8);
    }
    memcpy(pattern + SIM_PATTERN, pattern, SIM_PATTERN_SLACK);
}

static const char *nonsense(const struct sim_config *c) {
    if (!c->clients || c->clients >= SIM_MORE || !c->addresses)
        return "there must be clients, fewer than 2,147,483,648, and addresses for them";
    if ((uint64_t)c->addresses * (65536u - c->first_port) < c->clients)
        return "too few addresses and ports for so many clients";
    if (!c->segment || c->segment > SIM_MAX_SEGMENT)
        return "a segment has 1 to 1448 bytes";
    return NULL;
}

struct simulator *sim_open(const char *object, const struct sim_config *config, char *err, size_t err_len) {
    const char *why = nonsense(config);
    struct simulator *s = calloc(1, sizeof(*s));
    int e;
    if (!s || why) {
        snprintf(err, err_len, "%s", why ? why : "no memory");
        free(s);
        return NULL;
    }
    pthread_mutex_init(&s->running, NULL);
    libbpf_set_print(quiet);
    s->cpus = libbpf_num_possible_cpus();
    if (s->cpus < 1 || s->cpus > SIM_MAX_CPUS) {
        snprintf(err, err_len, "the simulator knows 1 to %d processors, not %d", SIM_MAX_CPUS, s->cpus);
        goto failed;
    }
    s->object = bpf_object__open_file(object, NULL);
    if (!s->object) {
        snprintf(err, err_len, "cannot open the BPF object %s: %s (was `roost` set up?)", object, strerror(errno));
        goto failed;
    }
    bpf_map__set_max_entries(bpf_object__find_map_by_name(s->object, "sim_clients"), config->clients);
    if ((e = bpf_object__load(s->object))) {
        snprintf(err, err_len, "cannot load %s with %u clients: %s (ROOST_DEBUG_BPF=1 shows the verifier's log)",
                 object, config->clients, strerror(-e));
        goto failed;
    }
    if (!map_all(s, err, err_len))
        goto failed;
    *s->config = *config;
    fill_pattern(s->pattern);
    struct bpf_program *program = bpf_object__find_program_by_name(s->object, "roost_simulator");
    s->program_fd = bpf_program__fd(program);
    s->link = bpf_program__attach_xdp(program, (int)config->ifindex);
    if (!s->link) {
        snprintf(err, err_len, "cannot attach the simulator to interface %u: %s (is there a program already?)",
                 config->ifindex, strerror(errno));
        goto failed;
    }
    return s;
failed:
    sim_close(s);
    return NULL;
}

void sim_close(struct simulator *s) {
    bpf_link__destroy(s->link);
    for (int i = 0; i < s->maps_mapped; i++)
        munmap(s->mapped[i].address, s->mapped[i].size);
    bpf_object__close(s->object);
    pthread_mutex_destroy(&s->running);
    free(s);
}

/* Reading */

static uint64_t count_of(const struct simulator *s, uint32_t counter) {
    uint64_t sum = 0;
    for (int cpu = 0; cpu < s->cpus; cpu++)
        sum += __atomic_load_n(&s->counters[cpu].n[counter], __ATOMIC_RELAXED);
    return sum;
}

void sim_count(const struct simulator *s, uint64_t *counters) {
    for (uint32_t i = 0; i < SIM_COUNTERS; i++)
        counters[i] = count_of(s, i);
}

void sim_census(const struct simulator *s, uint32_t from, uint32_t count, uint64_t *states) {
    memset(states, 0, SIM_STATES * sizeof(*states));
    for (uint32_t i = from; i < from + count && i < s->config->clients; i++) {
        uint32_t state = SIM_STATE(__atomic_load_n(&s->clients[i].ctl, __ATOMIC_RELAXED));
        if (state < SIM_STATES)
            states[state]++;
    }
}

void sim_client_at(const struct simulator *s, uint32_t index, struct sim_client *client) {
    *client = s->clients[index];
}

bool sim_offence_of(const struct simulator *s, uint32_t counter, struct sim_offence *offence) {
    *offence = s->offences[counter - SIM_FIRST_OFFENCE];
    return offence->taken;
}

void sim_forget_offences(struct simulator *s) {
    for (int cpu = 0; cpu < s->cpus; cpu++)
        memset(&s->counters[cpu].n[SIM_FIRST_OFFENCE], 0, SIM_OFFENCES * sizeof(uint64_t));
    for (uint32_t i = 0; i < SIM_OFFENCES; i++)
        __atomic_store_n(&s->offences[i].taken, 0, __ATOMIC_RELEASE);
}

static uint32_t mix(uint32_t x) { /* as in simulator.bpf.c */
    x ^= x >> 16;
    x *= 0x85ebca6b;
    x ^= x >> 13;
    x *= 0xc2b2ae35;
    return x ^ x >> 16;
}

uint32_t sim_tsval(const struct simulator *s, uint32_t index, uint32_t ms) {
    return (ms + mix(index ^ s->config->secret ^ 0x5bd1e995)) ?: 1;
}

void sim_pattern(const struct simulator *s, uint32_t index, uint32_t position, uint8_t *bytes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = s->pattern[(position + i + index * 40503) % SIM_PATTERN];
}

struct sim_config *sim_settings(const struct simulator *s) {
    return s->config;
}

/* Sending */

/* One run of count <= SIM_RUN frames. list: the clients, or NULL for job->first, job->first + 1, ... In *job is
 * afterwards how far it came. 0 or -errno. */
static int run(struct simulator *s, struct sim_job *job, const uint32_t *list, uint32_t count) {
    /* Shorter than any frame that is sent, so that the program changes the length of each. The kernel takes a frame's
     * length anew only then, and its pages come back with the length that the last receiver gave them. */
    uint8_t frame[SIM_LIVE_FRAME] = {0};
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame, .data_size_in = sizeof(frame), .repeat = (int)count,
                .batch_size = SIM_BATCH, .flags = BPF_F_TEST_XDP_LIVE_FRAMES);
    job->next = 0;
    job->use_list = list != NULL;
    job->processors = (uint32_t)s->cpus;
    pthread_mutex_lock(&s->running);
    *s->job = *job;
    for (uint32_t i = 0; list && i < count; i++)
        s->list[i] = list[i];
    int e = bpf_prog_test_run_opts(s->program_fd, &options) ? -errno : 0;
    if (e == -EINTR) /* a signal ends a run between two frames, as a lack of room does */
        e = 0;
    *job = *s->job;
    pthread_mutex_unlock(&s->running);
    return e;
}

/* Whether something of a client is not answered. */
static bool unanswered(const struct sim_client *c) {
    uint32_t state = SIM_STATE(c->ctl), flags = SIM_FLAGS(c->ctl);
    if (state == SIM_SYN_SENT)
        return true;
    if (state < SIM_ESTABLISHED || state > SIM_LAST_ACK)
        return false;
    return flags & SIM_F_PROBED || c->snd_una != c->snd_nxt || (flags & SIM_F_ASKING && c->unsent);
}

struct sweep {
    struct simulator *s;
    uint32_t rto_ms, tries, now_ms;
    uint32_t again[SIM_BATCH], give_up[SIM_BATCH];
    uint32_t agains, give_ups;
    int64_t sent;
};

static int flush(struct sweep *sweep) {
    struct sim_job again = {.action = SIM_AGAIN, .in_flight = UINT32_MAX};
    struct sim_job give_up = {.action = SIM_GIVE_UP, .in_flight = UINT32_MAX, .tries = sweep->tries};
    int e = 0;
    if (sweep->agains)
        e = run(sweep->s, &again, sweep->again, sweep->agains);
    if (!e && sweep->give_ups)
        e = run(sweep->s, &give_up, sweep->give_up, sweep->give_ups);
    sweep->sent += sweep->agains;
    sweep->agains = sweep->give_ups = 0;
    return e;
}

/* Looks at a client: *open says whether it waits for something. 0 or -errno. */
static int sweep_client(struct sweep *sweep, uint32_t index, bool *open) {
    const struct sim_client *c = &sweep->s->clients[index];
    uint32_t retries = SIM_RETRIES(__atomic_load_n(&c->ctl, __ATOMIC_RELAXED));
    *open = unanswered(c);
    if (!*open || (int32_t)(sweep->now_ms - c->sent_ms) < (int32_t)(sweep->rto_ms << (retries < 8 ? retries : 8)))
        return 0;
    if (retries >= sweep->tries)
        sweep->give_up[sweep->give_ups++] = index;
    else
        sweep->again[sweep->agains++] = index;
    return sweep->agains == SIM_BATCH || sweep->give_ups == SIM_BATCH ? flush(sweep) : 0;
}

static uint32_t client_of(const struct sim_phase *p, uint32_t nth) {
    return p->list ? p->list[nth] : p->first + nth;
}

/* Retransmissions, or -errno. */
static int64_t sweep_phase(struct simulator *s, struct sim_phase *p, uint64_t now_ns) {
    struct sweep sweep = {.s = s, .rto_ms = p->rto_ms, .tries = p->tries, .now_ms = (uint32_t)(now_ns / NS_A_MS)};
    bool all_closed = true, open;
    int e = 0;
    for (uint32_t i = p->swept; i < p->offered && !e; i++) {
        e = sweep_client(&sweep, client_of(p, i), &open);
        all_closed = all_closed && !open;
        if (all_closed)
            p->swept = i + 1; /* those before need not be looked at again */
    }
    if (!e)
        e = flush(&sweep);
    return e ? e : sweep.sent;
}

int64_t sim_tend(struct simulator *s, uint32_t rto_ms, uint32_t tries) {
    struct sim_phase everybody = {.offered = s->config->clients, .rto_ms = rto_ms, .tries = tries};
    return sweep_phase(s, &everybody, clock_ns(CLOCK_MONOTONIC));
}

int64_t sim_spoof(struct simulator *s, uint32_t action, uint32_t first, uint32_t count, uint32_t at, double rate,
                  uint32_t ms) {
    uint64_t began = clock_ns(CLOCK_MONOTONIC), now = began, end = began + ms * NS_A_MS;
    struct sim_job job = {.action = action, .in_flight = UINT32_MAX};
    int64_t sent = 0;
    int e = 0;
    for (; !e && now < end; now = clock_ns(CLOCK_MONOTONIC)) {
        uint32_t frames = count - at < SIM_RUN ? count - at : SIM_RUN;
        double due = (double)(now - began) / NS_A_S * rate - (double)sent;
        if (rate > 0 && due < frames) {
            nap(NAP_NS);
            continue;
        }
        job.first = first + at;
        job.begun = 0;
        e = run(s, &job, NULL, frames);
        sent += frames;
        at = at + frames < count ? at + frames : 0;
    }
    return e ? e : sent;
}

/* The counters that say what became of the clients of a phase: done, lost, and then refused or cut. */
static const uint32_t settling[SIM_ACTIONS][SIM_SETTLING] = {
    [SIM_CONNECT] = {SIM_N_ESTABLISHED, SIM_N_LOST_CONNECTING, SIM_N_REFUSED, SIM_COUNTERS},
    [SIM_PROBE] = {SIM_N_ANSWERED, SIM_N_LOST_PROBED, SIM_COUNTERS, SIM_N_CUT_PROBES},
    [SIM_SAY] = {SIM_N_SPOKEN, SIM_N_LOST_ASKING, SIM_COUNTERS, SIM_N_CUT_ASKING},
    [SIM_FINISH] = {SIM_N_CLOSED, SIM_N_LOST_ENDING, SIM_COUNTERS, SIM_COUNTERS},
    [SIM_ABORT] = {SIM_N_CLOSED, SIM_N_LOST_ENDING, SIM_COUNTERS, SIM_COUNTERS},
};

static uint64_t settled_by(const struct simulator *s, const struct sim_phase *p, int which) {
    uint32_t counter = settling[p->action][which];
    return counter < SIM_COUNTERS ? count_of(s, counter) : 0;
}

void sim_phase_begin(struct simulator *s, struct sim_phase *p) {
    p->begun = p->done = p->refused = p->cut = p->lost = p->skipped = p->retransmitted = 0;
    p->elapsed_ns = p->cpu_ns = 0;
    p->offered = p->swept = 0;
    for (int i = 0; i < SIM_SETTLING; i++)
        p->base[i] = settled_by(s, p, i);
    p->base_retransmitted = count_of(s, SIM_N_RETRANSMITTED);
    p->began_ns = clock_ns(CLOCK_MONOTONIC);
    p->sweep_due_ns = p->began_ns + p->rto_ms * NS_A_MS;
}

static uint64_t outstanding(const struct simulator *s, struct sim_phase *p) {
    p->done = settled_by(s, p, 0) - p->base[0];
    p->lost = settled_by(s, p, 1) - p->base[1];
    p->refused = settled_by(s, p, 2) - p->base[2];
    p->cut = settled_by(s, p, 3) - p->base[3];
    uint64_t settled = p->done + p->refused + p->cut + p->lost;
    return p->begun > settled ? p->begun - settled : 0;
}

/* Sets up to count clients going, as many as may wait. 0 or -errno. */
static int offer(struct simulator *s, struct sim_phase *p, uint32_t count) {
    struct sim_job job = {.action = p->action,
                          .first = p->first + p->offered,
                          .say = p->say,
                          .answer = p->answer,
                          .in_flight = p->in_flight,
                          .begun = (uint32_t)p->begun};
    uint32_t segments = p->action == SIM_SAY && p->say > s->config->segment
                            ? (p->say + s->config->segment - 1) / s->config->segment
                            : 1;
    uint32_t frames[SIM_RUN], filled = 0;
    int e;
    memcpy(job.settling, settling[p->action], sizeof(job.settling));
    for (int i = 0; i < SIM_SETTLING; i++)
        job.base += (uint32_t)p->base[i];
    job.settled = (uint32_t)(p->done + p->refused + p->cut + p->lost);
    if (segments == 1) {
        e = run(s, &job, p->list ? p->list + p->offered : NULL, count);
    } else {
        if (count > SIM_RUN / segments)
            count = SIM_RUN / segments ? SIM_RUN / segments : 1;
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t segment = 0; segment < segments && filled < SIM_RUN; segment++)
                frames[filled++] = client_of(p, p->offered + i) | (segment ? SIM_MORE : 0);
        e = run(s, &job, frames, filled);
    }
    /* When frames were dropped for lack of room the run ends in the middle of what a client says: the rest follows as
     * the peer acknowledges. */
    uint32_t offered = (job.next + segments - 1) / segments, begun = job.begun - (uint32_t)p->begun;
    p->offered += offered;
    p->begun += begun;
    p->skipped += offered - begun;
    return e;
}

/* How many clients may be set going now. */
static uint32_t allowed(const struct sim_phase *p, uint64_t waiting, uint64_t now_ns) {
    uint64_t count = p->count - p->offered;
    if (count > SIM_RUN) /* a frame for which there is no room costs little, and setting a run up much */
        count = SIM_RUN;
    if (p->rate > 0) {
        double due = (double)(now_ns - p->began_ns) / NS_A_S * p->rate - p->offered;
        if (due < (double)count)
            count = due > 0 ? (uint64_t)due : 0;
    }
    return waiting < p->in_flight ? (uint32_t)count : 0;
}

int sim_phase_step(struct simulator *s, struct sim_phase *p, uint32_t slice_ms) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC), end = now + slice_ms * NS_A_MS, cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    uint32_t idle = 0;
    int e = 0;
    for (; !e && now < end; now = clock_ns(CLOCK_MONOTONIC)) {
        uint64_t waiting = outstanding(s, p);
        uint32_t count = allowed(p, waiting, now);
        if (p->offered == p->count && !waiting) {
            e = 1;
        } else if (now >= p->sweep_due_ns) {
            uint64_t pause = p->rto_ms * NS_A_MS / SWEEPS_A_TIMEOUT;
            int64_t sent = sweep_phase(s, p, now);
            e = sent < 0 ? (int)sent : 0;
            p->sweep_due_ns = now + (pause > LEAST_SWEEP_NS ? pause : LEAST_SWEEP_NS);
        } else if (count) {
            e = offer(s, p, count);
            idle = 0;
        } else if (++idle < SPINS && !(p->rate > 0)) {
            sched_yield(); /* to the thread that receives the answers, if this is its processor */
        } else {
            nap(idle > SPINS + NAPS ? LONG_NAP_NS : NAP_NS);
        }
    }
    p->elapsed_ns = now - p->began_ns;
    p->cpu_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    p->retransmitted = count_of(s, SIM_N_RETRANSMITTED) - p->base_retransmitted;
    return e;
}
