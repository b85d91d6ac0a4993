// SPDX-License-Identifier: Apache-2.0
/* The probes that wait for their turn: offered to the XDP program, begun by the engine's own frames, or sent one by one. */
#include "datapath.h"

#include <bpf/bpf.h>
#include <string.h>

#include "cext/base/address.h"
#include "cext/base/clock.h"
#include "cext/socket/segment.h"

#define PROBE_BATCH 64 /* between two looks at what has come: a veth's ring holds 256 */
#define LEAST_LIVE 8   /* fewer are sooner done one by one: setting a run up takes 10-20 us */

/* The interfaces that clients are behind; none when one of them has no native XDP. */
static uint32_t clients_interfaces(const struct roost_datapath *d, uint32_t *ifindex) {
    uint32_t count = 0;
    for (int i = 0; i < d->interfaces; i++) {
        if (d->interface[i].servers)
            continue;
        if (d->interface[i].generic)
            return 0;
        ifindex[count++] = d->interface[i].index;
    }
    return count;
}

static struct roost_probe *half(const struct roost_datapath *d, bool second) {
    return d->probes + (second ? ROOST_PROBES / 2 : 0);
}

/* Sends one that XDP did not, with the clock of now. */
static bool send_singly(struct roost_datapath *d, const struct roost_probe *probe) {
    __be32 packet[ROOST_PROBE_MAX / 4];
    memcpy(packet, probe->packet, sizeof(packet));
    roost_segment_stamp((uint8_t *)packet, probe->length, roost_coarse_ms());
    return roost_datapath_send(d, (const uint8_t *)packet, probe->length);
}

/* Of the packet: its source is the near end. */
static void key_of(const struct roost_probe *probe, struct roost_key *key) {
    const uint8_t *packet = (const uint8_t *)probe->packet;
    const bool v4 = packet[0] >> 4 == 4;
    if (v4) {
        roost_address_map_v4(key->local, packet + 12);
        roost_address_map_v4(key->client, packet + 16);
    } else {
        memcpy(key->local, packet + 8, sizeof(key->local));
        memcpy(key->client, packet + 24, sizeof(key->client));
    }
    memcpy(&key->local_port, packet + (v4 ? 20 : 40), 2);
    memcpy(&key->client_port, packet + (v4 ? 22 : 42), 2);
}

/* How many are lost: 1, or 0. */
static uint32_t send_or_lose(struct roost_datapath *d, const struct roost_probe *probe) {
    struct roost_key key;
    if (send_singly(d, probe))
        return 0;
    if (d->unsent) {
        key_of(probe, &key);
        d->unsent(d->of, &key);
    }
    return 1;
}

uint32_t roost_datapath_probes_begin(struct roost_datapath *d) {
    struct roost_runs *r = d->runs;
    struct roost_probe *offered = half(d, d->second_half), *next = half(d, !d->second_half);
    uint32_t count = d->probes_put, lost = 0;
    __atomic_store_n(&r->count, 0, __ATOMIC_SEQ_CST);
    /* The other half: on another processor XDP may still read the last one taken of this. */
    d->second_half = !d->second_half;
    d->probes_put = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t state = __atomic_load_n(&offered[i].state, __ATOMIC_ACQUIRE);
        if (state == ROOST_PROBE_WAITS)
            next[d->probes_put++] = offered[i];
        else if (state == ROOST_PROBE_NO_WAY)
            lost += send_or_lose(d, &offered[i]);
    }
    d->probes_left = d->probes_put;
    return lost;
}

uint32_t roost_datapath_probes_room(const struct roost_datapath *d) {
    return ROOST_PROBES / 2 - d->probes_put;
}

struct roost_probe *roost_datapath_probe(struct roost_datapath *d) {
    if (!roost_datapath_probes_room(d))
        return NULL;
    struct roost_probe *probe = half(d, d->second_half) + d->probes_put++;
    probe->state = ROOST_PROBE_WAITS;
    return probe;
}

uint32_t roost_datapath_probes_end(struct roost_datapath *d, uint32_t now_s) {
    struct roost_runs *r = d->runs;
    uint8_t frame[ROOST_PROBE_FRAME] = {0};
    uint32_t live = d->probes_live < d->probes_put ? d->probes_live : d->probes_put, lost = 0;
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame, .data_size_in = sizeof(frame), .repeat = (int)live,
                .batch_size = live < PROBE_BATCH ? live : PROBE_BATCH, .flags = BPF_F_TEST_XDP_LIVE_FRAMES);
    r->interfaces = clients_interfaces(d, r->ifindex);
    r->now_s = now_s;
    r->next = d->second_half ? ROOST_PROBES / 2 : 0;
    if (r->interfaces && d->probes_put >= LEAST_LIVE) {
        __atomic_store_n(&r->count, r->next + d->probes_put, __ATOMIC_SEQ_CST);
        if (live < LEAST_LIVE || !roost_datapath_run(d, &options)) /* answers are on their way that become them */
            return 0;
        __atomic_store_n(&r->count, 0, __ATOMIC_SEQ_CST);
    }
    const struct roost_probe *probe = half(d, d->second_half);
    for (uint32_t i = 0; i < d->probes_put; i++)
        if (__atomic_load_n(&probe[i].state, __ATOMIC_ACQUIRE) != ROOST_PROBE_TAKEN)
            lost += send_or_lose(d, &probe[i]);
    d->probes_put = 0;
    return lost;
}

void roost_datapath_retract_probe(struct roost_datapath *d, const struct roost_key *key) {
    bool v4 = roost_key_is_v4(key);
    size_t header = v4 ? 20 : 40, address = v4 ? 4 : 16;
    for (struct roost_probe *p = half(d, d->second_half), *end = p + d->probes_put; p < end; p++) {
        const uint8_t *packet = (const uint8_t *)p->packet;
        uint32_t waits = ROOST_PROBE_WAITS;
        if (p->length >= header + 20 && !memcmp(packet + header, &key->local_port, 2) &&
            !memcmp(packet + header + 2, &key->client_port, 2) &&
            !memcmp(packet + header - address, key->client + 16 - address, address) &&
            !memcmp(packet + header - 2 * address, key->local + 16 - address, address))
            __atomic_compare_exchange_n(&p->state, &waits, ROOST_PROBE_TAKEN, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED);
    }
}
