// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "datapath.h"

#include "cext/table/filter.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIN_ENDPOINTS 1024
#define MIN_CONNECTED 1024
#define MIN_STRANGERS 1024 /* false positives of the filter: one in 430 of those awake, and of a flood */
#define MAX_STRANGERS 16384

_Static_assert(ROOST_FILTER_INTERFACES >= ROOST_MAX_INTERFACES, "each interface has its place");

static int quiet(enum libbpf_print_level level, const char *format, va_list args) {
    static int debug = -1;
    if (debug < 0)
        debug = getenv("ROOST_DEBUG_BPF") != NULL;
    return debug && level != LIBBPF_DEBUG ? vfprintf(stderr, format, args) : 0;
}

/* Takes the pinned map of that name instead of a new one. 1 adopted, 0 none there, or -errno. */
static int adopt_map(struct roost_datapath *d, struct bpf_map *map, struct roost_reason *why) {
    char path[320];
    struct bpf_map_info info = {0};
    __u32 size = sizeof(info);
    roost_pin_path(d->pin_dir, bpf_map__name(map), path, sizeof(path));
    int fd = bpf_obj_get(path);
    if (fd < 0)
        return errno == ENOENT ? 0 : roost_complain(why, errno, "cannot open %s: %m", path);
    int e = bpf_obj_get_info_by_fd(fd, &info, &size) ? -errno : 0;
    if (!e && (info.type != bpf_map__type(map) || info.value_size != bpf_map__value_size(map)))
        e = roost_complain_of_version(path, why);
    if (!e && bpf_map__set_max_entries(map, info.max_entries))
        e = -errno;
    if (!e && bpf_map__reuse_fd(map, fd))
        e = -errno;
    close(fd);
    return e ? e : 1;
}

static uint32_t entries(int fd) {
    struct bpf_map_info info = {0};
    __u32 size = sizeof(info);
    return bpf_obj_get_info_by_fd(fd, &info, &size) ? 0 : info.max_entries;
}

/* A server or service has many connections, mostly; a router's clients may have called many servers. */
static uint32_t entries_of_endpoints(const struct roost_sizes *sizes) {
    uint64_t slots = ((uint64_t)sizes->ipv4_slots + sizes->ipv6_slots) / 16;
    return slots < MIN_ENDPOINTS ? MIN_ENDPOINTS : slots > ROOST_MAX_ENDPOINTS ? ROOST_MAX_ENDPOINTS : (uint32_t)slots;
}

/* They cost 64 bytes each: an eighth of a byte a sleeper. */
static uint32_t entries_of_strangers(const struct roost_sizes *sizes) {
    uint32_t share = sizes->filter_slots / 512;
    if (!sizes->filter_slots)
        return 1;
    return share < MIN_STRANGERS ? MIN_STRANGERS : share > MAX_STRANGERS ? MAX_STRANGERS : share;
}

/* Buckets; there is no map without any, so one stands for none. */
static uint32_t entries_of_filter(const struct roost_sizes *sizes) {
    uint32_t buckets = roost_filter_buckets(sizes->filter_slots);
    return sizes->filter_slots && buckets < 2 ? 2 : buckets ? buckets : 1;
}

/* An eighth of a byte for each slot; of many connections a source seems to have up to some 64 more than it has. */
static uint32_t entries_of_connected(const struct roost_sizes *sizes) {
    uint64_t slots = ((uint64_t)sizes->ipv4_slots + sizes->ipv6_slots) / 64;
    uint32_t entries = MIN_CONNECTED;
    while (entries < slots)
        entries *= 2;
    return entries;
}

static uint32_t entries_of_ring(const struct roost_sizes *sizes) {
    return sizes->ring_bytes;
}

#define SIZE_FIXED(name) NULL
#define SIZE_CONFIGURED(name) entries_of_##name
#define IS_PINNED true
#define IS_OWN false
#define AT_PLAIN(name) 0
#define AT_GROWING(name) 0
#define AT_MAPPED(name) offsetof(struct roost_datapath, name)
#define ROW(name, kind, contents, entries, size, life, memory) {#name, SIZE_##size(name), IS_##life, AT_##memory(name)},

