// SPDX-License-Identifier: Apache-2.0
/*
 * A server wants a client: its socket is linked to the client's connection, which is woken for it, or taken over from
 * another server where the policy says so. A server whose client cannot be had yet waits: it is tried again a few times a
 * second, the oldest first, until its time is over.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "cext/base/address.h"
#include "cext/base/count.h"
#include "life.h"

#define RETRY_MS 50

/* A client that sleeps with a server is that server's. To be taken over from it, both must be awake. */
static int wake_pair(struct roost_engine *e, const struct roost_key *key, const struct roost_ka *slot,
                     uint32_t *wait_ms) {
    const struct roost_class *class = roost_class_of(e, slot->class);
    int error = EBUSY;
    if (class->second_server != ROOST_SECOND_REFUSED)
        *wait_ms = class->second_server_ms;
    if (class->second_server == ROOST_SECOND_TAKES_OVER && roost_wake(e, key, ROOST_C_SERVER_ATTACH, &error))
        error = EBUSY; /* not yet */
    return error;
}

/* Why a client that is awake, or wakes, cannot be linked to this server now; 0 when it can. */
static int obstacle(struct roost_engine *e, struct roost_conn *c, uint32_t *wait_ms) {
    const struct roost_class *class = roost_class_of(e, c->class);
    bool linked = c->link == ROOST_CONNECTING || c->link == ROOST_LINKED;
    bool taken = c->server_waits || c->want_close || c->client.eof || roost_is_pair(c->slot);
    if (!linked && !taken)
        return 0;
    if (class->second_server != ROOST_SECOND_REFUSED)
        *wait_ms = class->second_server_ms;
    return !taken && class->second_server == ROOST_SECOND_TAKES_OVER ? -roost_link_yield(e, c) : EBUSY;
}

/* Gives a server to the connection with its key. 0, or an errno and for how long it may be tried again. */
static int give(struct roost_engine *e, struct roost_waiting *w, uint32_t *wait_ms) {
    const struct roost_key *key = &w->command.record.key;
    struct roost_holder h = roost_whose(e, key);
    struct roost_conn *c = h.conn;
    int error = 0;
    if (!c && roost_is_pair(h.slot))
        return wake_pair(e, key, h.slot, wait_ms);
    if (!c)
        c = roost_wake(e, key, ROOST_C_SERVER_ATTACH, &error);
    if (c)
        error = obstacle(e, c, wait_ms);
    if (error)
        return error;
    w->until_ms = w->since_ms + roost_class_of(e, c->class)->second_server_ms;
    w->command.id = c->id;
    c->server_waits = w;
    c->want_freeze = false;
    c->must_answer = roost_class_of(e, c->class)->attach_silence_s > 0;
    roost_conn_run(e, c);
    return 0;
}

/* The key of the client whose address a server connected to. 0 or an errno. */
static int find_client(struct roost_engine *e, struct roost_waiting *w) {
    struct roost_key *key = &w->command.record.key;
    uint16_t port_be;
    uint8_t byte;
    int error = roost_address_of_socket(w->command.fd, key->client, &key->client_port);
    if (error)
        return -error;
    if (roost_address_of_peer(w->command.fd, w->server.address, &port_be))
        return ENOTCONN; /* it has gone */
    w->server.port = ntohs(port_be);
    if (!recv(w->command.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT))
        return ENOTCONN; /* it ended before it began */
    port_be = key->client_port;
    error = roost_find_by_address(e, key, w->server.address);
    if (error)
        key->client_port = port_be; /* which the search has changed */
    return error;
}

/* Its client is not there, and may be dialled for it. */
static void tell_wanted(struct roost_engine *e, struct roost_waiting *w) {
    struct roost_event event = {.type = ROOST_EV_WANTED};
    event.served.key = w->command.record.key;
    memcpy(event.served.server, w->server.address, sizeof(event.served.server));
    event.served.server_port = w->server.port;
    roost_mailbox_post(&e->box, &event);
    w->dialled = w->told = true;
}

void roost_attach_undialled(struct roost_engine *e, const struct roost_key *key) {
    for (struct roost_waiting *w = e->waiting_servers; w; w = w->next) {
        const struct roost_key *wanted = &w->command.record.key;
        if (wanted->client_port == key->client_port && !memcmp(wanted->client, key->client, sizeof(key->client)))
            w->dialled = false;
    }
    e->servers_retry_ms = 0;
}

static int attempt(struct roost_engine *e, struct roost_waiting *w, uint32_t *wait_ms) {
    *wait_ms = 0;
    int error = w->door ? find_client(e, w) : 0;
    if (error == ENOTCONN)
        return error;
    if (!error)
        error = give(e, w, wait_ms);
    if (!w->door)
        return error;
    if (error == ENOENT && e->dial_ms && !w->told && e->servers_waiting < ROOST_WAITING_MAX &&
        !roost_mailbox_crowded(&e->box))
        tell_wanted(e, w);
    if (error == ENOENT && w->dialled)
        *wait_ms = e->dial_ms;
    if (error == ENOENT || error == EAGAIN)
        w->command.error = error; /* its client is not there, and may be linked to another server when it comes */
    if (error && error != ENOTUNIQ && w->command.error && *wait_ms < e->server_wait_ms)
        *wait_ms = e->server_wait_ms;
    return error;
}

void roost_attach_server(struct roost_engine *e, struct roost_waiting *w) {
    uint32_t wait_ms;
    int error = attempt(e, w, &wait_ms);
    if (!error)
        return;
    if (!wait_ms || e->servers_waiting >= ROOST_WAITING_MAX) {
        roost_waiting_refuse(e, w, error);
        return;
    }
    struct roost_waiting **last = &e->waiting_servers;
    while (*last)
        last = &(*last)->next;
    w->next = NULL;
    *last = w;
    e->servers_waiting++;
}

static bool has_left(int fd) {
    uint8_t byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

void roost_attach_turn(struct roost_engine *e) {
    if (!e->waiting_servers || e->now_ms < e->servers_retry_ms)
        return;
    e->servers_retry_ms = e->now_ms + RETRY_MS;
    for (struct roost_waiting **at = &e->waiting_servers; *at;) {
        struct roost_waiting *w = *at, *next = w->next;
        uint32_t wait_ms = 0;
        int error = has_left(w->command.fd) ? ECONNRESET : attempt(e, w, &wait_ms);
        if (error && e->now_ms < w->since_ms + wait_ms) {
            at = &w->next;
            continue;
        }
        *at = next;
        ROOST_ONE_LESS(e->servers_waiting);
        if (error)
            roost_waiting_refuse(e, w, error);
    }
}

void roost_attach_close(struct roost_engine *e) {
    while (e->waiting_servers) {
        struct roost_waiting *w = e->waiting_servers;
        e->waiting_servers = w->next;
        roost_reset_fd(w->command.fd);
        roost_waiting_free(w);
    }
}
