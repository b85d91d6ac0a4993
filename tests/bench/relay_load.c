// SPDX-License-Identifier: Apache-2.0
/*
 * The two ends of `roost bench relay`: as little work as can be, so that what stands between them is what is measured.
 *
 *     relay_load serve ADDRESS PORT                          until it is ended; "listening" when it listens
 *     relay_load stream ADDRESS PORT STREAMS SECONDS         {"bytes": n, "seconds": s}
 *     relay_load ping ADDRESS PORT COUNT                     {"p50_us": t, "p99_us": t}
 *     relay_load connect ADDRESS PORT AT_ONCE SECONDS        {"connections": n, "seconds": s}
 *
 * A connection's first byte tells the server what it is for:
 *
 *     S  a stream: what comes is counted and thrown away in the kernel (MSG_TRUNC), sent without a copy (sendfile). After
 *        its FIN the server answers with the count, so that only bytes that arrived are counted, each once.
 *     P  every MESSAGE bytes are sent back
 *     C  the first MESSAGE bytes are sent back, then the server closes: the client's and the relay's ports are free again
 *        at once
 *
 * Errors end it with a line on stderr and exit code 1. IPv4.
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
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 64
#define AT_ONCE 1024
#define PIECE (1 << 20)
#define STUCK_S 20
#define NS 1000000000ULL

struct end {
    int fd;
    char what; /* 0: no byte was seen yet */
    bool connected, done;
    uint64_t bytes;
};

static void die(const char *what) {
    fprintf(stderr, "relay_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

static struct sockaddr_in address_of(const char *ip, const char *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, ip, &a.sin_addr) != 1) {
        errno = EINVAL;
        die(ip);
    }
    return a;
}

static void watch(int epoll_fd, int operation, struct end *end, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = end};
    if (epoll_ctl(epoll_fd, operation, end->fd, &event))
        die("epoll_ctl");
}

static int stream_socket(int flags) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
        die("socket");
    return fd;
}

/* ---- the server ---- */

static void accept_all(int epoll_fd, int listening) {
    int fd, one = 1;
    while ((fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct end *end = calloc(1, sizeof(*end));
        if (!end)
            die("calloc");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        end->fd = fd;
        watch(epoll_fd, EPOLL_CTL_ADD, end, EPOLLIN);
    }
    if (errno != EAGAIN && errno != ECONNABORTED)
        die("accept");
}

/* Answers one readable connection; false when it has ended. */
static bool serve_one(struct end *end) {
    static char buffer[PIECE];
    ssize_t n = recv(end->fd, buffer, sizeof(buffer), end->what == 'S' ? MSG_TRUNC : 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0) {
        if (end->what == 'S' && write(end->fd, &end->bytes, sizeof(end->bytes)) < 0)
            return false; /* the client counts what it was not told */
        return false;
    }
    if (!end->what)
        end->what = buffer[0];
    end->bytes += (uint64_t)n;
    if (end->what != 'S' && send(end->fd, buffer, (size_t)n, MSG_NOSIGNAL) != n)
        return false; /* a message at a time: there is room for it */
    return end->what != 'C' || end->bytes < MESSAGE;
}

static void serve(const struct sockaddr_in *at) {
    struct epoll_event events[256];
    int one = 1, epoll_fd = epoll_create1(0);
    struct end listening = {.fd = stream_socket(SOCK_NONBLOCK)};
    setsockopt(listening.fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(listening.fd, (const struct sockaddr *)at, sizeof(*at)) || listen(listening.fd, 65535))
        die("listen");
    watch(epoll_fd, EPOLL_CTL_ADD, &listening, EPOLLIN);
    puts("listening");
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(epoll_fd, events, 256, -1);
        for (int i = 0; i < count; i++) {
            struct end *end = events[i].data.ptr;
            if (end == &listening) {
                accept_all(epoll_fd, listening.fd);
            } else if (!serve_one(end)) {
                close(end->fd);
                free(end);
            }
        }
    }
}

/* ---- the clients ---- */

