/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel around a BPF program, for harnesses on the host: maps, the frame that a program works on, time, and the
 * ring buffer. What the kernel may do for reasons of its own (a full ring, no tail room) is the harness's to choose.
 *
 * The frame lies in the lowest 2 GiB, since struct xdp_md has 32-bit addresses; with AddressSanitizer every byte around
 * it is poisoned. Helpers check what the kernel checks. What the verifier would refuse, the sanitizers find.
 */
#ifndef ROOST_FUZZ_HOST_KERNEL_H
#define ROOST_FUZZ_HOST_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/bpf.h>

#define HOST_FRAME_MAX 3500 /* bytes of a page, less head room and skb_shared_info: what a driver gives at most */
#define HOST_SKB_MAX 70000  /* a tc program may see more: the loopback interface has no MTU of 1500 */
#define HOST_CPUS 4
#define HOST_RECORDS_MAX 4 /* ring records that one run of a program may submit */

struct host_record { /* what a program submitted to the ring */
    void *data;
    size_t size;
};

enum host_socket {
    HOST_NO_SOCKET,
    HOST_LISTENER,
    HOST_CONNECTION,
};

struct host {
    /* What the kernel does; the harness sets it. */
    uint64_t now_ns;
    uint32_t random;
    bool ring_full;
    bool no_tail_room, no_head_room; /* for a frame that grows */
    long fib_result;
    uint32_t fib_ifindex;
    uint32_t sockets; /* what each socket lookup of a run finds: two bits of an enum host_socket, the lowest first */
    enum host_socket (*find_socket)(const struct bpf_sock_tuple *tuple, bool v4); /* or, if not NULL, what this says */
    bool cookie;                                                                  /* ACKs carry a good SYN cookie */
    uint64_t netns; /* the cookie of the network namespace in which a program calls connect() */
    uint64_t cookie_of_socket;
    uint32_t process;
    bool no_bind; /* the kernel does not let the socket have the address */
    /* What a run did; host_begin clears it. */
    struct host_record record[HOST_RECORDS_MAX];
    int records;
    void *reserved; /* neither submitted nor discarded yet */
    size_t reserved_size;
    uint32_t redirected_to;
    int lookups;    /* of sockets */
    int references; /* to sockets, not released yet */
    bool assigned;  /* the frame was given to a socket */
    bool bound;     /* the socket was given an address of its own */
    uint32_t mark;  /* the socket was given; 0: none */
};

extern struct host host;

/* Programs run on processor n from now on: each has a frame, and a struct host, of its own. They share the maps. */
void host_on_cpu(int n);

/* Gives a map its values: entries of value_size bytes, at data, which stays the caller's. Any earlier ones are replaced. */
void host_map_array(const void *map, void *data, uint32_t entries, size_t value_size);

/* The same for a map with values of each processor's own: `data` has entries for HOST_CPUS of them. */
void host_map_percpu(const void *map, void *data, uint32_t entries, size_t value_size);
/* Lets a map have other maps as its values, in the order of `maps`; NULL: none there. */
void host_map_of_maps(const void *map, void *const *maps, uint32_t entries);
/* Gives a map of entries room for keys and values of its own, and empties it. */
void host_map_hash(const void *map, uint32_t entries, size_t key_size, size_t value_size);
/* A map whose every entry is a socket that listens. */
void host_map_sockets(const void *map, bool there);

/* Before a run of a program that has no frame. */
void host_begin(void);
/* Puts a frame under the next run of a program. */
void host_begin_xdp(struct xdp_md *ctx, const uint8_t *frame, size_t length);
void host_begin_skb(struct __sk_buff *skb, const uint8_t *frame, size_t length);

/* The frame as the program left it; to be called once after each run. */
const uint8_t *host_frame(size_t *length);

void host_forget_records(void);

#endif
