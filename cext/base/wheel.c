// SPDX-License-Identifier: Apache-2.0
#include "wheel.h"

#include <stddef.h>
#include <string.h>

void roost_wheel_init(struct roost_wheel *w, uint64_t now_ms) {
    memset(w, 0, sizeof(*w));
    w->tick = now_ms / ROOST_WHEEL_TICK_MS;
}

void roost_wheel_cancel(struct roost_wheel *w, struct roost_timer *t) {
    if (!t->previous)
        return;
    *t->previous = t->next;
    if (t->next)
        t->next->previous = t->previous;
    t->next = NULL;
    t->previous = NULL;
    w->armed--;
}

void roost_wheel_set(struct roost_wheel *w, struct roost_timer *t, uint64_t due_ms) {
    roost_wheel_cancel(w, t);
    uint64_t tick = (due_ms + ROOST_WHEEL_TICK_MS - 1) / ROOST_WHEEL_TICK_MS;
    if (tick < w->tick)
        tick = w->tick;
    if (tick >= w->tick + ROOST_WHEEL_SLOTS)
        tick = w->tick + ROOST_WHEEL_SLOTS - 1;
    struct roost_timer **head = &w->slot[tick % ROOST_WHEEL_SLOTS];
    t->next = *head;
    t->previous = head;
    if (t->next)
        t->next->previous = &t->next;
    *head = t;
    w->armed++;
}

struct roost_timer *roost_wheel_advance(struct roost_wheel *w, uint64_t now_ms) {
    struct roost_timer *due = NULL;
    uint64_t now = now_ms / ROOST_WHEEL_TICK_MS;
    uint64_t steps = now >= w->tick ? now - w->tick + 1 : 0;
    if (steps > ROOST_WHEEL_SLOTS) /* after a long halt of the process one turn sees every slot */
        steps = ROOST_WHEEL_SLOTS;
    for (uint64_t i = 0; i < steps; i++) {
        struct roost_timer **head = &w->slot[(w->tick + i) % ROOST_WHEEL_SLOTS];
        while (*head) {
            struct roost_timer *t = *head;
            roost_wheel_cancel(w, t);
            t->next = due;
            due = t;
        }
    }
    if (now >= w->tick)
        w->tick = now + 1;
    return due;
}
