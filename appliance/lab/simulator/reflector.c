// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct reflector {
    struct bpf_object *object;
    struct bpf_link *link;
    struct reflector_settings *settings; /* memory-mapped: a page */
};

struct reflector *reflector_open(const char *object, uint32_t ifindex, uint32_t lines, char *err, size_t err_len) {
    struct reflector *r = calloc(1, sizeof(*r));
    if (!r) {
        snprintf(err, err_len, "no memory");
        return NULL;
    }
    r->object = bpf_object__open_file(object, NULL);
    if (!r->object || (lines && bpf_map__set_max_entries(bpf_object__find_map_by_name(r->object, "memory"), lines)) ||
        bpf_object__load(r->object)) {
        snprintf(err, err_len, "cannot load the BPF object %s: %s (was `roost` set up?)", object, strerror(errno));
        goto failed;
    }
    int fd = bpf_object__find_map_fd_by_name(r->object, "faults");
    void *memory = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        snprintf(err, err_len, "cannot map the reflector's settings: %s", strerror(errno));
        goto failed;
    }
    r->settings = memory;
    r->settings->lines = lines;
    r->link = bpf_program__attach_xdp(bpf_object__find_program_by_name(r->object, "roost_reflector"), (int)ifindex);
    if (!r->link) {
        snprintf(err, err_len, "cannot attach the reflector to interface %u: %s (is there a program already?)", ifindex,
                 strerror(errno));
        goto failed;
    }
    return r;
failed:
    reflector_close(r);
    return NULL;
}

void reflector_set_fault(struct reflector *r, uint32_t fault) {
    __atomic_store_n(&r->settings->fault, fault, __ATOMIC_RELAXED);
}

void reflector_close(struct reflector *r) {
    bpf_link__destroy(r->link);
    if (r->settings)
        munmap(r->settings, (size_t)sysconf(_SC_PAGESIZE));
    bpf_object__close(r->object);
    free(r);
}
