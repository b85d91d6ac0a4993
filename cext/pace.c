// SPDX-License-Identifier: Apache-2.0
#include "pace.h"

#define PACE_MEMORY_MS 10 /* a thread that should receive, and has to wait for its processor, seldom waits longer */
#define PACE_FORGET 8

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

void roost_pace_look(struct roost_pace *p, uint32_t begun, uint32_t ended, uint32_t taken, uint32_t waiting,
                     uint64_t now_ms) {
    uint32_t began = begun - p->begun, gone = ended - p->ended;
    uint32_t answered = (taken > began ? taken - began : 0) + gone, on_way = p->on_way + began;
    if (began && !p->on_way) { /* of whom nobody could answer before */
        p->answered_most = UINT32_MAX;
        p->answered_most_ms = now_ms;
    }
    on_way -= least(on_way, gone); /* somebody acknowledges what was no probe, or an answer comes late */
    p->begun = begun;
    p->ended = ended;
    if (answered >= p->answered_most || now_ms - p->answered_most_ms >= PACE_MEMORY_MS) {
        p->answered_most = answered;
        p->answered_most_ms = now_ms;
    }
    if (!waiting && !p->waited)
        on_way -= least(on_way, p->on_way_before);
    else if (answered && answered < 2 * on_way)
        on_way -= (on_way + PACE_FORGET - 1) / PACE_FORGET;
    p->on_way_before = p->on_way = on_way;
    p->waited = waiting > 0;
}

uint32_t roost_pace_room(const struct roost_pace *p) {
    uint32_t near = least(p->on_way, p->answered_most);
    return near < ROOST_PACE_AT_ONCE ? ROOST_PACE_AT_ONCE - near : 0;
}
