// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Socket lookup: no packet of a connection in the table reaches a listener.
 *
 * What XDP does not understand (a SYN in fragments, say) goes on to the stack. A listener would answer it and make a
 * half-open connection, and while that lasts the sleeping one of the same 4-tuple could not be rebuilt: any
 * sender could keep it asleep. Without a listener the stack can answer with an RST alone, and the guard stops that. Every
 * other key is noted as one that may get a socket (ebpf/shared/sockets.h): births skip it.
 */
#include "ebpf/lib/candidate.h"
#include "ebpf/lib/socket.h"

#include <linux/in.h>

#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

static __always_inline int is_heard(__u32 ifindex) {
    __u32 zero = 0;
    const struct roost_filter_gate *gate = bpf_map_lookup_elem(&filter_gate, &zero);
    int heard = 0;
    for (int i = 0; i < ROOST_FILTER_INTERFACES && gate; i++)
        heard |= gate->interface[i] == ifindex;
    return heard;
}

SEC("sk_lookup")
int roost_lookup(struct bpf_sk_lookup *ctx) {
    __u32 zero = 0;
    const struct roost_config *cfg = bpf_map_lookup_elem(&config, &zero);
    if (!cfg || ctx->protocol != IPPROTO_TCP)
        return SK_PASS;
    struct found found;
    struct roost_key key = {.client_port = ctx->remote_port, .local_port = bpf_htons(ctx->local_port)};
    __u32 *client = (__u32 *)key.client, *local = (__u32 *)key.local;
    int v6 = ctx->family == FAMILY_INET6;
    if (!v6 && ctx->family != FAMILY_INET)
        return SK_PASS;
    if (v6) {
        client[0] = ctx->remote_ip6[0];
        client[1] = ctx->remote_ip6[1];
        client[2] = ctx->remote_ip6[2];
        client[3] = ctx->remote_ip6[3];
        asm volatile("" ::: "memory"); /* or clang makes one load of two fields, at an address that it calculates */
        local[0] = ctx->local_ip6[0];
        local[1] = ctx->local_ip6[1];
        local[2] = ctx->local_ip6[2];
        local[3] = ctx->local_ip6[3];
    } else {
        __u32 remote = ctx->remote_ip4;
        asm volatile("" : "+r"(remote));
        client[3] = remote;
        remote = ctx->local_ip4;
        asm volatile("" : "+r"(remote));
        local[3] = remote;
        client[2] = local[2] = bpf_htonl(0xffff);
    }
    if (find(cfg, &key, v6, &found))
        return SK_DROP;
    if (filter_says(&found, key.local_port) == CANDIDATE && is_heard(ctx->ingress_ifindex))
        return SK_DROP;
    const struct roost_births_gate *gate = bpf_map_lookup_elem(&births_gate, &zero);
    struct roost_sockets *sockets = bpf_map_lookup_elem(&births_sockets, &zero);
    if (gate && gate->services && sockets)
        roost_socket_note(sockets, found.hash, bpf_ktime_get_ns() / 1000000000);
    return SK_PASS;
}
