// SPDX-License-Identifier: Apache-2.0
/* Parts of the engine that no scenario has to do with: links to servers, of which there is one that reads at once; in-band
 * requests, listeners, doors, lists and tallies, of which there are none. */
#include <errno.h>

#include "machine.h"

void roost_link_open(struct roost_engine *e, struct roost_conn *c) {
    c->link = ROOST_LINKED;
}

void roost_relay(struct roost_engine *e, struct roost_conn *c) {
    read_all(c->client.fd);
    read_all(c->server.fd);
    c->client.readable = c->server.readable = false;
}

int roost_link_end(struct roost_engine *e, struct roost_conn *c, enum roost_cause cause) {
    c->link = ROOST_UNLINKED;
    roost_conn_transition(e, c, ROOST_ST_STANDBY, cause);
    return 0;
}

void roost_link_abandon(struct roost_engine *e, struct roost_conn *c) {
    c->link = ROOST_UNLINKED;
}

int roost_link_release(struct roost_engine *e, struct roost_conn *c, bool late) {
    return -EBUSY;
}
int roost_link_yield(struct roost_engine *e, struct roost_conn *c) {
    return -EBUSY;
}

void roost_link_attach(struct roost_engine *e, struct roost_conn *c) {
}
void roost_link_event(struct roost_engine *e, struct roost_conn *c, uint32_t events) {
}
void roost_link_timer(struct roost_engine *e, struct roost_conn *c) {
}
void roost_link_resumed(struct roost_engine *e, struct roost_conn *c) {
}
void roost_links_turn(struct roost_engine *e) {
}
void roost_ready_turn(struct roost_engine *e) {
}

bool roost_inband_wants_link(const struct roost_conn *c) {
    return false;
}
bool roost_inband_unfinished(const struct roost_conn *c) {
    return false;
}
void roost_inband_frozen(struct roost_engine *e, struct roost_conn *c) {
}
void roost_inband_turn(struct roost_engine *e, struct roost_conn *c) {
}
uint64_t roost_inband_due_ms(struct roost_engine *e, struct roost_conn *c) {
    return 0;
}
void roost_inband_timer(struct roost_engine *e, struct roost_conn *c) {
}
void roost_inband_free(struct roost_conn *c) {
}
int roost_inband_answered(struct roost_engine *e, const struct roost_command *command) {
    return ENOENT;
}
int roost_inband_tell(struct roost_engine *e, struct roost_conn *c) {
    return EPERM;
}

void roost_accept_turn(struct roost_engine *e, struct roost_listener *l) {
}
void roost_accept_resume(struct roost_engine *e) {
}
int roost_adopt(struct roost_engine *e, const struct roost_command *command) {
    return 0;
}
void roost_acknowledge_later(struct roost_engine *e, struct roost_conn *c) {
}
void roost_unacked_turn(struct roost_engine *e) {
}
void roost_router_accept(struct roost_engine *e, int door) {
}
void roost_sockets_turn(struct roost_engine *e) {
}
void roost_sockets_note(struct roost_engine *e, const struct roost_key *key) {
}
void roost_tally(struct roost_engine *e, uint32_t class, uint8_t from, uint8_t to, uint8_t cause, uint64_t rx,
                 uint64_t tx) {
}
void roost_tally_silence(struct roost_engine *e, uint32_t class, uint32_t silence_s, bool lost) {
}
void roost_listings_awake(struct roost_engine *e, const struct roost_key *key) {
}
void roost_listings_asleep(struct roost_engine *e, const struct roost_key *key) {
}
void roost_listings_back(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot) {
}

/* What a table grows by is there before a scenario begins (model.c), and nothing else grows. */
int roost_datapath_make_generation(const struct roost_datapath *d, bool v4, uint32_t buckets,
                                   struct roost_reason *why) {
    return -ENOMEM;
}
int roost_rests_make(const struct roost_rests *r, uint32_t slots) {
    return -ENOMEM;
}
int roost_datapath_add_rests(struct roost_datapath *d, struct roost_table *t, int fd) {
    return -ENOMEM;
}

/* The sweep is called for what a scenario wants of it, and offers no probes. */
uint32_t roost_datapath_probes_begin(struct roost_datapath *d) {
    return 0;
}
uint32_t roost_datapath_probes_room(const struct roost_datapath *d) {
    return 0;
}
struct roost_probe *roost_datapath_probe(struct roost_datapath *d) {
    return NULL;
}
uint32_t roost_datapath_probes_end(struct roost_datapath *d, uint32_t now_s) {
    return 0;
}

/* Servers are up. */
bool roost_turns_away(const struct roost_listener *l) {
    return false;
}
