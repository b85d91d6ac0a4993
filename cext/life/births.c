// SPDX-License-Identifier: Apache-2.0
/*
 * Connections that are born asleep (xdp/born.h): what XDP must know for it, and the moment when one of them becomes a
 * connection like any other, with a number, a rest slot and a line in the history. Until then XDP alone has to do
 * with it, and it is known by its slot in the table alone.
 */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "cext/base/clock.h"
#include "cext/base/count.h"
#include "life.h"
#include "cext/socket/repair.h"

#define OPEN_S 2         /* no births after this long without a sign of life from the engine */
#define FULL_PERCENT 96  /* of the table: the rest is for those that fall asleep */
#define MSS_MAX 1460u    /* the largest class of ebpf/xdp/born.h */
#define HEADERS_IPV4 40u /* bytes of IP and TCP */
#define HEADERS_IPV6 60u

_Static_assert(ROOST_BIRTH_RATES >= ROOST_MAX_SERVICES, "each service has a counter of SYNs");
_Static_assert(!(ROOST_BIRTH_RATES & (ROOST_BIRTH_RATES - 1)), "ebpf/xdp/limited.h masks a number by it");

void roost_births_forget(struct roost_engine *e) {
    struct roost_birth_place place;
    int map = e->path.map_fd[ROOST_MAP_BIRTHS];
    while (!bpf_map_get_next_key(map, NULL, &place) && !bpf_map_delete_elem(map, &place))
        ;
    e->path.births_gate->services = e->path.births_gate->ruled = 0;
}

/* What a client may send us in one segment: as much as the narrowest of its interfaces carries. */
static uint16_t mss_of(const struct roost_engine *e, bool v4) {
    struct ifreq about;
    uint32_t mss = MSS_MAX, headers = v4 ? HEADERS_IPV4 : HEADERS_IPV6;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (int i = 0; i < e->path.interfaces && fd >= 0; i++) {
        memset(&about, 0, sizeof(about));
        memcpy(about.ifr_name, e->path.interface[i].name, sizeof(about.ifr_name));
        if (!e->path.interface[i].servers && !ioctl(fd, SIOCGIFMTU, &about) && (uint32_t)about.ifr_mtu > headers &&
            (uint32_t)about.ifr_mtu - headers < mss)
            mss = (uint32_t)about.ifr_mtu - headers;
    }
    if (fd >= 0)
        close(fd);
    return (uint16_t)(mss < MSS_MAX - (headers - HEADERS_IPV4) ? mss : MSS_MAX - (headers - HEADERS_IPV4));
}

/* Clients that are refused are not born: XDP would have them connected. */
static bool gives_birth(const struct roost_engine *e, const struct roost_service *s) {
    const struct roost_listener *l = e->by_index[s->index];
    return s->born != ROOST_BORN_NEVER && !(l && (l->fd < 0 || roost_turns_away(l)));
}

void roost_births_servers(struct roost_engine *e, uint16_t service) {
    for (int i = 0; i < e->listeners; i++) {
        const struct roost_service *s = &e->listener[i].service;
        if (s->index == service && s->refuse_down && s->born != ROOST_BORN_NEVER)
            roost_births_tell(e, s);
    }
}

