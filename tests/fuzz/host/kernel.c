// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "kernel.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include "bpf/bpf_helpers.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

#define MAPS_MAX 40
#define MARGIN 512    /* poisoned, on either side of the longest frame */
#define HEAD_ROOM 256 /* of the margin: XDP_PACKET_HEADROOM */
#define NEW_BYTE 0xa5 /* what the kernel leaves in ring records: whatever was there */

struct host host;

static struct map {
    const void *map;
    uint8_t *data; /* a hash's is its own: keys and values by turns */
    uint32_t entries, used;
    size_t key_size, value_size;
    bool hash, sockets, of_maps, percpu;
} maps[MAPS_MAX];

static struct frame {
    uint8_t *memory, *data;
    size_t length;
    bool skb;
} frames[HOST_CPUS];
static struct host hosts[HOST_CPUS]; /* of the processors that are not the current one */
static int cpu;
#define frame (frames[cpu])

static struct bpf_sock listener = {.state = 10}, connection = {.state = 1};

static void refuse(const char *what) {
    fprintf(stderr, "host: %s\n", what);
    abort();
}

void host_on_cpu(int n) {
    hosts[cpu] = host;
    cpu = n;
    host = hosts[cpu];
}

static struct map *find_map(const void *map) {
    for (int i = 0; i < MAPS_MAX; i++)
        if (maps[i].map == map)
            return &maps[i];
    return NULL;
}

static struct map *new_map(const void *map) {
    struct map *m = find_map(map);
    if (!m)
        m = find_map(NULL);
    if (!m)
        refuse("more maps than MAPS_MAX");
    if (m->hash)
        free(m->data);
    *m = (struct map){.map = map};
    return m;
}

static struct map *map_of(const void *map) {
    struct map *m = find_map(map);
    if (!m)
        refuse("a map that has no memory");
    return m;
}

void host_map_array(const void *map, void *data, uint32_t entries, size_t value_size) {
    struct map *m = new_map(map);
    m->data = data;
    m->entries = entries;
    m->key_size = sizeof(uint32_t);
    m->value_size = value_size;
}

void host_map_percpu(const void *map, void *data, uint32_t entries, size_t value_size) {
    host_map_array(map, data, entries, value_size);
    map_of(map)->percpu = true;
}

void host_map_of_maps(const void *map, void *const *inner, uint32_t entries) {
    struct map *m = new_map(map);
    memcpy(&m->data, &inner, sizeof(inner));
    m->of_maps = true;
    m->entries = entries;
    m->key_size = sizeof(uint32_t);
    m->value_size = sizeof(inner[0]);
}

void host_map_hash(const void *map, uint32_t entries, size_t key_size, size_t value_size) {
    struct map *m = new_map(map);
    m->hash = true;
    m->entries = entries;
    m->key_size = key_size;
    m->value_size = value_size;
    m->data = calloc(entries, key_size + value_size);
    if (!m->data)
        refuse("no memory");
}

void host_begin(void) {
    host_forget_records();
    host.redirected_to = 0;
    host.lookups = host.references = 0;
    host.assigned = host.bound = false;
    host.mark = 0;
}

void host_map_sockets(const void *map, bool there) {
    struct map *m = new_map(map);
    m->sockets = true;
    m->entries = there ? UINT32_MAX : 0;
    m->key_size = sizeof(uint32_t);
    m->value_size = sizeof(uint64_t);
}

void *host_map_next(const void *map, __u32 index, void **key) {
    const struct map *m = map_of(map);
    if (index >= m->used)
        return NULL;
    *key = m->data + index * (m->key_size + m->value_size);
    return (uint8_t *)*key + m->key_size;
}

static void *find_value(const struct map *m, const void *key) {
    void *at, *value;
    for (uint32_t i = 0; (value = host_map_next(m->map, i, &at)); i++)
        if (!memcmp(at, key, m->key_size))
            return value;
    return NULL;
}

