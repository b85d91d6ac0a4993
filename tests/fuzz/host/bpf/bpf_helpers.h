/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of libbpf's header when a program of ebpf/ is compiled for the host: a helper is a function of kernel.c, and
 * a map is its declaration, whose address names the memory that the harness gave it.
 *
 * A further helper: declare it here under its own name and give it a body in kernel.c. One that calls back is a macro.
 */
#ifndef ROOST_HOST_BPF_HELPERS_H
#define ROOST_HOST_BPF_HELPERS_H

#include <linux/bpf.h>

#define SEC(name)
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define __noinline __attribute__((noinline))
#define __uint(name, number) int(*name)[number]
#define __type(name, type) typeof(type) *name
#define __array(name, type) typeof(type) *name[]

void *bpf_map_lookup_elem(const void *map, const void *key);
void *host_map_next(const void *map, __u32 index, void **key);
#define bpf_for_each_map_elem(m, step, context, flags)                                                                 \
    ({                                                                                                                 \
        void *host_key, *host_value;                                                                                   \
        __u32 host_i = 0;                                                                                              \
        while ((host_value = host_map_next((m), host_i, &host_key)) &&                                                 \
               !step((m), (typeof((m)->key))host_key, (typeof((m)->value))host_value, (context)))                      \
            host_i++;                                                                                                  \
        (long)host_i;                                                                                                  \
    })
long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags);

#define bpf_loop(times, step, context, flags)                                                                          \
    ({                                                                                                                 \
        __u32 host_i = 0;                                                                                              \
        while (host_i < (times) && !step(host_i, (context)))                                                           \
            host_i++;                                                                                                  \
        (long)host_i;                                                                                                  \
    })

__u64 bpf_ktime_get_ns(void);
__u64 bpf_ktime_get_coarse_ns(void);
__u32 bpf_get_prandom_u32(void);
__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __u32 seed);

long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to, __u32 length);
long bpf_xdp_store_bytes(struct xdp_md *ctx, __u32 offset, void *from, __u32 length);
long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta);
long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta);
__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx);
long bpf_fib_lookup(void *ctx, struct bpf_fib_lookup *fib, int size, __u32 flags);
long bpf_redirect(__u32 ifindex, __u64 flags);

struct bpf_sock *bpf_skc_lookup_tcp(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags);
long bpf_sk_release(void *sk);
long bpf_sk_assign(void *ctx, void *sk, __u64 flags);
long bpf_tcp_check_syncookie(void *sk, void *ip, __u32 ip_length, void *tcp, __u32 tcp_length);

__u64 bpf_get_netns_cookie(void *ctx);
__u64 bpf_get_socket_cookie(void *ctx);
__u64 bpf_get_current_pid_tgid(void);
struct sockaddr;
long bpf_bind(struct bpf_sock_addr *ctx, struct sockaddr *address, int length);
long bpf_setsockopt(void *ctx, int level, int name, void *value, int length);

long bpf_skb_load_bytes(const void *skb, __u32 offset, void *to, __u32 length);
long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from, __u32 length, __u64 flags);
long bpf_skb_change_tail(struct __sk_buff *skb, __u32 length, __u64 flags);

void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags);
void bpf_ringbuf_submit(void *record, __u64 flags);
void bpf_ringbuf_discard(void *record, __u64 flags);

#endif
