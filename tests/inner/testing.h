/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner parts of the engine for tests and benches, one at a time, without its thread.
 */
#ifndef ROOST_TESTS_TESTING_H
#define ROOST_TESTS_TESTING_H

#include <stddef.h>
#include <stdint.h>

#include "ebpf/shared/record.h"
#include "cext/base/face.h"

struct roost_table_handle; /* a table in plain memory */
struct roost_table_handle *roost_testing_table(uint32_t slots4, uint32_t slots6, uint32_t rest_slots,
                                               uint32_t endpoint_slots);
void roost_testing_table_free(struct roost_table_handle *t);
struct roost_ka *roost_testing_insert(struct roost_table_handle *t, const struct roost_key *key,
                                      const struct roost_ka *ka, uint16_t service);
struct roost_ka *roost_testing_find(struct roost_table_handle *t, const struct roost_key *key);
void roost_testing_remove(struct roost_table_handle *t, struct roost_ka *slot);
/* Where a key may lie: its two buckets and its tag. */
void roost_testing_place(struct roost_table_handle *t, const struct roost_key *key, uint32_t *buckets, uint8_t *tag,
                         uint8_t *home);
/* Begins a larger generation, and moves one slot into it; nonzero: done. */
int roost_testing_grow(struct roost_table_handle *t, int v4, uint32_t slots);
void roost_testing_end_growth(struct roost_table_handle *t, int v4); /* nothing is in the previous one */
int roost_testing_move(struct roost_table_handle *t, const struct roost_key *key);
uint32_t roost_testing_bucket_slots(void);
uint32_t roost_testing_same_tag_max(void);
void roost_testing_set_phase(struct roost_ka *slot, uint32_t phase);
uint32_t roost_testing_rest_alloc(struct roost_table_handle *t, int to_wake);
struct roost_rest *roost_testing_rest(struct roost_table_handle *t, uint32_t index);
void roost_testing_pair(struct roost_table_handle *h, uint32_t rest, const struct roost_ka *other);
uint32_t roost_testing_name(struct roost_table_handle *h, const struct roost_ka *slot);
uint32_t roost_testing_endpoints_used(struct roost_table_handle *h);
uint16_t roost_testing_service(struct roost_table_handle *h, const struct roost_ka *slot);
int64_t roost_testing_adopt(struct roost_table_handle *t, uint64_t *max_id);
uint64_t roost_testing_used(struct roost_table_handle *t, uint64_t *used6, uint64_t *rest_used, uint64_t *refused);

/* enum roost_verdict for a segment (flags: FIN 1, SYN 2, RST 4, ACK 16). */
int roost_testing_is_legal(uint8_t from, uint8_t to, uint8_t cause); /* a transition, to the engine */
int roost_testing_judge(const struct roost_ka *ka, uint32_t seq, uint32_t ack, uint32_t payload, uint32_t flags,
                        int has_ts);

struct roost_limits_handle; /* limits by source, without an engine */
struct roost_limits_handle *roost_testing_limits(const struct roost_bounds *bounds, uint64_t secret);
void roost_testing_limits_free(struct roost_limits_handle *h);
/* count of them at once; how many were in order. */
uint32_t roost_testing_limits_take(struct roost_limits_handle *h, const uint32_t gap_us[2], uint32_t what,
                                   uint32_t service, const uint8_t from[16], uint32_t now_us, uint32_t count);
void roost_testing_limits_clean(struct roost_limits_handle *h, uint32_t now_us); /* all cells */
uint32_t roost_testing_limit_cells(void);

int roost_testing_checksums_good(const uint8_t *frame, uint32_t length, uint32_t l3);
int roost_testing_parse(const uint8_t *frame, uint32_t length, uint32_t l3, uint32_t *seq_ack_payload_tsval,
                        uint32_t *flags, int *has_ts);

