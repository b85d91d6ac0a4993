// SPDX-License-Identifier: Apache-2.0
/*
 * Servers whose client is not to be had yet: it is not connected, or linked to another server and the policy lets them
 * wait for it. Each is tried again a few times a second, the oldest first, until its time is over.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cext/internal.h"

#define RETRY_MS 50

struct roost_waiting {
    struct roost_waiting *next;
    struct roost_command command; /* the socket, and whom it wants */
    uint64_t since_ms;
    bool door; /* it came through a door, and is told by RST; else by the answer to its command */
};

static int attempt(struct roost_engine *e, struct roost_command *command, bool door, uint64_t since_ms,
                   uint32_t *wait_ms) {
    return door ? roost_router_link(e, command, since_ms, wait_ms) : roost_attach_server(e, command, since_ms, wait_ms);
}

int roost_attach_or_wait(struct roost_engine *e, struct roost_command *command, bool door) {
    uint32_t wait_ms;
    int error = attempt(e, command, door, e->now_ms, &wait_ms);
    if (!error || !wait_ms || e->servers_waiting >= ROOST_WAITING_MAX)
        return error;
    struct roost_waiting *w = malloc(sizeof(*w)), **last = &e->waiting_servers;
    if (!w)
        return error;
    w->command = *command;
    w->since_ms = e->now_ms;
    w->door = door;
    w->next = NULL;
    command->early = NULL; /* the waiting server's now */
    while (*last)
        last = &(*last)->next;
    *last = w;
    e->servers_waiting++;
    return 0;
}

static bool has_left(int fd) {
    uint8_t byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void forget(struct roost_waiting *w) {
    free((void *)w->command.early);
    free(w);
}

static void refuse(struct roost_engine *e, struct roost_waiting *w, int error) {
    if (w->door) {
        roost_router_turn_away(e, w->command.fd);
    } else {
        roost_refuse(e, w->command.op, w->command.token, w->command.id, &w->command.record.key, error);
        close(w->command.fd);
    }
}

void roost_waiting_turn(struct roost_engine *e) {
    if (!e->waiting_servers || e->now_ms < e->servers_retry_ms)
        return;
    e->servers_retry_ms = e->now_ms + RETRY_MS;
    for (struct roost_waiting **at = &e->waiting_servers; *at;) {
        struct roost_waiting *w = *at;
        uint32_t wait_ms = 0;
        int error = has_left(w->command.fd) ? ECONNRESET : attempt(e, &w->command, w->door, w->since_ms, &wait_ms);
        if (error && e->now_ms < w->since_ms + wait_ms) {
            at = &w->next;
            continue;
        }
        if (error)
            refuse(e, w, error);
        *at = w->next;
        e->servers_waiting--;
        forget(w);
    }
}

void roost_waiting_close(struct roost_engine *e) {
    while (e->waiting_servers) {
        struct roost_waiting *w = e->waiting_servers;
        e->waiting_servers = w->next;
        roost_reset_fd(w->command.fd);
        forget(w);
    }
}
