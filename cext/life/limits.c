// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "cext/base/address.h"
#include "cext/base/clock.h"
#include "limits.h"
#include "life.h"

_Static_assert(sizeof(((struct roost_service *)0)->limit_us) ==
                       sizeof(uint32_t[ROOST_LIMITS_OF_SERVICES][ROOST_LIMIT_LEVELS]) &&
                   sizeof(((struct roost_bounds *)0)->limit_us) ==
                       sizeof(uint32_t[ROOST_LIMIT_RATES - ROOST_LIMITS_OF_SERVICES][ROOST_LIMIT_LEVELS]),
               "as Python fills them");

int roost_limits_begin(struct roost_engine *e) {
    ssize_t want = sizeof(e->path.limits->secret);
    e->table.counted = (struct roost_counted){e->path.limits, e->path.connected};
    return getrandom(e->path.limits->secret, (size_t)want, 0) == want ? 0 : -EIO;
}

void roost_limits_bound(struct roost_limits *l, const struct roost_bounds *bounds) {
    for (int v6 = 0; v6 < 2; v6++)
        for (int level = 0; level < ROOST_LIMIT_LEVELS; level++) {
            uint8_t mask[16] = {0};
            int bits = bounds->bits[v6][level] + (v6 ? 0 : 96);
            for (int i = 0; i < bits && i < 128; i++)
                mask[i / 8] |= (uint8_t)(0x80 >> i % 8);
            memcpy(l->mask[v6][level], mask, sizeof(mask));
        }
    l->burst_us = bounds->burst_us;
}

void roost_limits_clean(struct roost_limits *l, uint32_t from, uint32_t now_us) {
    for (uint32_t i = from; i < from + ROOST_LIMIT_CLEANED; i++) {
        uint32_t due_us = __atomic_load_n(&l->due_us[i], __ATOMIC_RELAXED);
        if (due_us && (int32_t)(due_us - now_us) < 0) /* XDP may have filled it meanwhile */
            __atomic_compare_exchange_n(&l->due_us[i], &due_us, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

void roost_limits_turn(struct roost_engine *e) {
    if (!e->path.limits->burst_us) /* there are none */
        return;
    roost_limits_clean(e->path.limits, e->limits_at, (uint32_t)(e->now_ms * 1000));
    e->limits_at = (e->limits_at + ROOST_LIMIT_CLEANED) % ROOST_LIMIT_CELLS;
}

/* All that are there, 0.1 us each. Of those that are born meanwhile, which XDP counts, some count twice. */
static void count_connections(struct roost_engine *e) {
    struct roost_limits *l = e->path.limits;
    struct roost_key key;
    const struct roost_ka *slot;
    uint64_t p = 0;
    memset(e->path.connected, 0, e->path.connected_entries * sizeof(*e->path.connected));
    l->counting = e->path.connected_entries;
    while ((slot = roost_table_walk(&e->table, &p, UINT64_MAX, &key)))
        if (!(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER))
            roost_counted_more(&e->table.counted, key.client, roost_table_service(&e->table, slot));
    for (const struct roost_conn *c = e->oldest; c; c = c->newer)
        if (!c->slot)
            roost_counted_more(&e->table.counted, c->key.client, c->service);
}

void roost_limits_set(roost_engine *e, const struct roost_bounds *bounds) {
    struct roost_limits *l = e->path.limits;
    roost_lock(e);
    __u64 masks[2][ROOST_LIMIT_LEVELS][2];
    memcpy(masks, l->mask, sizeof(masks));
    roost_limits_bound(l, bounds);
    memcpy(e->limit_us, bounds->limit_us, sizeof(e->limit_us));
    if (!bounds->connections)
        l->counting = 0;
    else if (!l->counting || memcmp(masks, l->mask, sizeof(masks))) /* other sources */
        count_connections(e);
    roost_unlock(e);
}

static struct roost_accepting_at accepting_at(const struct roost_service *service) {
    struct roost_accepting_at at = {.bits = ROOST_ACCEPTING_BITS, .port = htons(service->listen_port)};
    memcpy(at.address, service->listen, sizeof(at.address));
    if (roost_address_is_any(service->listen))
        at.bits -= roost_address_is_v4(service->listen) ? 32 : 128;
    return at;
}

int roost_limits_tell(struct roost_engine *e, const struct roost_service *service) {
    const struct roost_accepting_at at = accepting_at(service);
    struct roost_accepting accepting = {.service = service->index};
    memcpy(accepting.gap_us, service->limit_us[ROOST_LIMIT_HANDSHAKES], sizeof(accepting.gap_us));
    memcpy(accepting.wakes_gap_us, service->limit_us[ROOST_LIMIT_WAKES], sizeof(accepting.wakes_gap_us));
    memcpy(e->path.limits->births_gap_us[service->index], service->limit_us[ROOST_LIMIT_BIRTHS],
           sizeof(service->limit_us[ROOST_LIMIT_BIRTHS]));
    memcpy(e->path.limits->connections[service->index], service->connections, sizeof(service->connections));
    return bpf_map_update_elem(e->path.map_fd[ROOST_MAP_accepting], &at, &accepting, BPF_ANY) ? -errno : 0;
}

void roost_limits_forget(struct roost_engine *e, const struct roost_service *service) {
    const struct roost_accepting_at at = accepting_at(service);
    struct roost_accepting accepting;
    int map = e->path.map_fd[ROOST_MAP_accepting];
    if (!bpf_map_lookup_elem(map, &at, &accepting) && accepting.service == service->index)
        bpf_map_delete_elem(map, &at);
}

static bool allow(struct roost_engine *e, enum roost_limited what, const uint32_t gap_us[ROOST_LIMIT_LEVELS],
                  uint32_t service, const uint8_t from[16], uint64_t now_ms) {
    if (roost_limit_allows(e->path.limits, gap_us, what, service, from, (uint32_t)(now_ms * 1000), 1,
                           e->path.limits->burst_us))
        return true;
    if (what == ROOST_LIMIT_HANDSHAKES)
        e->path.limits->refused_s = (uint32_t)(now_ms / 1000);
    roost_limit_refused(e->path.limits, what, from);
    return false;
}

bool roost_limits_allow(struct roost_engine *e, enum roost_limited what, const struct roost_service *service,
                        const uint8_t client[16]) {
    return allow(e, what, service->limit_us[what], service->index, client, e->now_ms);
}

bool roost_limits_crowds(struct roost_engine *e, enum roost_limited what, const struct roost_service *service,
                         const uint8_t client[16]) {
    return roost_limit_crowds(e->path.limits, service->limit_us[what], what, service->index, client,
                              (uint32_t)(e->now_ms * 1000));
}

bool roost_limits_have_room(struct roost_engine *e, const struct roost_service *service, const uint8_t client[16]) {
    for (uint32_t level = 0; level < ROOST_LIMIT_LEVELS; level++) {
        uint32_t most = service->connections[level];
        if (most && roost_counted_of(&e->table.counted, client, service->index, level) >= most) {
            roost_limit_refused(e->path.limits, ROOST_LIMIT_CONNECTIONS, client);
            return false;
        }
    }
    return true;
}

int roost_limits_take(roost_engine *e, uint32_t what, const uint8_t address[16]) {
    return allow(e, ROOST_LIMITS_OF_SERVICES + what, e->limit_us[what], 0, address, roost_monotonic_ms());
}

void roost_limits_last(roost_engine *e, uint64_t last[ROOST_LIMITED]) {
    for (int what = 0; what < ROOST_LIMITED; what++)
        last[what] = e->path.limits->refused[what].last;
}
