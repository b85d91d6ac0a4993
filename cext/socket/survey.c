// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "survey.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cext/base/pins.h"

int roost_survey_open(struct roost_survey *s, const char *bpf_dir) {
    char path[512];
    memset(s, 0, sizeof(*s));
    s->program = -1;
    snprintf(path, sizeof(path), "%s/survey.bpf.o", bpf_dir);
    s->object = bpf_object__open_file(path, NULL);
    if (!s->object)
        return -errno;
    int e = bpf_object__load(s->object);
    if (e)
        return e;
    const struct bpf_map *map = bpf_object__find_map_by_name(s->object, "sockets");
    if (!map || bpf_map__value_size(map) != sizeof(*s->item) ||
        bpf_map__max_entries(map) != ROOST_SURVEY_SLICES * ROOST_SURVEY_SLICE)
        return -EINVAL; /* of another build */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    s->size = ROOST_SURVEY_SLICES * ROOST_SURVEY_SLICE * sizeof(*s->item);
    s->size = (s->size + page - 1) / page * page;
    void *memory = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);
    if (memory == MAP_FAILED)
        return -errno;
    s->item = memory;
    s->program = bpf_program__fd(bpf_object__find_program_by_name(s->object, "roost_survey"));
    return 0;
}

void roost_survey_close(struct roost_survey *s) {
    if (s->item)
        munmap(s->item, s->size);
    bpf_object__close(s->object);
}

uint64_t roost_survey_memory(const struct roost_survey *s) {
    if (s->program < 0)
        return 0;
    return roost_bpf_memory(bpf_object__find_map_fd_by_name(s->object, "sockets")) + roost_bpf_memory(s->program);
}

int roost_survey_run(const struct roost_survey *s, uint32_t slice, uint32_t count) {
    char frame[ETH_HLEN + 20] = {0}; /* the kernel wants one to start from */
    struct __sk_buff context = {.cb = {slice * ROOST_SURVEY_SLICE, count}};
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame, .data_size_in = sizeof(frame), .ctx_in = &context,
                .ctx_size_in = sizeof(context));
    if (s->program < 0)
        return -ENOSYS;
    return bpf_prog_test_run_opts(s->program, &options) ? -errno : 0;
}