int roost_births_tell(struct roost_engine *e, const struct roost_service *s) {
    struct roost_birth_place place = {.port = htons(s->listen_port)};
    struct roost_birth birth = {0};
    int map = e->path.map_fd[ROOST_MAP_BIRTHS];
    bool was = false;
    memcpy(place.address, s->listen, sizeof(place.address));
    was = !bpf_map_lookup_elem(map, &place, &birth);
    if (!gives_birth(e, s)) {
        if (!was || birth.service != s->index) /* the place is that of another service, which came after this one */
            return 0;
        bpf_map_delete_elem(map, &place);
        ROOST_ONE_LESS(e->path.births_gate->services);
        return 0;
    }
    if (!was) {
        birth.endpoint = roost_endpoints_take(&e->table.endpoints, place.address, place.port, s->index);
        if (birth.endpoint == ROOST_NO_ENDPOINT)
            return -ENOSPC;
        roost_endpoints_pin(&e->table.endpoints, birth.endpoint);
    }
    birth.mss = mss_of(e, roost_address_is_v4(s->listen));
    birth.class = s->index; /* where no rule is for the client */
    birth.service = s->index;
    uint64_t rate = (uint64_t)s->born_rate * ROOST_BIRTH_TICK_MS / 1000;
    rate = rate < UINT16_MAX ? rate : UINT16_MAX - 1; /* it is counted in 16 bits */
    birth.rate = s->born == ROOST_BORN_ALWAYS ? 0 : rate ? (uint32_t)rate : 1;
    if (!was) /* until it is known which keys have sockets */
        roost_births_close(e);
    if (bpf_map_update_elem(map, &place, &birth, BPF_ANY))
        return -errno;
    e->path.births_gate->services += !was;
    if (!was && e->started) { /* XDP notes SYNs from now on: those from before are in the kernel */
        roost_sockets_begin(e);
        e->births_ms = 0;
        roost_births_turn(e);
    }
    return 0;
}

bool roost_births_have_room(struct roost_engine *e, bool v4) {
    uint64_t used4, used6;
    roost_table_used(e, &used4, &used6);
    return (v4 ? used4 : used6) * 100 < roost_table_slots(&e->table, v4) * FULL_PERCENT;
}

