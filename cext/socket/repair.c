// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "repair.h"

#include <errno.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cext/base/address.h"
#include "cext/base/clock.h"

#ifndef TCPI_OPT_USEC_TS
#define TCPI_OPT_USEC_TS 64
#endif
#define TCP_ESTABLISHED_STATE 1
#define MIN_MSS 88    /* what TCP_MAXSEG takes */
#define MAX_MSS 32767 /* loopback's is more */
#define TIMESTAMPS_SIZE 12
#define CLOCK_TRIES 8 /* for two readings within a millisecond: the thread may be preempted between them */

static int set(int fd, int option, int value) {
    return setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value)) ? -errno : 0;
}

static int get(int fd, int option, void *value, socklen_t size) {
    return getsockopt(fd, IPPROTO_TCP, option, value, &size) ? -errno : 0;
}

static int queue_seq(int fd, int queue, uint32_t *seq) {
    int e = set(fd, TCP_REPAIR_QUEUE, queue);
    return e ? e : get(fd, TCP_QUEUE_SEQ, seq, sizeof(*seq));
}

static int set_queue_seq(int fd, int queue, uint32_t seq) {
    int e = set(fd, TCP_REPAIR_QUEUE, queue);
    if (e)
        return e;
    return setsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &seq, sizeof(seq)) ? -errno : 0;
}

int roost_repair_leave(int fd, int off) {
    const struct linger abort = {.l_onoff = 1}, none = {0};
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
    int e = set(fd, TCP_REPAIR, off);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) && !e)
        e = -errno;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    return e;
}

void roost_repair_undo(int fd, int closed_filter) {
    int none = 0;
    roost_repair_leave(fd, TCP_REPAIR_OFF_NO_WP);
    if (closed_filter >= 0)
        setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none));
}

/* 0 when every queue is empty. SK_MEMINFO_RMEM_ALLOC covers the receive and the out-of-order queue, WMEM_QUEUED what
 * is not sent and what is not acknowledged. */
static int queues_empty(int fd) {
    uint32_t memory[SK_MEMINFO_VARS];
    socklen_t size = sizeof(memory);
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size))
        return -errno;
    return memory[SK_MEMINFO_RMEM_ALLOC] || memory[SK_MEMINFO_WMEM_QUEUED] || memory[SK_MEMINFO_BACKLOG] ? -EAGAIN : 0;
}

/* The record of a socket as it was seen. 0, or an error as of roost_repair_snapshot. */
static int record_of(const struct roost_survey_item *seen, struct roost_ka *ka, struct roost_rest *rest) {
    if (!(seen->found & ROOST_SURVEY_ESTABLISHED))
        return -ENOTCONN;
    if (seen->found & ROOST_SURVEY_USEC)
        return -EOPNOTSUPP;
    if (seen->found & ROOST_SURVEY_QUEUED || seen->rcv_wup != seen->rcv_nxt || !seen->snd_wnd)
        return -EAGAIN;
    bool scaled = seen->flags & ROOST_F_WSCALE;
    uint32_t snd_wscale = scaled ? seen->snd_wscale : 0, rcv_wscale = scaled ? seen->rcv_wscale : 0;
    uint32_t on_wire = seen->rcv_wnd >> rcv_wscale;
    if (!on_wire) /* with our window closed no data would be judged to wake */
        return -EAGAIN;
    memset(ka, 0, sizeof(*ka));
    memset(rest, 0, sizeof(*rest));
    ka->ctl = seen->flags << 16 | snd_wscale << 24 | rcv_wscale << 28;
    ka->snd_nxt = seen->write_seq;
    ka->rcv_nxt = seen->rcv_nxt;
    ka->ts_offset = seen->flags & ROOST_F_TIMESTAMPS ? seen->ts_offset : 0;
    ka->window = on_wire > 0xffff ? 0xffff : (uint16_t)on_wire;
    ka->rest = ROOST_NO_REST;
    rest->snd_wnd = seen->snd_wnd;
    rest->max_window = seen->max_window;
    rest->mss = seen->mss;
    return 0;
}

