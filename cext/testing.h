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

/* Timers: sets each at due_ms[i] in a wheel that starts at start_ms, advances to now_ms; fired[i] = 1 for those due. */
int roost_testing_wheel(uint64_t start_ms, const uint64_t *due_ms, uint32_t count, uint64_t now_ms, uint8_t *fired);

#endif