/* What was long ago stays so when the clock's low 16 bits come round. XDP may write meanwhile: what it writes stays. */
static void keep_cookies_old(struct roost_cookies *cookies) {
    uint16_t now_s = (uint16_t)(roost_coarse_ms() / 1000);
    for (uint32_t i = 0; i < ROOST_BIRTH_RATES; i++) {
        uint16_t sent_s = __atomic_load_n(&cookies->sent_s[i], __ATOMIC_RELAXED);
        if ((uint16_t)(now_s + 1 - sent_s) > ROOST_COOKIE_LIFE_S + 1) /* XDP may be a second ahead */
            __atomic_compare_exchange_n(&cookies->sent_s[i], &sent_s, (uint16_t)(now_s - 0x8000), false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

void roost_births_turn(struct roost_engine *e) {
    struct roost_births_gate *gate = e->path.births_gate;
    if (!gate->services || e->bears_none || e->now_ms < e->births_ms)
        return;
    e->births_ms = e->now_ms + OPEN_S * 1000 / 4;
    if (e->now_ms - e->old.at_ms > ROOST_COOKIE_LIFE_S * 1000) {
        e->old.before = e->old.next_id;
        e->old.next_id = e->next_id;
        e->old.at_ms = e->now_ms;
        keep_cookies_old(e->path.births_cookies);
    }
    bool room = roost_births_have_room(e, true) && roost_births_have_room(e, false);
    gate->open_until_s = room ? (uint32_t)(e->now_ms / 1000) + OPEN_S : 0;
}

static uint32_t births_now_ms(const struct roost_engine *e) {
    return (uint32_t)(roost_coarse_ms() + e->births_ahead_ms);
}

void roost_births_ended(struct roost_engine *e, const struct roost_key *key, uint64_t id) {
    if (e->path.births_gate->services && (!id || id >= e->old.before))
        roost_cookie_ends(e->path.births_cookies, roost_hash_of_key(e, key), births_now_ms(e));
}

void roost_share_cookies(roost_engine *e, uint64_t secret0, uint64_t secret1, uint64_t ahead_ms) {
    uint32_t zero = 0;
    e->path.births_gate->secret[0] = secret0;
    e->path.births_gate->secret[1] = secret1;
    bpf_map_update_elem(e->path.map_fd[ROOST_MAP_births_ahead], &zero, &ahead_ms, BPF_ANY);
    e->births_ahead_ms = ahead_ms;
    /* What another machine has sent counts here. */
    for (uint32_t i = 0; i < ROOST_BIRTH_RATES; i++)
        e->path.births_cookies->sent_s[i] = (uint16_t)(roost_coarse_ms() / 1000);
}

void roost_births_close(struct roost_engine *e) {
    if (e->path.births_gate) /* NULL: the data path could not be opened */
        e->path.births_gate->open_until_s = 0;
}

void roost_table_used(struct roost_engine *e, uint64_t *used4, uint64_t *used6) {
    uint64_t counters[ROOST_N_COUNT];
    roost_datapath_counters(&e->path, counters);
    *used4 = roost_less(e->table.used4 + counters[ROOST_N_BORN4], e->born_before[0]);
    *used6 = roost_less(e->table.used6 + counters[ROOST_N_BORN6], e->born_before[1]);
}

uint64_t roost_born_unspoken(struct roost_engine *e) {
    uint64_t counters[ROOST_N_COUNT];
    roost_datapath_counters(&e->path, counters);
    return roost_less(e->table.born + counters[ROOST_N_BORN4] + counters[ROOST_N_BORN6],
                      e->born_before[0] + e->born_before[1] + e->stat[ROOST_E_BORN_SPOKE] + e->stat[ROOST_E_BORN_GONE]);
}

void roost_born_adopted(struct roost_engine *e) {
    uint64_t counters[ROOST_N_COUNT];
    roost_datapath_counters(&e->path, counters);
    e->born_before[0] = counters[ROOST_N_BORN4];
    e->born_before[1] = counters[ROOST_N_BORN6];

    uint32_t zero = 0;
    bpf_map_lookup_elem(e->path.map_fd[ROOST_MAP_births_ahead], &zero, &e->births_ahead_ms);
    struct roost_cookies *cookies = e->path.births_cookies;
    if (cookies->running) /* that engine was killed: what it had awake has ended, and nothing says who that was */
        for (uint32_t i = 0; i < ROOST_COOKIE_CELLS; i++)
            cookies->ended_ms[i] = births_now_ms(e);
}

int roost_born_settle(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    uint32_t window = ROOST_BORN_WINDOW(slot->rest) << ROOST_SND_WSCALE(slot->ctl);
    uint64_t silence_ms = roost_silence_s(slot->heard, (uint32_t)(e->now_ms / 1000)) * 1000ULL;
    uint64_t active_ms = e->now_ms > silence_ms ? e->now_ms - silence_ms : 0;
    uint32_t index = roost_table_rest_alloc(&e->table, true);
    if (index == ROOST_NO_REST) {
        e->stat[ROOST_E_TABLE_FULL]++;
        return ENOSPC;
    }
    e->table.rest[index] = (struct roost_rest){
        .id = e->next_id++,
        .active_ms = active_ms,
        .snd_wnd = window,
        .max_window = window,
        .mss = (uint16_t)roost_born_mss(slot->rest),
    };
    /* One store makes it a connection with a rest slot: a successor finds either. */
    __atomic_store_n(&slot->rest, index, __ATOMIC_RELEASE);
    e->stat[ROOST_E_BORN_SPOKE]++;
    roost_hosts_add(&e->hosts, key);
    struct roost_event event;
    roost_event_of_slot(e, key, slot, &event);
    roost_post_transition(e, &event, slot->class, ROOST_ST_NONE, ROOST_ST_IDLE, ROOST_C_CLIENT_CONNECT, 0);
    return 0;
}

bool roost_slot_reset(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot,
                      const struct roost_rest *rest) {
    int fd = roost_repair_rebuild(key, slot, rest);
    if (fd == -EMFILE || fd == -ENFILE)
        return false;
    roost_table_remove(&e->table, slot); /* the guard stops an RST of what is in the table */
    if (fd >= 0 && !roost_repair_finish(fd, false))
        roost_reset_fd(fd);
    else if (fd >= 0)
        close(fd);
    return true;
}

void roost_births_expire(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot) {
    const struct roost_rest rest = {.mss = (uint16_t)roost_born_mss(slot->rest)};
    roost_births_ended(e, key, 0);
    if (!roost_slot_reset(e, key, slot, &rest))
        return;
    e->stat[ROOST_E_BORN_GONE]++;
    e->stat[ROOST_E_BORN_EXPIRED]++;
}
