// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The client simulator's TCP: millions of clients, 32 bytes each, in one XDP program with two duties.
 *
 * Attached to the simulator's interface it judges every frame for a client as a suspicious client's kernel would, and
 * answers at once by XDP_TX. Run by the driver as BPF_PROG_RUN with live frames (the frames then seem to come from the
 * loopback interface, where no program can be attached) it makes the frames that clients send by themselves: SYN,
 * keep-alive probe, data, FIN, RST, retransmission. It must be the same program: for one that is not attached the
 * kernel rebuilds its XDP dispatcher at each run, with two RCU grace periods.
 */
#include "simulator.h"

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ebpf/lib/checksum.h"
#include "ebpf/lib/define_map.h"
#include "ebpf/lib/verifier.h"

char _license[] SEC("license") = "GPL";

#define LOOPBACK_IFINDEX 1
#define LOCK_TRIES 4096
#define SCRATCH 2048
#define OPTIONS 20 /* of our SYN, bytes */
#define CHUNK 512  /* what bpf_csum_diff takes at once before Linux 6.13 */

#define CHALLENGE_MS 500
#define OUTSIDE (1u << 30) /* of any window */

#define FIN 1
#define SYN 2
#define RST 4
#define PSH 8
#define ACK 16

struct pattern {
    __u8 bytes[SIM_PATTERN + SIM_PATTERN_SLACK];
};

struct heard {
    __u32 seq, ack, payload, tsval, tsecr;
    __u16 window, mss;
    __u8 flags, header, has_ts, has_wscale, wscale, has_sack;
};

struct scratch {
    __u8 bytes[SCRATCH + 16];
    struct heard heard;
};

/* sim_list: an array's values are 8 bytes apart in any case. */
/* clang-format off */
ROOST_DEFINE_MAP(sim_settings, ARRAY,        INDEXED(struct sim_config),   1,            FIXED,      OWN, MAPPED)
ROOST_DEFINE_MAP(sim_jobs,     ARRAY,        INDEXED(struct sim_job),      1,            FIXED,      OWN, MAPPED)
ROOST_DEFINE_MAP(sim_list,     ARRAY,        INDEXED(__u64),               SIM_RUN,      FIXED,      OWN, MAPPED)
ROOST_DEFINE_MAP(sim_clients,  ARRAY,        INDEXED(struct sim_client),   1,            CONFIGURED, OWN, MAPPED)
ROOST_DEFINE_MAP(sim_counts,   ARRAY,        INDEXED(struct sim_counters), SIM_MAX_CPUS, FIXED,      OWN, MAPPED)
ROOST_DEFINE_MAP(sim_offences, ARRAY,        INDEXED(struct sim_offence),  SIM_OFFENCES, FIXED,      OWN, MAPPED)
ROOST_DEFINE_MAP(sim_pattern,  ARRAY,        INDEXED(struct pattern),      1,            FIXED,      OWN, MAPPED)
ROOST_DEFINE_MAP(sim_scratch,  PERCPU_ARRAY, INDEXED(struct scratch),      1,            FIXED,      OWN, PLAIN)
/* clang-format on */

/* A frame on its way through the program. */
struct work {
    const struct sim_config *cfg;
    struct sim_counters *count;
    __u32 index;
    __u32 now_ms;
    __u32 offence; /* SIM_N_*, 0 = none */
};

struct reply {
    __u32 seq, ack, payload, tsval, tsecr;
    __u16 window;
    __u8 flags, has_ts;
    __u8 wrong; /* 1: its checksum shall be */
};

/* What the functions that decide are given. They are global functions, which the verifier looks at once each and not in
 * every combination with what is around them. */
struct task {
    __u32 index, now_ms, offence;
    __u32 idle; /* the client is in no state for it */
    __u32 more;
    struct sim_client client;
    struct heard heard;
    struct reply reply;
};

static __always_inline int find_settings(struct work *w) {
    __u32 zero = 0, cpu = bpf_get_smp_processor_id();
    w->cfg = bpf_map_lookup_elem(&sim_settings, &zero);
    w->count = bpf_map_lookup_elem(&sim_counts, &cpu);
    return w->cfg && w->count && w->cfg->addresses;
}

static __always_inline int open_task(struct work *w, const struct task *t) {
    w->index = t->index;
    w->now_ms = t->now_ms;
    return find_settings(w);
}

/* Numbers that follow from a client's index. */

static __always_inline __u32 mix(__u32 x) {
    x ^= x >> 16;
    x *= 0x85ebca6b;
    x ^= x >> 13;
    x *= 0xc2b2ae35;
    return x ^ x >> 16;
}

static __always_inline __u32 identity(const struct work *w) {
    return mix(w->index ^ w->cfg->secret);
}

/* The low half of the initial sequence number is the client's own for good: from it and a sequence number follows a
 * position in what the client says. The high half runs with the clock (RFC 6528), so that a new connection is not taken
 * for an old one. */
static __always_inline __u32 initial_seq(const struct work *w) {
    return identity(w) + (w->now_ms / 256 << 16);
}

/* Never 0, whose echo says that there is none. */
static __always_inline __u32 tsval(const struct work *w, __u32 ms) {
    return (ms + mix(w->index ^ w->cfg->secret ^ 0x5bd1e995)) ?: 1;
}

/* Where in the pattern the byte at a position of a stream is; each client's is another. */
static __always_inline __u32 in_pattern(const struct work *w, __u32 position) {
    return (position + w->index * 40503) & (SIM_PATTERN - 1);
}

/* length <= SCRATCH, and up to 3 bytes beyond it are 0 */
static __always_inline __u64 sum_scratch(struct scratch *scratch, __u32 length) {
    __u64 sum = 0;
    length = (length + 3) & ~3u;
#pragma clang loop unroll(full)
    for (int i = 0; i < SCRATCH / CHUNK; i++) {
        __u32 from = i * CHUNK;
        if (length <= from)
            break;
        __u32 size = length - from;
        if (size > CHUNK)
            size = CHUNK;
        KEEP(size);
        if (size > CHUNK)
            size = CHUNK;
        sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)&scratch->bytes[from], size, 0);
    }
    return sum;
}