/* The probes of a datapath that has no interface and no socket, so that none can be sent. */
struct roost_probes_handle;
struct roost_probes_handle *roost_testing_probes(void);
void roost_testing_probes_free(struct roost_probes_handle *h);
int roost_testing_put_probe(struct roost_probes_handle *h, const struct roost_key *key, const struct roost_ka *ka);
void roost_testing_take_probe(struct roost_probes_handle *h, uint32_t n); /* as XDP does: the n-th that was put */
void roost_testing_retract_probe(struct roost_probes_handle *h, const struct roost_key *key);
uint32_t roost_testing_begin_probes(struct roost_probes_handle *h); /* those that could not be sent */
uint32_t roost_testing_probes_put(struct roost_probes_handle *h);
uint32_t roost_testing_probes_room(void);
uint32_t roost_testing_silence_s(uint32_t heard, uint32_t now_s);
uint32_t roost_testing_first_probe_s(uint32_t salt, uint32_t heard_s, uint32_t interval_s);
uint32_t roost_testing_probe_interval_s(uint16_t least_s, uint16_t most_s, uint32_t rcv_nxt, uint32_t ts_recent);
void roost_testing_silence_indexes(uint32_t silence_s, uint32_t index[2]);

uint32_t roost_testing_probe(const struct roost_key *key, const struct roost_ka *ka, uint64_t now_ms, uint8_t *packet);
void roost_testing_stamp(uint8_t *packet, uint32_t length, uint64_t now_ms);

int roost_testing_snapshot(int fd, struct roost_ka *ka, struct roost_rest *rest); /* 0: the socket is in repair mode */
void roost_testing_undo(int fd);
/* The same by a survey, whose program lies in bpf_dir. *surveyed: the socket itself needed not be asked. */
int roost_testing_survey(const char *bpf_dir, int fd, const struct roost_key *key, struct roost_ka *ka,
                         struct roost_rest *rest, int *surveyed);
int roost_testing_disconnect(int fd, const struct roost_key *key);
/* Rebuilds a connection with a socket that was disconnected. */
int roost_testing_reuse(int fd, int bound, const struct roost_key *key, const struct roost_ka *ka,
                        const struct roost_rest *rest);
struct roost_spares_handle;
struct roost_spares_handle *roost_testing_spares(void);
void roost_testing_spares_free(struct roost_spares_handle *h);
int roost_testing_spares_put(struct roost_spares_handle *h, const struct roost_key *key, int bound, int fd);
int roost_testing_spares_take(struct roost_spares_handle *h, const struct roost_key *key, int *bound); /* fd or -1 */
uint32_t roost_testing_spares_trim(struct roost_spares_handle *h, uint32_t most); /* how many are left */

/* Lets so many threads do so many batches of count items, and adds to done[item] for each. 0 or -errno. */
int roost_testing_workers(uint32_t threads, uint32_t batches, uint32_t count, uint32_t each, uint32_t *done);

/* A thread that takes a fair lock again and again, and gives way for so long in between, while this one takes it `times`
 * times: between how many of its turns, at most, this one had to wait. 0 or more, or -errno. */
int roost_testing_fair_lock(uint32_t times, uint64_t gives_way_ns);
/* How long it gives way, ns, to one that waits and never comes. */
uint64_t roost_testing_gives_way(uint64_t ns);
int roost_testing_rebuild(const struct roost_key *key, const struct roost_ka *ka, const struct roost_rest *rest);

/* header: 108 bytes; returns how many of them are used. */
uint32_t roost_testing_proxy_header(const struct roost_key *key, int version, uint8_t *header);

struct roost_classes_handle; /* policy classes in plain memory */
struct roost_classes_handle *roost_testing_classes(void);
void roost_testing_classes_free(struct roost_classes_handle *h);
uint32_t roost_testing_own_classes(int in_band);
int64_t roost_testing_classes_take(struct roost_classes_handle *h, uint16_t service,
                                   const struct roost_overrides *own); /* a class, or -1: full */
void roost_testing_classes_hold(struct roost_classes_handle *h, uint32_t class);
void roost_testing_classes_drop(struct roost_classes_handle *h, uint32_t class);
int roost_testing_classes_change(struct roost_classes_handle *h, uint16_t service, const struct roost_class *policy);
const struct roost_class *roost_testing_classes_at(const struct roost_classes_handle *h, uint32_t class);
uint32_t roost_testing_classes_interned(const struct roost_classes_handle *h);
/* 0, or -ENOSPC: nothing has changed. */
int roost_testing_classes_rule(struct roost_classes_handle *h, const struct roost_class *policy, uint32_t count,
                               uint32_t *class);