/* Asks one socket, which is in repair mode, what a survey would have told of it. */
static int ask(int fd, struct roost_survey_item *seen) {
    struct tcp_info info;
    struct tcp_repair_window window;
    uint32_t timestamp;
    int mss, e;

    memset(&info, 0, sizeof(info));
    memset(seen, 0, sizeof(*seen));
    if ((e = get(fd, TCP_INFO, &info, sizeof(info))))
        return e;
    if (info.tcpi_state != TCP_ESTABLISHED_STATE)
        return -ENOTCONN;
    if (info.tcpi_options & TCPI_OPT_USEC_TS)
        return -EOPNOTSUPP;
    if ((e = queues_empty(fd)) || (e = queue_seq(fd, TCP_SEND_QUEUE, &seen->write_seq)) ||
        (e = queue_seq(fd, TCP_RECV_QUEUE, &seen->rcv_nxt)) ||
        (e = get(fd, TCP_REPAIR_WINDOW, &window, sizeof(window))))
        return e;
    /* An acknowledgement is due (delayed ACK): it must be sent before the socket is gone. */
    if (window.rcv_wup != seen->rcv_nxt &&
        ((e = set(fd, TCP_QUICKACK, 1)) || (e = get(fd, TCP_REPAIR_WINDOW, &window, sizeof(window)))))
        return e;
    if ((e = get(fd, TCP_MAXSEG, &mss, sizeof(mss))))
        return e;
    if (info.tcpi_options & TCPI_OPT_TIMESTAMPS) {
        uint32_t now_ms, tries = 0;
        seen->flags |= ROOST_F_TIMESTAMPS;
        do {
            now_ms = (uint32_t)roost_monotonic_ms();
            if ((e = get(fd, TCP_TIMESTAMP, &timestamp, sizeof(timestamp))))
                return e;
        } while ((uint32_t)roost_monotonic_ms() != now_ms && ++tries < CLOCK_TRIES);
        /* Kernels since 6.7 clear the lowest bit of what they tell (it marks the unit), so the true clock may be 1 ms
         * ahead; and it is never behind ours, which is read first. Round up: a TSval must never go back (RFC 7323 5.3). */
        seen->ts_offset = timestamp + 1 - now_ms;
    }
    if (info.tcpi_options & TCPI_OPT_SACK)
        seen->flags |= ROOST_F_SACK;
    if (info.tcpi_options & TCPI_OPT_WSCALE) {
        seen->flags |= ROOST_F_WSCALE;
        seen->snd_wscale = info.tcpi_snd_wscale;
        seen->rcv_wscale = info.tcpi_rcv_wscale;
    }
    seen->found = ROOST_SURVEY_ESTABLISHED | ROOST_SURVEY_REPAIR;
    seen->snd_wnd = window.snd_wnd;
    seen->max_window = window.max_window;
    seen->rcv_wnd = window.rcv_wnd;
    seen->rcv_wup = window.rcv_wup;
    seen->mss = mss > 0xffff ? 0xffff : (uint16_t)mss;
    return 0;
}

static int take(int fd, struct roost_ka *ka, struct roost_rest *rest) {
    struct roost_survey_item seen;
    int e = ask(fd, &seen);
    return e ? e : record_of(&seen, ka, rest);
}

/* Into repair mode, and nothing comes in any more. On error the socket is as it was. */
static int shut_off(int fd, int closed_filter) {
    int e = set(fd, TCP_REPAIR, 1);
    if (!e && closed_filter >= 0 && setsockopt(fd, SOL_SOCKET, SO_ATTACH_BPF, &closed_filter, sizeof(closed_filter))) {
        e = -errno;
        roost_repair_undo(fd, -1);
    }
    return e;
}

int roost_repair_snapshot(int fd, int closed_filter, struct roost_ka *ka, struct roost_rest *rest) {
    int e = queues_empty(fd);
    if (e || (e = shut_off(fd, closed_filter)))
        return e;
    if ((e = take(fd, ka, rest)))
        roost_repair_undo(fd, closed_filter);
    return e;
}

