/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner parts of the engine for tests and benches, one at a time, without its thread: the second and last file that
 * cffi is given. Nothing in the product calls these.
 */
#ifndef ROOST_CEXT_TESTING_H
#define ROOST_CEXT_TESTING_H

#include <stdint.h>

#include "../ebpf/record.h"

struct roost_table_handle; /* a table in plain memory */
struct roost_table_handle *roost_testing_table(uint32_t slots4, uint32_t slots6, uint32_t rest_slots);
void roost_testing_table_free(struct roost_table_handle *t);
struct roost_ka *roost_testing_insert(struct roost_table_handle *t, const struct roost_key *key,
                                      const struct roost_ka *ka);
struct roost_ka *roost_testing_find(struct roost_table_handle *t, const struct roost_key *key);
void roost_testing_remove(struct roost_table_handle *t, struct roost_ka *slot);
/* Where a key may lie: its two buckets and its tag. */
void roost_testing_place(struct roost_table_handle *t, const struct roost_key *key, uint32_t *buckets, uint16_t *tag);
uint32_t roost_testing_bucket_slots(void);
uint32_t roost_testing_same_tag_max(void);
void roost_testing_set_phase(struct roost_ka *slot, uint32_t phase);
uint32_t roost_testing_rest_alloc(struct roost_table_handle *t);
struct roost_rest *roost_testing_rest(struct roost_table_handle *t, uint32_t index);
uint64_t roost_testing_adopt(struct roost_table_handle *t, uint64_t *max_id);
uint64_t roost_testing_used(struct roost_table_handle *t, uint64_t *used6, uint64_t *rest_used, uint64_t *refused);

/* enum roost_verdict for a segment (flags: FIN 1, SYN 2, RST 4, ACK 16). */
int roost_testing_judge(const struct roost_ka *ka, uint32_t seq, uint32_t ack, uint32_t payload, uint32_t flags,
                        int has_ts);

int roost_testing_checksums_good(const uint8_t *frame, uint32_t length, uint32_t l3);
int roost_testing_parse(const uint8_t *frame, uint32_t length, uint32_t l3, uint32_t *seq_ack_payload_tsval,
                        uint32_t *flags, int *has_ts);
uint32_t roost_testing_probe(const struct roost_key *key, const struct roost_ka *ka, uint64_t now_ms, uint8_t *packet);

int roost_testing_snapshot(int fd, struct roost_ka *ka, struct roost_rest *rest); /* 0: the socket is in repair mode */
void roost_testing_undo(int fd);
int roost_testing_rebuild(const struct roost_key *key, const struct roost_ka *ka, const struct roost_rest *rest);

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

#endif