/* Writes a segment of client w->index into the frame, which it cuts or stretches. 0 = no room. */
static __always_inline int write_segment(struct xdp_md *ctx, const struct work *w, const struct reply *r, int v6) {
    const struct sim_config *cfg = w->cfg;
    const int l4 = v6 ? 54 : 34;
    int syn = r->flags & SYN;
    __u32 header = syn ? 20 + OPTIONS : r->has_ts ? 32 : 20;
    __u32 payload = r->payload;
    __u64 sum = 0;
    __s32 grow = (__s32)(l4 + header + payload) - (__s32)(ctx->data_end - ctx->data);
    if (grow && bpf_xdp_adjust_tail(ctx, grow))
        return 0;
    if (payload) {
        __u32 zero = 0;
        struct pattern *pattern = bpf_map_lookup_elem(&sim_pattern, &zero);
        struct scratch *scratch = bpf_map_lookup_elem(&sim_scratch, &zero);
        __u32 at = in_pattern(w, r->seq - identity(w) - 1);
        KEEP(at);
        if (!pattern || !scratch || at >= SIM_PATTERN)
            return 0;
        __u32 last = payload - 1;
        KEEP(last);
        if (last >= SIM_MAX_SEGMENT)
            return 0;
        payload = last + 1; /* not 0, as the verifier of 6.1 sees by `last` alone */
        KEEP(payload);
        bpf_probe_read_kernel(scratch->bytes, payload, &pattern->bytes[at]);
        *(__u32 *)&scratch->bytes[payload & 2047] = 0;
        if (bpf_xdp_store_bytes(ctx, l4 + header, scratch->bytes, payload))
            return 0;
        sum = sum_scratch(scratch, payload);
    }

    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct tcphdr *tcp = data + l4;
    if ((void *)(tcp + 1) > end)
        return 0;
    __u32 address = bpf_htonl(bpf_ntohl(cfg->base[3]) + w->index % cfg->addresses);
    __builtin_memcpy(data, cfg->mac, 12);
    __u32 l4_length = header + payload;
    sum += bpf_htonl(l4_length) + (__u64)bpf_htonl(IPPROTO_TCP) + address + cfg->server[3];
    if (v6) {
        struct ipv6hdr *ip = data + ETH_HLEN;
        *(__be16 *)(data + 12) = bpf_htons(ETH_P_IPV6);
        *(__be32 *)ip = bpf_htonl(0x60000000);
        ip->payload_len = bpf_htons(l4_length);
        ip->nexthdr = IPPROTO_TCP;
        ip->hop_limit = 64;
        __builtin_memcpy(&ip->saddr, cfg->base, 12);
        ip->saddr.s6_addr32[3] = address;
        __builtin_memcpy(&ip->daddr, cfg->server, 16);
        sum += words(cfg->base, 3) + words(cfg->server, 3);
    } else {
        struct iphdr *ip = data + ETH_HLEN;
        *(__be16 *)(data + 12) = bpf_htons(ETH_P_IP);
        *(__be32 *)ip = bpf_htonl(0x45000000 | (20 + l4_length));
        *((__be32 *)ip + 1) = bpf_htonl(0x4000); /* DF */
        *((__be32 *)ip + 2) = bpf_htonl(64 << 24 | IPPROTO_TCP << 16);
        ip->saddr = address;
        ip->daddr = cfg->server[3];
        ip->check = fold(words((__u32 *)ip, 5));
    }
    tcp->source = bpf_htons(cfg->first_port + w->index / cfg->addresses);
    tcp->dest = cfg->server_port;
    tcp->seq = bpf_htonl(r->seq);
    tcp->ack_seq = bpf_htonl(r->ack);
    *((__be32 *)tcp + 3) = bpf_htonl((header / 4) << 28 | (__u32)r->flags << 16 | r->window);
    *((__be32 *)tcp + 4) = 0;
    sum += words((__u32 *)tcp, 5);
    __u32 *option = (__u32 *)(tcp + 1);
    if (syn) { /* the layout of Linux, with NOPs for what is not offered */
        if ((void *)(option + OPTIONS / 4) > end)
            return 0;
        const __u32 nops = 0x01010101;
        option[0] = bpf_htonl(0x02040000 | (v6 ? 1440 : 1460));
        option[1] = bpf_htonl((cfg->offer_sack ? 0x04020000 : 0x01010000) | (cfg->offer_timestamps ? 0x080a : 0x0101));
        option[2] = cfg->offer_timestamps ? bpf_htonl(r->tsval) : nops;
        option[3] = cfg->offer_timestamps ? 0 : nops;
        option[4] = cfg->offer_wscale ? bpf_htonl(0x01030300 | SIM_WSCALE) : nops;
        sum += words(option, OPTIONS / 4);
    } else if (r->has_ts) {
        if ((void *)(option + 3) > end)
            return 0;
        option[0] = bpf_htonl(0x0101080a);
        option[1] = bpf_htonl(r->tsval);
        option[2] = bpf_htonl(r->tsecr);
        sum += words(option, 3);
    }
    tcp->check = fold(sum) ^ r->wrong;
    w->count->n[SIM_N_SENT]++;
    return 1;
}

static __always_inline int try_lock(struct sim_client *client) {
    __u32 ctl = *(volatile __u32 *)&client->ctl;
    return !(ctl & SIM_LOCK) && __sync_val_compare_and_swap(&client->ctl, ctl, ctl | SIM_LOCK) == ctl;
}

struct waiting {
    struct sim_client *client;
    int locked;
};

static long wait_for_lock(__u32 turn, struct waiting *waiting) {
    waiting->locked = try_lock(waiting->client);
    return waiting->locked;
}

/* The lock of a client. Its holder runs with softirqs off, so what waits is on another processor and the wait is short;
 * after too long a wait the frame is dropped, as if the network had lost it. */
static __always_inline int lock(struct sim_client *client) {
    if (try_lock(client))
        return 1;
    struct waiting waiting = {.client = client};
    bpf_loop(LOCK_TRIES, wait_for_lock, &waiting, 0);
    return waiting.locked;
}

/* Writes the client back, and lets it go: an exchange, since a plain store could come before the others elsewhere. */
static __always_inline void store_and_unlock(struct sim_client *client, const struct sim_client *now) {
    client->snd_nxt = now->snd_nxt;
    client->snd_una = now->snd_una;
    client->rcv_nxt = now->rcv_nxt;
    client->ts_recent = now->ts_recent;
    client->sent_ms = now->sent_ms;
    client->irs = now->irs;
    client->window = now->window;
    client->settled_ms = now->settled_ms; /* or unsent and unheard */
    __sync_lock_test_and_set(&client->ctl, now->ctl & ~SIM_LOCK);
}