void roost_testing_classes_retired_end(struct roost_classes_handle *h);
/* Of each client, an address of 16 bytes, the policy by these rules, 0xffffffff: none. 0 or -errno. Sorts them. */
int roost_testing_rules_find(struct roost_rule *rule, uint32_t count, uint16_t service, const uint8_t local[16],
                             uint8_t group, const uint8_t *clients, uint32_t clients_count, uint32_t *found);
/* A successor counts these holders, and no others. */
void roost_testing_classes_adopt(struct roost_classes_handle *h, const uint32_t *holders, uint32_t count);

int roost_testing_connect_undo(int fd);

struct roost_hosts_handle;
struct roost_hosts_handle *roost_testing_hosts(void);
void roost_testing_hosts_free(struct roost_hosts_handle *h);
void roost_testing_hosts_add(struct roost_hosts_handle *h, const struct roost_key *key);
void roost_testing_hosts_remove(struct roost_hosts_handle *h, const struct roost_key *key);
/* How many connections the address has; client and local port of the only one, or zeros. */
uint32_t roost_testing_hosts_find(struct roost_hosts_handle *h, const uint8_t *client, uint16_t *ports);

struct roost_filter_handle; /* a filter in plain memory for so many connections; keys are numbers */
struct roost_filter_handle *roost_testing_filter(uint32_t connections);
void roost_testing_filter_free(struct roost_filter_handle *h);
uint64_t roost_testing_filter_bytes(const struct roost_filter_handle *h);
/* Inserts, removes, or looks for `count` keys from `first` on; for how many that succeeded. An insertion that is refused
 * ends it. */
uint32_t roost_testing_filter_insert(struct roost_filter_handle *h, uint64_t first, uint32_t count);
uint32_t roost_testing_filter_remove(struct roost_filter_handle *h, uint64_t first, uint32_t count);
uint32_t roost_testing_filter_has(const struct roost_filter_handle *h, uint64_t first, uint32_t count);
/* The same for keys of another local port than those that are inserted. */
uint32_t roost_testing_filter_has_at(const struct roost_filter_handle *h, uint16_t port, uint64_t first,
                                     uint32_t count);
/* Members, refused insertions, moves, and what the gate says: buckets, moved, how many ports. */
void roost_testing_filter_read(const struct roost_filter_handle *h, uint64_t *values);
void roost_testing_filter_adopt(struct roost_filter_handle *h); /* as a successor does */
/* A key's two buckets and its fingerprint. */
void roost_testing_filter_place(const struct roost_filter_handle *h, uint64_t key, uint32_t *place);
/* For so many milliseconds one thread inserts and removes keys from `churned` on, all that have room, while this one looks
 * as XDP does for the `kept` members from 0 on: how often it saw one of them nowhere. *looked, *churns: how often it looked,
 * and how many fingerprints moved. -1: no thread. */
int64_t roost_testing_filter_race(struct roost_filter_handle *h, uint32_t kept, uint64_t churned, uint32_t ms,
                                  uint64_t *looked, uint64_t *churns);

/* The notes of keys that may have a socket (sockets.c), of an engine whose service has births. */
struct roost_notes_handle;
struct roost_notes_handle *roost_testing_notes(uint64_t start_s);
void roost_testing_notes_free(struct roost_notes_handle *h);
int roost_testing_notes_live(struct roost_notes_handle *h,
                             const struct roost_key *key); /* is awake from now on; 0: no memory */
void roost_testing_notes_note(struct roost_notes_handle *h, const struct roost_key *key);
void roost_testing_notes_turn(struct roost_notes_handle *h); /* a second passes */
int roost_testing_may_have_socket(const struct roost_notes_handle *h, const struct roost_key *key); /* as XDP sees it */

/* An engine without a thread and without a data path, at that time of its clock; roost_list and roost_events may be asked
 * of it, and nothing else but what follows. */
