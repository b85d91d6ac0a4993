// SPDX-License-Identifier: Apache-2.0
/* The names of the counters, in the order of enum roost_counter, enum roost_engine_counter and roost_stats_read. */
#include "cext/life/life.h"

static const char *const bpf_names[ROOST_N_COUNT] = {
    [ROOST_N_ANSWERED] = "keepalives_answered",
    [ROOST_N_HEARD] = "acks_heard",
    [ROOST_N_CHALLENGED] = "challenge_acks",
    [ROOST_N_CHALLENGE_LIMITED] = "challenge_acks_limited",
    [ROOST_N_WOKEN] = "frames_woke",
    [ROOST_N_HELD] = "frames_held",
    [ROOST_N_DROPPED] = "segments_dropped",
    [ROOST_N_BAD_CHECKSUM] = "bad_checksum",
    [ROOST_N_MALFORMED] = "malformed",
    [ROOST_N_RING_FULL] = "ring_full",
    [ROOST_N_OVERSIZE] = "frames_oversize",
    [ROOST_N_RST_GUARDED] = "rst_guarded",
    [ROOST_N_FRAGMENT_WOKEN] = "fragments_woke",
    [ROOST_N_COOKIES] = "syn_cookies",
    [ROOST_N_BORN4] = "born_ipv4",
    [ROOST_N_BORN6] = "born_ipv6",
    [ROOST_N_BORN_REFUSED] = "born_refused",
    [ROOST_N_CANDIDATES] = "frames_perhaps",
};

static const char *const engine_names[ROOST_E_COUNT] = {
    [ROOST_E_ACCEPTED] = "accepted",
    [ROOST_E_CLOSED] = "closed",
    [ROOST_E_FROZEN] = "frozen",
    [ROOST_E_FREEZE_CANCELLED] = "freeze_cancelled",
    [ROOST_E_THAWED] = "thawed",
    [ROOST_E_THAW_FAILED] = "thaw_failed",
    [ROOST_E_SURVEYED] = "sockets_surveyed",
    [ROOST_E_REUSED] = "sockets_reused",
    [ROOST_E_HELD_DROPPED] = "frames_held_dropped",
    [ROOST_E_REPLAYED] = "frames_replayed",
    [ROOST_E_STRAY_REPLAYED] = "frames_stray",
    [ROOST_E_FRAME_BAD] = "frames_bad",
    [ROOST_E_LINKED] = "linked",
    [ROOST_E_LINK_FAILED] = "link_failed",
    [ROOST_E_LINKS_LEFT] = "links_left",
    [ROOST_E_DOOR_REFUSED] = "servers_refused",
    [ROOST_E_PROBES] = "probes_sent",
    [ROOST_E_PROBE_LOST] = "probes_unsent",
    [ROOST_E_PROBE_DEAD] = "probe_dead",
    [ROOST_E_ANSWERS] = "answers_by_engine",
    [ROOST_E_TABLE_FULL] = "table_full",
    [ROOST_E_ACCEPT_PAUSED] = "accept_paused",
    [ROOST_E_RUSH_PAUSES] = "rush_pauses",
    [ROOST_E_FREEZE_NS] = "freeze_ns",
    [ROOST_E_THAW_NS] = "thaw_ns",
    [ROOST_E_BYTES_IN] = "bytes_from_clients",
    [ROOST_E_BYTES_OUT] = "bytes_to_clients",
    [ROOST_E_IN_BAND] = "in_band_requests",
    [ROOST_E_IN_BAND_REFUSED] = "in_band_refused",
    [ROOST_E_BORN_SPOKE] = "born_spoke",
    [ROOST_E_BORN_GONE] = "born_gone",
    [ROOST_E_BORN_EXPIRED] = "born_expired",
    [ROOST_E_GROWN] = "tables_grown",
    [ROOST_E_GROWTH_FAILED] = "tables_not_grown",
    [ROOST_E_CANDIDATES_ASKED] = "perhaps_asked",
    [ROOST_E_CANDIDATES_DROPPED] = "perhaps_dropped",
    [ROOST_E_CANDIDATES_SLEPT] = "perhaps_slept",
    [ROOST_E_CANDIDATES_STRANGERS] = "perhaps_strangers",
    [ROOST_E_CANDIDATES_REFUSED] = "perhaps_refused",
    [ROOST_E_FILTER_FULL] = "filter_full",
    [ROOST_E_CLASSES_FULL] = "classes_full",
    [ROOST_E_WAKES_REFUSED] = "wakes_refused",
    [ROOST_E_STUCK_RESET] = "stuck_reset",
    [ROOST_E_WRITE_TIMEOUTS] = "write_timeouts",
    [ROOST_E_CLIENTS_DENIED] = "clients_denied",
    [ROOST_E_CLIENTS_REFUSED] = "clients_refused",
    [ROOST_E_UNTALLIED] = "transitions_untallied",
};

