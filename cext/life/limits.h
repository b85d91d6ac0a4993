/* SPDX-License-Identifier: Apache-2.0 */
/* Limits by source (ebpf/shared/limit.h), as the engine sets and asks them. */
#ifndef ROOST_CEXT_LIMITS_H
#define ROOST_CEXT_LIMITS_H

#include <stdbool.h>

#include "ebpf/shared/limit.h"
#include "cext/base/types.h"

struct roost_engine;

/* What is a source, and its burst. */
void roost_limits_bound(struct roost_limits *l, const struct roost_bounds *bounds);
#define ROOST_LIMIT_CLEANED 64
/* Empties those of so many cells, from this one on, of which the next one was due before now. */
void roost_limits_clean(struct roost_limits *l, uint32_t from, uint32_t now_us);
/* The next ones, in each turn of the sweep: all of them within 13 s. */
void roost_limits_turn(struct roost_engine *e);
/* 0 or -EIO: no random secret. */
int roost_limits_begin(struct roost_engine *e);
/* XDP has those of a service's births and handshakes from now on. 0 or -errno. */
int roost_limits_tell(struct roost_engine *e, const struct roost_service *service);
/* It accepts none any more. */
void roost_limits_forget(struct roost_engine *e, const struct roost_service *service);
/* Whether one more of this service is in order; it is counted, or that it was refused. what: below ROOST_LIMITS_OF_SERVICES. */
bool roost_limits_allow(struct roost_engine *e, enum roost_limited what, const struct roost_service *service,
                        const uint8_t client[16]);
/* Whether its source has done so much of it just now that others go first. */
bool roost_limits_crowds(struct roost_engine *e, enum roost_limited what, const struct roost_service *service,
                         const uint8_t client[16]);
/* Whether this client's source may have one more connection with a service; that it may not is counted. */
bool roost_limits_have_room(struct roost_engine *e, const struct roost_service *service, const uint8_t client[16]);

#endif
