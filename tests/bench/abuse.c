// SPDX-License-Identifier: Apache-2.0
/*
 * One source of `roost bench abuse` that connects as fast as it can, from addresses of IPv4:
 *
 *     abuse SOURCE ADDRESS PORT AT_ONCE SECONDS HOW     what each connection says is read from standard input
 *
 *     HOW   close    ends it (RST) as soon as all is said
 *           answer   ends it when something comes, or the other end ends it
 *           hold     keeps it, and reads what comes; when the other end ends it, another takes its place
 *           full     says it again and again, and reads nothing: both windows close; and keeps it
 *
 * Prints {"connections": n, "ended": n, "seconds": s}; ended: by the other end. Errors of connections count; any other ends it with a
 * line on stderr and exit code 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SAID_MAX 65536
#define EVENTS 256
#define NS 1000000000ULL

enum how {
    CLOSE,
    ANSWER,
    HOLD,
    FULL
};

struct one {
    int fd; /* -1: none */
    bool counted;
    size_t said;
};

static struct sockaddr_in source = {.sin_family = AF_INET}, target = {.sin_family = AF_INET};
static char saying[SAID_MAX];
static size_t length;
static enum how how;
static uint64_t connections, ended;
static int epoll_fd;

static void die(const char *what) {
    fprintf(stderr, "abuse: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

static void begin(struct one *o) {
    const struct linger at_once = {.l_onoff = 1};
    const int on = 1, small = 2048;
    o->counted = false;
    o->said = 0;
    o->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (o->fd < 0)
        die("socket");
    setsockopt(o->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    setsockopt(o->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    if (how == FULL)
        setsockopt(o->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    if (bind(o->fd, (struct sockaddr *)&source, sizeof(source)))
        die("bind");
    if (connect(o->fd, (struct sockaddr *)&target, sizeof(target)) && errno != EINPROGRESS) {
        close(o->fd); /* no port is free at the moment */
        o->fd = -1;
        return;
    }
    struct epoll_event event = {.events = EPOLLOUT | EPOLLIN, .data.ptr = o};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, o->fd, &event))
        die("epoll_ctl");
}

static void over(struct one *o, bool by_other) {
    ended += by_other;
    close(o->fd);
    begin(o);
}

static void listen_only(struct one *o) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = o};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, o->fd, &event))
        die("epoll_ctl");
}

/* false: it is over. */
static bool say(struct one *o) {
    while (o->said < length) {
        ssize_t n = send(o->fd, saying + o->said, length - o->said, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        o->said += (size_t)n;
        if (how == FULL && o->said == length)
            o->said = 0;
    }
    return true;
}

static void turn(struct one *o, uint32_t events) {
    char heard[4096];
    int error = 0;
    socklen_t size = sizeof(error);
    if (o->fd < 0)
        return;
    if (getsockopt(o->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error || events & EPOLLHUP) {
        connections += !o->counted && error == ECONNRESET; /* it stood, and has ended since */
        over(o, true);
        return;
    }
    if (events & EPOLLOUT) {
        connections += !o->counted;
        o->counted = true;
        if (!say(o)) {
            over(o, true);
            return;
        }
        if (how == CLOSE && o->said == length) {
            over(o, false);
            return;
        }
        if (how != FULL && o->said == length)
            listen_only(o);
    }
    if (events & EPOLLIN && how != FULL) {
        ssize_t n = recv(o->fd, heard, sizeof(heard), 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK))
            over(o, true);
        else if (how == ANSWER && n > 0)
            over(o, false);
    }
}

int main(int argc, char **argv) {
    static const char *const names[] = {"close", "answer", "hold", "full"};
    struct epoll_event events[EVENTS];
    if (argc != 7 || inet_pton(AF_INET, argv[1], &source.sin_addr) != 1 ||
        inet_pton(AF_INET, argv[2], &target.sin_addr) != 1) {
        fprintf(stderr, "abuse SOURCE ADDRESS PORT AT_ONCE SECONDS HOW\n");
        return 1;
    }
    target.sin_port = htons((uint16_t)atoi(argv[3]));
    int at_once = atoi(argv[4]);
    double seconds = atof(argv[5]);
    for (how = CLOSE; how < FULL && strcmp(argv[6], names[how]); how++)
        ;
    for (ssize_t n; length < sizeof(saying) && (n = read(0, saying + length, sizeof(saying) - length)) > 0;)
        length += (size_t)n;
    struct one *all = calloc((size_t)at_once, sizeof(*all));
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0 || !all)
        die("epoll_create1");
    for (int i = 0; i < at_once; i++)
        begin(&all[i]);
    uint64_t began = now_ns(), end = began + (uint64_t)(seconds * (double)NS);
    while (now_ns() < end) {
        int count = epoll_wait(epoll_fd, events, EVENTS, 100);
        for (int i = 0; i < count; i++)
            turn(events[i].data.ptr, events[i].events);
        for (int i = 0; i < at_once && !count; i++) /* those that had no port */
            if (all[i].fd < 0)
                begin(&all[i]);
    }
    printf("{\"connections\": %llu, \"ended\": %llu, \"seconds\": %.3f}\n", (unsigned long long)connections,
           (unsigned long long)ended, (double)(now_ns() - began) / (double)NS);
    return 0;
}
