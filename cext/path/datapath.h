/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The BPF side of the box: loads the programs, pins maps and links, adopts what an earlier daemon left (datapath.c),
 * attaches to interfaces (programs.c; foreign.c: where another program is) and to a cgroup (local_connect.c), detaches and
 * unpins (unpin.c), and is the way in
 * (ring) and out (outbox) for single frames (frames.c) and for probes (probes.c).
 *
 * Below pin_dir:  every PINNED map of ebpf/shared/maps.h               under its name
 *                 rest, rest-1 ...                                     the rest slots (cext/table/rests.h)
 *                 xdp-IFNAME                                           the XDP link of each interface
 *                 lookup                                               the link of the socket lookup program
 *                 steer-IFNAME, loopback-IFNAME                        tc programs of an interface's ingress
 * The tc filters need no pin: they belong to the interface (priority 1 of clsact, handle 1: the guard at egress and a
 * router's steering at ingress; on the loopback interface a handle of each instance's own). Steering decides by sockets,
 * which go with the daemon: the next one replaces it.
 */
#ifndef ROOST_CEXT_DATAPATH_H
#define ROOST_CEXT_DATAPATH_H

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <stdbool.h>
#include <stdint.h>

#include "cext/base/pins.h"
#include "ebpf/shared/birth.h"
#include "ebpf/shared/cookies.h"
#include "ebpf/shared/filter.h"
#include "ebpf/shared/frame.h"
#include "ebpf/shared/limit.h"
#include "ebpf/shared/maps.h"
#include "ebpf/shared/rule.h"
#include "ebpf/shared/silence.h"
#include "ebpf/shared/sockets.h"
#include "ebpf/shared/steer.h"
#include "ebpf/shared/vlan.h"
#include "cext/table/rests.h"
#include "cext/table/table.h"

#define ROOST_MAX_INTERFACES 8
#define ROOST_TC_HANDLE 1
#define ROOST_STRANGER_WORDS 4096 /* 16 bits for each that the map holds at most */

#define ROOST_MAP_INDEX(name, ...) ROOST_MAP_##name,
enum roost_map {
    ROOST_DATAPATH_MAPS(ROOST_MAP_INDEX) ROOST_MAP_COUNT,
    ROOST_PINNED_MAPS = ROOST_MAP_COUNT,
    ROOST_MAP_BIRTHS = ROOST_MAP_births
};

#define ROOST_VALUE_INDEXED(type) type
#define ROOST_POINTER_PLAIN(name, contents)
#define ROOST_POINTER_GROWING(name, contents)
#define ROOST_POINTER_MAPPED(name, contents) ROOST_VALUE_##contents *name;
#define ROOST_MAP_POINTER(name, kind, contents, entries, size, life, memory) ROOST_POINTER_##memory(name, contents)

struct roost_interface {
    char name[16];
    uint32_t index;
    bool generic;
    bool servers; /* the servers' legs of persistent services are heard there, not clients */
};

/* Their answers become the rest of an offer. A veth's ring takes 256 frames and loses what is more. */
#define ROOST_PROBES_LIVE 128

struct roost_datapath {
    char pin_dir[256];
    char *pins_before; /* while it is not sure that this start succeeds: the names that stood there (unpin.c) */
    struct bpf_object *inactive, *guard, *lookup, *closed, *inject;
    struct bpf_object *steer;                   /* a router's; NULL otherwise */
    struct bpf_object *loopback;                /* for servers on this machine; NULL otherwise */
    struct bpf_object *local_connect;           /* for programs on it that connect to clients; NULL otherwise */
    int connect_link[2];                        /* of that one's programs; -1: not attached */
    uint32_t steered[2 * ROOST_MAX_INTERFACES]; /* interfaces */
    int steered_interfaces;
    char bpf_dir[256];
    struct ring_buffer *ring;
    int map_fd[ROOST_MAP_COUNT];           /* -1: its program is not loaded */
    ROOST_DATAPATH_MAPS(ROOST_MAP_POINTER) /* to the memory of each MAPPED one */
    int closed_fd;                         /* socket filter */
    int inject_fd;
    uint64_t secret[2];
    struct roost_interface interface[ROOST_MAX_INTERFACES];
    int interfaces;
    struct roost_outbox_item *out;    /* the outbox */
    bool second_half;                 /* of the probes is filled, or offered */
    uint32_t probes_put, probes_left; /* in that half; of them: since the slice before */
    uint32_t probes_live;             /* of the engine's own frames, the most for a slice */
    void (*unsent)(void *of,
                   const struct roost_key *key); /* is called with each probe that could not be sent; NULL: none */
    void *of;
    uint32_t filter_buckets;                       /* 0: there is none */
    uint32_t connected_entries;                    /* a power of two */
    uint32_t stranger_bits;                        /* that are set there: */
    uint64_t stranger_bloom[ROOST_STRANGER_WORDS]; /* a bit for some hashes each; not set: it is none, without a look
                                                        at the map, which takes a system call */
    struct roost_rests rests;
    int raw4, raw6; /* raw sockets: probes where no XDP driver or no neighbour is there (the kernel resolves it) */
    uint64_t replay_failed, probe_raw;
    struct {
        void *address;
        size_t size;
    } mapped[24];
    int maps_mapped;
};

