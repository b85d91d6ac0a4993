// SPDX-License-Identifier: Apache-2.0
#include "waiting.h"

#include <stdlib.h>
#include <unistd.h>

#include "conn.h"

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

void roost_waiting_refuse(struct roost_engine *e, struct roost_waiting *w, int error) {
    const struct roost_command *command = &w->command;
    if (w->door) {
        e->stat[ROOST_E_DOOR_REFUSED]++;
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