static int survey(const struct roost_survey *s, uint32_t slice, const struct roost_taking *legs, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        s->item[slice * ROOST_SURVEY_SLICE + i].key = *legs[i].key;
    return roost_survey_run(s, slice, count);
}

static void snapshot_one_by_one(int closed_filter, struct roost_taking *legs, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        legs[i].error = roost_repair_snapshot(legs[i].fd, closed_filter, &legs[i].ka, &legs[i].rest);
}

void roost_repair_snapshots(const struct roost_survey *s, uint32_t slice, int closed_filter, struct roost_taking *legs,
                            uint32_t count) {
    if (s->program < 0 || survey(s, slice, legs, count)) {
        snapshot_one_by_one(closed_filter, legs, count);
        return;
    }
    const struct roost_survey_item *item = &s->item[slice * ROOST_SURVEY_SLICE];
    for (uint32_t i = 0; i < count; i++)
        legs[i].error = item[i].found & ROOST_SURVEY_QUEUED ? -EAGAIN : shut_off(legs[i].fd, closed_filter);
    int blind = survey(s, slice, legs, count);
    for (uint32_t i = 0; i < count; i++) {
        struct roost_taking *leg = &legs[i];
        if (leg->error)
            continue;
        /* Seen in repair mode it is this socket, and not a later connection with the same 4-tuple. What is not as it
         * should be (an acknowledgement is due, or it is not in the kernel's table of connections), the socket itself is asked. */
        leg->surveyed = !blind && item[i].found & ROOST_SURVEY_REPAIR && item[i].rcv_wup == item[i].rcv_nxt;
        leg->error = leg->surveyed ? record_of(&item[i], &leg->ka, &leg->rest) : take(leg->fd, &leg->ka, &leg->rest);
        if (leg->error)
            roost_repair_undo(leg->fd, closed_filter);
    }
}

int roost_repair_disconnect(int fd, const struct roost_key *key, bool rebuilt) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    bool v4 = roost_address_is_v4(key->local);
    int one = 1;
    /* Accepted, it may lack what roost_socket_for gives. */
    if (!rebuilt && (v4 ? setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &one, sizeof(one))
                        : setsockopt(fd, IPPROTO_IPV6, IPV6_TRANSPARENT, &one, sizeof(one))))
        return -errno;
    return connect(fd, &none, sizeof(none)) ? -errno : 0;
}

/* What the kernel takes for the largest window of the far end; it lets a segment fill half of that. Where the window is
 * below two segments, its earlier sizes are forgotten: a segment that does not fit waits for the persist timer, which
 * every segment of the far end starts again, and which takes 3 s until there is a measured round trip. */
static uint32_t largest_window(const struct roost_rest *rest) {
    return rest->snd_wnd / 2 < rest->mss ? rest->snd_wnd : rest->max_window;
}

/* For TCP_MAXSEG, in which options are included. */
static int segment_size(uint32_t flags, const struct roost_rest *rest) {
    uint32_t size = largest_window(rest) / 2 + (flags & ROOST_F_TIMESTAMPS ? TIMESTAMPS_SIZE : 0);
    size = size < rest->mss ? size : rest->mss;
    return (int)(size < MIN_MSS ? MIN_MSS : size > MAX_MSS ? MAX_MSS : size);
}