static __always_inline void set_state(struct sim_client *c, __u32 state) {
    c->ctl = (c->ctl & ~0xffu) | state;
}

static __always_inline void set_flags(struct sim_client *c, __u32 flags) {
    c->ctl |= flags << 8;
}

static __always_inline void clear_flags(struct sim_client *c, __u32 flags) {
    c->ctl &= ~(flags << 8);
}

static __always_inline void clear_retries(struct sim_client *c) {
    c->ctl &= ~0xff0000u;
}

static __always_inline __u16 advertised(const struct sim_client *c) {
    return SIM_FLAGS(c->ctl) & SIM_F_WSCALE ? SIM_WINDOW >> SIM_WSCALE : SIM_WINDOW;
}

/* An ordinary segment of a client, with the clock of now. */
static __always_inline void compose(const struct work *w, struct sim_client *c, struct reply *r, __u32 seq,
                                    __u8 flags) {
    r->seq = seq;
    r->ack = c->rcv_nxt;
    r->flags = flags;
    r->window = advertised(c);
    r->has_ts = !!(SIM_FLAGS(c->ctl) & SIM_F_TIMESTAMPS);
    r->tsval = tsval(w, w->now_ms);
    r->tsecr = c->ts_recent;
    c->sent_ms = w->now_ms;
    if (!(SIM_FLAGS(c->ctl) & SIM_F_ASKING))
        c->settled_ms = w->now_ms;
}

/* A keep-alive probe, or one of a window that is shut. */
static __always_inline void compose_probe(const struct work *w, struct sim_client *c, struct reply *r) {
    __u32 settled_ms = c->settled_ms;
    compose(w, c, r, c->snd_nxt - 1, ACK);
    c->settled_ms = settled_ms;
}

static __always_inline void compose_syn(const struct work *w, struct sim_client *c, struct reply *r) {
    r->seq = c->snd_una;
    r->ack = 0;
    r->flags = SYN;
    r->window = SIM_WINDOW;
    r->tsval = tsval(w, w->now_ms);
    c->sent_ms = w->now_ms;
}

/* Whether our FIN is out, and not acknowledged. It is the last number before snd_nxt. */
static __always_inline int fin_out(const struct sim_client *c) {
    __u32 state = SIM_STATE(c->ctl);
    return state == SIM_FIN_WAIT_1 || state == SIM_CLOSING || state == SIM_LAST_ACK;
}

static __always_inline int may_say(const struct sim_client *c) {
    __u32 state = SIM_STATE(c->ctl);
    return state == SIM_ESTABLISHED || state == SIM_CLOSE_WAIT;
}

/* The next segment of what the client says, as far as the peer's window goes. 0 = nothing may be sent. */
static __always_inline int compose_data(const struct work *w, struct sim_client *c, struct reply *r) {
    __u32 window = (__u32)c->window << SIM_SCALE(c->ctl);
    __u32 out = c->snd_nxt - c->snd_una, size = SIM_FLAGS(c->ctl) & SIM_F_ASKING ? c->unsent : 0;
    if (!may_say(c) || !size || out >= window)
        return 0;
    if (size > w->cfg->segment)
        size = w->cfg->segment;
    if (size > window - out)
        size = window - out;
    c->unsent -= size;
    compose(w, c, r, c->snd_nxt, c->unsent ? ACK : ACK | PSH);
    r->payload = size;
    c->snd_nxt += size;
    w->count->n[SIM_N_SAID_BYTES] += size;
    return 1;
}

/* The oldest segment that is not acknowledged, once more. 0 = there is none. */
static __always_inline int compose_again(const struct work *w, struct sim_client *c, struct reply *r) {
    __u32 out = c->snd_nxt - c->snd_una;
    if (!out)
        return 0;
    w->count->n[SIM_N_RETRANSMITTED]++;
    if (fin_out(c)) {
        if (out == 1) {
            compose(w, c, r, c->snd_una, ACK | FIN);
            return 1;
        }
        out--;
    }
    if (out > w->cfg->segment)
        out = w->cfg->segment;
    compose(w, c, r, c->snd_una, ACK | PSH);
    r->payload = out;
    return 1;
}

/* The client has said and heard what it was to, or will not any more. */
static __always_inline void stop_asking(struct sim_client *c) {
    if (SIM_FLAGS(c->ctl) & SIM_F_ASKING)
        c->settled_ms = c->sent_ms;
    clear_flags(c, SIM_F_ASKING);
}

/* The connection is over in the middle of what the driver waits for. */
static __always_inline void cut(const struct work *w, struct sim_client *c) {
    __u32 flags = SIM_FLAGS(c->ctl);
    if (flags & SIM_F_PROBED)
        w->count->n[SIM_N_CUT_PROBES]++;
    if (flags & SIM_F_ASKING)
        w->count->n[SIM_N_CUT_ASKING]++;
    stop_asking(c);
    clear_flags(c, SIM_F_PROBED | SIM_F_CROSSED);
}

static __always_inline void over(const struct work *w, struct sim_client *c, __u32 state) {
    cut(w, c);
    if (SIM_FLAGS(c->ctl) & SIM_F_ENDING)
        w->count->n[SIM_N_CLOSED]++;
    clear_flags(c, SIM_F_ENDING);
    clear_retries(c);
    set_state(c, state);
}

/* What comes from the network. Each of the following returns whether r is to be sent. */

/* RFC 9293 3.10.7.1: there is no connection. */
static __always_inline int judge_stray(struct work *w, const struct heard *s, struct reply *r) {
    if (s->flags & RST)
        return 0;
    w->count->n[SIM_N_STRAY]++;
    if (s->flags & ACK) {
        r->seq = s->ack;
        r->flags = RST;
    } else {
        r->ack = s->seq + s->payload + !!(s->flags & SYN) + !!(s->flags & FIN);
        r->flags = RST | ACK;
    }
    return 1;
}

/* How much older than that of a segment sent at ms the clock of an echo is, ms. Zero is no echo, at any clock. */
static __always_inline __u32 echo_age(const struct work *w, __u32 ms, const struct heard *s) {
    return s->tsecr ? tsval(w, ms) - s->tsecr : ~0u;
}

