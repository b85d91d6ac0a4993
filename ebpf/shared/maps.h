/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Every map of the programs, one row each. To add one, add its row to the list of the program that owns it; a type that the
 * engine reads or writes as well is defined in a header of ebpf/shared. All else follows from the row:
 *
 *     ebpf/lib/define_map.h     the definition in the program
 *     cext/path/datapath.h      ROOST_MAP_name, the index of its descriptor; for a MAPPED one a pointer `name` to its memory
 *     cext/path/datapath.c      size, pin, adoption by the next daemon, memory-mapping, accounting, the end of its pin
 *     tests/fuzz/host/maps.h    its memory, where a program runs on the host
 *
 *     name       of the program's variable; of the pin below pin_dir
 *     type       BPF_MAP_TYPE_...
 *     contents   INDEXED(value): keys are 32-bit numbers; KEYED(key, value); TABLES(bucket): generations of a table,
 *                each a map that the engine makes; BYTES
 *     entries    or bytes
 *     size       FIXED: `entries` it is. CONFIGURED: the engine sets another number (entries_of_name in datapath.c)
 *     life       PINNED: it outlives the daemon, and programs that name it share it. OWN: it ends with the program
 *     memory     MAPPED: the engine's too. PLAIN. GROWING: it takes memory with each entry
 *
 * The layout of a PINNED map is what the next daemon finds: with another value size it refuses to start.
 */
#ifndef ROOST_MAPS_LIST_H
#define ROOST_MAPS_LIST_H

/* clang-format off */

/* In every program that includes ebpf/lib/maps.h. */
#define ROOST_SHARED_MAPS(MAP)                                                                                            \
    MAP(config,         ARRAY,         INDEXED(struct roost_config),      1,                 FIXED,      PINNED, PLAIN)   \
    MAP(tables4,        ARRAY_OF_MAPS, TABLES(struct roost_bucket4),      ROOST_GENERATIONS, FIXED,      PINNED, PLAIN)   \
    MAP(tables6,        ARRAY_OF_MAPS, TABLES(struct roost_bucket6),      ROOST_GENERATIONS, FIXED,      PINNED, PLAIN)   \
    MAP(endpoints,      ARRAY,         INDEXED(struct roost_endpoint),    1,                 CONFIGURED, PINNED, MAPPED)  \
    MAP(classes,        ARRAY,         INDEXED(struct roost_class),       ROOST_CLASSES,     FIXED,      PINNED, MAPPED)  \
    MAP(ring,           RINGBUF,       BYTES,                             1 << 20,           CONFIGURED, PINNED, PLAIN)   \
    MAP(counters,       PERCPU_ARRAY,  INDEXED(__u64),                    ROOST_N_COUNT,     FIXED,      PINNED, PLAIN)   \
    MAP(births_gate,    ARRAY,         INDEXED(struct roost_births_gate), 1,                 FIXED,      PINNED, MAPPED)  \
    MAP(births_ahead,   ARRAY,         INDEXED(__u64),                    1,                 FIXED,      PINNED, PLAIN)   \
    MAP(births_sockets, ARRAY,         INDEXED(struct roost_sockets),     1,                 FIXED,      PINNED, MAPPED)  \
    /* Connections that sleep without a slot; hashes of keys that the filter takes for one of them, and that are none. */ \
    MAP(filter,         ARRAY,         INDEXED(__u64),                    1,                 CONFIGURED, PINNED, MAPPED)  \
    MAP(filter_gate,    ARRAY,         INDEXED(struct roost_filter_gate), 1,                 FIXED,      PINNED, MAPPED)  \
    MAP(strangers,      LRU_HASH,      KEYED(__u64, __u32),               1,                 CONFIGURED, PINNED, PLAIN)

