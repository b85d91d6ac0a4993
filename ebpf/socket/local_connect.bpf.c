// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * connect() of a program on this machine: to a client that has a connection, it goes to a door.
 *
 * Before the kernel looks for a route, the socket is given the mark of what this machine itself is to have
 * (appliance/box/router.py has the routing rule), and a source address of the loopback interface, where loopback.bpf.c
 * hands its SYN to the door. All else about the socket is the kernel's: the program sees the client's address as its
 * peer's.
 *
 * Which clients have a connection, the tables and the sockets say. Its near end is not known, and so all are tried that
 * clients can connect to. The daemon's own sockets are left alone, and those that are bound to a port or an interface.
 *
 * The links end with the daemon, so without one programs connect as they would have without Roost.
 */
#include "ebpf/lib/find.h"
#include "ebpf/lib/socket.h"
#include "ebpf/shared/steer.h"

#include <linux/in.h>
#include <linux/in6.h>

#include <bpf/bpf_endian.h>

#define SOL_SOCKET 1
#define SO_MARK 36
#define TCP_STATE_ESTABLISHED 1
#define TCP_STATE_CLOSE_WAIT 8

#define GO_ON 1 /* with the connect(), as it is now */

char _license[] SEC("license") = "GPL";

ROOST_LOCAL_CONNECT_MAPS(ROOST_DEFINE_MAP)

struct call {
    struct bpf_sock_addr *ctx;
    const struct roost_config *cfg;
    struct roost_key key; /* its client's half */
    int v6, found;
};

/* Whether there is a socket that its client may still speak by. */
static __always_inline int is_open(struct call *call) {
    struct bpf_sock *sk = find_socket(call->ctx, &call->key, call->v6);
    if (!sk)
        return 0;
    int open = sk->state == TCP_STATE_ESTABLISHED || sk->state == TCP_STATE_CLOSE_WAIT;
    bpf_sk_release(sk);
    return open;
}

static long has_connection(void *map, const struct roost_managed_key *near, const __u8 *yes, struct call *call) {
    int mapped = near->address[10] == 0xff && near->address[11] == 0xff && !near->address[0];
    if (mapped == call->v6)
        return 0;
    __builtin_memcpy(call->key.local, near->address, 16);
    call->key.local_port = near->port;
    struct found found;
    call->found = find(call->cfg, &call->key, call->v6, &found) || is_open(call);
    return call->found;
}

static __always_inline int has_address(const struct bpf_sock *sk) {
    return sk->src_ip4 || sk->src_ip6[0] || sk->src_ip6[1] || sk->src_ip6[2] || sk->src_ip6[3];
}

static __always_inline void come_in(struct bpf_sock_addr *ctx, int v6, int mapped) {
    struct sockaddr_in here4 = {.sin_family = FAMILY_INET, .sin_addr.s_addr = bpf_htonl(0x7f000001)};
    struct sockaddr_in6 here6 = {.sin6_family = FAMILY_INET6};
    if (mapped) {
        here6.sin6_addr.in6_u.u6_addr32[2] = bpf_htonl(0xffff);
        here6.sin6_addr.in6_u.u6_addr32[3] = bpf_htonl(0x7f000001);
    } else {
        here6.sin6_addr.in6_u.u6_addr8[15] = 1;
    }
    if (!has_address(ctx->sk) && (v6 ? bpf_bind(ctx, (struct sockaddr *)&here6, sizeof(here6))
                                     : bpf_bind(ctx, (struct sockaddr *)&here4, sizeof(here4))))
        return;
    __u32 mark = (ctx->sk->mark & ~ROOST_MARK_MASK) | ROOST_MARK;
    bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, sizeof(mark));
}

/* A socket that was to come in, and did not, may connect elsewhere. */
static __always_inline void forget(struct bpf_sock_addr *ctx, int v6) {
    struct sockaddr_in any4 = {.sin_family = FAMILY_INET};
    struct sockaddr_in6 any6 = {.sin6_family = FAMILY_INET6};
    if ((ctx->sk->mark & ROOST_MARK_MASK) != ROOST_MARK)
        return;
    __u32 mark = ctx->sk->mark & ~ROOST_MARK_MASK;
    bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, sizeof(mark));
    if (v6)
        bpf_bind(ctx, (struct sockaddr *)&any6, sizeof(any6));
    else
        bpf_bind(ctx, (struct sockaddr *)&any4, sizeof(any4));
}

static __always_inline int is_loopback(const __u32 *address, int mapped) {
    return mapped ? bpf_ntohl(address[3]) >> 24 == 127
                  : !address[0] && !address[1] && !address[2] && address[3] == bpf_htonl(1);
}

/* mapped: an IPv4 address, v6: by a socket of IPv6. */
static __always_inline int connects(struct call *call, int v6, int mapped) {
    __u32 zero = 0;
    call->cfg = bpf_map_lookup_elem(&config, &zero);
    call->v6 = !mapped;
    if (!call->cfg)
        return GO_ON;
    if (!is_loopback((__u32 *)call->key.client, mapped)) /* no client is there */
        bpf_for_each_map_elem(&near_ends, has_connection, call, 0);
    if (call->found)
        come_in(call->ctx, v6, mapped);
    else
        forget(call->ctx, v6);
    return GO_ON;
}

/* What is not the daemon's network namespace's, or the daemon's own: the id of its process, which namespaces do not change, is that
 * of the socket with the cookie. */
static __always_inline int is_others(struct bpf_sock_addr *ctx) {
    __u32 zero = 0, process = bpf_get_current_pid_tgid() >> 32;
    struct roost_own *daemon = bpf_map_lookup_elem(&own, &zero);
    if (!daemon || bpf_get_netns_cookie(ctx) != daemon->netns)
        return 1;
    if (!daemon->process && daemon->cookie && bpf_get_socket_cookie(ctx) == daemon->cookie)
        daemon->process = process;
    return daemon->process == process;
}

static __always_inline int is_left_alone(struct bpf_sock_addr *ctx) {
    return is_others(ctx) || ctx->protocol != IPPROTO_TCP || !ctx->sk || ctx->sk->src_port || ctx->sk->bound_dev_if;
}

SEC("cgroup/connect4")
int roost_connect4(struct bpf_sock_addr *ctx) {
    struct call call = {.ctx = ctx, .key.client_port = (__be16)ctx->user_port};
    __u32 *client = (__u32 *)call.key.client;
    if (is_left_alone(ctx))
        return GO_ON;
    client[2] = bpf_htonl(0xffff);
    client[3] = ctx->user_ip4;
    return connects(&call, 0, 1);
}

SEC("cgroup/connect6")
int roost_connect6(struct bpf_sock_addr *ctx) {
    struct call call = {.ctx = ctx, .key.client_port = (__be16)ctx->user_port};
    __u32 *client = (__u32 *)call.key.client;
    if (is_left_alone(ctx))
        return GO_ON;
    client[0] = ctx->user_ip6[0];
    client[1] = ctx->user_ip6[1];
    client[2] = ctx->user_ip6[2];
    client[3] = ctx->user_ip6[3];
    int mapped = !client[0] && !client[1] && client[2] == bpf_htonl(0xffff);
    return connects(&call, 1, mapped);
}
