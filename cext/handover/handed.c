// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "handed.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define LEAST_FACTS offsetof(struct roost_handed_facts, length) /* without these it is no message of any version */

struct roost_handed *roost_handed_new(enum roost_handed_kind kind) {
    struct roost_handed *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    h->fd[0] = h->fd[1] = -1;
    h->facts.version = ROOST_HANDED_VERSION;
    h->facts.size = sizeof(h->facts);
    h->facts.kind = (uint8_t)kind;
    return h;
}

void roost_handed_free(struct roost_handed *h) {
    for (int i = 0; i < 2; i++)
        if (h->fd[i] >= 0)
            close(h->fd[i]);
    for (int i = 0; i < ROOST_HANDED_BYTES; i++)
        free(h->bytes[i]);
    free(h);
}

union control {
    struct cmsghdr head;
    char room[CMSG_SPACE(2 * sizeof(int))];
};

int roost_handed_send(int to, const struct roost_handed *h) {
    struct roost_handed_facts facts = h->facts;
    struct iovec parts[1 + ROOST_HANDED_BYTES] = {{&facts, sizeof(facts)}};
    union control control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1 + ROOST_HANDED_BYTES, .msg_control = &control};
    size_t size = sizeof(facts), fds = (h->fd[0] >= 0) + (h->fd[1] >= 0);
    for (int i = 0; i < ROOST_HANDED_BYTES; i++) {
        struct roost_pending *p = h->bytes[i];
        facts.length[i] = p ? p->to - p->from : 0;
        parts[1 + i] = (struct iovec){p ? p->data + p->from : NULL, facts.length[i]};
        size += facts.length[i];
    }
    if (size > ROOST_HANDED_MAX)
        return -EMSGSIZE;
    message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(fds * sizeof(int));
    memcpy(CMSG_DATA(&control.head), h->fd, fds * sizeof(int)); /* the client's is always there */
    return sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static void take_descriptors(struct roost_handed *h, struct msghdr *message) {
    const struct cmsghdr *head = CMSG_FIRSTHDR(message);
    if (!head || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
        return;
    size_t bytes = head->cmsg_len - CMSG_LEN(0);
    memcpy(h->fd, CMSG_DATA(head), bytes < sizeof(h->fd) ? bytes : sizeof(h->fd));
}

static bool take_bytes(struct roost_handed *h, const uint8_t *at, size_t left) {
    for (int i = 0; i < ROOST_HANDED_BYTES; i++) {
        uint32_t length = h->facts.length[i];
        if (!length)
            continue;
        if (length > left || !(h->bytes[i] = malloc(sizeof(*h->bytes[i]) + length)))
            return false;
        h->bytes[i]->from = 0;
        h->bytes[i]->to = length;
        memcpy(h->bytes[i]->data, at, length);
        at += length;
        left -= length;
    }
    return !left;
}

static bool is_whole(const struct roost_handed *h) {
    const struct roost_handed_facts *f = &h->facts;
    const bool has_server = f->link == ROOST_HANDED_LINKED || f->link == ROOST_HANDED_ENDING;
    if (f->kind == ROOST_HANDED_LISTENER)
        return h->fd[0] >= 0;
    return f->kind == ROOST_HANDED_CONNECTION && h->fd[0] >= 0 && (h->fd[1] >= 0) == has_server &&
           f->link <= ROOST_HANDED_WANTED && (has_server || !f->moves);
}

static bool take(struct roost_handed *h, const uint8_t *room, size_t size) {
    struct roost_handed_facts *f = &h->facts;
    memcpy(f, room, LEAST_FACTS);
    if (f->version != ROOST_HANDED_VERSION || f->size < LEAST_FACTS || f->size > size)
        return false;
    size_t told = f->size, known = told < sizeof(*f) ? told : sizeof(*f);
    memset(f, 0, sizeof(*f));
    memcpy(f, room, known);
    f->size = sizeof(*f); /* as it is handed on, should it be */
    return take_bytes(h, room + told, size - told) && is_whole(h);
}

struct roost_handed *roost_handed_receive(int from, uint8_t *room, int *error) {
    union control control = {0};
    struct iovec part = {room, ROOST_HANDED_MAX};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct roost_handed *h = roost_handed_new(0);
    ssize_t size = h ? recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) : -1;
    if (size < 0) {
        *error = !h ? -ENOMEM : errno != EAGAIN ? -errno : 0;
        free(h);
        return NULL;
    }
    take_descriptors(h, &message);
    if (!size) { /* the end; or a message of nothing, which none of us sends */
        roost_handed_free(h);
        *error = 0;
        return NULL;
    }
    if (!(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && (size_t)size >= LEAST_FACTS && take(h, room, (size_t)size)) {
        *error = 0;
        return h;
    }
    roost_handed_free(h);
    *error = -EPROTO;
    return NULL;
}
