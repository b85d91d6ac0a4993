/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that are born asleep, as the engine sees them; ebpf/xdp/born.h is where that happens. */
#ifndef ROOST_CEXT_BORN_H
#define ROOST_CEXT_BORN_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/shared/birth.h"
#include "cext/base/types.h"

struct roost_engine;

/* A connection ends: its cookie is worth nothing from now on. To be called before its slot or its socket goes. id: its number;
 * 0: it has none. */
void roost_births_ended(struct roost_engine *e, const struct roost_key *key, uint64_t id);
/* No births until roost_births_tell: what an earlier engine told XDP names its endpoints. */
void roost_births_forget(struct roost_engine *e);
/* Tells XDP of a service, or that its clients are not born asleep any more. 0, or -errno. */
int roost_births_tell(struct roost_engine *e, const struct roost_service *service);
/* One of a service's servers is up, or down: its clients are born where they are not refused for it. */
void roost_births_servers(struct roost_engine *e, uint16_t service);
/* In each turn: says that the engine lives and the table has room. */
void roost_births_turn(struct roost_engine *e);
void roost_births_close(struct roost_engine *e);
/* Whether this table has room for more. Takes some 20 us. */
bool roost_births_have_room(struct roost_engine *e, bool v4);

/* After roost_table_adopt: what was born until then is counted there; whose cookies are spent. */
void roost_born_adopted(struct roost_engine *e);
/* Slots in use, those that XDP filled included. */
void roost_table_used(struct roost_engine *e, uint64_t *used4, uint64_t *used6);
/* Births without a payload byte yet. */
uint64_t roost_born_unspoken(struct roost_engine *e);

/* Gives a birth a number and a rest slot, when a byte comes or is to be sent. 0, or ENOSPC: no rest slot is free. */
int roost_born_settle(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot);

/* Removes the slot of a leg whose far end is told by a socket that is good for one RST. false: no descriptor is left for it. */
bool roost_slot_reset(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot,
                      const struct roost_rest *rest);
/* The same of a client that was born and never spoke. */
void roost_births_expire(struct roost_engine *e, const struct roost_key *key, struct roost_ka *slot);

#endif
