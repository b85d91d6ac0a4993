// SPDX-License-Identifier: Apache-2.0
/* The engine's loop as it is, a turn at a time. */
#include "cext/engine.c"
#include "loop.h"

bool loop_is_busy(struct roost_engine *e) {
    return !timeout_us(e);
}

void loop_turn(struct roost_engine *e, const struct epoll_event *events, int count) {
    turn(e, events, count);
}