static int rebuild(int fd, bool bound, const struct roost_key *key, const struct roost_ka *ka,
                   const struct roost_rest *rest) {
    struct sockaddr_storage address;
    struct tcp_repair_opt options[4];
    uint32_t flags = ROOST_FLAGS(ka->ctl);
    int e, n = 0;

    socklen_t size = roost_address_to(key->local, key->local_port, &address);
    if (!bound && bind(fd, (struct sockaddr *)&address, size))
        return -errno;
    if ((e = set_queue_seq(fd, TCP_SEND_QUEUE, ka->snd_nxt)) || (e = set_queue_seq(fd, TCP_RECV_QUEUE, ka->rcv_nxt)))
        return e;
    /* connect() works out the segment size; TCP_REPAIR_OPTIONS and TCP_REPAIR_WINDOW come too late for that, and what they
     * say counts when the client's window outgrows all it had been before, or the path's MTU changes. */
    if (rest->mss >= MIN_MSS && (e = set(fd, TCP_MAXSEG, segment_size(flags, rest))))
        return e;
    size = roost_address_to(key->client, key->client_port, &address);
    if (connect(fd, (struct sockaddr *)&address, size))
        return -errno;

    options[n].opt_code = 2; /* MSS */
    options[n++].opt_val = rest->mss;
    /* Scales of 0 where none were negotiated: connect() chose one, and would shrink every window we advertise by it. */
    options[n].opt_code = 3;
    options[n++].opt_val = ROOST_SND_WSCALE(ka->ctl) | ROOST_RCV_WSCALE(ka->ctl) << 16;
    if (flags & ROOST_F_SACK) {
        options[n].opt_code = 4;
        options[n++].opt_val = 0;
    }
    if (flags & ROOST_F_TIMESTAMPS) {
        options[n].opt_code = 8;
        options[n++].opt_val = 0;
    }
    if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options, (socklen_t)n * sizeof(options[0])))
        return -errno;
    if (flags & ROOST_F_TIMESTAMPS) {
        /* The clock has gone on while the socket was away: with the frozen value PAWS at the client would drop all we
         * send for as long as the connection slept. Rounded up to even: the lowest bit marks the unit. */
        uint32_t timestamp = ((uint32_t)roost_monotonic_ms() + ka->ts_offset + 1) & ~1u;
        if (setsockopt(fd, IPPROTO_TCP, TCP_TIMESTAMP, &timestamp, sizeof(timestamp)))
            return -errno;
    }
    struct tcp_repair_window window = {
        .snd_wl1 = ka->rcv_nxt - 1, /* any segment from now on may update the window */
        .snd_wnd = rest->snd_wnd,
        .max_window = largest_window(rest),
        .rcv_wnd = (uint32_t)ka->window << ROOST_RCV_WSCALE(ka->ctl),
        .rcv_wup = ka->rcv_nxt,
    };
    return setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &window, sizeof(window)) ? -errno : 0;
}

int roost_repair_finish(int fd, bool spare) {
    int none = 0;
    if (spare && setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none)))
        return -errno;
    return roost_repair_leave(fd, TCP_REPAIR_OFF_NO_WP);
}

int roost_repair_peek(int fd, struct roost_ka *ka) {
    struct tcp_repair_window window;
    int e = set(fd, TCP_REPAIR, 1);
    if (e)
        return e;
    memset(ka, 0, sizeof(*ka));
    e = queue_seq(fd, TCP_SEND_QUEUE, &ka->snd_nxt);
    if (!e)
        e = queue_seq(fd, TCP_RECV_QUEUE, &ka->rcv_nxt);
    if (!e)
        e = get(fd, TCP_REPAIR_WINDOW, &window, sizeof(window));
    roost_repair_undo(fd, -1);
    if (e)
        return e;
    uint32_t scale = 0;
    while (window.rcv_wnd >> scale > 0xffff)
        scale++;
    ka->window = (uint16_t)(window.rcv_wnd >> scale);
    ka->ctl = scale << 28;
    return 0;
}

int roost_repair_rebuild(const struct roost_key *key, const struct roost_ka *ka, const struct roost_rest *rest) {
    int fd = roost_socket_for(key->local, true);
    if (fd < 0)
        return fd;
    int e = set(fd, TCP_NODELAY, 1);
    /* Repair mode comes before bind: it is what lets the socket bind beside the listener. */
    if (!e)
        e = set(fd, TCP_REPAIR, 1);
    if (!e)
        e = rebuild(fd, false, key, ka, rest);
    if (!e)
        return fd;
    close(fd); /* in repair mode, or never connected: silent */
    return e;
}

int roost_repair_reuse(int spare, bool bound, const struct roost_key *key, const struct roost_ka *ka,
                       const struct roost_rest *rest) {
    int e = rebuild(spare, bound, key, ka, rest);
    if (!e)
        return spare;
    close(spare); /* silent */
    return e;
}