static void stream(const struct sockaddr_in *to, int streams, double seconds) {
    static struct end ends[AT_ONCE];
    struct epoll_event events[AT_ONCE];
    int epoll_fd = epoll_create1(0), file = memfd_create("stream", 0);
    char *bytes = malloc(PIECE);
    uint64_t total = 0;
    if (file < 0 || !bytes)
        die("memory");
    memset(bytes, 'S', PIECE);
    if (write(file, bytes, PIECE) != PIECE)
        die("memfd");
    for (int i = 0; i < streams; i++) {
        ends[i].fd = stream_socket(0);
        if (connect(ends[i].fd, (const struct sockaddr *)to, sizeof(*to)))
            die("connect");
        watch(epoll_fd, EPOLL_CTL_ADD, &ends[i], EPOLLIN | EPOLLOUT);
    }
    uint64_t began = now_ns(), until = began + (uint64_t)(seconds * NS);
    for (int left = streams; left;) {
        int count = epoll_wait(epoll_fd, events, AT_ONCE, STUCK_S * 1000);
        if (count == 0) {
            errno = ETIMEDOUT;
            die("a stream");
        }
        bool over = now_ns() >= until;
        for (int i = 0; i < count; i++) {
            struct end *end = events[i].data.ptr;
            if (end->done) { /* all is sent: the server's count */
                uint64_t arrived = 0;
                if (recv(end->fd, &arrived, sizeof(arrived), MSG_WAITALL) != sizeof(arrived) || arrived != end->bytes) {
                    fprintf(stderr, "relay_load: a stream of %llu bytes, %llu arrived\n",
                            (unsigned long long)end->bytes, (unsigned long long)arrived);
                    exit(1);
                }
                close(end->fd);
                total += arrived;
                left--;
            } else if (over) {
                end->done = true;
                shutdown(end->fd, SHUT_WR);
                watch(epoll_fd, EPOLL_CTL_MOD, end, EPOLLIN);
            } else {
                off_t offset = 0;
                ssize_t n = sendfile(end->fd, file, &offset, PIECE);
                if (n < 0 && errno != EAGAIN)
                    die("sendfile");
                end->bytes += n > 0 ? (uint64_t)n : 0;
            }
        }
    }
    printf("{\"bytes\": %llu, \"seconds\": %.6f}\n", (unsigned long long)total, (double)(now_ns() - began) / NS);
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void ping(const struct sockaddr_in *to, int count) {
    char message[MESSAGE];
    int fd = stream_socket(0);
    uint64_t *took = calloc((size_t)count, sizeof(*took));
    if (!took)
        die("calloc");
    memset(message, 'P', sizeof(message));
    if (connect(fd, (const struct sockaddr *)to, sizeof(*to)))
        die("connect");
    for (int i = 0; i < count; i++) {
        uint64_t began = now_ns();
        if (send(fd, message, MESSAGE, MSG_NOSIGNAL) != MESSAGE || recv(fd, message, MESSAGE, MSG_WAITALL) != MESSAGE)
            die("a message");
        took[i] = now_ns() - began;
    }
    qsort(took, (size_t)count, sizeof(*took), ascending);
    printf("{\"p50_us\": %.3f, \"p99_us\": %.3f}\n", (double)took[count / 2] / 1e3,
           (double)took[count * 99 / 100] / 1e3);
}

static void begin(int epoll_fd, struct end *end, const struct sockaddr_in *to) {
    end->fd = stream_socket(SOCK_NONBLOCK);
    end->connected = false;
    end->bytes = 0;
    if (connect(end->fd, (const struct sockaddr *)to, sizeof(*to)) && errno != EINPROGRESS)
        die("connect");
    watch(epoll_fd, EPOLL_CTL_ADD, end, EPOLLOUT);
}

/* One connection after the other in each of `at_once` places. */
static void connects(const struct sockaddr_in *to, int at_once, double seconds) {
    static struct end ends[AT_ONCE];
    struct epoll_event events[AT_ONCE];
    char message[MESSAGE];
    int epoll_fd = epoll_create1(0);
    uint64_t done = 0, began = now_ns(), until = began + (uint64_t)(seconds * NS), now = began;
    memset(message, 'C', sizeof(message));
    for (int i = 0; i < at_once; i++)
        begin(epoll_fd, &ends[i], to);
    for (; now < until; now = now_ns()) {
        int count = epoll_wait(epoll_fd, events, AT_ONCE, STUCK_S * 1000);
        if (count == 0) {
            errno = ETIMEDOUT;
            die("a connection");
        }
        for (int i = 0; i < count; i++) {
            struct end *end = events[i].data.ptr;
            if (!end->connected) {
                if (send(end->fd, message, MESSAGE, MSG_NOSIGNAL) != MESSAGE)
                    die("a new connection");
                end->connected = true;
                watch(epoll_fd, EPOLL_CTL_MOD, end, EPOLLIN);
                continue;
            }
            char answer[MESSAGE + 1];
            ssize_t n = recv(end->fd, answer, sizeof(answer), 0);
            if (n > 0) {
                end->bytes += (uint64_t)n;
                continue;
            }
            if (n < 0 && errno == EAGAIN)
                continue;
            if (n < 0 || end->bytes != MESSAGE) {
                errno = n < 0 ? errno : EPROTO;
                die("an answer");
            }
            close(end->fd);
            done++;
            begin(epoll_fd, end, to);
        }
    }
    printf("{\"connections\": %llu, \"seconds\": %.6f}\n", (unsigned long long)done, (double)(now - began) / NS);
}

int main(int argc, char **argv) {
    const char *what = argc > 3 ? argv[1] : "";
    struct sockaddr_in at;
    if (argc > 3)
        at = address_of(argv[2], argv[3]);
    int number = argc > 4 ? atoi(argv[4]) : 0;
    double seconds = argc > 5 ? atof(argv[5]) : 0;
    if (!strcmp(what, "serve") && argc == 4) {
        serve(&at);
    } else if (!strcmp(what, "ping") && number > 0) {
        ping(&at, number);
    } else if (!strcmp(what, "stream") && number > 0 && number <= AT_ONCE && seconds > 0) {
        stream(&at, number, seconds);
    } else if (!strcmp(what, "connect") && number > 0 && number <= AT_ONCE && seconds > 0) {
        connects(&at, number, seconds);
    } else {
        fprintf(stderr, "usage: relay_load serve|stream|ping|connect ADDRESS PORT [COUNT [SECONDS]]\n");
        return 2;
    }
    return 0;
}
