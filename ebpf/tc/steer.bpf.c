// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * tc ingress of a router: which packets are ours, though their address is not.
 *
 *     client to a managed server     ours when it opens a connection or belongs to one that is ours; not what was routed
 *                                    while there was no daemon. Without one it is routed or refused, as the policy says
 *     of a connection with a socket  ours: servers' packets on links that have the client's address as their source
 *     SYN from the servers' side     ours when it is for a client with a connection, or for a port by which servers
 *                                    reach clients: the door takes it
 *     ICMP error                     ours when it is about a packet of such a connection
 *     anything else                  routed, untouched
 *
 * What is ours is marked, and a routing rule delivers what is marked to this machine. The sockets decide, not a state of
 * our own: they go with the daemon, and what was theirs is routed from then on.
 */
#include "ebpf/lib/checksum.h"
#include "ebpf/lib/ctx_skb.h"
#include "ebpf/lib/find.h"
#include "ebpf/lib/packet.h"
#include "ebpf/lib/socket.h"
#include "ebpf/shared/steer.h"

#include <linux/pkt_cls.h>

char _license[] SEC("license") = "GPL";

#define ICMP_UNREACHABLE 3 /* "fragmentation needed" among them */
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMP6_ERRORS_END 128
#define ICMP_HEADER 8

/* Datagrams in fragments whose first fragment was ours: the others name no port. */
struct datagram {
    __u8 source[16], destination[16];
    __be32 id;
};

/* A packet that is taken apart: too much for the stack of a program. */
struct arrival {
    struct packet packet;
    union header header; /* the TCP header, at the end */
};

ROOST_STEER_MAPS(ROOST_DEFINE_MAP)

/* From an ICMP error to the packet that it is about (RFC 792, RFC 4443 3). That one was ours and went the other way, so
 * its destination is the client. */
static __always_inline int parse_icmp_error(struct __sk_buff *skb, struct arrival *a) {
    struct packet *p = &a->packet;
    __u8 type, client[16];
    if (bpf_skb_load_bytes(skb, p->l4, &type, sizeof(type)) ||
        (p->v6 ? type >= ICMP6_ERRORS_END
               : type != ICMP_UNREACHABLE && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETER_PROBLEM))
        return 0;
    p->l3 = p->l4 + ICMP_HEADER;
    if (!(p->v6 ? parse_ip6(skb, p, &a->header) : parse_ip4(skb, p, &a->header)) || p->protocol != IPPROTO_TCP ||
        p->fragment == FRAGMENT_LATER)
        return 0;
    if (bpf_skb_load_bytes(skb, p->l4, a->header.words, sizeof(a->header.words)))
        return 0;
    __builtin_memcpy(client, p->key.local, 16);
    __builtin_memcpy(p->key.local, p->key.client, 16);
    __builtin_memcpy(p->key.client, client, 16);
    p->key.client_port = a->header.words[1];
    p->key.local_port = a->header.words[0];
    p->fragment = FRAGMENT_NONE; /* what it says of the other way's fragments is of no use here */
    return 1;
}

enum owner {
    NO_OWNER,   /* no socket of ours */
    LISTENER,   /* one that would accept it, or refuse it */
    CONNECTION, /* the one it belongs to, a half-open one included */
};

/* An ACK that carries a SYN cookie belongs to a connection that there is no socket for yet. Not inlined: the stack of a
 * program is small. */
static __noinline int has_cookie(struct bpf_sock *sk, const struct arrival *a) {
    const struct packet *p = &a->packet;
    union {
        struct iphdr v4;
        struct ipv6hdr v6;
    } ip = {};
    struct tcphdr tcp = a->header.tcp;
    if (p->v6) {
        ip.v6.version = 6;
        __builtin_memcpy(&ip.v6.saddr, p->key.client, 16);
        __builtin_memcpy(&ip.v6.daddr, p->key.local, 16);
    } else {
        ip.v4.version = 4;
        ip.v4.protocol = IPPROTO_TCP;
        __builtin_memcpy(&ip.v4.saddr, p->key.client + 12, 4);
        __builtin_memcpy(&ip.v4.daddr, p->key.local + 12, 4);
    }
    return !bpf_tcp_check_syncookie(sk, &ip, p->v6 ? sizeof(ip.v6) : sizeof(ip.v4), &tcp, sizeof(tcp));
}

static __always_inline enum owner owner_of(struct __sk_buff *skb, const struct arrival *a) {
    const struct tcphdr *tcp = &a->header.tcp;
    struct bpf_sock *sk = find_socket(skb, &a->packet.key, a->packet.v6);
    if (!sk)
        return NO_OWNER;
    enum owner owner = sk->state == TCP_STATE_LISTEN ? LISTENER : CONNECTION;
    if (owner == LISTENER && tcp->ack && !tcp->syn && !tcp->rst && has_cookie(sk, a))
        owner = CONNECTION;
    bpf_sk_release(sk);
    return owner;
}