static const struct row {
    const char *name;
    uint32_t (*entries)(const struct roost_sizes *); /* NULL: as many as the program says */
    bool pinned;
    size_t pointer; /* to its memory: where that is in struct roost_datapath; 0: it is not mapped */
} rows[ROOST_MAP_COUNT] = {ROOST_DATAPATH_MAPS(ROW)};

static int index_of(const struct bpf_map *map) {
    for (int i = 0; i < ROOST_MAP_COUNT; i++)
        if (!strcmp(rows[i].name, bpf_map__name(map)))
            return i;
    return -1;
}

/* An empty filter is made anew when another size is asked for. It cannot grow: its members have no keys. */
static int renew_filter(const struct roost_datapath *d, const struct roost_sizes *sizes, struct roost_reason *why) {
    static const char *const names[] = {"filter", "strangers"};
    struct roost_filter_gate gate = {0};
    char path[320];
    __u32 zero = 0;
    roost_pin_path(d->pin_dir, "filter_gate", path, sizeof(path));
    int fd = bpf_obj_get(path);
    if (fd >= 0) {
        bpf_map_lookup_elem(fd, &zero, &gate);
        close(fd);
    }
    roost_pin_path(d->pin_dir, "filter", path, sizeof(path));
    fd = gate.buckets ? -1 : bpf_obj_get(path);
    bool fits = fd < 0 || entries(fd) == entries_of_filter(sizes);
    if (fd >= 0)
        close(fd);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !fits; i++) {
        roost_pin_path(d->pin_dir, names[i], path, sizeof(path));
        if (unlink(path) && errno != ENOENT)
            return roost_complain(why, errno, "cannot remove %s: %m", path);
    }
    return 0;
}

static void *map_memory(struct roost_datapath *d, int fd, size_t size, struct roost_reason *why) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size = (size + page - 1) / page * page;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        roost_complain(why, errno, "cannot map a table of %zu bytes: %m", size);
        return NULL;
    }
    d->mapped[d->maps_mapped].address = memory;
    d->mapped[d->maps_mapped++].size = size;
    return memory;
}

/* Pins a loaded map that is to be pinned, and maps its memory. 0 or -errno. */
static int begin_map(struct roost_datapath *d, struct bpf_map *map, int i, struct roost_reason *why) {
    char pin[320];
    int e;
    roost_pin_path(d->pin_dir, rows[i].name, pin, sizeof(pin));
    if (rows[i].pinned && access(pin, F_OK) && (e = bpf_map__pin(map, pin)))
        return roost_complain(why, e, "cannot pin %s: %m", pin);
    d->map_fd[i] = bpf_map__fd(map);
    void **memory = (void **)((char *)d + rows[i].pointer);
    if (!rows[i].pointer || *memory) /* shared with a program that was loaded before */
        return 0;
    size_t value = (bpf_map__value_size(map) + 7) / 8 * 8;
    *memory = map_memory(d, d->map_fd[i], value * bpf_map__max_entries(map), why);
    return *memory ? 0 : -ENOMEM;
}

/* Opens, shares maps by their pins, loads, pins what is new. */
int roost_datapath_load(struct roost_datapath *d, const char *bpf_dir, const char *file,
                        const struct roost_sizes *sizes, struct bpf_object **object, struct roost_reason *why) {
    char path[512];
    struct bpf_map *map;
    int e;
    snprintf(path, sizeof(path), "%s/%s.bpf.o", bpf_dir, file);
    struct bpf_object *o = bpf_object__open_file(path, NULL);
    if (!o)
        return roost_complain(why, errno, "cannot open the BPF object %s: %m (was `roost` set up?)", path);
    *object = o;
    bpf_object__for_each_map(map, o) {
        int i = index_of(map);
        if (i < 0)
            continue;
        if ((e = rows[i].pinned ? adopt_map(d, map, why) : 0) < 0)
            return e;
        if (!e && rows[i].entries && bpf_map__set_max_entries(map, rows[i].entries(sizes)))
            return roost_complain(why, errno, "cannot set the size of %s: %m", rows[i].name);
    }
    if ((e = bpf_object__load(o))) {
        if (e == -EPERM)
            return roost_complain(why, e,
                                  "the kernel refuses to load BPF programs: run as root (CAP_BPF, "
                                  "CAP_NET_ADMIN)");
        return roost_complain(why, e, "cannot load %s: %m (ROOST_DEBUG_BPF=1 shows the verifier's log)", path);
    }
    bpf_object__for_each_map(map, o) {
        int i = index_of(map);
        if (i >= 0 && (e = begin_map(d, map, i, why)))
            return e;
    }
    return 0;
}

