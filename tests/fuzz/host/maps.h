/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the maps of a program that runs on the host, from the rows of ebpf/shared/maps.h: give HOST_MAP to the lists
 * behind the program. A map that a harness looks at it then gives memory of its own. */
#ifndef ROOST_HOST_MAPS_H
#define ROOST_HOST_MAPS_H

#include "kernel.h"

#define HOST_KEY_INDEXED(type) __u32
#define HOST_KEY_KEYED(key, type) key
#define HOST_VALUE_INDEXED(type) type
#define HOST_VALUE_KEYED(key, type) type

#define HOST_VALUES(give, map, entries, cpus, contents)                                                                \
    {                                                                                                                  \
        static HOST_VALUE_##contents values[(entries) * (cpus)];                                                       \
        give(map, values, entries, sizeof(values[0]));                                                                 \
    }
#define HOST_ARRAY(map, entries, contents) HOST_VALUES(host_map_array, map, entries, 1, contents)
#define HOST_PERCPU_ARRAY(map, entries, contents) HOST_VALUES(host_map_percpu, map, entries, HOST_CPUS, contents)
#define HOST_HASH(map, entries, contents)                                                                              \
    host_map_hash(map, entries, sizeof(HOST_KEY_##contents), sizeof(HOST_VALUE_##contents));
#define HOST_LRU_HASH(map, entries, contents) HOST_HASH(map, entries, contents)
#define HOST_LPM_TRIE(map, entries, contents) HOST_HASH(map, 4, contents) /* whole keys alone are found */
#define HOST_SOCKMAP(map, entries, contents) host_map_sockets(map, true);
#define HOST_ARRAY_OF_MAPS(map, entries, contents) /* the harness has the tables */
#define HOST_RINGBUF(map, entries, contents)       /* struct host has the records */

#define HOST_MAP(name, kind, contents, entries, size, life, memory) HOST_##kind(&name, entries, contents)

#endif
