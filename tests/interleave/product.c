// SPDX-License-Identifier: Apache-2.0
/* The kernel's side of the table, as it is: the XDP program. Compiled, as cext/table/table.c is, with -fsanitize=thread. */
#include "ebpf/xdp/inactive.bpf.c"

#include "tests/fuzz/host/maps.h"

#include <string.h>

/* The cookie of a SYN with this sequence number, as it stands in the SYN-ACK's. */
__u32 cookie_for(const struct roost_births_gate *gate, const struct roost_key *key, __u32 isn, __u64 now_ms);
__u32 cookie_for(const struct roost_births_gate *gate, const struct roost_key *key, __u32 isn, __u64 now_ms) {
    __u32 period = (__u32)(now_ms / (ROOST_COOKIE_PERIOD_S * 1000));
    return cookie_of(gate, key, isn, period, 0, 0);
}

static struct birth_rate rates[HOST_CPUS * ROOST_BIRTH_RATES];

void give_product_maps(void);
void give_product_maps(void) {
    ROOST_SHARED_MAPS(HOST_MAP)
    ROOST_XDP_MAPS(HOST_MAP)
    host_map_percpu(&births_rate, rates, ROOST_BIRTH_RATES, sizeof(rates[0]));
}

/* No tick passes between two schedules. */
void product_starts(void);
void product_starts(void) {
    memset(rates, 0, sizeof(rates));
}

/* Entries of maps, which the engine writes by system calls. */
void put_birth(const struct roost_birth_place *place, const struct roost_birth *birth);
int is_stranger(__u64 hash);
void put_stranger(__u64 hash);

void put_birth(const struct roost_birth_place *place, const struct roost_birth *birth) {
    bpf_map_update_elem(&births, place, birth, BPF_ANY);
}

int is_stranger(__u64 hash) {
    return bpf_map_lookup_elem(&strangers, &hash) != 0;
}

void put_stranger(__u64 hash) {
    __u32 value = 1;
    bpf_map_update_elem(&strangers, &hash, &value, BPF_ANY);
}