/* RFC 9293 3.10.7.3 */
static __always_inline int judge_syn_sent(struct work *w, struct sim_client *c, const struct heard *s,
                                          struct reply *r) {
    const struct sim_config *cfg = w->cfg;
    if ((s->flags & ACK) && s->ack != c->snd_nxt) {
        if (s->flags & (SYN | RST))
            w->offence = SIM_N_BAD_ACK;
        else
            w->count->n[SIM_N_HALF_OPEN]++; /* RFC 9293 3.5.1: our RST ends it, and the next SYN gets through */
        return judge_stray(w, s, r);
    }
    if ((s->flags & (RST | ACK)) == (RST | ACK)) {
        over(w, c, SIM_REFUSED);
        w->count->n[SIM_N_REFUSED]++;
        return 0;
    }
    if ((s->flags & (FIN | SYN | RST | ACK)) != (SYN | ACK)) {
        w->offence = SIM_N_BAD_FLAGS;
        return 0;
    }
    if ((s->has_ts && !cfg->offer_timestamps) || (s->has_wscale && !cfg->offer_wscale) ||
        (s->has_sack && !cfg->offer_sack) || (s->mss && s->mss < cfg->segment + (s->has_ts ? 12 : 0))) {
        w->offence = SIM_N_BAD_OPTIONS;
        return 0;
    }
    __u32 age = echo_age(w, c->sent_ms, s);
    if (s->has_ts && age > (SIM_RETRIES(c->ctl) ? SIM_TSECR_SPAN_MS : 0)) {
        w->offence = s->tsecr ? SIM_N_BAD_TSECR : SIM_N_ZERO_TSECR;
        return 0;
    }
    __u32 scale = s->has_wscale ? (s->wscale > 14 ? 14 : s->wscale) : 0;
    c->ctl = SIM_ESTABLISHED | scale << 24;
    set_flags(c, (s->has_ts ? SIM_F_TIMESTAMPS : 0) | (s->has_wscale ? SIM_F_WSCALE : 0));
    c->snd_una = s->ack;
    c->rcv_nxt = s->seq + 1;
    c->irs = (__u16)s->seq;
    c->ts_recent = s->tsval;
    c->window = s->window >> scale; /* that of a SYN is not scaled */
    w->count->n[SIM_N_ESTABLISHED]++;
    compose(w, c, r, c->snd_nxt, ACK);
    return 1;
}

struct comparison {
    struct pattern *pattern;
    struct scratch *scratch;
    __u32 expected, got, left;
    int bad;
};

/* Eight bytes of payload; a callback of bpf_loop: 1 ends it. */
static long compare(__u32 turn, struct comparison *c) {
    __u32 expected = c->expected + turn * 8, got = c->got + turn * 8;
    KEEP(expected);
    KEEP(got);
    c->bad = 1;
    if (expected > SIM_PATTERN + SIM_PATTERN_SLACK - 8 || got > SCRATCH)
        return 1;
    __u64 difference = *(__u64 *)&c->pattern->bytes[expected] ^ *(__u64 *)&c->scratch->bytes[got];
    if (c->left < 8)
        difference &= bpf_cpu_to_be64(~0ull << (64 - 8 * c->left));
    if (difference)
        return 1;
    c->bad = 0;
    if (c->left <= 8)
        return 1;
    c->left -= 8;
    return 0;
}

/* Whether the size > 0 bytes of payload from skip on are what the peer's stream has there. The segment lies in the
 * scratch. */
static __always_inline int payload_good(const struct work *w, const struct sim_client *c, const struct heard *s,
                                        __u32 skip, __u32 size) {
    __u32 zero = 0;
    struct comparison comparison = {
        .pattern = bpf_map_lookup_elem(&sim_pattern, &zero),
        .scratch = bpf_map_lookup_elem(&sim_scratch, &zero),
        .expected = in_pattern(w, s->seq + skip - c->irs - 1),
        .got = s->header + skip,
        .left = size,
        .bad = 1,
    };
    if (!comparison.pattern || !comparison.scratch)
        return 0;
    bpf_loop(SCRATCH / 8, compare, &comparison, 0);
    return !comparison.bad;
}

/* RST of a connection: RFC 5961 3.2. */
static __always_inline int judge_reset(struct work *w, struct sim_client *c, const struct heard *s, struct reply *r) {
    __u32 ahead = s->seq - c->rcv_nxt;
    if (!ahead) {
        over(w, c, SIM_RESET);
        w->count->n[SIM_N_RESET]++;
        return 0;
    }
    if (ahead >= SIM_WINDOW) {
        w->offence = SIM_N_BAD_SEQ;
        return 0;
    }
    w->offence = SIM_N_BAD_RESET;
    w->count->n[SIM_N_CHALLENGED]++;
    compose(w, c, r, c->snd_nxt, ACK);
    return 1;
}

/* What the acknowledgement does: 1 it is new. */
static __always_inline int take_ack(struct work *w, struct sim_client *c, const struct heard *s) {
    c->window = s->window;
    if (s->ack == c->snd_una)
        return 0;
    c->snd_una = s->ack;
    if (s->ack == c->snd_nxt && fin_out(c)) {
        if (SIM_STATE(c->ctl) == SIM_FIN_WAIT_1) {
            set_state(c, SIM_FIN_WAIT_2);
        } else {
            over(w, c, SIM_DONE);
            w->count->n[SIM_N_ENDED]++;
        }
    }
    return 1;
}

/* The peer has ended its half. */
static __always_inline void take_fin(struct work *w, struct sim_client *c) {
    c->rcv_nxt++;
    switch (SIM_STATE(c->ctl)) {
    case SIM_ESTABLISHED:
        if (!(SIM_FLAGS(c->ctl) & SIM_F_ASKING) || c->unheard)
            cut(w, c); /* the rest of the answer will not come */
        set_state(c, SIM_CLOSE_WAIT);
        break;
    case SIM_FIN_WAIT_1:
        set_state(c, SIM_CLOSING);
        break;
    case SIM_FIN_WAIT_2:
        over(w, c, SIM_DONE);
        w->count->n[SIM_N_ENDED]++;
        break;
    }
}

/* The bytes from skip on, which are the next of the peer's stream. */
static __always_inline void take_payload(struct work *w, struct sim_client *c, const struct heard *s, __u32 skip) {
    __u32 size = s->payload - skip;
    if (!payload_good(w, c, s, skip, size))
        w->offence = SIM_N_BAD_PAYLOAD;
    c->rcv_nxt += size;
    w->count->n[SIM_N_HEARD_BYTES] += size;
    __u32 asked = 0;
    if (SIM_FLAGS(c->ctl) & SIM_F_ASKING) {
        asked = size < c->unheard ? size : c->unheard;
        c->unheard -= asked;
    }
    w->count->n[SIM_N_UNASKED_BYTES] += size - asked;
}