static int outer_of(const struct roost_datapath *d, bool v4) {
    return d->map_fd[v4 ? ROOST_MAP_tables4 : ROOST_MAP_tables6];
}

static size_t bucket_size(bool v4) {
    return v4 ? sizeof(struct roost_bucket4) : sizeof(struct roost_bucket6);
}

int roost_datapath_make_generation(const struct roost_datapath *d, bool v4, uint32_t buckets,
                                   struct roost_reason *why) {
    LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = BPF_F_MMAPABLE | BPF_F_INNER_MAP);
    int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, v4 ? "table4" : "table6", sizeof(__u32), (__u32)bucket_size(v4),
                            buckets, &options);
    return fd < 0 ? roost_complain(why, errno, "cannot make a table of %u buckets: %m", buckets) : fd;
}

/* A map for a generation of a table, in its place; its descriptor, or -errno. */
static int place_generation(struct roost_datapath *d, bool v4, uint32_t which, int fd, struct roost_reason *why) {
    if (fd < 0 || !bpf_map_update_elem(outer_of(d, v4), &which, &fd, BPF_ANY))
        return fd;
    int e = errno;
    close(fd);
    return roost_complain(why, e, "cannot put a table in its place: %m");
}

static int forget_fd(int fd) {
    return fd < 0 ? fd : close(fd);
}

static int open_generation(const struct roost_datapath *d, bool v4, uint32_t which, struct roost_reason *why) {
    __u32 id;
    int fd = bpf_map_lookup_elem(outer_of(d, v4), &which, &id) ? -1 : bpf_map_get_fd_by_id(id);
    return fd < 0 ? roost_complain(why, errno, "cannot open the table: %m") : fd;
}

/* Maps a generation's memory; its descriptor is closed: the outer map keeps it. */
static int begin_generation(struct roost_datapath *d, struct roost_table *t, bool v4, uint32_t which, int fd,
                            uint32_t buckets, struct roost_reason *why) {
    void *memory = map_memory(d, fd, (size_t)buckets * bucket_size(v4), why);
    close(fd);
    if (!memory)
        return -ENOMEM;
    roost_table_begin(t, v4, which, memory, buckets);
    return 0;
}

static int new_table(struct roost_datapath *d, struct roost_table *t, bool v4, uint32_t slots,
                     struct roost_reason *why) {
    uint32_t buckets = slots ? (slots + ROOST_BUCKET_SLOTS - 1) / ROOST_BUCKET_SLOTS : 1;
    int fd = roost_datapath_make_generation(d, v4, buckets, why);
    fd = place_generation(d, v4, 0, fd, why);
    return fd < 0 ? fd : begin_generation(d, t, v4, 0, fd, buckets, why);
}

/* The generations that config says are in use: the previous first, as when the current one came. */
static int adopt_table(struct roost_datapath *d, struct roost_table *t, bool v4, struct roost_reason *why) {
    struct roost_generations found = v4 ? t->config.v4 : t->config.v6;
    memset(v4 ? &t->config.v4 : &t->config.v6, 0, sizeof(found));
    uint32_t order[2], count = 0;
    if (ROOST_PREVIOUS(found.in_use))
        order[count++] = (ROOST_PREVIOUS(found.in_use) - 1) % ROOST_GENERATIONS;
    order[count++] = ROOST_CURRENT(found.in_use) % ROOST_GENERATIONS;
    for (uint32_t i = 0; i < count; i++) {
        int fd = open_generation(d, v4, order[i], why);
        int e = fd < 0 ? fd : begin_generation(d, t, v4, order[i], fd, entries(fd), why);
        if (e)
            return e;
    }
    return 0;
}

static int tell_config(struct roost_datapath *d, const struct roost_table *t, struct roost_reason *why) {
    __u32 zero = 0;
    return bpf_map_update_elem(d->map_fd[ROOST_MAP_config], &zero, &t->config, 0)
               ? roost_complain(why, errno, "cannot write the config map: %m")
               : 0;
}

