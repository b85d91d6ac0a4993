// SPDX-License-Identifier: Apache-2.0
#include "pace.h"

#define PACE_FORGET 8
#define PACE_TRIAL 8

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t most(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static void remember(struct roost_pace *p, uint32_t answered, uint64_t now_ms) {
    uint64_t passed_ms = now_ms - p->memory_ms;
    if (passed_ms >= ROOST_PACE_MEMORY_MS) {
        p->answered_before = passed_ms < 2 * ROOST_PACE_MEMORY_MS ? p->answered_most : 0;
        p->answered_most = 0;
        p->memory_ms = now_ms;
    }
    p->answered_most = most(p->answered_most, answered);
}

void roost_pace_look(struct roost_pace *p, uint32_t begun, uint32_t ended, uint32_t taken, uint32_t waiting,
                     uint64_t now_ms) {
    uint32_t began = begun - p->begun, gone = ended - p->ended;
    uint32_t answered = (taken > began ? taken - began : 0) + gone;
    remember(p, began && !p->on_way ? UINT32_MAX : answered, now_ms); /* all that began may still be near */
    uint32_t on_way = p->on_way + began;
    on_way -= least(on_way, gone); /* more: ACKs of what was no probe, or late answers */
    bool slow = answered && answered < 2 * on_way;
    if (!waiting && !p->waited)
        on_way -= least(on_way, p->on_way_before);
    else if (slow && p->slow)
        on_way -= (on_way + PACE_FORGET - 1) / PACE_FORGET;
    p->begun = begun;
    p->ended = ended;
    p->on_way_before = p->on_way = on_way;
    p->waited = waiting > 0;
    p->shut = p->shut && !answered;
    p->slow = slow;
}

bool roost_pace_is_silent(const struct roost_pace *p) {
    return p->on_way && !p->answered_most && !p->answered_before;
}

void roost_pace_dropped(struct roost_pace *p, uint64_t dropped, uint64_t now_ms) {
    bool tried = p->begun != p->begun_when_asked; /* otherwise what was dropped was none of ours */
    bool more = tried && dropped != p->dropped;
    if (tried)
        p->shut = more;
    if (more)
        remember(p, UINT32_MAX, now_ms); /* all that began may still be near */
    p->dropped = dropped;
    p->begun_when_asked = p->begun;
}

uint32_t roost_pace_room(const struct roost_pace *p) {
    uint32_t near = least(p->on_way, most(p->answered_most, p->answered_before));
    uint32_t room = near < ROOST_PACE_AT_ONCE ? ROOST_PACE_AT_ONCE - near : 0;
    return p->shut ? least(room, PACE_TRIAL) : room;
}
