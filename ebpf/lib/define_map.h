/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* From a row of ebpf/shared/maps.h to the definition of a map, as libbpf reads it. */
#ifndef ROOST_DEFINE_MAP_H
#define ROOST_DEFINE_MAP_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "ebpf/shared/maps.h"

#define ROOST_FLAGS_PLAIN 0
#define ROOST_FLAGS_MAPPED BPF_F_MMAPABLE
#define ROOST_FLAGS_GROWING BPF_F_NO_PREALLOC

#define ROOST_DEFINE_BYTES
#define ROOST_DEFINE_INDEXED(value_type) ROOST_DEFINE_KEYED(__u32, value_type)
#define ROOST_DEFINE_KEYED(key_type, value_type)                                                                       \
    __type(key, key_type);                                                                                             \
    __type(value, value_type);
#define ROOST_DEFINE_TABLES(bucket)                                                                                    \
    __type(key, __u32);                                                                                                \
    __array(                                                                                                           \
        values, struct {                                                                                               \
            __uint(type, BPF_MAP_TYPE_ARRAY);                                                                          \
            __uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);                                                       \
            __uint(max_entries, 1);                                                                                    \
            __type(key, __u32);                                                                                        \
            __uint(value_size, sizeof(bucket));                                                                        \
        });

#define ROOST_DEFINE_MAP(name, kind, contents, entries, size, life, memory)                                            \
    struct {                                                                                                           \
        __uint(type, BPF_MAP_TYPE_##kind);                                                                             \
        __uint(map_flags, ROOST_FLAGS_##memory);                                                                       \
        __uint(max_entries, entries);                                                                                  \
        ROOST_DEFINE_##contents                                                                                        \
    } name SEC(".maps");

#endif