int roost_datapath_use_generation(struct roost_datapath *d, struct roost_table *t, bool v4, uint32_t which, int fd,
                                  uint32_t buckets, struct roost_reason *why) {
    struct roost_config config = t->config;
    __u32 zero = 0;
    /* How large it is, before a look-up goes there. */
    (v4 ? &config.v4 : &config.v6)->buckets[which] = buckets;
    fd = place_generation(d, v4, which, fd, why);
    if (fd < 0)
        return fd;
    if (bpf_map_update_elem(d->map_fd[ROOST_MAP_config], &zero, &config, 0)) {
        int e = errno;
        close(fd);
        return roost_complain(why, e, "cannot write the config map: %m");
    }
    int e = begin_generation(d, t, v4, which, fd, buckets, why);
    if (!e)
        e = tell_config(d, t, why);
    if (e)
        return e;
    /* A program that runs with the earlier configuration looks into the old one alone, and would miss what is moved. The
     * kernel returns from a change to a map of maps when no program is running any more that began before it. */
    fd = open_generation(d, v4, which, why);
    return fd < 0 ? fd : forget_fd(place_generation(d, v4, which, fd, why));
}

void roost_datapath_end_previous(struct roost_datapath *d, struct roost_table *t, bool v4) {
    uint32_t which;
    void *memory = roost_table_end_previous(t, v4, &which);
    tell_config(d, t, NULL);                      /* else XDP looks into an empty table first, that is all */
    bpf_map_delete_elem(outer_of(d, v4), &which); /* returns when no program looks into it any more */
    for (int i = 0; i < d->maps_mapped; i++) {
        if (d->mapped[i].address != memory)
            continue;
        munmap(memory, d->mapped[i].size);
        d->mapped[i] = d->mapped[--d->maps_mapped];
        return;
    }
}

/* Of roost_datapath.stranger_bloom: which word has a hash's bit, and the bit. */
static uint32_t stranger_word(uint64_t hash) {
    return (uint32_t)(hash / 64 % ROOST_STRANGER_WORDS);
}

static uint64_t stranger_bit(uint64_t hash) {
    return 1ULL << hash % 64;
}

/* Those that the map knows. */
static void note_strangers(struct roost_datapath *d) {
    __u64 hash, *after = NULL;
    memset(d->stranger_bloom, 0, sizeof(d->stranger_bloom));
    d->stranger_bits = 0;
    while (!bpf_map_get_next_key(d->map_fd[ROOST_MAP_strangers], after, &hash)) {
        d->stranger_bits += !(d->stranger_bloom[stranger_word(hash)] & stranger_bit(hash));
        d->stranger_bloom[stranger_word(hash)] |= stranger_bit(hash);
        after = &hash;
    }
}

static void open_filter(struct roost_datapath *d) {
    uint32_t buckets = entries(d->map_fd[ROOST_MAP_filter]);
    d->filter_buckets = buckets > 1 ? buckets : 0;
    d->connected_entries = entries(d->map_fd[ROOST_MAP_connected]);
    note_strangers(d);
}

static int open_tables(struct roost_datapath *d, struct roost_table *t, const struct roost_sizes *sizes,
                       struct roost_reason *why) {
    __u32 zero = 0;
    int e;
    memset(t, 0, sizeof(*t));
    if (bpf_map_lookup_elem(d->map_fd[ROOST_MAP_config], &zero, &t->config))
        return roost_complain(why, errno, "cannot read the config map: %m");
    if (!t->config.v6.buckets[ROOST_CURRENT(t->config.v6.in_use)]) { /* new: there was no engine before this one */
        if (getrandom(t->config.seed, sizeof(t->config.seed), 0) != sizeof(t->config.seed) ||
            getrandom(t->config.secret, sizeof(t->config.secret), 0) != sizeof(t->config.secret))
            return roost_complain(why, EIO, "no random seed from the kernel");
        memset(d->filter, 0, (size_t)entries(d->map_fd[ROOST_MAP_filter]) * sizeof(*d->filter)); /* of another seed */
        memset(d->filter_gate, 0, sizeof(*d->filter_gate));
        if ((e = new_table(d, t, true, sizes->ipv4_slots, why)) ||
            (e = new_table(d, t, false, sizes->ipv6_slots, why)) || (e = tell_config(d, t, why)))
            return e;
    } else if ((e = adopt_table(d, t, true, why)) || (e = adopt_table(d, t, false, why))) {
        return e;
    }
    memcpy(d->secret, t->config.secret, sizeof(d->secret));
    return 0;
}

