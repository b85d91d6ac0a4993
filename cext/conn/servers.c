// SPDX-License-Identifier: Apache-2.0
#include "servers.h"

#include <errno.h>
#include <string.h>

#include "cext/base/count.h"

static bool same(const struct roost_server *a, const struct roost_server *b) {
    return a->port == b->port && !memcmp(a->address, b->address, sizeof(a->address));
}

static void give_back(struct roost_member *m) {
    if (!m->configured && !m->links)
        memset(m, 0, sizeof(*m));
}

int roost_pool_find(const struct roost_pool *pool, const struct roost_server *server) {
    for (int i = 0; i < ROOST_PLACES; i++)
        if (pool->place[i].used && same(&pool->place[i].server, server))
            return i;
    return ROOST_NO_PLACE;
}

static int free_place(const struct roost_pool *pool) {
    for (int i = 0; i < ROOST_PLACES; i++)
        if (!pool->place[i].used)
            return i;
    return ROOST_NO_PLACE;
}

int roost_pool_set(struct roost_pool *pool, const struct roost_service *service) {
    struct roost_pool next = *pool;
    if (service->servers > ROOST_SERVERS_MAX)
        return -EINVAL;
    next.balance = service->balance;
    next.max_fails = service->max_fails;
    /* Else none is known yet: links wait. */
    next.as_accepted = !service->servers && (service->transparent || service->by_daemon);
    for (int i = 0; i < ROOST_PLACES; i++)
        next.place[i].configured = false;
    for (int i = 0; i < service->servers; i++) {
        int at = roost_pool_find(&next, &service->server[i]);
        if (at == ROOST_NO_PLACE) {
            at = free_place(&next);
            if (at == ROOST_NO_PLACE)
                return -ENOSPC;
            next.place[at].server = service->server[i];
            next.place[at].used = true;
        }
        next.place[at].configured = true;
    }
    for (int i = 0; i < ROOST_PLACES; i++)
        give_back(&next.place[i]);
    *pool = next;
    return 0;
}

static bool may_be_chosen(const struct roost_pool *pool, int place, uint64_t tried) {
    const struct roost_member *m = &pool->place[place];
    return m->configured && !m->down && !(tried >> place & 1);
}

bool roost_pool_is_up(const struct roost_pool *pool, const struct roost_server *server) {
    int place = roost_pool_find(pool, server);
    return place != ROOST_NO_PLACE && may_be_chosen(pool, place, 0);
}

void roost_pool_mark(struct roost_pool *pool, int place, bool up) {
    pool->place[place].down = !up;
    pool->place[place].failed_in_row = 0;
}

int roost_pool_read(const struct roost_pool *pool, struct roost_server_status *status, uint32_t max) {
    uint32_t count = 0;
    for (int i = 0; i < ROOST_PLACES && count < max; i++) {
        const struct roost_member *m = &pool->place[i];
        if (m->used)
            status[count++] =
                (struct roost_server_status){m->server, !m->down, !m->configured, m->links, 0, m->linked, m->failed};
    }
    return (int)count;
}

/* Finaliser of MurmurHash3: every bit of the value decides about every bit of the result. */
static uint64_t mix(uint64_t h) {
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdULL;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return h ^ h >> 33;
}

static uint64_t mix_address(uint64_t h, const uint8_t address[16]) {
    uint64_t half[2];
    memcpy(half, address, sizeof(half));
    return mix(mix(h ^ half[0]) ^ half[1]);
}

/* Rendezvous hashing (Thaler and Ravishankar, 1998): the server with the highest weight for this client. Each client has
 * its own order of all servers, so one that goes down moves its own clients alone. Not seeded: a restart, or
 * another appliance with the same servers, makes the same choice. */
static int by_source(const struct roost_pool *pool, const uint8_t client[16], uint64_t tried) {
    uint64_t highest = 0;
    int chosen = ROOST_NO_PLACE;
    for (int i = 0; i < ROOST_PLACES; i++) {
        if (!may_be_chosen(pool, i, tried))
            continue;
        const struct roost_server *s = &pool->place[i].server;
        uint64_t weight = mix_address(mix_address(s->port, s->address), client);
        if (chosen == ROOST_NO_PLACE || weight > highest) {
            highest = weight;
            chosen = i;
        }
    }
    return chosen;
}

static int by_links(const struct roost_pool *pool, uint64_t tried) {
    int chosen = ROOST_NO_PLACE;
    for (int step = 1; step <= ROOST_PLACES; step++) {
        int i = (pool->last + step) % ROOST_PLACES;
        if (may_be_chosen(pool, i, tried) &&
            (chosen == ROOST_NO_PLACE || pool->place[i].links < pool->place[chosen].links))
            chosen = i;
    }
    return chosen;
}

int roost_pool_choose(struct roost_pool *pool, const uint8_t client[16], uint64_t tried) {
    int chosen = pool->balance == ROOST_SOURCE_HASH ? by_source(pool, client, tried) : by_links(pool, tried);
    if (chosen != ROOST_NO_PLACE)
        pool->last = chosen;
    return chosen;
}

uint32_t roost_pool_left(const struct roost_pool *pool, uint64_t tried) {
    uint32_t left = 0;
    for (int i = 0; i < ROOST_PLACES; i++)
        left += may_be_chosen(pool, i, tried);
    return left;
}

void roost_pool_enter(struct roost_pool *pool, int place) {
    pool->place[place].links++;
}

void roost_pool_leave(struct roost_pool *pool, int place) {
    ROOST_ONE_LESS(pool->place[place].links);
    give_back(&pool->place[place]);
}

void roost_pool_given(struct roost_pool *pool, int place) {
    pool->place[place].linked++;
}

void roost_pool_linked(struct roost_pool *pool, int place) {
    pool->place[place].linked++;
    pool->place[place].failed_in_row = 0;
}

void roost_pool_spoken(struct roost_pool *pool, bool client_first) {
    if (!client_first)
        pool->client_first = 0;
    else if (pool->client_first < ROOST_SURELY_CLIENT_FIRST)
        pool->client_first++;
}

bool roost_pool_failed(struct roost_pool *pool, int place) {
    struct roost_member *m = &pool->place[place];
    m->failed++;
    m->failed_in_row++;
    if (m->down || !pool->max_fails || m->failed_in_row < pool->max_fails)
        return false;
    m->down = true;
    return true;
}
