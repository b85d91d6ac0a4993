// SPDX-License-Identifier: Apache-2.0
/*
 * The least that a relay of sockets can do for a connection, for `roost bench relay`: what no relay can be cheaper than.
 *
 *     least_relay ADDRESS PORT SERVER-ADDRESS SERVER-PORT          until it is ended; "listening" when it listens
 *
 * It knows no policy, no timeouts and no statistics, takes no care of a slow reader, and ends when anything fails. But it
 * is a relay: bytes and ends of either side go to the other one, each when it comes.
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
#include <unistd.h>

#define FDS 65536
#define EVENTS 512

static struct {
    int peer;
    bool connecting, ended, over; /* it is being connected to a server; its FIN was read; it is to be closed */
} end[FDS];
static int over[FDS], overs; /* what is closed after the turn: an event of it may be left */
static int epoll_fd;

static void die(const char *what) {
    fprintf(stderr, "least_relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int tcp_socket(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0 || fd >= FDS || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
        die("socket");
    return fd;
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.fd = fd};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event))
        die("epoll_ctl");
}

static void accept_all(int listening, const struct sockaddr_in *server) {
    int fd;
    while ((fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        int to = tcp_socket();
        if (fd >= FDS || (connect(to, (const struct sockaddr *)server, sizeof(*server)) && errno != EINPROGRESS))
            die("connect");
        end[fd].peer = to;
        end[to].peer = fd;
        end[to].connecting = true;
        end[fd].connecting = end[fd].ended = end[to].ended = end[fd].over = end[to].over = false;
        watch(to);
        watch(fd);
    }
    if (errno != EAGAIN && errno != ECONNABORTED)
        die("accept");
}

static void finish(int fd) {
    over[overs++] = fd;
    over[overs++] = end[fd].peer;
    end[fd].over = end[end[fd].peer].over = true;
}

/* Moves what there is; ends: the peer's FIN is known to stand behind it. */
static void move(int from, bool ends) {
    static char buffer[65536];
    int to = end[from].peer;
    ssize_t n = recv(from, buffer, sizeof(buffer), 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n < 0 || (n > 0 && send(to, buffer, (size_t)n, MSG_NOSIGNAL | (ends ? MSG_MORE : 0)) != n)) {
        finish(from);
        return;
    }
    if (n > 0 && !ends)
        return;
    end[from].ended = true;
    if (end[to].ended)
        finish(from);
    else
        shutdown(to, SHUT_WR);
}

static void happened(int fd, uint32_t events) {
    if (end[fd].over)
        return;
    if (end[fd].connecting && events & EPOLLOUT) { /* what the client has said until now was not looked at */
        end[fd].connecting = false;
        move(end[fd].peer, false);
    }
    if (events & EPOLLIN && !end[fd].ended && !end[end[fd].peer].connecting)
        move(fd, events & EPOLLRDHUP);
}

int main(int argc, char **argv) {
    static struct epoll_event events[EVENTS];
    struct sockaddr_in at = {.sin_family = AF_INET}, server = at;
    int one = 1, listening = tcp_socket();
    if (argc != 5 || !inet_pton(AF_INET, argv[1], &at.sin_addr) || !inet_pton(AF_INET, argv[3], &server.sin_addr)) {
        fprintf(stderr, "usage: least_relay ADDRESS PORT SERVER-ADDRESS SERVER-PORT\n");
        return 2;
    }
    at.sin_port = htons((uint16_t)atoi(argv[2]));
    server.sin_port = htons((uint16_t)atoi(argv[4]));
    epoll_fd = epoll_create1(0);
    if (setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
        bind(listening, (const struct sockaddr *)&at, sizeof(at)) || listen(listening, 65535))
        die("listen");
    struct epoll_event first = {.events = EPOLLIN, .data.fd = listening};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listening, &first))
        die("epoll_ctl");
    puts("listening");
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(epoll_fd, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == listening)
                accept_all(listening, &server);
            else
                happened(events[i].data.fd, events[i].events);
        }
        while (overs)
            close(over[--overs]);
    }
}