/* What an earlier layout pinned under names of its own. */
static int refuse_old_pins(const char *pin_dir, struct roost_reason *why) {
    char path[320];
    snprintf(path, sizeof(path), "%s/table4", pin_dir);
    return access(path, F_OK) ? 0 : roost_complain_of_version(path, why);
}

int roost_datapath_open(struct roost_datapath *d, struct roost_table *t, const char *pin_dir, const char *bpf_dir,
                        const struct roost_sizes *sizes, ring_buffer_sample_fn on_frame, void *context,
                        struct roost_reason *why) {
    int e;
    memset(d, 0, sizeof(*d));
    for (int i = 0; i < ROOST_MAP_COUNT; i++)
        d->map_fd[i] = -1;
    d->raw4 = d->raw6 = d->closed_fd = d->inject_fd = d->connect_link[0] = d->connect_link[1] = -1;
    d->probes_live = ROOST_PROBES_LIVE;
    snprintf(d->pin_dir, sizeof(d->pin_dir), "%s", pin_dir);
    snprintf(d->bpf_dir, sizeof(d->bpf_dir), "%s", bpf_dir);
    libbpf_set_print(quiet);
    if ((e = roost_make_pin_dir(pin_dir, why)) || (e = roost_datapath_note_pins(d, why)) ||
        (e = refuse_old_pins(pin_dir, why)) || (e = renew_filter(d, sizes, why)) ||
        (e = roost_datapath_load(d, bpf_dir, "inactive", sizes, &d->inactive, why)) ||
        (e = roost_datapath_load(d, bpf_dir, "guard", sizes, &d->guard, why)) ||
        (e = roost_datapath_load(d, bpf_dir, "lookup", sizes, &d->lookup, why)) ||
        (e = roost_datapath_load(d, bpf_dir, "closed", sizes, &d->closed, why)) ||
        (e = roost_datapath_load(d, bpf_dir, "inject", sizes, &d->inject, why)) ||
        (e = roost_rests_open(&d->rests, d->pin_dir, sizes->idle_slots, why)) || (e = open_tables(d, t, sizes, why)))
        return e;
    d->closed_fd = bpf_program__fd(bpf_object__find_program_by_name(d->closed, "roost_closed"));
    d->inject_fd = bpf_program__fd(bpf_object__find_program_by_name(d->inject, "roost_inject"));

    t->rest = d->rests.base;
    t->rest_slots = d->rests.slots;
    d->out = d->outbox;
    open_filter(d);
    if (!d->births_gate->secret[0] &&
        getrandom(d->births_gate->secret, sizeof(d->births_gate->secret), 0) != sizeof(d->births_gate->secret))
        return roost_complain(why, EIO, "no random secret from the kernel");
    if ((e = roost_endpoints_init(&t->endpoints, d->endpoints, entries(d->map_fd[ROOST_MAP_endpoints]))))
        return roost_complain(why, -e, "out of memory");
    roost_classes_init(&t->classes, d->classes);
    d->ring = ring_buffer__new(d->map_fd[ROOST_MAP_ring], on_frame, context, NULL);
    if (!d->ring)
        return roost_complain(why, errno, "cannot open the ring buffer: %m");
    d->raw4 = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
    d->raw6 = socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
    if (d->raw4 < 0)
        return roost_complain(why, errno, "cannot open a raw socket (CAP_NET_RAW): %m");
    return roost_datapath_attach_lookup(d, why);
}

void roost_datapath_close(struct roost_datapath *d) {
    roost_datapath_undo(d);
    ring_buffer__free(d->ring);
    for (int i = 0; i < d->maps_mapped; i++)
        munmap(d->mapped[i].address, d->mapped[i].size);
    bpf_object__close(d->inactive);
    bpf_object__close(d->guard);
    bpf_object__close(d->lookup);
    bpf_object__close(d->closed);
    bpf_object__close(d->inject);
    bpf_object__close(d->steer);
    bpf_object__close(d->loopback);
    bpf_object__close(d->local_connect);
    roost_datapath_close_local_connect(d);
    roost_rests_close(&d->rests);
    if (d->raw4 >= 0)
        close(d->raw4);
    if (d->raw6 >= 0)
        close(d->raw6);
}

