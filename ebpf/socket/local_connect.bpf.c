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
 * clients can connect to. A socket that is bound to a port is left alone: the engine's own are when it rebuilds a
 * connection.
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

#define GO_ON 1 /* with the connect(), as it is now */

char _license[] SEC("license") = "GPL";

ROOST_LOCAL_CONNECT_MAPS(ROOST_DEFINE_MAP)

struct call {
    struct bpf_sock_addr *ctx;
    const struct roost_config *cfg;
    struct roost_key key; /* its client's half */
    __u64 space;
    int v6, found;
};

static long has_connection(void *map, const struct roost_managed_key *near, const __u64 *space, struct call *call) {
    int mapped = near->address[10] == 0xff && near->address[11] == 0xff && !near->address[0];
    if (*space != call->space)
        return 1; /* all are of the daemon's one */
    if (mapped == call->v6)
        return 0;
    __builtin_memcpy(call->key.local, near->address, 16);
    call->key.local_port = near->port;
    struct found found;
    call->found = find(call->cfg, &call->key, call->v6, &found) || is_connected(call->ctx, &call->key, call->v6);
    return call->found;
}

static __always_inline int has_address(const struct bpf_sock *sk) {
    return sk->src_ip4 || sk->src_ip6[0] || sk->src_ip6[1] || sk->src_ip6[2] || sk->src_ip6[3];
}

/* mapped: an IPv4 address by a socket of IPv6. */
static __always_inline void come_in(struct bpf_sock_addr *ctx, int v6, int mapped) {
    struct sockaddr_in here4 = {.sin_family = FAMILY_INET, .sin_addr.s_addr = bpf_htonl(0x7f000001)};
    struct sockaddr_in6 here6 = {.sin6_family = FAMILY_INET6};
    if (mapped) {
        here6.sin6_addr.in6_u.u6_addr32[2] = bpf_htonl(0xffff);
        here6.sin6_addr.in6_u.u6_addr32[3] = bpf_htonl(0x7f000001);
    } else {
        here6.sin6_addr.in6_u.u6_addr8[15] = 1;
    }
    if (!has_address(ctx->sk) && (v6 || mapped ? bpf_bind(ctx, (struct sockaddr *)&here6, sizeof(here6))
                                               : bpf_bind(ctx, (struct sockaddr *)&here4, sizeof(here4))))
        return;
    __u32 mark = (ctx->sk->mark & ~ROOST_MARK_MASK) | ROOST_MARK;
    bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, sizeof(mark));
}

static __always_inline int connects(struct call *call, int mapped) {
    __u32 zero = 0;
    call->cfg = bpf_map_lookup_elem(&config, &zero);
    call->space = bpf_get_netns_cookie(call->ctx);
    if (!call->cfg)
        return GO_ON;
    bpf_for_each_map_elem(&near_ends, has_connection, call, 0);
    if (call->found)
        come_in(call->ctx, call->v6, mapped);
    return GO_ON;
}

static __always_inline int is_left_alone(const struct bpf_sock_addr *ctx) {
    return ctx->protocol != IPPROTO_TCP || !ctx->sk || ctx->sk->src_port;
}

SEC("cgroup/connect4")
int roost_connect4(struct bpf_sock_addr *ctx) {
    struct call call = {.ctx = ctx, .key.client_port = (__be16)ctx->user_port};
    __u32 *client = (__u32 *)call.key.client;
    client[2] = bpf_htonl(0xffff);
    client[3] = ctx->user_ip4;
    if (is_left_alone(ctx) || bpf_ntohl(client[3]) >> 24 == 127) /* no client is at the loopback */
        return GO_ON;
    return connects(&call, 0);
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
    call.v6 = !mapped;
    return connects(&call, mapped);
}
