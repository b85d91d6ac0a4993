// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "ready_links.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"

#define ANSWER_MS 5000 /* for a server to accept */
#define RETRY_MS 200   /* after the first failure; twice as long after each further one */
#define RETRIES 8      /* from then on every 51 s */

static bool same(const struct roost_server *a, const struct roost_server *b) {
    return a->port == b->port && !memcmp(a->address, b->address, sizeof(a->address));
}

static void end(struct roost_ready_link *l) {
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    l->made = false;
}

/* A link to this server from the list, which is closed otherwise; else a place for one. */
static struct roost_ready_link move(struct roost_ready_links *from, const struct roost_server *to, bool left) {
    for (uint32_t i = 0; i < from->count; i++) {
        struct roost_ready_link link = from->link[i];
        if (link.fd < 0 || link.left != left || !same(&link.to, to))
            continue;
        from->link[i].fd = -1;
        return link;
    }
    return (struct roost_ready_link){.to = *to, .fd = -1, .left = left};
}

int roost_ready_links_set(struct roost_ready_links *r, const struct roost_service *service) {
    const bool own =
        service->as_client || service->persistent || service->by_daemon;     /* each client's link is its own */
    const uint32_t left = (uint32_t)service->reuse_links * service->servers; /* the first ones: taken before others */
    struct roost_ready_links now = {.count = own ? 0 : left + (uint32_t)service->ready_links * service->servers};
    now.link = now.count ? calloc(now.count, sizeof(*now.link)) : NULL;
    if (now.count && !now.link)
        return -ENOMEM;
    for (uint32_t i = 0; i < now.count; i++) /* one to each server, then a second one */
        now.link[i] = move(r, &service->server[i % service->servers], i < left);
    roost_ready_links_close(r);
    *r = now;
    return 0;
}

/* What its server said before, a read would find in front of the end. What comes on one that a
 * client has left belongs to no client: the link is closed. */
static bool has_ended(const struct roost_ready_link *l) {
    struct pollfd ends = {.fd = l->fd, .events = POLLRDHUP | (l->left ? POLLIN : 0)};
    return poll(&ends, 1, 0) > 0 && ends.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLIN);
}

int roost_ready_links_take(struct roost_ready_links *r, const struct roost_server *to) {
    for (uint32_t i = 0; i < r->count; i++) {
        struct roost_ready_link *l = &r->link[i];
        if (!l->made || !same(&l->to, to) || has_ended(l)) /* one that has ended is the next look's */
            continue;
        int fd = l->fd;
        *l = (struct roost_ready_link){.to = l->to, .fd = -1, .left = l->left};
        return fd;
    }
    return -1;
}

bool roost_ready_links_leave(struct roost_ready_links *r, const struct roost_server *to, int fd, uint64_t now_ms) {
    for (uint32_t i = 0; i < r->count && r->link[i].left; i++) {
        struct roost_ready_link *l = &r->link[i];
        if (l->fd >= 0 || !same(&l->to, to))
            continue;
        *l = (struct roost_ready_link){.to = *to, .fd = fd, .left = true, .made = true, .since_ms = now_ms};
        return true;
    }
    return false;
}

static void failed(struct roost_ready_link *l, uint64_t now_ms) {
    end(l);
    l->again_ms = now_ms + ((uint64_t)RETRY_MS << l->failures);
    if (l->failures < RETRIES)
        l->failures++;
}

static void begin(struct roost_ready_link *l, const uint8_t *from, uint64_t now_ms) {
    l->fd = roost_connect(&l->to, false, from, 0);
    l->since_ms = now_ms;
    if (l->fd < 0)
        failed(l, now_ms);
}

void roost_ready_link_tend(struct roost_ready_link *l, bool wanted, const uint8_t *from, uint32_t ready_ms,
                           uint64_t now_ms) {
    if (l->fd >= 0 && !wanted) {
        end(l);
        l->failures = 0;
    }
    if (l->fd >= 0 && !l->made && roost_is_connected(l->fd)) {
        l->made = true;
        l->since_ms = now_ms;
    }
    if (l->fd >= 0 && (has_ended(l) || (!l->made && now_ms >= l->since_ms + ANSWER_MS)))
        failed(l, now_ms);
    if (l->made && now_ms >= l->since_ms + ready_ms) {
        end(l);
        l->failures = 0;
        l->again_ms = 0;
    }
    if (l->fd < 0 && wanted && !l->left && now_ms >= l->again_ms)
        begin(l, from, now_ms);
}

uint32_t roost_ready_links_made(const struct roost_ready_links *r, const struct roost_server *to) {
    uint32_t made = 0;
    for (uint32_t i = 0; i < r->count; i++)
        made += r->link[i].made && same(&r->link[i].to, to);
    return made;
}

void roost_ready_links_close(struct roost_ready_links *r) {
    for (uint32_t i = 0; i < r->count; i++)
        end(&r->link[i]);
    free(r->link);
    *r = (struct roost_ready_links){0};
}
