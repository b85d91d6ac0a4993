/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The short way for nearly all packets of clients that are born asleep (born.h), over IPv4 without options: a SYN with
 * the options of Linux in its order, and the acknowledgement with timestamps that ends the handshake; and for packets of
 * connections that are awake. As in fast.h, it does what the long way does with direct access to the
 * packet, and whatever is any different takes the long way.
 */
#ifndef ROOST_FAST_BORN_H
#define ROOST_FAST_BORN_H

#include "born.h"
#include "fast.h"
#include "ebpf/lib/candidate.h"

#define SYN_BYTES 60                              /* IP and TCP headers, with 20 bytes of options: theirs and ours */
#define SYN_LAYOUT_1 bpf_htonl(0x0402080a)        /* SACK permitted, timestamps */
#define SYN_LAYOUT_4(word) (bpf_ntohl(word) >> 8) /* all but the shift */
#define SYN_WSCALE 0x010303                       /* no operation, window scale */

/* 0: no births here. */
static __always_inline const struct roost_birth *fast_ward(const struct iphdr *ip, const struct tcphdr *tcp,
                                                           const struct roost_births_gate **gate) {
    __u32 zero = 0;
    *gate = bpf_map_lookup_elem(&births_gate, &zero);
    if (!*gate || !(*gate)->services)
        return 0;
    struct roost_birth_place place = {.port = tcp->dest, .address = {[10] = 0xff, [11] = 0xff}};
    __builtin_memcpy(place.address + 12, &ip->daddr, 4);
    return bpf_map_lookup_elem(&births, &place);
}

static __always_inline int fast_absent(const struct roost_config *cfg, __u64 hash, const struct iphdr *ip,
                                       const struct tcphdr *tcp) {
    __u32 in_use = *(volatile const __u32 *)&cfg->v4.in_use, ctl;
    __u32 generation = ROOST_CURRENT(in_use) % ROOST_GENERATIONS;
    void *table = bpf_map_lookup_elem(&tables4, &generation);
    if (ROOST_PREVIOUS(in_use) || !table)
        return 0;
    struct roost_place place = roost_place_of(hash, buckets_of(&cfg->v4, generation));
    int absent;
    fast_find(table, &place, ip, tcp, &ctl, &absent);
    return absent;
}

static __always_inline int has_socket4(struct xdp_md *ctx, __be32 client, __be32 local, __be16 client_port,
                                       __be16 local_port) {
    struct roost_key key = {.client_port = client_port, .local_port = local_port};
    set_addresses4(&key, client, local);
    return has_socket(ctx, &key, 0);
}