roost_engine *roost_testing_engine(uint32_t slots4, uint32_t slots6, uint32_t rest_slots, uint64_t now_ms);
void roost_testing_engine_free(roost_engine *e);
struct roost_ka *roost_testing_engine_insert(roost_engine *e, const struct roost_key *key, const struct roost_ka *ka,
                                             uint16_t service);
/* So many clients more, from 10.0.0.0 on, all with this record and, if they are to have any, rest slots of their own. How
 * many found room. */
uint32_t roost_testing_engine_many(roost_engine *e, const struct roost_key *first, const struct roost_ka *ka,
                                   uint16_t service, uint32_t count, int rests);
/* A rest slot and its index; NULL: all are in use. */
struct roost_rest *roost_testing_engine_rest(roost_engine *e, uint32_t *index);
struct roost_rest *roost_testing_rest_at(roost_engine *e, uint32_t index);
/* This connection, which has a slot or is new, is awake from now on. 0 or -ENOMEM. */
int roost_testing_engine_wake(roost_engine *e, const struct roost_key *key, uint64_t id);
/* Its slot is free now, or its thaw failed: it is asleep again. */
void roost_testing_engine_thaw(roost_engine *e, const struct roost_key *key, int failed);
/* A slot for one that slept without. */
void roost_testing_engine_back(roost_engine *e, const struct roost_key *key, const struct roost_ka *ka);
/* It falls asleep again; ka NULL: it is closed. */
void roost_testing_engine_end(roost_engine *e, const struct roost_key *key, const struct roost_ka *ka);

enum { /* what grows, each by itself */
    ROOST_PART_NONE = 0,
    ROOST_PART_IPV4 = 1,
    ROOST_PART_IPV6 = 2,
    ROOST_PART_RESTS = 4
};
void roost_testing_fill(roost_engine *e, int part); /* counts as full from now on */
/* A turn of growth at that time: the part that a map is made for. There is no memory for those of the `refused` parts;
 * another counts as half full then, though its map is thrown away. */
int roost_testing_growth(roost_engine *e, uint64_t now_ms, int refused);
uint64_t roost_testing_growths_failed(const roost_engine *e);
uint64_t roost_testing_memory_available(void); /* bytes, as growth sees it */

/* The policy of a service changes: every connection is to obey. */
void roost_testing_change(roost_engine *e, uint16_t service, const struct roost_class *policy);
/* Lets so many probes be offered as there may be, none of which XDP takes. */
void roost_testing_fill_offer(roost_engine *e);
void roost_testing_take_offer(roost_engine *e); /* it takes all that are there; then a few may be due */
/* A turn of the sweep at that time. */
void roost_testing_sweep(roost_engine *e, uint64_t now_ms);
/* One more connection of this class went from one state to another. */
void roost_testing_tally(roost_engine *e, uint32_t class, uint8_t from, uint8_t to, uint8_t cause, uint64_t rx,
                         uint64_t tx);
uint64_t roost_testing_probes_sent(const roost_engine *e); /* or offered */

struct roost_class *roost_testing_class(roost_engine *e, uint32_t class); /* of an engine that runs, as XDP sees it */
uint32_t roost_testing_class_uses(roost_engine *e, uint32_t class);
/* So many in IDLE are to go to SLEEP, for pressure; a turn of that; whether there is more to be done. */
void roost_testing_descend(roost_engine *e, uint32_t count);
int roost_testing_descent(roost_engine *e, uint64_t now_ms);
/* As if the connection of the slot had set these in band. */
void roost_testing_set_own(roost_engine *e, struct roost_ka *slot, const struct roost_overrides *own);
void roost_testing_hold_up(roost_engine *e, uint32_t us); /* its thread, before it asks for events */
int roost_testing_rush(
    roost_engine *e); /* whether an engine that runs finds so many clients that it may pause for them */
/* Replays frames, one behind the other and all of this length, with an engine that runs: how many the kernel took, or -errno.
 * One by one, frames of one EtherType are refused. */
int roost_testing_replay(roost_engine *e, const uint8_t *frames, uint32_t length, uint32_t count, uint32_t ifindex,
                         uint32_t queue, uint16_t refused);

