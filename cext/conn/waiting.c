// SPDX-License-Identifier: Apache-2.0
#include "waiting.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conn.h"

#define NEVER UINT32_MAX

struct roost_waiting *roost_waiting_new(struct roost_engine *e, const struct roost_command *command, bool door) {
    struct roost_waiting *w = calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    w->command = *command;
    w->since_ms = e->now_ms;
    w->door = door;
    return w;
}

void roost_waiting_free(struct roost_waiting *w) {
    free((void *)w->command.early);
    free(w);
}

static void tell(struct roost_engine *e, const struct roost_waiting *w, int error, uint32_t answered_after_ms,
                 uint32_t first_ms) {
    struct roost_event event = {.type = ROOST_EV_SERVED,
                                .from_state = w->found,
                                .error = error,
                                .count = answered_after_ms,
                                .id = w->command.id,
                                .token = w->command.token,
                                .at_ms = roost_realtime_ms() - (e->now_ms - w->since_ms),
                                .served = {.key = w->command.record.key,
                                           .server_port = w->server.port,
                                           .service = w->command.record.service,
                                           .first_ms = first_ms}};
    memcpy(event.served.server, w->server.address, sizeof(event.served.server));
    roost_mailbox_post(&e->box, &event);
}

static uint32_t waited_ms(const struct roost_engine *e, const struct roost_waiting *w) {
    uint64_t ms = e->now_ms - w->since_ms;
    return ms < NEVER ? (uint32_t)ms : NEVER - 1;
}

void roost_waiting_linked(struct roost_engine *e, struct roost_conn *c, struct roost_waiting *w) {
    free((void *)w->command.early);
    w->command.early = NULL;
    w->command.id = c->id;
    w->command.record.key = c->key;
    w->command.record.service = c->service;
    w->found = c->state;
    w->linked_after_ms = waited_ms(e, w);
    c->served = w;
}

void roost_waiting_served(struct roost_engine *e, struct roost_conn *c, bool spoken) {
    struct roost_waiting *w = c->served;
    if (!w)
        return;
    c->served = NULL;
    tell(e, w, 0, w->linked_after_ms, spoken ? waited_ms(e, w) : NEVER);
    roost_waiting_free(w);
}

void roost_waiting_refuse(struct roost_engine *e, struct roost_waiting *w, int error) {
    const struct roost_command *command = &w->command;
    if (w->door) {
        e->stat[ROOST_E_DOOR_REFUSED]++;
        tell(e, w, error, waited_ms(e, w), NEVER);
        roost_reset_fd(command->fd);
        roost_waiting_free(w);
        return;
    }
    roost_refuse(e, command->op, command->token, command->id, &command->record.key, error);
    roost_waiting_drop(w);
}

void roost_waiting_drop(struct roost_waiting *w) {
    if (w->command.op == ROOST_OP_ATTACH && w->command.fd >= 0)
        close(w->command.fd);
    roost_waiting_free(w);
}
