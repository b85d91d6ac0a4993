/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROOST_INTERLEAVE_LOOP_H
#define ROOST_INTERLEAVE_LOOP_H

#include <stdbool.h>

struct roost_engine;
struct epoll_event;

bool loop_is_busy(struct roost_engine *e); /* it would not wait for an event now */
void loop_turn(struct roost_engine *e, const struct epoll_event *events, int count);

#endif