/* Whether this leg is asleep: servers' come from their side alone, and clients' from theirs. */
static __always_inline int asleep(const struct roost_config *cfg, const struct roost_key *key, int v6, int server) {
    struct found found;
    return find(cfg, key, v6, &found) && !(ROOST_FLAGS(found.ctl) & ROOST_F_SERVER) == !server;
}

/* The entry of a server's address and port, its own or the one for every address; NULL: not managed. */
static __always_inline struct roost_managed *managed_server(const __u8 *address, __be16 port, int v6) {
    struct roost_managed_key key = {.port = port};
    __builtin_memcpy(key.address, address, 16);
    struct roost_managed *found = bpf_map_lookup_elem(&managed, &key);
    if (found)
        return found;
    __builtin_memset(key.address, 0, 16);
    if (!v6)
        key.address[10] = key.address[11] = 0xff;
    return bpf_map_lookup_elem(&managed, &key);
}

static __always_inline struct datagram datagram_of(const struct packet *p) {
    struct datagram d = {.id = p->fragment_id};
    __builtin_memcpy(d.source, p->key.client, 16);
    __builtin_memcpy(d.destination, p->key.local, 16);
    return d;
}

static __always_inline void keep(struct __sk_buff *skb, const struct packet *p) {
    if (p->fragment == FRAGMENT_FIRST) {
        struct datagram datagram = datagram_of(p);
        __u8 ours = 1;
        bpf_map_update_elem(&datagrams, &datagram, &ours, BPF_ANY);
    }
    __u32 mark = (skb->mark & ~ROOST_MARK_MASK) | ROOST_MARK;
    asm volatile("" : "+r"(mark)); /* or clang writes the one byte that differs, which the kernel forbids */
    skb->mark = mark;
}

/* Answered with an RST (RFC 9293 3.10.7.1). The stack would do it for IPv6; for IPv4 it does not send one from an address
 * that is not its own. */
static __noinline int refuse(struct __sk_buff *skb, const struct arrival *a) {
    const struct packet *p = &a->packet;
    const struct tcphdr *of = &a->header.tcp;
    struct {
        __u8 to[6], from[6];
        __be16 protocol;
        struct iphdr ip;
        struct tcphdr tcp;
    } __attribute__((packed, aligned(4))) frame = {.protocol = bpf_htons(ETH_P_IP)};
    struct {
        __be32 source, destination;
        __u8 zero, protocol;
        __be16 length;
        struct tcphdr tcp;
    } summed = {.protocol = IPPROTO_TCP, .length = bpf_htons(sizeof(struct tcphdr))};
    struct tcphdr *tcp = &summed.tcp;
    struct iphdr ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP};

    if (p->v6) {
        keep(skb, p);
        return TC_ACT_UNSPEC;
    }
    if (of->rst || bpf_skb_load_bytes(skb, 0, frame.from, 6) || bpf_skb_load_bytes(skb, 6, frame.to, 6))
        return TC_ACT_SHOT;
    tcp->source = of->dest;
    tcp->dest = of->source;
    tcp->doff = sizeof(*tcp) / 4;
    tcp->rst = 1;
    if (of->ack) {
        tcp->seq = of->ack_seq;
    } else { /* of what has no ACK only a SYN can expect an answer */
        tcp->ack = 1;
        tcp->ack_seq = bpf_htonl(bpf_ntohl(of->seq) + of->syn);
    }
    __builtin_memcpy(&summed.source, p->key.local + 12, 4);
    __builtin_memcpy(&summed.destination, p->key.client + 12, 4);
    /* The kernel adds the rest to a checksum that was left to the interface, in this frame as in the one that it was. */
    __u64 pseudo = words(&summed.source, 2) + bpf_htons(IPPROTO_TCP);
    tcp->check = is_left_to_interface(of->check, pseudo + bpf_htons(p->l4_length))
                     ? fold_words(pseudo + summed.length)
                     : fold(bpf_csum_diff(0, 0, (__be32 *)&summed, sizeof(summed), 0));
    ip.tot_len = bpf_htons(sizeof(ip) + sizeof(*tcp));
    ip.frag_off = bpf_htons(0x4000);
    ip.saddr = summed.source;
    ip.daddr = summed.destination;
    ip.check = fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0));
    __builtin_memcpy(&frame.ip, &ip, sizeof(ip));
    __builtin_memcpy(&frame.tcp, tcp, sizeof(*tcp));
    if (bpf_skb_change_tail(skb, sizeof(frame), 0) || bpf_skb_store_bytes(skb, 0, &frame, sizeof(frame), 0))
        return TC_ACT_SHOT;
    return bpf_redirect(skb->ifindex, 0);
}

struct search {
    struct __sk_buff *skb;
    const struct packet *p;
    const struct roost_config *cfg;
    int found;
};