void *bpf_map_lookup_elem(const void *map, const void *key) {
    const struct map *m = map_of(map);
    uint32_t index;
    if (m->hash)
        return find_value(m, key);
    memcpy(&index, key, sizeof(index));
    if (index >= m->entries)
        return NULL;
    if (m->sockets) {
        host.references++;
        return &listener;
    }
    if (m->percpu)
        index += (uint32_t)cpu * m->entries;
    void *value = m->data + (size_t)index * m->value_size;
    return m->of_maps ? *(void **)value : value;
}

/* Of hashes alone; a full one lets its oldest entry go, as LRU maps may. */
long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags) {
    struct map *m = map_of(map);
    uint8_t *at;
    if (!m->hash || flags)
        refuse("an update that is not there");
    void *there = find_value(m, key);
    if (!there) {
        size_t size = m->key_size + m->value_size;
        if (m->used == m->entries)
            memmove(m->data, m->data + size, --m->used * size);
        at = m->data + m->used++ * size;
        memcpy(at, key, m->key_size);
        there = at + m->key_size;
    }
    memcpy(there, value, m->value_size);
    return 0;
}

struct bpf_sock *bpf_skc_lookup_tcp(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags) {
    (void)ctx;
    if (!tuple || (size != sizeof(tuple->ipv4) && size != sizeof(tuple->ipv6)) || netns != (__u64)BPF_F_CURRENT_NETNS ||
        flags)
        refuse("a socket lookup that the kernel would refuse");
    uint32_t found = host.find_socket ? host.find_socket(tuple, size == sizeof(tuple->ipv4))
                                      : host.sockets >> 2 * (host.lookups++ % 16) & 3;
    host.references += found == HOST_LISTENER || found == HOST_CONNECTION;
    return found == HOST_LISTENER ? &listener : found == HOST_CONNECTION ? &connection : NULL;
}

long bpf_sk_release(void *sk) {
    if (!sk || !host.references)
        refuse("a socket released that was not held");
    host.references--;
    return 0;
}

long bpf_sk_assign(void *ctx, void *sk, __u64 flags) {
    (void)ctx;
    if (!sk || !host.references || flags)
        refuse("a frame given to a socket that is not held");
    host.assigned = true;
    return 0;
}

__u64 bpf_get_netns_cookie(void *ctx) {
    (void)ctx;
    return host.netns;
}

__u64 bpf_get_socket_cookie(void *ctx) {
    (void)ctx;
    return host.cookie_of_socket;
}

__u64 bpf_get_current_pid_tgid(void) {
    return (__u64)host.process << 32 | 4711;
}

long bpf_bind(struct bpf_sock_addr *ctx, struct sockaddr *address, int length) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)address;
    bool v6 = in->sin_family == AF_INET6;
    if ((in->sin_family != AF_INET && !v6) || length != (v6 ? sizeof(struct sockaddr_in6) : sizeof(*in)) ||
        in->sin_port || v6 != (ctx->family == AF_INET6))
        refuse("an address that the kernel would refuse");
    host.bound = !host.no_bind;
    return host.no_bind ? -EADDRNOTAVAIL : 0;
}

long bpf_setsockopt(void *ctx, int level, int name, void *value, int length) {
    (void)ctx;
    if (level != SOL_SOCKET || name != SO_MARK || length != sizeof(host.mark))
        refuse("an option that the kernel would refuse");
    memcpy(&host.mark, value, sizeof(host.mark));
    return 0;
}

long bpf_tcp_check_syncookie(void *sk, void *ip, __u32 ip_length, void *tcp, __u32 tcp_length) {
    if (!sk || (ip_length != 20 && ip_length != 40) || tcp_length != 20 ||
        (*(uint8_t *)ip >> 4 == 4) != (ip_length == 20))
        refuse("a cookie check that the kernel would refuse");
    (void)tcp;
    return host.cookie ? 0 : -ENOENT;
}

