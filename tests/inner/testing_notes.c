// SPDX-License-Identifier: Apache-2.0
/* The notes of sockets (sockets.c) of an engine whose clock the test turns. */
#include <stdlib.h>

#include "cext/loop.h"
#include "testing.h"

#define EXPECTED 16 /* connections */

struct roost_notes_handle {
    struct roost_engine engine;
    struct roost_sockets sockets;
    struct roost_births_gate gate;
};

struct roost_notes_handle *roost_testing_notes(uint64_t start_s) {
    struct roost_notes_handle *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    h->engine.path.births_sockets = &h->sockets;
    h->engine.path.births_gate = &h->gate;
    h->engine.now_ms = start_s * 1000;
    h->gate.services = 1;
    roost_wheel_init(&h->engine.wheel, h->engine.now_ms);
    if (!roost_conns_init(&h->engine, EXPECTED))
        return h;
    roost_testing_notes_free(h);
    return NULL;
}

void roost_testing_notes_free(struct roost_notes_handle *h) {
    while (h->engine.oldest)
        roost_conn_forget(&h->engine, h->engine.oldest);
    roost_conns_free_dead(&h->engine);
    roost_hash_free(&h->engine.by_id);
    roost_hash_free(&h->engine.by_key);
    free(h);
}

int roost_testing_notes_live(struct roost_notes_handle *h, const struct roost_key *key) {
    return roost_conn_new(&h->engine, key, ++h->engine.next_id, 1, ROOST_CLASS_NONE) != NULL;
}

void roost_testing_notes_note(struct roost_notes_handle *h, const struct roost_key *key) {
    roost_sockets_note(&h->engine, key);
}

void roost_testing_notes_turn(struct roost_notes_handle *h) {
    h->engine.now_ms += 1000;
    roost_sockets_turn(&h->engine);
}

int roost_testing_may_have_socket(const struct roost_notes_handle *h, const struct roost_key *key) {
    return roost_may_have_socket(&h->sockets, roost_hash_of_key(&h->engine, key), (uint32_t)(h->engine.now_ms / 1000));
}
