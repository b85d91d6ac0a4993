// SPDX-License-Identifier: Apache-2.0
/* Programs on this machine that connect to clients (ebpf/socket/local_connect.bpf.c). */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "datapath.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

static int attach(struct roost_datapath *d, int cgroup, const char *program, enum bpf_attach_type type, int *link) {
    struct bpf_program *p = bpf_object__find_program_by_name(d->local_connect, program);
    int made = bpf_link_create(bpf_program__fd(p), cgroup, type, NULL);
    if (made < 0)
        return -errno;
    *link = made;
    return 0;
}

static int own_cookie(__u64 *cookie) {
    socklen_t size = sizeof(*cookie);
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int e = any < 0 || getsockopt(any, SOL_SOCKET, SO_NETNS_COOKIE, cookie, &size) ? -errno : 0;
    if (any >= 0)
        close(any);
    return e;
}

/* Calls connect() once, by which the program learns which process this is: it leaves its sockets alone. A daemon outside of the
 * cgroup is not asked, then or later. */
static int find_own(struct roost_datapath *d) {
    struct sockaddr_in nowhere = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(d->own->cookie);
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int e = any < 0 || getsockopt(any, SOL_SOCKET, SO_COOKIE, &d->own->cookie, &size) ||
                    connect(any, (struct sockaddr *)&nowhere, sizeof(nowhere))
                ? -errno
                : 0;
    if (any >= 0)
        close(any);
    return e;
}

void roost_datapath_close_local_connect(struct roost_datapath *d) {
    for (int i = 0; i < 2; i++) {
        if (d->connect_link[i] >= 0)
            close(d->connect_link[i]);
        d->connect_link[i] = -1;
    }
}

int roost_datapath_open_local_connect(struct roost_datapath *d, const char *cgroup, struct roost_reason *why) {
    static const struct roost_sizes adopted;
    if (!d->loopback)
        return roost_complain(why, EINVAL, "the loopback interface is not heard");
    int e = roost_datapath_load(d, d->bpf_dir, "local_connect", &adopted, &d->local_connect, why);
    if (e)
        return e;
    if ((e = own_cookie(&d->own->netns)))
        return roost_complain(why, e, "the kernel gives this network namespace no cookie: %m");
    int fd = open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return roost_complain(why, errno, "cannot open the cgroup %s: %m", cgroup);
    e = attach(d, fd, "roost_connect4", BPF_CGROUP_INET4_CONNECT, &d->connect_link[0]);
    if (!e)
        e = attach(d, fd, "roost_connect6", BPF_CGROUP_INET6_CONNECT, &d->connect_link[1]);
    close(fd);
    if (!e)
        e = find_own(d);
    return e ? roost_complain(why, e, "cannot attach to the cgroup %s: %m", cgroup) : 0;
}

static bool is_listed(const struct roost_managed_key *ends, uint32_t count, const struct roost_managed_key *one) {
    for (uint32_t i = 0; i < count; i++)
        if (!memcmp(&ends[i], one, sizeof(*one)))
            return true;
    return false;
}

int roost_datapath_set_near_ends(struct roost_datapath *d, const struct roost_managed_key *ends, uint32_t count) {
    int map = d->map_fd[ROOST_MAP_near_ends];
    struct roost_managed_key at, gone[ROOST_NEAR_ENDS];
    uint32_t ended = 0;
    uint8_t yes = 1;
    for (bool more = !bpf_map_get_next_key(map, NULL, &at); more && ended < ROOST_NEAR_ENDS;
         more = !bpf_map_get_next_key(map, &at, &at))
        if (!is_listed(ends, count, &at))
            gone[ended++] = at;
    for (uint32_t i = 0; i < ended; i++)
        bpf_map_delete_elem(map, &gone[i]);
    for (uint32_t i = 0; i < count; i++)
        if (bpf_map_update_elem(map, &ends[i], &yes, BPF_ANY))
            return -errno;
    return 0;
}