/* Counters of parts, and then gauges. */
static const char *const other_names[] = {
    "table_refused",     "events_lost",         "replay_failed",   "probes_raw",
    "births_limited",    "handshakes_limited",  "wakes_limited",   "attaches_limited",
    "agents_limited",    "connections_limited", "awake",           "table_ipv4",
    "table_ipv6",        "idle_records",        "events_waiting",  "ipv4_slots",
    "ipv6_slots",        "idle_slots",          "servers_waiting", "born",
    "sockets_spare",     "filter_members",      "filter_slots",    "perhaps_waiting",
    "perhaps_remembered"};
#define OTHERS (sizeof(other_names) / sizeof(other_names[0]))
#define COUNTERS_OF_PARTS (4 + ROOST_LIMITED)

_Static_assert(ROOST_N_COUNT + ROOST_E_COUNT + OTHERS <= ROOST_STATS, "struct roost_stats has a place for each");

const char *roost_stat_name(uint32_t index) {
    if (index < ROOST_N_COUNT)
        return bpf_names[index];
    index -= ROOST_N_COUNT;
    if (index < ROOST_E_COUNT)
        return engine_names[index];
    index -= ROOST_E_COUNT;
    return index < OTHERS ? other_names[index] : NULL;
}

int roost_stat_is_gauge(uint32_t index) {
    return index >= ROOST_N_COUNT + ROOST_E_COUNT + COUNTERS_OF_PARTS;
}

int roost_stats_read(roost_engine *e, struct roost_stats *stats) {
    uint64_t *value = stats->value;
    roost_datapath_counters(&e->path, value);
    value += ROOST_N_COUNT;
    roost_lock(e);
    for (int i = 0; i < ROOST_E_COUNT; i++)
        *value++ = e->stat[i] + (i == ROOST_E_CLIENTS_DENIED ? e->path.limits->births_denied : 0);
    *value++ = e->table.refused;
    *value++ = e->box.lost;
    *value++ = e->path.replay_failed;
    *value++ = e->path.probe_raw;
    for (int what = 0; what < ROOST_LIMITED; what++)
        *value++ = e->path.limits->refused[what].count;
    *value++ = e->awake;
    roost_table_used(e, value, value + 1);
    value += 2;
    *value++ = e->table.rest_used;
    *value++ = e->box.events + e->box.rows;
    *value++ = roost_table_slots(&e->table, true);
    *value++ = roost_table_slots(&e->table, false);
    *value++ = e->table.rest_slots;
    *value++ = e->servers_waiting;
    *value++ = roost_born_unspoken(e);
    *value++ = e->spares.count;
    *value++ = e->filter.bucket ? e->filter.gate->members : 0;
    *value++ = (uint64_t)e->filter.buckets * ROOST_FILTER_PLACES;
    *value++ = e->recall.remember[ROOST_R_ASKED] + e->recall.remember[ROOST_R_RESET];
    *value++ = e->recall.remember[ROOST_R_KNOWN];
    roost_unlock(e);
    return 0;
}
