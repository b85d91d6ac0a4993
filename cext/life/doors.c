// SPDX-License-Identifier: Apache-2.0
/*
 * The doors: a server that connects to a client's address finds itself accepted by one, with the client's address as the
 * socket's own; it is then linked to the connection which that client has. A router has them, and a machine whose own
 * programs are such servers.
 *
 * The doors listen on loopback, out of reach from outside: only steering (ebpf/tc/steer.bpf.c) and, of this machine's own,
 * ebpf/tc/loopback.bpf.c hand them packets.
 */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ebpf/shared/steer.h"
#include "cext/base/address.h"
#include "life.h"

#define ACCEPTS_A_TURN 128

/* Of what an earlier engine left asleep. */
static int count_hosts(struct roost_engine *e) {
    struct roost_key key;
    const struct roost_ka *slot;
    uint64_t p = 0;
    int error = roost_hosts_open(&e->hosts, e->table.config.seed);
    while (!error && (slot = roost_table_walk(&e->table, &p, UINT64_MAX, &key)))
        if (!(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER))
            roost_hosts_add(&e->hosts, &key);
    return error;
}

static int make_doors(struct roost_engine *e, struct roost_reason *why) {
    static const uint8_t loopback[ROOST_DOORS][16] = {
        [ROOST_DOOR_IPV4] = {[10] = 0xff, [11] = 0xff, 127, 0, 0, 1}, [ROOST_DOOR_IPV6] = {[15] = 1}};
    for (uint32_t i = 0; i < ROOST_DOORS; i++) {
        if (e->door[i] >= 0)
            continue;
        int fd = roost_listen(e, loopback[i], 0, true, why);
        if (i == ROOST_DOOR_IPV6 && (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)) {
            why->text[0] = 0; /* this machine has no IPv6 */
            continue;
        }
        if (fd < 0)
            return fd;
        e->door[i] = fd;
        int error = roost_watch_plain(e, fd, TAG_DOOR + i);
        if (error)
            return roost_complain(why, error, "cannot open the door for servers: %m");
    }
    return 0;
}

/* To the programs that have this map they are open from now on. */
static int open_doors(struct roost_engine *e, int map, struct roost_reason *why) {
    int error = make_doors(e, why);
    for (uint32_t i = 0; i < ROOST_DOORS && !error; i++) {
        uint64_t value = (uint64_t)e->door[i];
        if (e->door[i] >= 0 && bpf_map_update_elem(map, &i, &value, BPF_ANY))
            error = roost_complain(why, errno, "cannot open the door for servers: %m");
    }
    return error;
}

int roost_router_open(struct roost_engine *e, uint32_t wait_ms, uint32_t dial_ms, struct roost_reason *why) {
    e->server_wait_ms = wait_ms;
    e->dial_ms = dial_ms;
    int error = roost_datapath_steer(&e->path, why);
    if (!error)
        error = open_doors(e, e->path.map_fd[ROOST_MAP_doors], why);
    return error ? error : count_hosts(e);
}

int roost_local_connect_open(struct roost_engine *e, const char *cgroup, struct roost_reason *why) {
    int error = roost_datapath_open_local_connect(&e->path, cgroup, why);
    return error ? error : open_doors(e, e->path.map_fd[ROOST_MAP_local_doors], why);
}

int roost_local_connect_at(struct roost_engine *e, const uint8_t *places, uint32_t count) {
    const struct roost_managed_key *ends = (const struct roost_managed_key *)places;
    int error = count > ROOST_NEAR_ENDS ? -E2BIG : roost_datapath_set_near_ends(&e->path, ends, count);
    if (error)
        return error;
    roost_lock(e);
    memcpy(e->near_end, ends, count * sizeof(*ends));
    e->near_ends = count;
    roost_unlock(e);
    return 0;
}

uint32_t roost_router_mark(uint32_t *mask) {
    *mask = ROOST_MARK_MASK;
    return ROOST_MARK;
}

static void let_in(struct roost_engine *e, int fd) {
    struct roost_command command = {.op = ROOST_OP_ATTACH, .cause = ROOST_C_SERVER_ATTACH, .fd = fd};
    struct roost_waiting *w = roost_waiting_new(e, &command, true);
    if (w)
        roost_attach_server(e, w);
    else
        roost_reset_fd(fd);
}

void roost_router_accept(struct roost_engine *e, int door) {
    for (int i = 0; i < ACCEPTS_A_TURN && e->door[door] >= 0; i++) {
        int fd = accept4(e->door[door], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            let_in(e, fd);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            roost_accept_pause(e);
        if (fd < 0 && errno != ECONNABORTED)
            return;
    }
}