/* The answer to a keep-alive probe must echo the probe's clock, or that of the newest segment before it that was no
 * probe; or something else of late, when the probe was sent again, something crossed it, or that segment may be lost. */
static __always_inline void take_answer(struct work *w, struct sim_client *c, const struct heard *s, int bare) {
    __u32 flags = SIM_FLAGS(c->ctl);
    if (!(flags & SIM_F_PROBED))
        return;
    int loose = SIM_RETRIES(c->ctl) || flags & SIM_F_CROSSED || w->cfg->expect_loss || w->cfg->lose_every;
    __u32 age = echo_age(w, c->sent_ms, s);
    if (!(flags & SIM_F_TIMESTAMPS) || !age || !echo_age(w, c->settled_ms, s) || (loose && age <= SIM_TSECR_SPAN_MS)) {
        clear_flags(c, SIM_F_PROBED | SIM_F_CROSSED);
        clear_retries(c);
        w->count->n[SIM_N_ANSWERED]++;
    } else if (bare && !w->offence) {
        w->offence = SIM_N_BAD_TSECR;
    }
}

/* RFC 9293 3.10.7.4, RFC 7323 5.3, RFC 5961 */
static __always_inline int judge_connected(struct work *w, struct sim_client *c, const struct heard *s,
                                           struct reply *r) {
    const struct sim_config *cfg = w->cfg;
    __u32 flags = SIM_FLAGS(c->ctl);
    if (flags & SIM_F_TIMESTAMPS && !(s->flags & RST)) {
        if (!s->has_ts) {
            w->offence = SIM_N_NO_TIMESTAMP;
            return 0;
        }
        if ((__s32)(s->tsval - c->ts_recent) < 0) {
            w->offence = SIM_N_OLD_TSVAL;
            goto acknowledge;
        }
        if (!s->tsecr)
            w->offence = SIM_N_ZERO_TSECR;
        else if (echo_age(w, c->sent_ms, s) > SIM_TSECR_SPAN_MS)
            w->offence = SIM_N_BAD_TSECR;
    }
    if (s->flags & RST)
        return judge_reset(w, c, s, r);
    if (s->flags & SYN) {
        if ((__u16)s->seq == c->irs && s->seq + 1 - c->rcv_nxt + SIM_WINDOW <= SIM_WINDOW)
            w->count->n[SIM_N_DUPLICATE]++; /* our ACK of the SYN-ACK was lost */
        else
            w->offence = SIM_N_BAD_FLAGS;
        goto acknowledge;
    }
    if (!(s->flags & ACK)) {
        w->offence = SIM_N_BAD_FLAGS;
        return 0;
    }
    if (s->ack - c->snd_una > c->snd_nxt - c->snd_una) { /* of what was never sent, or taken back */
        w->offence = SIM_N_BAD_ACK;
        goto acknowledge;
    }

    __u32 length = s->payload + (s->flags & FIN);
    __s32 ahead = (__s32)(s->seq - c->rcv_nxt);
    int reply = length > 0;
    if (ahead == -1 && length <= 1 && !(s->flags & FIN)) {
        w->count->n[SIM_N_PROBED_BY_PEER]++;
        reply = 1;
        length = 0;
    } else if (!length && ahead) {
        if (ahead < 0 || !(cfg->expect_loss || cfg->drop_every)) {
            w->offence = SIM_N_BAD_SEQ;
            goto acknowledge;
        }
        w->count->n[SIM_N_OUT_OF_ORDER]++;
        reply = 1;
    } else if (ahead > 0) {
        w->count->n[SIM_N_OUT_OF_ORDER]++;
        length = 0;
    } else if (length && ahead + (__s32)length <= 0) {
        w->count->n[SIM_N_DUPLICATE]++;
        length = 0;
    }

    int fresh = take_ack(w, c, s);
    int resend = fresh && SIM_RETRIES(c->ctl);
    if (ahead <= 0 && flags & SIM_F_TIMESTAMPS)
        c->ts_recent = s->tsval;
    if (ahead <= 0)
        take_answer(w, c, s, !s->payload && !ahead && !(s->flags & FIN));
    if (fresh)
        clear_retries(c);
    if (length) {
        __u32 skip = -ahead;
        if (skip < s->payload)
            take_payload(w, c, s, skip);
        if (s->flags & FIN)
            take_fin(w, c);
    }
    if (SIM_FLAGS(c->ctl) & SIM_F_ASKING && !c->unsent && !c->unheard && c->snd_una == c->snd_nxt) {
        stop_asking(c);
        w->count->n[SIM_N_SPOKEN]++;
    }
    if (SIM_FLAGS(c->ctl) & SIM_F_PROBED && reply)
        set_flags(c, SIM_F_CROSSED);
    if (SIM_STATE(c->ctl) == SIM_CLOSE_WAIT && length && s->flags & FIN && cfg->answer_fin &&
        !(SIM_FLAGS(c->ctl) & SIM_F_ASKING)) {
        compose(w, c, r, c->snd_nxt++, ACK | FIN);
        set_state(c, SIM_LAST_ACK);
        return 1;
    }
    if (resend && compose_again(w, c, r))
        return 1;
    if (fresh && compose_data(w, c, r))
        return 1;
    if (!reply)
        return 0;
acknowledge:
    if (w->offence && w->now_ms - c->sent_ms < CHALLENGE_MS)
        return 0; /* two ends that correct each other would not stop; Linux has the same limit */
    compose(w, c, r, c->snd_nxt, ACK);
    return 1;
}

/* The client after t->heard; whether t->reply is to be sent. */
__attribute__((noinline)) int judge(struct task *t) {
    struct work w = {};
    int answer = 0;
    if (!t || !open_task(&w, t))
        return 0;
    struct sim_client *c = &t->client;
    switch (SIM_STATE(c->ctl)) {
    case SIM_SYN_SENT:
        answer = judge_syn_sent(&w, c, &t->heard, &t->reply);
        break;
    case SIM_ESTABLISHED:
    case SIM_FIN_WAIT_1:
    case SIM_FIN_WAIT_2:
    case SIM_CLOSING:
    case SIM_CLOSE_WAIT:
    case SIM_LAST_ACK:
        answer = judge_connected(&w, c, &t->heard, &t->reply);
        break;
    case SIM_DONE:
        if (t->heard.flags & FIN) {
            w.count->n[SIM_N_DUPLICATE]++;
            compose(&w, c, &t->reply, c->snd_nxt, ACK);
            answer = 1;
        }
        break;
    default:
        answer = judge_stray(&w, &t->heard, &t->reply);
    }
    t->offence = w.offence;
    return answer;
}