/* A SYN whose flags and IP header fast() has looked at; XDP_PASS: the stack is to have it. */
static __noinline int fast_begin(struct xdp_md *ctx, const struct roost_config *cfg) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    struct tcphdr *tcp = (void *)(ip + 1);
    __be32 *options = (void *)(tcp + 1), *ip_words = (void *)ip, *tcp_words = (void *)tcp;
    if ((void *)(options + 5) > end || ip->tot_len != bpf_htons(SYN_BYTES) || tcp->doff != 10 ||
        options[1] != SYN_LAYOUT_1 || SYN_LAYOUT_4(options[4]) != SYN_WSCALE)
        return FAST_LONG_WAY;
    __u32 mss = bpf_ntohl(options[0]) - 0x02040000, wscale = bpf_ntohl(options[4]) & 0xff;
    if (mss < 536 || mss > 0xffff)
        return FAST_LONG_WAY;
    const struct roost_births_gate *gate;
    const struct roost_birth *birth = fast_ward(ip, tcp, &gate);
    __u32 zero = 0;
    struct roost_sockets *sockets = bpf_map_lookup_elem(&births_sockets, &zero);
    __u64 key_hash = fast_hash(cfg, ip, tcp);
    struct found sought = {.hash = key_hash, .moved = moves()};
    if (!sockets || !fast_absent(cfg, key_hash, ip, tcp) || filter_says(&sought, tcp->dest) != NO_CANDIDATE)
        return FAST_LONG_WAY;
    if (!birth)
        return XDP_PASS;
    __be32 from = ip->saddr, to = ip->daddr;
    __u64 ends = (__u64)from + to, pseudo = ends + bpf_htons(IPPROTO_TCP) + bpf_htons(SYN_BYTES - 20);
    if (fold_words(words(ip_words, 5)) != 0xffff || fold_words(pseudo + words(tcp_words, 10)) != 0xffff)
        return FAST_LONG_WAY;

    __u64 now_ms = coarse_ms();
    __u8 first = *(__u8 *)&from, several = *(__u8 *)data & 1;
    __be16 near = tcp->dest, far = tcp->source;
    __u32 ports = PORTS(far, near), isn = bpf_ntohl(tcp->seq), theirs = options[2], now_s = now_ms / 1000;
    if ((__s32)(gate->open_until_s - now_s) < 0 || !is_storm(birth, now_ms) || from == to || !first || first == 127 ||
        first >= 224 || several ||
        (roost_may_have_socket(sockets, key_hash, now_s) && has_socket4(ctx, from, to, far, near)))
        goto stack;
    __u8 client[16] = {[10] = 0xff, [11] = 0xff};
    __builtin_memcpy(client + 12, &from, 4);
    if (!may_be_born(birth, client, now_ms, 1))
        return XDP_DROP;

    __u64 births_ms = now_ms + births_ahead_ms();
    __u32 period = period_of(births_ms), class = class_of_mss(mss);
    __u32 carried = (wscale > 14 ? 14 : wscale) | TS_SACK, clock = birth_clock4(gate, from, to, ports);
    __u32 tsval = carrying((__u32)births_ms + clock, carried);
    const struct way *way = way_back4(ctx, to, from, now_ms);
    if (!way || way->is != WAY_HERE || is_spent(key_hash, tsval - clock))
        goto stack;
    __u64 hash = birth_hash4(gate, from, to, ports, isn, period, carried | TS_AGREED | class << 8);
    turn(data, way);
    ip_words[0] = bpf_htonl(0x45000000 | SYN_BYTES);
    ip_words[1] = bpf_htonl(0x4000); /* don't fragment */
    ip_words[2] = bpf_htonl(64 << 24 | IPPROTO_TCP << 16);
    ip->saddr = to;
    ip->daddr = from;
    ip->check = ~fold_words(words(ip_words, 3) + ends);
    tcp->source = near;
    tcp->dest = far;
    tcp_words[1] = bpf_htonl(cookie_with(hash, period, class));
    tcp_words[2] = bpf_htonl(isn + 1);
    tcp_words[3] = bpf_htonl(0xa0120000 | OUR_WINDOW);
    tcp_words[4] = 0;
    options[0] = bpf_htonl(0x02040000 | birth->mss);
    options[2] = bpf_htonl(tsval);
    options[3] = theirs;
    options[4] = bpf_htonl(SYN_WSCALE << 8 | OUR_WSCALE);
    tcp->check = ~fold_words(pseudo + words(tcp_words, 10));
    note_cookie(birth, now_s);
    return XDP_TX;
stack:
    roost_socket_note(sockets, key_hash, now_s);
    return XDP_PASS;
}

static __noinline int fast_syn(struct xdp_md *ctx, const struct roost_config *cfg) {
    int verdict = fast_begin(ctx, cfg);
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    const struct iphdr *ip = data + sizeof(struct ethhdr);
    const struct tcphdr *tcp = (void *)(ip + 1);
    if (verdict != XDP_PASS || (void *)(tcp + 1) > end)
        return verdict;
    struct roost_key key = {.client_port = tcp->source, .local_port = tcp->dest};
    set_addresses4(&key, ip->saddr, ip->daddr);
    return is_beyond(&key, coarse_ms(), 0) ? XDP_DROP : XDP_PASS;
}

/* Whether an acknowledgement brings back a cookie of ours; isn, agreed: as in cookie_good(), which this is for IPv4. */
static __noinline int fast_cookie_good(const struct roost_births_gate *gate, const struct iphdr *ip, __u32 isn,
                                       __u32 agreed, __u64 births_ms) {
    const struct tcphdr *tcp = (void *)(ip + 1);
    __u32 cookie = bpf_ntohl(tcp->ack_seq) - 1, period = period_of(births_ms);
    __u32 age = (period - (cookie >> 30)) & 3;
    if (age > 1)
        return 0;
    agreed |= cookie_class(cookie) << 8;
    __u64 hash = birth_hash4(gate, ip->saddr, ip->daddr, PORTS(tcp->source, tcp->dest), isn, period - age, agreed);
    return ((__u32)hash & COOKIE_HASH_MASK) == (cookie & COOKIE_HASH_MASK);
}

/* An acknowledgement, with or without data, of a connection that is not in the table: neither asleep without a slot, nor the
 * end of a handshake, it is the stack's. */