__u64 bpf_ktime_get_ns(void) {
    return host.now_ns;
}

__u64 bpf_ktime_get_coarse_ns(void) {
    return host.now_ns;
}

__u32 bpf_get_prandom_u32(void) {
    return host.random;
}

/* Sum of the 16-bit words of to, less those of from; a 32-bit one's complement number that fold() brings to 16. */
__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __u32 seed) {
    uint64_t sum = seed;
    uint16_t word;
    if ((from_size | to_size) & 3 || from_size > 512 || to_size > 512)
        return -EINVAL;
    for (size_t i = 0; i < from_size; i += 2) {
        memcpy(&word, (const uint8_t *)from + i, 2);
        sum += (uint16_t)~word;
    }
    for (size_t i = 0; i < to_size; i += 2) {
        memcpy(&word, (const uint8_t *)to + i, 2);
        sum += word;
    }
    while (sum >> 32)
        sum = (sum & 0xffffffff) + (sum >> 32);
    return (__s64)sum;
}

static void begin(const uint8_t *bytes, size_t length, bool skb) {
    if (!frame.memory) {
        frame.memory = mmap(NULL, HOST_SKB_MAX + 2 * MARGIN, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        if (frame.memory == MAP_FAILED)
            refuse("no memory below 2 GiB for the frame");
    }
    frame.data = frame.memory + MARGIN;
    ASAN_UNPOISON_MEMORY_REGION(frame.memory, HOST_SKB_MAX + 2 * MARGIN);
    if (length)
        memcpy(frame.data, bytes, length);
    frame.length = length;
    frame.skb = skb;
    ASAN_POISON_MEMORY_REGION(frame.memory, MARGIN);
    ASAN_POISON_MEMORY_REGION(frame.data + length, HOST_SKB_MAX + MARGIN - length);
    host_begin();
}

void host_begin_xdp(struct xdp_md *ctx, const uint8_t *bytes, size_t length) {
    if (length < ETH_HLEN || length > HOST_FRAME_MAX)
        refuse("no frame that a driver would give");
    begin(bytes, length, false);
    memset(ctx, 0, sizeof(*ctx));
    ctx->data = (__u32)(uintptr_t)frame.data;
    ctx->data_end = (__u32)(uintptr_t)(frame.data + length);
    ctx->ingress_ifindex = 3;
    ctx->rx_queue_index = 1;
}

void host_begin_skb(struct __sk_buff *skb, const uint8_t *bytes, size_t length) {
    if (length < ETH_HLEN || length > HOST_SKB_MAX)
        refuse("no frame that tc would give");
    begin(bytes, length, true);
    memset(skb, 0, sizeof(*skb));
    skb->len = (__u32)length;
    skb->ifindex = 3;
    uint16_t protocol;
    memcpy(&protocol, bytes + 12, 2);
    skb->protocol = protocol;
}

const uint8_t *host_frame(size_t *length) {
    if (host.reserved)
        refuse("a ring record was reserved and neither submitted nor discarded");
    if (host.references)
        refuse("a socket was not released");
    *length = frame.length;
    return frame.data;
}

static long load(uint32_t offset, void *to, uint32_t length) {
    if (offset > 0xffff)
        return -EFAULT;
    if (!length || (size_t)offset + length > frame.length)
        return -EINVAL;
    memcpy(to, frame.data + offset, length);
    return 0;
}

long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to, __u32 length) {
    (void)ctx;
    return load(offset, to, length);
}

long bpf_skb_load_bytes(const void *skb, __u32 offset, void *to, __u32 length) {
    (void)skb;
    return load(offset, to, length);
}

static long store(uint32_t offset, const void *from, uint32_t length) {
    if (offset > 0xffff)
        return -EFAULT;
    if (!length || (size_t)offset + length > frame.length)
        return -EINVAL;
    memcpy(frame.data + offset, from, length);
    return 0;
}