struct roost_sizes {
    uint32_t ipv4_slots, ipv6_slots, idle_slots, ring_bytes;
    uint32_t filter_slots; /* connections that sleep without a slot; 0: none can */
};

/* 0 or -errno with a sentence in why. table gets its memory. on_frame is called by roost_datapath_drain. */
int roost_datapath_open(struct roost_datapath *d, struct roost_table *table, const char *pin_dir, const char *bpf_dir,
                        const struct roost_sizes *sizes, ring_buffer_sample_fn on_frame, void *context,
                        struct roost_reason *why);
/* Before roost_datapath_keep_pins, what it pinned and attached itself is taken back. */
void roost_datapath_close(struct roost_datapath *d);
void roost_datapath_keep_pins(struct roost_datapath *d); /* from now on pins outlive it */

/* 1 native, 2 generic, 3 the loopback interface, or -errno with a sentence in why. mode: auto, native, generic. */
int roost_datapath_attach(struct roost_datapath *d, const char *ifname, const char *mode, bool servers,
                          struct roost_reason *why);
/* A router's steering, not attached to any interface yet. 0 or -errno with a sentence in why. */
int roost_datapath_steer(struct roost_datapath *d, struct roost_reason *why);
/* servers: what arrives there comes from servers that may want clients. */
int roost_datapath_attach_steer(struct roost_datapath *d, const char *ifname, bool servers, struct roost_reason *why);
/* Programs of the processes in this cgroup (version 2), and in those below: in this network namespace, what connects to a client
 * goes to the doors, which are put into the map local_doors. After roost_datapath_attach to the loopback interface. 0 or -errno
 * with a sentence in why. */
int roost_datapath_open_local_connect(struct roost_datapath *d, const char *cgroup, struct roost_reason *why);
/* Where clients connect to, all such places. 0 or -errno. */
int roost_datapath_set_near_ends(struct roost_datapath *d, const struct roost_managed_key *ends, uint32_t count);
void roost_datapath_close_local_connect(struct roost_datapath *d); /* programs connect as without it from now on */
/* Ends the steering of interfaces that an earlier daemon steered and this one has not. */
void roost_datapath_end_old_steering(struct roost_datapath *d);
/* A map for a generation of a table: its descriptor, or -errno. Any thread's. */
int roost_datapath_make_generation(const struct roost_datapath *d, bool v4, uint32_t buckets, struct roost_reason *why);
/* Makes it the current generation, and the one until now the previous. It takes fd. 0 or -errno. */
int roost_datapath_use_generation(struct roost_datapath *d, struct roost_table *t, bool v4, uint32_t which, int fd,
                                  uint32_t buckets, struct roost_reason *why);
/* Gives the memory of the previous one back; all that was there has moved. */
void roost_datapath_end_previous(struct roost_datapath *d, struct roost_table *t, bool v4);

/* More rest slots, in a map that roost_rests_make made. It takes fd. 0 or -errno. */
int roost_datapath_add_rests(struct roost_datapath *d, struct roost_table *t, int fd);

/* Ends all that is pinned and attached there, in the network namespace that it belongs to. 0 or -errno with a sentence in
 * why. */
