/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which socket the kernel has for a key. */
#ifndef ROOST_SOCKET_H
#define ROOST_SOCKET_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "ebpf/shared/record.h"

#define FAMILY_INET 2
#define FAMILY_INET6 10
#define TCP_STATE_LISTEN 10

/* The socket that the stack would give a packet with this key, to be released; 0: none. ctx: of XDP, tc, or cgroup
 * connect. */
static __always_inline struct bpf_sock *find_socket(void *ctx, const struct roost_key *key, int v6) {
    struct bpf_sock_tuple tuple = {};
    if (v6) {
        __builtin_memcpy(tuple.ipv6.saddr, key->client, 16);
        __builtin_memcpy(tuple.ipv6.daddr, key->local, 16);
        tuple.ipv6.sport = key->client_port;
        tuple.ipv6.dport = key->local_port;
    } else {
        __builtin_memcpy(&tuple.ipv4.saddr, key->client + 12, 4);
        __builtin_memcpy(&tuple.ipv4.daddr, key->local + 12, 4);
        tuple.ipv4.sport = key->client_port;
        tuple.ipv4.dport = key->local_port;
    }
    return bpf_skc_lookup_tcp(ctx, &tuple, v6 ? sizeof(tuple.ipv6) : sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* Whether the kernel has a socket for exactly this key: then its packets are that one's. */
static __always_inline int is_connected(void *ctx, const struct roost_key *key, int v6) {
    struct bpf_sock *sk = find_socket(ctx, key, v6);
    if (!sk)
        return 0;
    int connected = sk->state != TCP_STATE_LISTEN;
    bpf_sk_release(sk);
    return connected;
}

#endif