long bpf_xdp_store_bytes(struct xdp_md *ctx, __u32 offset, void *from, __u32 length) {
    (void)ctx;
    return store(offset, from, length);
}

long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from, __u32 length, __u64 flags) {
    (void)skb;
    return flags ? -EINVAL : store(offset, from, length);
}

static long resize(long length, long max) {
    bool grows = length > (long)frame.length;
    if (length < ETH_HLEN || length > max || (grows && host.no_tail_room))
        return -EINVAL;
    ASAN_UNPOISON_MEMORY_REGION(frame.data, (size_t)length);
    if (grows)
        memset(frame.data + frame.length, 0, (size_t)length - frame.length);
    ASAN_POISON_MEMORY_REGION(frame.data + length, HOST_SKB_MAX + MARGIN - (size_t)length);
    frame.length = (size_t)length;
    return 0;
}

long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta) {
    long error = resize((long)frame.length + delta, HOST_FRAME_MAX);
    ctx->data_end = (__u32)(uintptr_t)(frame.data + frame.length);
    return error;
}

/* What a frame gains at its head is what was there: the kernel clears it at the tail alone. */
long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta) {
    long length = (long)frame.length - delta, room = frame.data - (frame.memory + MARGIN - HEAD_ROOM);
    if (length < ETH_HLEN || -delta > room || (delta < 0 && host.no_head_room))
        return -EINVAL;
    if (delta < 0) {
        ASAN_UNPOISON_MEMORY_REGION(frame.data + delta, (size_t)-delta);
        memset(frame.data + delta, NEW_BYTE, (size_t)-delta);
    } else {
        ASAN_POISON_MEMORY_REGION(frame.data, (size_t)delta);
    }
    frame.data += delta;
    frame.length = (size_t)length;
    ctx->data = (__u32)(uintptr_t)frame.data;
    return 0;
}

long bpf_skb_change_tail(struct __sk_buff *skb, __u32 length, __u64 flags) {
    long error = flags ? -EINVAL : resize((long)length, HOST_SKB_MAX);
    skb->len = (__u32)frame.length;
    return error;
}

__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx) {
    (void)ctx;
    return frame.length;
}

long bpf_fib_lookup(void *ctx, struct bpf_fib_lookup *fib, int size, __u32 flags) {
    (void)ctx;
    (void)flags;
    if (size != sizeof(*fib))
        return -EINVAL;
    fib->ifindex = host.fib_ifindex;
    memset(fib->dmac, 0xdd, sizeof(fib->dmac));
    memset(fib->smac, 0x55, sizeof(fib->smac));
    return host.fib_result;
}

long bpf_redirect(__u32 ifindex, __u64 flags) {
    (void)flags;
    host.redirected_to = ifindex;
    return frame.skb ? TC_ACT_REDIRECT : XDP_REDIRECT;
}

void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags) {
    (void)ring;
    (void)flags;
    if (host.reserved)
        refuse("two ring records at once");
    if (host.ring_full)
        return NULL;
    host.reserved = malloc(size);
    host.reserved_size = size;
    if (!host.reserved)
        refuse("no memory");
    memset(host.reserved, NEW_BYTE, size);
    return host.reserved;
}

void bpf_ringbuf_submit(void *record, __u64 flags) {
    (void)flags;
    if (!record || record != host.reserved || host.records == HOST_RECORDS_MAX)
        refuse("a ring record submitted that was not reserved, or too many");
    host.record[host.records++] = (struct host_record){record, host.reserved_size};
    host.reserved = NULL;
}

void bpf_ringbuf_discard(void *record, __u64 flags) {
    (void)flags;
    if (!record || record != host.reserved)
        refuse("a ring record discarded that was not reserved");
    free(record);
    host.reserved = NULL;
}

void host_forget_records(void) {
    for (int i = 0; i < host.records; i++)
        free(host.record[i].data);
    host.records = 0;
}