/* Of xdp/inactive.bpf.c. */
#define ROOST_XDP_MAPS(MAP)                                                                                               \
    MAP(challenges,     PERCPU_ARRAY,  INDEXED(struct challenge_budget),  1,                 FIXED,      PINNED, PLAIN)   \
    MAP(births,         HASH,          KEYED(struct roost_birth_place, struct roost_birth),                               \
                                                                          ROOST_MAX_BIRTHS,  FIXED,      PINNED, PLAIN)   \
    MAP(births_cookies, ARRAY,         INDEXED(struct roost_cookies),     1,                 FIXED,      PINNED, MAPPED)  \
    MAP(limits,         ARRAY,         INDEXED(struct roost_limits),      1,                 FIXED,      OWN,    MAPPED)  \
    MAP(connected,      ARRAY,         INDEXED(struct roost_connected),   1,                 CONFIGURED, OWN,    MAPPED)  \
    MAP(accepting,      LPM_TRIE,      KEYED(struct roost_accepting_at, struct roost_accepting),                          \
                                                                          ROOST_BIRTH_RATES, FIXED,      OWN,    GROWING) \
    MAP(rules,          LPM_TRIE,      KEYED(struct roost_rule_key, __u32), ROOST_RULES_MAX, FIXED,      OWN,    GROWING) \
    MAP(vlans,          LPM_TRIE,      KEYED(struct roost_vlan, __u32),   ROOST_VLANS_MAX,   FIXED,      OWN,    GROWING) \
    MAP(births_rate,    PERCPU_ARRAY,  INDEXED(struct birth_rate),        ROOST_BIRTH_RATES, FIXED,      OWN,    PLAIN)   \
    MAP(births_notes,   PERCPU_ARRAY,  INDEXED(struct birth_notes),       1,                 FIXED,      OWN,    PLAIN)   \
    MAP(silences,       PERCPU_ARRAY,  INDEXED(struct roost_silences),    ROOST_SILENCE_PLACES, FIXED,      OWN,    PLAIN)   \
    MAP(outbox,         ARRAY,         INDEXED(struct roost_outbox_item), ROOST_OUTBOX_ITEMS, FIXED,     OWN,    MAPPED)  \
    MAP(probes,         ARRAY,         INDEXED(struct roost_probe),       ROOST_PROBES,      FIXED,      OWN,    MAPPED)  \
    MAP(runs,           ARRAY,         INDEXED(struct roost_runs),        1,                 FIXED,      OWN,    MAPPED)  \
    MAP(routes,         PERCPU_ARRAY,  INDEXED(struct route),             ROUTES,            FIXED,      OWN,    PLAIN)   \
    MAP(ways_back,      PERCPU_ARRAY,  INDEXED(struct way),               ROUTES,            FIXED,      OWN,    PLAIN)

/* Of tc/steer.bpf.c. */
#define ROOST_STEER_MAPS(MAP)                                                                                             \
    MAP(managed,        HASH,          KEYED(struct roost_managed_key, struct roost_managed),                             \
                                                                          1024,              FIXED,      OWN,    PLAIN)   \
    MAP(attach_ports,   HASH,          KEYED(__be16, __u8),               1024,              FIXED,      OWN,    PLAIN)   \
    MAP(doors,          SOCKMAP,       INDEXED(__u64),                    ROOST_DOORS,       FIXED,      OWN,    PLAIN)   \
    MAP(datagrams,      LRU_HASH,      KEYED(struct datagram, __u8),      1024,              FIXED,      OWN,    PLAIN)   \
    MAP(scratch,        PERCPU_ARRAY,  INDEXED(struct arrival),           1,                 FIXED,      OWN,    PLAIN)

/* Of tc/loopback.bpf.c. */
#define ROOST_LOOPBACK_MAPS(MAP)                                                                                          \
    MAP(local_doors,    SOCKMAP,       INDEXED(__u64),                    ROOST_DOORS,       FIXED,      OWN,    PLAIN)

/* Of socket/local_connect.bpf.c: where clients may have connected to, and whose daemon's they are. */
#define ROOST_LOCAL_CONNECT_MAPS(MAP)                                                                                     \
    MAP(near_ends,      HASH,          KEYED(struct roost_managed_key, __u8), ROOST_NEAR_ENDS,                            \
                                                                                             FIXED,      OWN,    PLAIN)   \
    MAP(own,            ARRAY,         INDEXED(struct roost_own),         1,                 FIXED,      OWN,    MAPPED)

/* Of socket/survey.bpf.c, which cext/socket/survey.c loads by itself. */
#define ROOST_SURVEY_MAPS(MAP)                                                                                            \
    MAP(sockets,        ARRAY,         INDEXED(struct roost_survey_item), ROOST_SURVEY_SLICE * ROOST_SURVEY_SLICES,       \
                                                                                             FIXED,      OWN,    MAPPED)

/* clang-format on */

/* What cext/path/datapath.c loads. */
#define ROOST_DATAPATH_MAPS(MAP)                                                                                       \
    ROOST_SHARED_MAPS(MAP)                                                                                             \
    ROOST_XDP_MAPS(MAP) ROOST_STEER_MAPS(MAP) ROOST_LOOPBACK_MAPS(MAP) ROOST_LOCAL_CONNECT_MAPS(MAP)

#endif