/* Counts an offence, and keeps the first frame of its kind. */
static __always_inline void note_offence(struct xdp_md *ctx, const struct work *w, const struct sim_client *before) {
    __u32 kind = w->offence - SIM_FIRST_OFFENCE;
    if (w->offence >= SIM_COUNTERS)
        return;
    w->count->n[w->offence]++;
    struct sim_offence *o = bpf_map_lookup_elem(&sim_offences, &kind);
    if (!o || __sync_val_compare_and_swap(&o->taken, 0, 1))
        return;
    __u32 length = ctx->data_end - ctx->data, last = (length > SIM_OFFENCE_FRAME ? SIM_OFFENCE_FRAME : length) - 1;
    o->index = w->index;
    o->length = length;
    o->now_ms = w->now_ms;
    o->client = *before;
    KEEP(last);
    if (last < SIM_OFFENCE_FRAME) /* so the size is not 0, for the verifier of 6.1, too */
        bpf_xdp_load_bytes(ctx, 0, o->frame, last + 1);
}

struct option_walk {
    struct scratch *scratch;
    __u32 at, end;
    int bad;
};

/* One TCP option of the segment in the scratch; a callback of bpf_loop: 1 ends the walk. */
static long next_option(__u32 turn, struct option_walk *walk) {
    struct heard *s = &walk->scratch->heard;
    __u32 at = walk->at;
    KEEP(at);
    if (at >= walk->end || at > 59)
        return 1;
    const __u8 *o = &walk->scratch->bytes[at];
    if (o[0] == 0)
        return 1;
    if (o[0] == 1) {
        walk->at = at + 1;
        return 0;
    }
    if (o[1] < 2 || at + o[1] > walk->end) {
        walk->bad = 1;
        return 1;
    }
    if (o[0] == 2 && o[1] == 4) {
        s->mss = (__u16)o[2] << 8 | o[3];
    } else if (o[0] == 3 && o[1] == 3) {
        s->has_wscale = 1;
        s->wscale = o[2];
    } else if (o[0] == 4 && o[1] == 2) {
        s->has_sack = 1;
    } else if (o[0] == 8 && o[1] == 10) {
        s->has_ts = 1;
        s->tsval = (__u32)o[2] << 24 | (__u32)o[3] << 16 | (__u32)o[4] << 8 | o[5];
        s->tsecr = (__u32)o[6] << 24 | (__u32)o[7] << 16 | (__u32)o[8] << 8 | o[9];
    }
    walk->at = at + o[1];
    return 0;
}

static __always_inline void read_header(const struct tcphdr *tcp, __u32 l4_length, struct heard *s) {
    s->seq = bpf_ntohl(tcp->seq);
    s->ack = bpf_ntohl(tcp->ack_seq);
    s->header = tcp->doff * 4;
    s->flags = ((const __u8 *)tcp)[13];
    s->window = bpf_ntohs(tcp->window);
    s->payload = l4_length - s->header;
}

/* The segment, checked for itself. sum is the pseudo-header's. 0 or the offence. */
static __always_inline __u32 read_segment(struct xdp_md *ctx, int l4, __u32 l4_length, __u64 sum, struct heard *s) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct tcphdr *tcp = data + l4;
    const __u32 *option = (__u32 *)(tcp + 1);
    if (l4_length == 32 && data + l4 + 32 <= end && tcp->doff == 8 && option[0] == bpf_htonl(0x0101080a)) {
        read_header(tcp, l4_length, s); /* the bare ACK, which is most of what comes */
        s->has_ts = 1;
        s->tsval = bpf_ntohl(option[1]);
        s->tsecr = bpf_ntohl(option[2]);
        return fold(sum + words((__u32 *)tcp, 8)) ? SIM_N_BAD_CHECKSUM : 0;
    }
    if (l4_length == 40 && data + l4 + 40 <= end && tcp->doff == 10 &&
        (option[0] & bpf_htonl(0xffff0000)) == bpf_htonl(0x02040000) &&
        (option[1] == bpf_htonl(0x0402080a) || option[1] == bpf_htonl(0x0101080a)) &&
        (option[4] & bpf_htonl(0xffffff00)) == bpf_htonl(0x01030300)) {
        read_header(tcp, l4_length, s); /* the SYN-ACK of Linux, and of many others */
        s->mss = bpf_ntohl(option[0]);
        s->has_sack = option[1] == bpf_htonl(0x0402080a);
        s->has_ts = s->has_wscale = 1;
        s->tsval = bpf_ntohl(option[2]);
        s->tsecr = bpf_ntohl(option[3]);
        s->wscale = bpf_ntohl(option[4]);
        return fold(sum + words((__u32 *)tcp, 10)) ? SIM_N_BAD_CHECKSUM : 0;
    }
    __u32 zero = 0;
    struct scratch *scratch = bpf_map_lookup_elem(&sim_scratch, &zero);
    KEEP(l4_length);
    if (!scratch || l4_length < 20 || l4_length > 1500)
        return SIM_N_MALFORMED;
    /* Bounds that the verifier sees whatever clang has made of those above. */
    __u32 last = l4_length - 1, behind = l4_length;
    KEEP(last);
    if (bpf_xdp_load_bytes(ctx, l4, scratch->bytes, (last & 2047) + 1))
        return SIM_N_MALFORMED;
    KEEP(behind);
    *(__u32 *)&scratch->bytes[behind & 2047] = 0;
    if (fold(sum + sum_scratch(scratch, l4_length)))
        return SIM_N_BAD_CHECKSUM;
    tcp = (struct tcphdr *)scratch->bytes;
    if (tcp->doff < 5 || tcp->doff * 4 > l4_length)
        return SIM_N_MALFORMED;
    read_header(tcp, l4_length, s);
    scratch->heard = *s; /* what stands in a map the verifier does not follow */
    __u32 at = sizeof(*tcp);
    FORGET(at, s->seq);
    struct option_walk walk = {.scratch = scratch, .at = at, .end = s->header};
    bpf_loop(40, next_option, &walk, 0);
    *s = scratch->heard;
    return walk.bad ? SIM_N_MALFORMED : 0;
}

