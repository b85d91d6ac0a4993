// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Survey: reads many sockets in one run, where each would need nine system calls to say the same.
 *
 * It is attached to nothing. The engine runs it (BPF_PROG_RUN) in its own network namespace over a slice of `sockets`,
 * which it shares by memory. Nothing is locked, and need not be: the engine shuts a socket off by a filter before it
 * uses what is read here, and the getsockopt calls that this replaces read without a lock as well.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "ebpf/lib/define_map.h"
#include "ebpf/lib/socket.h"
#include "ebpf/shared/survey.h"

char _license[] SEC("license") = "GPL";

#define TCP_ESTABLISHED_STATE 1

/* What is read of the kernel's own, found in it by name (BPF type information). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common {
    volatile unsigned char skc_state;
};

typedef struct {
    int counter;
} atomic_t;

struct sock {
    struct sock_common __sk_common;
    struct {
        atomic_t rmem_alloc;
        int len;
    } sk_backlog;
    int sk_wmem_queued;
};

struct inet_sock {
    struct sock sk;
};

struct inet_connection_sock {
    struct inet_sock icsk_inet;
};

struct tcp_options_received {
    __u16 tstamp_ok : 1, wscale_ok : 1, sack_ok : 3, snd_wscale : 4, rcv_wscale : 4;
    __u16 mss_clamp;
};

struct tcp_sock {
    struct inet_connection_sock inet_conn;
    __u32 rcv_nxt, rcv_wup, rcv_wnd;
    __u32 write_seq, snd_wnd, max_window;
    __u32 tsoffset;
    __u8 repair : 1, tcp_usec_ts : 1;
    struct tcp_options_received rx_opt;
};

#pragma clang attribute pop

ROOST_SURVEY_MAPS(ROOST_DEFINE_MAP)

static __always_inline int is_v4(const struct roost_key *key) {
    const __u32 *a = (const __u32 *)key->client;
    return !a[0] && !a[1] && a[2] == __builtin_bswap32(0xffff);
}

static __always_inline void read_socket(struct tcp_sock *tp, struct roost_survey_item *item) {
    struct sock *sk = &tp->inet_conn.icsk_inet.sk;
    struct tcp_options_received *o = &tp->rx_opt;
    if (sk->__sk_common.skc_state != TCP_ESTABLISHED_STATE)
        return;
    item->write_seq = tp->write_seq;
    item->rcv_nxt = tp->rcv_nxt;
    item->snd_wnd = tp->snd_wnd;
    item->max_window = tp->max_window;
    item->rcv_wnd = tp->rcv_wnd;
    item->rcv_wup = tp->rcv_wup;
    item->ts_offset = tp->tsoffset;
    item->mss = o->mss_clamp;
    item->snd_wscale = BPF_CORE_READ_BITFIELD(o, snd_wscale);
    item->rcv_wscale = BPF_CORE_READ_BITFIELD(o, rcv_wscale);
    item->flags = (BPF_CORE_READ_BITFIELD(o, tstamp_ok) ? ROOST_F_TIMESTAMPS : 0) |
                  (BPF_CORE_READ_BITFIELD(o, sack_ok) ? ROOST_F_SACK : 0) |
                  (BPF_CORE_READ_BITFIELD(o, wscale_ok) ? ROOST_F_WSCALE : 0);
    __u32 found = ROOST_SURVEY_ESTABLISHED;
    if (BPF_CORE_READ_BITFIELD(tp, repair))
        found |= ROOST_SURVEY_REPAIR;
    if (sk->sk_backlog.rmem_alloc.counter || sk->sk_backlog.len || sk->sk_wmem_queued)
        found |= ROOST_SURVEY_QUEUED;
    if (bpf_core_field_exists(tp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts))
        found |= ROOST_SURVEY_USEC;
    item->found = found;
}

struct walk {
    struct __sk_buff *skb;
    __u32 first;
};

static long look(__u32 i, struct walk *walk) {
    __u32 at = walk->first + i;
    struct roost_survey_item *item = bpf_map_lookup_elem(&sockets, &at);
    if (!item)
        return 1;
    item->found = 0;
    struct bpf_sock *sk = find_socket(walk->skb, &item->key, !is_v4(&item->key));
    if (!sk)
        return 0;
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk); /* a half-open one, and one in TIME-WAIT, is none */
    if (tp)
        read_socket(tp, item);
    bpf_sk_release(sk);
    return 0;
}

/* cb[0]: the first of the slice, cb[1]: how many. */
SEC("tc")
int roost_survey(struct __sk_buff *skb) {
    struct walk walk = {.skb = skb, .first = skb->cb[0]};
    bpf_loop(skb->cb[1], look, &walk, 0);
    return 0;
}