static __noinline int fast_unknown(struct xdp_md *ctx, const struct found *sought) {
    __u64 now_ms = coarse_ms();
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    struct tcphdr *tcp = (void *)(ip + 1);
    __be32 *options = (void *)(tcp + 1);
    __u32 agreed = 0;
    if ((void *)(tcp + 1) > end)
        return FAST_LONG_WAY;
    if (filter_says(sought, tcp->dest) != NO_CANDIDATE)
        return FAST_LONG_WAY;
    const struct roost_births_gate *gate;
    const struct roost_birth *birth = fast_ward(ip, tcp, &gate);
    if (!birth || !cookies_count(birth, now_ms / 1000) || (tcp->doff == 5 && !wrong_cookies(birth, now_ms, 0)))
        return XDP_PASS;
    if (tcp->doff != 5) {
        if (tcp->doff < 8 || (void *)(options + 3) > end || options[0] != TS_LAYOUT)
            return FAST_LONG_WAY;
        agreed = (bpf_ntohl(options[2]) & TS_BITS) | TS_AGREED;
    }
    __u64 births_ms = now_ms + births_ahead_ms();
    __u32 seq = bpf_ntohl(tcp->seq), header = sizeof(*ip) + tcp->doff * 4, probe = header + 1;
    if (fast_cookie_good(gate, ip, seq - 1, agreed, births_ms) ||
        (bpf_ntohs(ip->tot_len) <= probe && fast_cookie_good(gate, ip, seq, agreed, births_ms)))
        return FAST_LONG_WAY;
    if (!agreed && !has_socket4(ctx, ip->saddr, ip->daddr, tcp->source, tcp->dest))
        wrong_cookies(birth, now_ms, 1);
    return XDP_PASS;
}

/* An acknowledgement with timestamps and without data, of a connection that is not in the table. */
static __noinline int fast_birth(struct xdp_md *ctx, const struct roost_config *cfg, const struct found *sought) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    struct tcphdr *tcp = (void *)(ip + 1);
    __be32 *options = (void *)(tcp + 1);
    __u32 zero = 0;
    if ((void *)(options + 3) > end)
        return FAST_LONG_WAY;
    const struct roost_births_gate *gate;
    const struct roost_birth *birth = fast_ward(ip, tcp, &gate);
    struct birth_notes *notes = bpf_map_lookup_elem(&births_notes, &zero);
    const struct roost_sockets *sockets = bpf_map_lookup_elem(&births_sockets, &zero);
    __u64 now_ms = coarse_ms(), ahead_ms = births_ahead_ms();
    if (!birth || !notes || !sockets || !cookies_count(birth, now_ms / 1000))
        return FAST_UNKNOWN;
    struct newborn *n = &notes->born;
    n->in_use = *(volatile const __u32 *)&cfg->v4.in_use;
    if (ROOST_PREVIOUS(n->in_use))
        return FAST_LONG_WAY;

    __u32 isn = bpf_ntohl(tcp->seq) - 1, cookie = bpf_ntohl(tcp->ack_seq) - 1, tsecr = bpf_ntohl(options[2]);
    __u32 class = cookie_class(cookie), ports = PORTS(tcp->source, tcp->dest);
    if (!fast_cookie_good(gate, ip, isn, (tsecr & TS_BITS) | TS_AGREED, now_ms + ahead_ms))
        return FAST_UNKNOWN;
    __u32 clock = birth_clock4(gate, ip->saddr, ip->daddr, ports);
    if (!is_of_its_time(tsecr - clock, now_ms + ahead_ms) || is_spent(sought->hash, tsecr - clock))
        return FAST_LONG_WAY;
    __u64 pseudo = (__u64)ip->saddr + ip->daddr + bpf_htons(IPPROTO_TCP) + bpf_htons(32);
    if (fold_words(words((__be32 *)ip, 5)) != 0xffff || fold_words(pseudo + words((__be32 *)tcp, 8)) != 0xffff)
        return FAST_LONG_WAY;

    n->now_s = now_ms / 1000;
    struct roost_ka *ka = &n->ka;
    ka->ctl = ROOST_IDLE;
    ka->snd_nxt = cookie + 1;
    ka->rcv_nxt = isn + 1;
    ka->ts_offset = clock + (__u32)ahead_ms;
    ka->ts_recent = bpf_ntohl(options[1]);
    ka->heard = ROOST_HEARD(n->now_s, 0, 0);
    ka->window = OUR_WINDOW;
    ka->rest = ROOST_BORN(class, n->now_s, bpf_ntohs(tcp->window));
    agree(ka, tsecr);
    n->hash = sought->hash;
    if (filter_says(sought, tcp->dest) != NO_CANDIDATE)
        return FAST_LONG_WAY;
    n->endpoint = birth->endpoint;
    set_addresses4(&n->key, ip->saddr, ip->daddr);
    n->key.client_port = tcp->source;
    n->key.local_port = tcp->dest;
    ka->class = class_of_newborn(gate, birth, n->key.client);
    if ((roost_may_have_socket(sockets, n->hash, n->now_s) && has_socket(ctx, &n->key, 0)) || is_denied(ka->class) ||
        !may_be_born(birth, n->key.client, now_ms, 0))
        return XDP_PASS;
    int there = put_in(cfg, n, birth, 0);
    if (there > 0)
        return XDP_DROP;
    count(ROOST_N_BORN_REFUSED);
    return there ? XDP_DROP : XDP_PASS; /* as unknown() does */
}

#endif