int roost_datapath_add_rests(struct roost_datapath *d, struct roost_table *t, int fd) {
    int e = roost_rests_add(&d->rests, d->pin_dir, fd);
    t->rest_slots = d->rests.slots;
    return e;
}

bool roost_datapath_is_stranger(const struct roost_datapath *d, uint64_t hash) {
    __u32 value;
    return d->stranger_bloom[stranger_word(hash)] & stranger_bit(hash) &&
           !bpf_map_lookup_elem(d->map_fd[ROOST_MAP_strangers], &hash, &value);
}

void roost_datapath_mark_stranger(struct roost_datapath *d, uint64_t hash, bool stranger) {
    __u32 value = 1;
    if (stranger) {
        d->stranger_bits += !(d->stranger_bloom[stranger_word(hash)] & stranger_bit(hash));
        if (d->stranger_bits > 64 * ROOST_STRANGER_WORDS / 2) /* of many keys that the map has evicted */
            note_strangers(d);
        d->stranger_bloom[stranger_word(hash)] |= stranger_bit(hash);
        bpf_map_update_elem(d->map_fd[ROOST_MAP_strangers], &hash, &value, BPF_ANY); /* fails: it is asked for again */
    } else if (d->stranger_bloom[stranger_word(hash)] & stranger_bit(hash)) {
        bpf_map_delete_elem(d->map_fd[ROOST_MAP_strangers], &hash);
    }
}

int roost_datapath_ring_fd(const struct roost_datapath *d) {
    return ring_buffer__epoll_fd(d->ring);
}

int roost_datapath_drain(struct roost_datapath *d) {
    return ring_buffer__consume(d->ring);
}

bool roost_datapath_generic(const struct roost_datapath *d, uint32_t ifindex) {
    for (int i = 0; i < d->interfaces; i++)
        if (d->interface[i].index == ifindex)
            return d->interface[i].generic;
    return false;
}

void roost_datapath_counters(const struct roost_datapath *d, uint64_t *values) {
    int cpus = libbpf_num_possible_cpus();
    uint64_t *each = calloc((size_t)(cpus > 0 ? cpus : 1), sizeof(*each));
    for (__u32 i = 0; i < ROOST_N_COUNT; i++) {
        values[i] = 0;
        if (!each || bpf_map_lookup_elem(d->map_fd[ROOST_MAP_counters], &i, each))
            continue;
        for (int c = 0; c < cpus; c++)
            values[i] += each[c];
    }
    free(each);
}

void roost_datapath_silences(const struct roost_datapath *d, uint32_t place, struct roost_silences *sum) {
    int cpus = libbpf_num_possible_cpus();
    _Static_assert(sizeof(*sum) % 8 == 0, "of each processor it gets a multiple of 8 bytes");
    struct roost_silences *each = calloc((size_t)(cpus > 0 ? cpus : 1), sizeof(*each));
    bool found = each && !bpf_map_lookup_elem(d->map_fd[ROOST_MAP_silences], &place, each);
    memset(sum, 0, sizeof(*sum));
    for (int c = 0; c < cpus && found; c++) {
        for (int i = 0; i < ROOST_SILENCES; i++)
            sum->spoke[i] += each[c].spoke[i];
        for (int i = 0; i < ROOST_ANSWERS; i++)
            sum->answered[i] += each[c].answered[i];
    }
    free(each);
}

uint64_t roost_datapath_memory(const struct roost_datapath *d) {
    uint64_t bytes = 0;
    const struct bpf_object *objects[] = {d->inactive, d->guard, d->lookup,   d->closed,
                                          d->inject,   d->steer, d->loopback, d->local_connect};
    for (int i = 0; i < ROOST_MAP_COUNT; i++)
        bytes += roost_bpf_memory(d->map_fd[i]);
    bytes += roost_rests_memory(&d->rests);
    for (__u32 n = 0; n < 2 * ROOST_GENERATIONS; n++) {
        bool v4 = n < ROOST_GENERATIONS;
        int fd = open_generation(d, v4, n % ROOST_GENERATIONS, NULL);
        if (fd < 0)
            continue; /* not in use */
        bytes += roost_bpf_memory(fd);
        close(fd);
    }
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
        struct bpf_program *program;
        if (!objects[i])
            continue;
        bpf_object__for_each_program(program, objects[i]) bytes += roost_bpf_memory(bpf_program__fd(program));
    }
    return bytes;
}
