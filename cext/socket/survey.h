/* SPDX-License-Identifier: Apache-2.0 */
/* Reads many sockets in one system call (ebpf/socket/survey.bpf.c). */
#ifndef ROOST_CEXT_SURVEY_H
#define ROOST_CEXT_SURVEY_H

#include <bpf/libbpf.h>
#include <stddef.h>
#include <stdint.h>

#include "ebpf/shared/survey.h"

struct roost_survey {
    struct bpf_object *object;
    int program;                    /* -1: this kernel cannot (it has no BTF); sockets are read one by one then */
    struct roost_survey_item *item; /* memory-mapped: ROOST_SURVEY_SLICES slices of ROOST_SURVEY_SLICE */
    size_t size;
};

/* 0, or -errno when the kernel does not take the program; then nothing is to be had from roost_survey_run. */
int roost_survey_open(struct roost_survey *s, const char *bpf_dir);
void roost_survey_close(struct roost_survey *s);
uint64_t roost_survey_memory(const struct roost_survey *s); /* bytes, the kernel's */

/* Looks at the sockets whose keys are in the first count items of a slice, in this thread's network namespace. Each slice
 * is one thread's at a time. 0 or -errno. */
int roost_survey_run(const struct roost_survey *s, uint32_t slice, uint32_t count);

#endif