struct roost_pool_handle; /* the servers of a service, none at first */
struct roost_pool_handle *roost_testing_pool(void);
void roost_testing_pool_free(struct roost_pool_handle *h);
int roost_testing_pool_set(struct roost_pool_handle *h, const struct roost_service *service);
/* Fills servers (room for ROOST_PLACES). */
int roost_testing_pool_read(const struct roost_pool_handle *h, struct roost_server_status *servers);
void roost_testing_pool_mark(struct roost_pool_handle *h, const struct roost_server *server, int up);
/* A link of this client is begun: its place, or -1. */
int roost_testing_pool_begin(struct roost_pool_handle *h, const uint8_t *client, uint64_t tried,
                             struct roost_server *chosen);
/* It is made (linked 1), could not be made (0: returns 1 when the server is down by that), or is over (-1). */
int roost_testing_pool_end(struct roost_pool_handle *h, int place, int linked);

struct roost_wheel_handle; /* a wheel and count timers, none of them set */
struct roost_wheel_handle *roost_testing_wheel(uint64_t start_ms, uint32_t count);
void roost_testing_wheel_free(struct roost_wheel_handle *w);
void roost_testing_wheel_set(struct roost_wheel_handle *w, uint32_t timer, uint64_t due_ms);
void roost_testing_wheel_cancel(struct roost_wheel_handle *w, uint32_t timer);
/* How many timers fired; timers (room for all) gets their indices. */
uint32_t roost_testing_wheel_advance(struct roost_wheel_handle *w, uint64_t now_ms, uint32_t *timers);
uint64_t roost_testing_wheel_armed(struct roost_wheel_handle *w);
uint64_t roost_testing_wheel_horizon_ms(void); /* a deadline farther away than this fires early */
uint32_t roost_testing_wheel_tick_ms(void);

struct roost_hash_handle; /* a hash table of numbers, each under a hash that the test chooses */
struct roost_hash_handle *roost_testing_hash(void);
void roost_testing_hash_free(struct roost_hash_handle *h);
void roost_testing_hash_put(struct roost_hash_handle *h, uint64_t hash, uint64_t number);
void roost_testing_hash_drop(struct roost_hash_handle *h, uint64_t hash, uint64_t number);
int roost_testing_hash_has(const struct roost_hash_handle *h, uint64_t hash, uint64_t number);
/* The number under a hash that is found first; 0: none. */
uint64_t roost_testing_hash_first(const struct roost_hash_handle *h, uint64_t hash);
/* Walks, removes of what it finds the multiples of `removed`, and fills numbers (room for twice as many as there are); how
 * many. */
uint32_t roost_testing_hash_walk(struct roost_hash_handle *h, uint64_t from, uint64_t to, uint64_t removed,
                                 uint64_t *numbers);
uint64_t roost_testing_hash_size(const struct roost_hash_handle *h); /* slots */
uint64_t roost_testing_hash_used(const struct roost_hash_handle *h);
uint32_t roost_testing_fnv1a(const uint8_t *bytes, uint32_t length);

struct roost_inband_handle; /* the filter of one direction; manager: its own name */
struct roost_inband_handle *roost_testing_inband(const char *manager);
void roost_testing_inband_free(struct roost_inband_handle *f);
/* roost_inband_next. request (room for 10): verb, number, answer, forward, on, given, the three quiet_ms, interval_ms;
 * name has room for 64. */
int roost_testing_inband_next(struct roost_inband_handle *f, const uint8_t **data, size_t *length, const uint8_t **span,
                              size_t *span_length, uint32_t *request, char *name);
size_t roost_testing_inband_flush(struct roost_inband_handle *f, uint8_t *payload);
size_t roost_testing_inband_held(const struct roost_inband_handle *f, size_t *allocated, uint32_t *patience_ms);
size_t roost_testing_inband_answer(uint8_t *frame, char to, uint16_t number, uint32_t result);
size_t roost_testing_inband_status(uint8_t *frame, char to, uint16_t number, uint32_t state, const uint32_t *quiet_ms,
                                   const char *name, uint64_t rx_bytes, uint64_t tx_bytes);
size_t roost_testing_inband_stay(uint8_t *frame);

#endif