/* Whether the client that a server's SYN is for has a connection to this managed server, awake or not. */
static long connected(void *map, struct roost_managed_key *server, struct roost_managed *value, struct search *s) {
    struct roost_key key = {.client_port = s->p->key.local_port, .local_port = server->port};
    int mapped = server->address[10] == 0xff && server->address[11] == 0xff && !server->address[0];
    if (mapped == s->p->v6)
        return 0;
    __builtin_memcpy(key.client, s->p->key.local, 16);
    const __u32 *a = (const __u32 *)server->address;
    int any = !a[0] && !a[1] && !a[3] && (mapped || !a[2]);
    __builtin_memcpy(key.local, any ? s->p->key.client : server->address, 16);
    return s->found = asleep(s->cfg, &key, s->p->v6, 0) || is_connected(s->skb, &key, s->p->v6);
}

/* Is the packet to be forwarded, and not for an address of this machine? Not inlined: the stack of a program is small. */
static __noinline int passes_through(struct __sk_buff *skb, const struct packet *p) {
    struct bpf_fib_lookup fib = {.ifindex = skb->ifindex, .l4_protocol = IPPROTO_TCP, .tot_len = 0};
    if (p->v6) {
        fib.family = FAMILY_INET6;
        __builtin_memcpy(fib.ipv6_src, p->key.client, 16);
        __builtin_memcpy(fib.ipv6_dst, p->key.local, 16);
    } else {
        fib.family = FAMILY_INET;
        __builtin_memcpy(&fib.ipv4_src, p->key.client + 12, 4);
        __builtin_memcpy(&fib.ipv4_dst, p->key.local + 12, 4);
    }
    long result = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
    return result == BPF_FIB_LKUP_RET_SUCCESS || result == BPF_FIB_LKUP_RET_NO_NEIGH;
}

/* Is the SYN for a client that can be reached: one with a connection, or at a port for it? */
static __always_inline int wants_client(struct __sk_buff *skb, const struct packet *p, const struct roost_config *cfg) {
    struct search search = {.skb = skb, .p = p, .cfg = cfg};
    if (bpf_map_lookup_elem(&attach_ports, &p->key.local_port))
        return passes_through(skb, p);
    bpf_for_each_map_elem(&managed, connected, &search, 0);
    return search.found;
}

/* A server's connection to a client: the door takes it, if there is one. Its ACK belongs to the door, too, when the door
 * answered with a cookie. */
static __always_inline void attach(struct __sk_buff *skb, const struct arrival *a, const struct roost_config *cfg) {
    const struct packet *p = &a->packet;
    const struct tcphdr *tcp = &a->header.tcp;
    __u32 door = p->v6 ? ROOST_DOOR_IPV6 : ROOST_DOOR_IPV4;
    int opens = tcp->syn && !tcp->ack;
    if (tcp->rst || (!opens && !tcp->ack) || (opens && !wants_client(skb, p, cfg)))
        return;
    struct bpf_sock *sk = bpf_map_lookup_elem(&doors, &door);
    if (!sk)
        return;
    if ((opens || has_cookie(sk, a)) && !bpf_sk_assign(skb, sk, 0))
        keep(skb, p);
    bpf_sk_release(sk);
}

static __always_inline int steer(struct __sk_buff *skb, int from_servers) {
    __u32 zero = 0;
    const struct roost_config *cfg = bpf_map_lookup_elem(&config, &zero);
    struct arrival *a = bpf_map_lookup_elem(&scratch, &zero);
    if (!cfg || !a)
        return TC_ACT_UNSPEC;
    __builtin_memset(a, 0, sizeof(*a));
    struct packet *p = &a->packet;
    const struct tcphdr *tcp = parse(skb, p, &a->header);
    if (p->l3 != ETH_HLEN)
        return TC_ACT_UNSPEC;
    if (!tcp) {
        struct datagram datagram = datagram_of(p);
        if (p->fragment == FRAGMENT_LATER) {
            if (p->protocol == IPPROTO_TCP && bpf_map_lookup_elem(&datagrams, &datagram))
                keep(skb, p);
        } else if (p->protocol == (p->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) && parse_icmp_error(skb, a) &&
                   is_connected(skb, &p->key, p->v6)) {
            keep(skb, p);
        }
        return TC_ACT_UNSPEC;
    }
    enum owner owner = owner_of(skb, a);
    int opens = tcp->syn && !tcp->ack;
    const struct roost_managed *server = from_servers ? 0 : managed_server(p->key.local, p->key.local_port, p->v6);
    if (owner == CONNECTION || ((server || from_servers) && asleep(cfg, &p->key, p->v6, from_servers))) {
        keep(skb, p);
    } else if (server) {
        if (owner == LISTENER && (opens || server->fail_closed))
            keep(skb, p);
        else if (server->fail_closed)
            return refuse(skb, a);
    } else if (from_servers) {
        attach(skb, a, cfg);
    }
    return TC_ACT_UNSPEC;
}

SEC("tc")
int roost_steer_clients(struct __sk_buff *skb) {
    return steer(skb, 0);
}

SEC("tc")
int roost_steer_servers(struct __sk_buff *skb) {
    return steer(skb, 1);
}