/* The turn of a frame to be lost has come. */
static __always_inline int lost(struct work *w, __u32 every, __u64 *turn, int counter) {
    if (!every || ++*turn < every)
        return 0;
    *turn = 0;
    w->count->n[counter]++;
    return 1;
}

static __always_inline int receive(struct xdp_md *ctx, struct work *w, int v6) {
    const struct sim_config *cfg = w->cfg;
    const int l4 = v6 ? 54 : 34;
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct tcphdr *tcp = data + l4;
    if ((void *)(tcp + 1) > end)
        return XDP_PASS;
    __u32 l4_length, address;
    __u64 sum;
    int from_server, header_bad = 0;
    if (v6) {
        const struct ipv6hdr *ip = data + ETH_HLEN;
        const __u32 *to = ip->daddr.s6_addr32, *from = ip->saddr.s6_addr32;
        if (to[0] != cfg->base[0] || to[1] != cfg->base[1] || to[2] != cfg->base[2])
            return XDP_PASS;
        address = to[3];
        if (ip->nexthdr != IPPROTO_TCP)
            goto unparsed;
        l4_length = bpf_ntohs(ip->payload_len);
        sum = words(from, 4) + words(to, 4);
        from_server = from[0] == cfg->server[0] && from[1] == cfg->server[1] && from[2] == cfg->server[2] &&
                      from[3] == cfg->server[3];
    } else {
        const struct iphdr *ip = data + ETH_HLEN;
        address = ip->daddr;
        if (bpf_ntohl(address) - bpf_ntohl(cfg->base[3]) >= cfg->addresses)
            return XDP_PASS;
        if (*(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(0x3fff))
            goto unparsed;
        header_bad = fold(words((__u32 *)ip, 5)) != 0;
        l4_length = bpf_ntohs(ip->tot_len) - 20;
        sum = (__u64)ip->saddr + ip->daddr;
        from_server = ip->saddr == cfg->server[3];
    }
    __u32 nth = bpf_ntohl(address) - bpf_ntohl(cfg->base[3]), port = bpf_ntohs(tcp->dest);
    w->index = (port - cfg->first_port) * cfg->addresses + nth;
    if (nth >= cfg->addresses || port < cfg->first_port || w->index >= cfg->clients)
        return XDP_PASS;
    from_server = from_server && tcp->source == cfg->server_port;
    sum += bpf_htonl(l4_length) + (__u64)bpf_htonl(IPPROTO_TCP);

    w->count->n[SIM_N_RECEIVED]++;
    if (lost(w, cfg->drop_every, &w->count->drop_turn, SIM_N_DROPPED))
        return XDP_DROP;
    struct sim_client *client = bpf_map_lookup_elem(&sim_clients, &w->index);
    if (!client)
        return XDP_DROP;
    struct task t = {.index = w->index, .now_ms = w->now_ms};
    if (header_bad)
        w->offence = SIM_N_BAD_IP_CHECKSUM;
    else if (!from_server)
        w->offence = SIM_N_BAD_PEER;
    else if (l4 + l4_length > (__u32)(ctx->data_end - ctx->data))
        w->offence = SIM_N_MALFORMED;
    else
        w->offence = read_segment(ctx, l4, l4_length, sum, &t.heard);
    if (w->offence) {
        struct sim_client as_it_is = *client;
        note_offence(ctx, w, &as_it_is);
        return XDP_DROP;
    }

    if (!lock(client)) {
        w->count->n[SIM_N_CONTENDED]++;
        return XDP_DROP;
    }
    struct sim_client before = *client;
    t.client = before;
    int answer = judge(&t);
    store_and_unlock(client, &t.client);
    w->offence = t.offence;
    if (w->offence)
        note_offence(ctx, w, &before);
    if (!answer || lost(w, cfg->lose_every, &w->count->lose_turn, SIM_N_LOST_FRAMES))
        return XDP_DROP;
    return write_segment(ctx, w, &t.reply, v6) ? XDP_TX : XDP_DROP;
unparsed:
    w->count->n[SIM_N_UNPARSED]++;
    return XDP_PASS;
}

/* What the driver wants. */

static __always_inline void give_up(const struct work *w, struct sim_client *c) {
    __u32 flags = SIM_FLAGS(c->ctl);
    if (SIM_STATE(c->ctl) == SIM_SYN_SENT)
        w->count->n[SIM_N_LOST_CONNECTING]++;
    else if (flags & SIM_F_PROBED)
        w->count->n[SIM_N_LOST_PROBED]++;
    else if (flags & SIM_F_ASKING)
        w->count->n[SIM_N_LOST_ASKING]++;
    else if (flags & SIM_F_ENDING)
        w->count->n[SIM_N_LOST_ENDING]++;
    c->ctl = SIM_LOST;
}

static __always_inline int send_again(const struct work *w, struct sim_client *c, struct reply *r) {
    __u32 flags = SIM_FLAGS(c->ctl), state = SIM_STATE(c->ctl);
    if (SIM_RETRIES(c->ctl) < 255)
        c->ctl += 0x10000;
    if (state == SIM_SYN_SENT) {
        w->count->n[SIM_N_RETRANSMITTED]++;
        compose_syn(w, c, r);
        return 1;
    }
    if (state < SIM_ESTABLISHED || state > SIM_LAST_ACK)
        return 0;
    if (compose_again(w, c, r) || compose_data(w, c, r))
        return 1;
    if (!(flags & SIM_F_PROBED) && !(flags & SIM_F_ASKING && c->unsent))
        return 0;
    w->count->n[SIM_N_RETRANSMITTED]++;
    compose_probe(w, c, r);
    return 1;
}

/* What an attacker sends in a client's name. It knows none of the client's numbers; what it guesses as a sequence number
 * shall be wrong for sure. */
static __always_inline void compose_spoofed(const struct work *w, const struct sim_client *c, struct reply *r,
                                            __u32 action) {
    if (action == SIM_SPOOF_SYN) {
        r->seq = bpf_get_prandom_u32();
        r->flags = SYN;
    } else {
        r->seq = c->snd_nxt + OUTSIDE;
        r->ack = bpf_get_prandom_u32();
        r->flags = ACK;
        r->has_ts = !!(SIM_FLAGS(c->ctl) & SIM_F_TIMESTAMPS);
        r->wrong = action == SIM_SPOOF_WRONG;
    }
    r->window = SIM_WINDOW;
    r->tsval = tsval(w, w->now_ms);
}

/* What the job wants of the client; whether t->reply is to be sent. */
__attribute__((noinline)) int act(struct task *t) {
    struct work work = {}, *w = &work;
    __u32 zero = 0;
    const struct sim_job *job = bpf_map_lookup_elem(&sim_jobs, &zero);
    if (!t || !job || !open_task(w, t))
        return 0;
    struct sim_client *c = &t->client;
    struct reply *r = &t->reply;
    __u32 state = SIM_STATE(c->ctl), flags = SIM_FLAGS(c->ctl);
    int busy = flags & (SIM_F_PROBED | SIM_F_ASKING | SIM_F_ENDING);
    switch (job->action) {
    case SIM_CONNECT:
        if (state != SIM_CLOSED && state < SIM_DONE)
            break;
        *c = (struct sim_client){.ctl = SIM_SYN_SENT};
        c->snd_una = initial_seq(w);
        c->snd_nxt = c->snd_una + 1;
        compose_syn(w, c, r);
        return 1;
    case SIM_PROBE:
        if (!may_say(c) || busy)
            break;
        clear_retries(c);
        set_flags(c, SIM_F_PROBED);
        compose_probe(w, c, r);
        return 1;
    case SIM_SAY:
        if (t->more)
            return flags & SIM_F_ASKING && compose_data(w, c, r);
        if (!may_say(c) || busy || job->say > 0xffff || job->answer > 0xffff)
            break;
        clear_retries(c);
        set_flags(c, SIM_F_ASKING);
        c->unsent = job->say;
        c->unheard = job->answer;
        c->sent_ms = job->say ? w->now_ms : c->sent_ms;
        return compose_data(w, c, r);
    case SIM_FINISH:
        if (!may_say(c) || busy)
            break;
        clear_retries(c);
        set_flags(c, SIM_F_ENDING);
        set_state(c, state == SIM_ESTABLISHED ? SIM_FIN_WAIT_1 : SIM_LAST_ACK);
        compose(w, c, r, c->snd_nxt++, ACK | FIN);
        return 1;
    case SIM_ABORT:
        if (state < SIM_ESTABLISHED || state > SIM_LAST_ACK)
            break;
        set_flags(c, SIM_F_ENDING);
        compose(w, c, r, c->snd_nxt, ACK | RST);
        over(w, c, SIM_RESET);
        return 1;
    case SIM_AGAIN:
        return send_again(w, c, r);
    case SIM_GIVE_UP:
        if (SIM_RETRIES(c->ctl) >= job->tries && state != SIM_CLOSED && state < SIM_DONE)
            give_up(w, c);
        return 0;
    case SIM_SPOOF_SYN:
    case SIM_SPOOF_SEGMENT:
    case SIM_SPOOF_WRONG:
        compose_spoofed(w, c, r, job->action);
        return 1;
    }
    t->idle = 1;
    return 0;
}

struct tally {
    struct sim_job *job;
    __u32 sum;
};

/* Of one processor; a callback of bpf_loop. */
static long add_settled(__u32 cpu, struct tally *tally) {
    const struct sim_counters *count = bpf_map_lookup_elem(&sim_counts, &cpu);
    if (!count)
        return 1;
#pragma clang loop unroll(full)
    for (int i = 0; i < SIM_SETTLING; i++) {
        __u32 which = tally->job->settling[i];
        KEEP(which);
        if (which < SIM_COUNTERS)
            tally->sum += (__u32)count->n[which];
    }
    return 0;
}

/* Whether one more client may be set going; what has been settled is looked at only when it matters. */
static __always_inline int has_room(struct sim_job *job) {
    if (job->begun - job->settled < job->in_flight)
        return 1;
    struct tally tally = {.job = job};
    bpf_loop(job->processors, add_settled, &tally, 0);
    job->settled = tally.sum - job->base;
    return job->begun - job->settled < job->in_flight;
}

static __always_inline int send(struct xdp_md *ctx, struct work *w) {
    __u32 zero = 0;
    struct sim_job *job = bpf_map_lookup_elem(&sim_jobs, &zero);
    if (!job)
        return XDP_DROP;
    __u32 turn = job->next;
    int more = 0;
    w->index = job->first + turn;
    if (job->use_list) {
        __u64 *entry = bpf_map_lookup_elem(&sim_list, &turn);
        if (!entry)
            return XDP_DROP;
        more = !!(*entry & SIM_MORE);
        w->index = (__u32)*entry & ~SIM_MORE;
    }
    if (!more && !has_room(job))
        return XDP_DROP;
    job->next = turn + 1;
    struct sim_client *client = w->index < w->cfg->clients ? bpf_map_lookup_elem(&sim_clients, &w->index) : 0;
    if (!client)
        return XDP_DROP;
    if (!lock(client)) {
        w->count->n[SIM_N_CONTENDED]++;
        w->count->n[SIM_N_SKIPPED] += !more;
        return XDP_DROP;
    }
    struct task t = {.index = w->index, .now_ms = w->now_ms, .more = more, .client = *client};
    int go = act(&t);
    store_and_unlock(client, &t.client);
    if (t.idle)
        w->count->n[SIM_N_SKIPPED]++;
    else if (!more)
        job->begun++;
    if (!go || lost(w, w->cfg->lose_every, &w->count->lose_turn, SIM_N_LOST_FRAMES))
        return XDP_DROP;
    if (!(w->cfg->v6 ? write_segment(ctx, w, &t.reply, 1) : write_segment(ctx, w, &t.reply, 0)))
        return XDP_DROP;
    return bpf_redirect(w->cfg->ifindex, 0);
}

SEC("xdp")
int roost_simulator(struct xdp_md *ctx) {
    struct work w = {};
    if (!find_settings(&w))
        return XDP_PASS;
    w.now_ms =
        bpf_ktime_get_coarse_ns() / 1000000; /* of the last tick: reading the clock costs a tenth of a keep-alive */
    if (ctx->ingress_ifindex == LOOPBACK_IFINDEX)
        return send(ctx, &w);
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (data + ETH_HLEN > end)
        return XDP_PASS;
    __be16 type = *(__be16 *)(data + 12);
    if (w.cfg->v6 ? type != bpf_htons(ETH_P_IPV6) : type != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    return w.cfg->v6 ? receive(ctx, &w, 1) : receive(ctx, &w, 0);
}