int roost_datapath_unpin(const char *pin_dir, struct roost_reason *why);
enum {
    ROOST_NAMESPACE_HERE,
    ROOST_NAMESPACE_ELSEWHERE,
    ROOST_NAMESPACE_GONE
};
/* Moves this thread into the network namespace of what is pinned there, unless that is gone. Where it was, ROOST_NAMESPACE_...,
 * or -errno with a sentence in why. */
int roost_datapath_enter(const char *pin_dir, struct roost_reason *why);

int roost_datapath_ring_fd(const struct roost_datapath *d);
int roost_datapath_drain(struct roost_datapath *d); /* frames handled, or -errno */

/* Whether this is the hash of a key that the filter takes for a member, and that is none. */
bool roost_datapath_is_stranger(const struct roost_datapath *d, uint64_t hash);
void roost_datapath_mark_stranger(struct roost_datapath *d, uint64_t hash, bool stranger);

bool roost_datapath_generic(const struct roost_datapath *d, uint32_t ifindex);

/* Gives count (<= ROOST_OUTBOX_ITEMS) whole frames, put into d->out by the caller, to the stack as received by
 * ifindex. Returns how many the kernel took. */
uint32_t roost_datapath_replay(struct roost_datapath *d, uint32_t count, uint32_t ifindex, uint32_t queue);

/* Probes, a slice of the sweep at a time: what the slice before left is taken over (begin), more are put in, all are
 * offered to the XDP program (end), and as many of the engine's own frames are sent as may be on their way
 * Both return how many could not be sent. */
uint32_t roost_datapath_probes_begin(struct roost_datapath *d);
uint32_t roost_datapath_probes_room(const struct roost_datapath *d); /* how many may be put in before `end` */
/* Where the caller puts a packet, made with a clock of 0 (ebpf/shared/frame.h), and its length; NULL: no room. */
struct roost_probe *roost_datapath_probe(struct roost_datapath *d);
uint32_t roost_datapath_probes_end(struct roost_datapath *d, uint32_t now_s); /* CLOCK_MONOTONIC seconds */
/* This connection is not to be probed any more: it wakes. */
void roost_datapath_retract_probe(struct roost_datapath *d, const struct roost_key *key);
/* Sends an IP packet, by the routing table alone: to whichever interface. False: it could not be sent. */
bool roost_datapath_send(struct roost_datapath *d, const uint8_t *packet, size_t length);

/* What XDP has counted in a place (ebpf/shared/silence.h), of all processors. */
void roost_datapath_silences(const struct roost_datapath *d, uint32_t place, struct roost_silences *sum);
void roost_datapath_counters(const struct roost_datapath *d, uint64_t *values /* ROOST_N_COUNT */);
uint64_t roost_datapath_memory(const struct roost_datapath *d); /* bytes, from bpf fdinfo */

/* Among the datapath's own files. */

/* An object's maps and programs, with the pinned maps in place of its own. 0 or -errno with a sentence in why. */
int roost_datapath_load(struct roost_datapath *d, const char *bpf_dir, const char *file,
                        const struct roost_sizes *sizes, struct bpf_object **object, struct roost_reason *why);
/* The socket lookup program, to the network namespace of this thread. 0 or -errno with a sentence in why. */
int roost_datapath_attach_lookup(struct roost_datapath *d, struct roost_reason *why);
uint32_t roost_loopback_handle(const char *pin_dir);
/* Where the network namespace of what is pinned there is, ROOST_NAMESPACE_..., and its inode; or -errno. */
int roost_namespace_of_pins(const char *pin_dir, uint32_t *inode);
/* Notes what is pinned already; roost_datapath_undo takes back what came since. */
int roost_datapath_note_pins(struct roost_datapath *d, struct roost_reason *why);
void roost_datapath_undo(struct roost_datapath *d);
/* Says in why whose the XDP program on an interface is; -error. */
int roost_datapath_complain_of_foreign(const char *ifname, uint32_t ifindex, int error, struct roost_reason *why);
/* The same of an interface where a program is that is not pinned below pin_dir: -EBUSY; 0: there is none, or it cannot be
 * looked at (not root). */
int roost_datapath_find_foreign(const char *ifname, const char *pin_dir, struct roost_reason *why);
/* A live-frame run of the program that is attached to our interfaces. 0 or -errno. */
int roost_datapath_run(const struct roost_datapath *d, const struct bpf_test_run_opts *options);

#endif
