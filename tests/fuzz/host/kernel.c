// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "kernel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <linux/if_ether.h>

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

#define MAPS_MAX 32
#define MARGIN 512    /* poisoned, on either side of the longest frame */
#define NEW_BYTE 0xa5 /* what the kernel leaves in ring records: whatever was there */

struct host host;

static struct map {
    const void *map;
    uint8_t *data;
    uint32_t entries;
    size_t value_size;
} maps[MAPS_MAX];

static struct {
    uint8_t *memory, *data;
    size_t length;
} frame;

static void refuse(const char *what) {
    fprintf(stderr, "host: %s\n", what);
    abort();
}

static struct map *map_of(const void *map) {
    for (int i = 0; i < MAPS_MAX; i++)
        if (maps[i].map == map)
            return &maps[i];
    return NULL;
}

void host_map_array(const void *map, void *data, uint32_t entries, size_t value_size) {
    struct map *m = map_of(map);
    if (!m)
        m = map_of(NULL);
    if (!m)
        refuse("more maps than MAPS_MAX");
    *m = (struct map){map, data, entries, value_size};
}

void *host_map_lookup(const void *map, __u32 key_size, __u32 value_size, const void *key) {
    const struct map *m = map_of(map);
    uint32_t index;
    if (!m || m->value_size != value_size || key_size != sizeof(index))
        refuse("a map without memory, or of another size");
    memcpy(&index, key, sizeof(index));
    return index < m->entries ? m->data + (size_t)index * value_size : NULL;
}

__u64 bpf_ktime_get_ns(void) {
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

static void begin(const uint8_t *bytes, size_t length) {
    if (!frame.memory) {
        frame.memory = mmap(NULL, HOST_SKB_MAX + 2 * MARGIN, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        if (frame.memory == MAP_FAILED)
            refuse("no memory below 2 GiB for the frame");
        frame.data = frame.memory + MARGIN;
    }
    ASAN_UNPOISON_MEMORY_REGION(frame.memory, HOST_SKB_MAX + 2 * MARGIN);
    if (length)
        memcpy(frame.data, bytes, length);
    frame.length = length;
    ASAN_POISON_MEMORY_REGION(frame.memory, MARGIN);
    ASAN_POISON_MEMORY_REGION(frame.data + length, HOST_SKB_MAX + MARGIN - length);
    host_forget_records();
    host.redirected_to = 0;
}

void host_begin_xdp(struct xdp_md *ctx, const uint8_t *bytes, size_t length) {
    if (length < ETH_HLEN || length > HOST_FRAME_MAX)
        refuse("no frame that a driver would give");
    begin(bytes, length);
    memset(ctx, 0, sizeof(*ctx));
    ctx->data = (__u32)(uintptr_t)frame.data;
    ctx->data_end = (__u32)(uintptr_t)(frame.data + length);
    ctx->ingress_ifindex = 3;
    ctx->rx_queue_index = 1;
}

void host_begin_skb(struct __sk_buff *skb, const uint8_t *bytes, size_t length) {
    if (length < ETH_HLEN || length > HOST_SKB_MAX)
        refuse("no frame that tc would give");
    begin(bytes, length);
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

long bpf_xdp_store_bytes(struct xdp_md *ctx, __u32 offset, void *from, __u32 length) {
    (void)ctx;
    if (offset > 0xffff)
        return -EFAULT;
    if (!length || (size_t)offset + length > frame.length)
        return -EINVAL;
    memcpy(frame.data + offset, from, length);
    return 0;
}

long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta) {
    long length = (long)frame.length + delta;
    if (length < ETH_HLEN || length > HOST_FRAME_MAX || (delta > 0 && host.no_tail_room))
        return -EINVAL;
    ASAN_UNPOISON_MEMORY_REGION(frame.data, (size_t)length);
    if (delta > 0)
        memset(frame.data + frame.length, 0, (size_t)delta);
    ASAN_POISON_MEMORY_REGION(frame.data + length, HOST_SKB_MAX + MARGIN - (size_t)length);
    frame.length = (size_t)length;
    ctx->data_end = (__u32)(uintptr_t)(frame.data + length);
    return 0;
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
    return XDP_REDIRECT;
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
