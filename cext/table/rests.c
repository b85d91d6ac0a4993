// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "rests.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS_MAX (1u << 28)

static void pin_of(const char *pin_dir, int part, char *path, size_t size) {
    if (part)
        snprintf(path, size, "%s/rest-%d", pin_dir, part);
    else
        snprintf(path, size, "%s/rest", pin_dir);
}

static uint32_t slots_in_whole_pages(void) {
    uint32_t pages = (uint32_t)sysconf(_SC_PAGESIZE), slots = pages;
    while (slots % 2 == 0 && (uint64_t)slots / 2 * sizeof(struct roost_rest) % pages == 0)
        slots /= 2;
    return slots;
}

/* Maps a part behind the others: how many slots it has, or -errno. */
static int64_t map(const struct roost_rests *r, int fd) {
    struct bpf_map_info info = {0};
    __u32 size = sizeof(info);
    if (bpf_obj_get_info_by_fd(fd, &info, &size))
        return -errno;
    if (info.value_size != sizeof(struct roost_rest))
        return -EPROTO;
    /* What an earlier version made may end within a page. */
    if (r->parts == ROOST_RESTS_PARTS || r->mapped % slots_in_whole_pages() || info.max_entries > SLOTS_MAX - r->mapped)
        return -ENOSPC;
    if (mmap(r->base + r->mapped, (size_t)info.max_entries * sizeof(*r->base), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return -errno;
    return info.max_entries;
}

static void use(struct roost_rests *r, int fd, uint32_t slots) {
    r->fd[r->parts++] = fd;
    r->slots = r->mapped += slots;
}

/* The parts that are pinned already: 0, or -errno. */
static int adopt(struct roost_rests *r, const char *pin_dir) {
    char path[320];
    for (;;) {
        pin_of(pin_dir, r->parts, path, sizeof(path));
        int fd = bpf_obj_get(path);
        if (fd < 0)
            return errno == ENOENT ? 0 : -errno;
        int64_t slots = map(r, fd);
        if (slots < 0) {
            close(fd);
            return (int)slots;
        }
        use(r, fd, (uint32_t)slots);
    }
}

int roost_rests_make(const struct roost_rests *r, uint32_t slots) {
    LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = BPF_F_MMAPABLE);
    uint32_t whole = slots_in_whole_pages(), parts = slots ? (slots - 1) / whole + 1 : 1;
    int fd =
        bpf_map_create(BPF_MAP_TYPE_ARRAY, "rest", sizeof(__u32), sizeof(struct roost_rest), parts * whole, &options);
    if (fd < 0)
        return -errno;
    int64_t mapped = map(r, fd);
    if (mapped >= 0)
        return fd;
    close(fd);
    return (int)mapped;
}

int roost_rests_add(struct roost_rests *r, const char *pin_dir, int fd) {
    struct bpf_map_info info = {0};
    __u32 size = sizeof(info);
    char path[320];
    pin_of(pin_dir, r->parts, path, sizeof(path));
    int error = bpf_obj_get_info_by_fd(fd, &info, &size) || bpf_obj_pin(fd, path) ? -errno : 0;
    if (error)
        close(fd); /* what is mapped there is mapped over by the next part */
    else
        use(r, fd, info.max_entries);
    return error;
}

int roost_rests_open(struct roost_rests *r, const char *pin_dir, uint32_t slots, struct roost_reason *why) {
    char path[320];
    memset(r, 0, sizeof(*r));
    void *range =
        mmap(NULL, (size_t)SLOTS_MAX * sizeof(*r->base), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int error = range == MAP_FAILED ? -errno : 0;
    if (!error) {
        r->base = range;
        error = adopt(r, pin_dir);
    }
    if (!error && !r->parts) {
        int fd = roost_rests_make(r, slots);
        error = fd < 0 ? fd : roost_rests_add(r, pin_dir, fd);
        r->slots = slots ? slots : 1; /* and no more, until there are other parts */
    }
    pin_of(pin_dir, r->parts, path, sizeof(path));
    if (error == -EPROTO)
        return roost_complain_of_version(path, why);
    return error ? roost_complain(why, error, "cannot make the table of %u idle records: %m", slots) : 0;
}

void roost_rests_close(struct roost_rests *r) {
    if (!r->base)
        return;
    munmap(r->base, (size_t)SLOTS_MAX * sizeof(*r->base));
    for (int i = 0; i < r->parts; i++)
        close(r->fd[i]);
    r->base = NULL;
}

uint64_t roost_rests_memory(const struct roost_rests *r) {
    uint64_t bytes = 0;
    for (int i = 0; i < r->parts; i++)
        bytes += roost_bpf_memory(r->fd[i]);
    return bytes;
}
