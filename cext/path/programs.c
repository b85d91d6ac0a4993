// SPDX-License-Identifier: Apache-2.0
/* Where the datapath's programs are attached: interfaces by XDP links and tc filters, the namespace by the socket lookup. */
#define _GNU_SOURCE
#include "datapath.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* An earlier daemon's pinned link: its program is changed in place, no packet passes in between. A link whose interface
 * or namespace is gone (or was made anew) is thrown away. 0 taken over, -ENOENT there is none, or -errno. */
static int take_over(const char *path, int program, uint32_t ifindex) {
    struct bpf_link_info info = {0};
    __u32 size = sizeof(info);
    int link = bpf_obj_get(path);
    if (link < 0)
        return -errno;
    int e = bpf_obj_get_info_by_fd(link, &info, &size) ? -errno : 0;
    if (!e)
        e = ifindex && info.xdp.ifindex != ifindex ? -ENOLINK : bpf_link_update(link, program, NULL) ? -errno : 0;
    close(link);
    if (e != -ENOLINK)
        return e;
    return unlink(path) ? -errno : -ENOENT;
}

static int make_link(const char *path, int program, int target, enum bpf_attach_type type, __u32 flags) {
    LIBBPF_OPTS(bpf_link_create_opts, options, .flags = flags);
    int link = bpf_link_create(program, target, type, &options);
    if (link < 0)
        return -errno;
    int e = bpf_obj_pin(link, path) ? -errno : 0;
    close(link);
    return e;
}

static int attach_xdp(struct roost_datapath *d, struct roost_interface *i, __u32 flags) {
    char path[320];
    int program = bpf_program__fd(bpf_object__find_program_by_name(d->inactive, "roost_inactive"));
    roost_interface_pin_path(d->pin_dir, ROOST_XDP_PIN, i->name, path, sizeof(path));
    int e = take_over(path, program, i->index);
    return e == -ENOENT ? make_link(path, program, (int)i->index, BPF_XDP, flags) : e;
}

int roost_datapath_attach_lookup(struct roost_datapath *d, struct roost_reason *why) {
    char path[320];
    uint32_t inode;
    if (roost_namespace_of_pins(d->pin_dir, &inode) == ROOST_NAMESPACE_ELSEWHERE)
        return roost_complain(
            why, EXDEV,
            "the pins in %s belong to another network namespace, net:[%u]: start the daemon there, or let "
            "their connections go with `roost unpin`",
            d->pin_dir, inode);
    int program = bpf_program__fd(bpf_object__find_program_by_name(d->lookup, "roost_lookup"));
    roost_pin_path(d->pin_dir, "lookup", path, sizeof(path));
    int e = take_over(path, program, 0);
    if (e == -ENOENT) {
        int space = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
        e = space < 0 ? -errno : make_link(path, program, space, BPF_SK_LOOKUP, 0);
        if (space >= 0)
            close(space);
    }
    return e ? roost_complain(why, e, "cannot attach the socket lookup program: %m") : 0;
}

static int attach_tc(uint32_t index, enum bpf_tc_attach_point where, uint32_t handle, int program) {
    LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)index, .attach_point = where);
    LIBBPF_OPTS(bpf_tc_opts, filter, .handle = handle, .priority = 1, .flags = BPF_TC_F_REPLACE, .prog_fd = program);
    int e = bpf_tc_hook_create(&hook);
    if (e && e != -EEXIST)
        return e;
    return bpf_tc_attach(&hook, &filter);
}

static bool has_type(const char *ifname, unsigned short type) {
    struct ifreq request = {0};
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", ifname);
    bool has = any >= 0 && !ioctl(any, SIOCGIFHWADDR, &request) && request.ifr_hwaddr.sa_family == type;
    if (any >= 0)
        close(any);
    return has;
}

static int attach_loopback(struct roost_datapath *d, uint32_t index, const char *ifname, struct roost_reason *why) {
    static const struct roost_sizes adopted;
    char path[320];
    int e = roost_datapath_load(d, d->bpf_dir, "loopback", &adopted, &d->loopback, why);
    if (e)
        return e;
    int program = bpf_program__fd(bpf_object__find_program_by_name(d->loopback, "roost_loopback"));
    if ((e = attach_tc(index, BPF_TC_INGRESS, roost_loopback_handle(d->pin_dir), program)))
        return roost_complain(why, e, "cannot attach to %s: %m (tc clsact and cls_bpf needed)", ifname);
    roost_interface_pin_path(d->pin_dir, ROOST_LOOPBACK_PIN, ifname, path,
                             sizeof(path)); /* a note of where it is attached */
    unlink(path);
    if (bpf_obj_pin(program, path))
        return roost_complain(why, errno, "cannot pin %s: %m", path);
    return 3;
}

int roost_datapath_attach(struct roost_datapath *d, const char *ifname, const char *mode, bool servers,
                          struct roost_reason *why) {
    int place = 0;
    while (place < d->interfaces && strcmp(d->interface[place].name, ifname))
        place++; /* not the last: one of that name was attached to, and has been made anew */
    if (place == ROOST_MAX_INTERFACES)
        return roost_complain(why, ENOSPC, "more than %d interfaces", ROOST_MAX_INTERFACES);
    struct roost_interface *i = &d->interface[place];
    uint32_t index = if_nametoindex(ifname);
    if (strlen(ifname) >= sizeof(i->name) || !index)
        return roost_complain(why, ENODEV, "there is no interface %s; `ip link` lists those there are", ifname);
    if (servers && has_type(ifname, ARPHRD_LOOPBACK))
        return attach_loopback(d, index, ifname, why);
    *i = (struct roost_interface){.index = index, .servers = servers};
    memcpy(i->name, ifname, strlen(ifname));
    int e = -EOPNOTSUPP;
    if (strcmp(mode, "generic"))
        e = attach_xdp(d, i, XDP_FLAGS_DRV_MODE);
    if (e == -EOPNOTSUPP && !strcmp(mode, "native"))
        return roost_complain(why, e, "the driver of %s has no native XDP; set xdp_mode = \"auto\" or \"generic\"",
                              ifname);
    if (e && strcmp(mode, "native") && e != -EBUSY && e != -EEXIST)
        e = attach_xdp(d, i, XDP_FLAGS_SKB_MODE);
    if (e == -EBUSY || e == -EEXIST)
        return roost_datapath_complain_of_foreign(ifname, i->index, e, why);
    if (e)
        return roost_complain(why, e, "cannot attach XDP to %s: %m", ifname);
    int guard = bpf_program__fd(bpf_object__find_program_by_name(d->guard, "roost_guard"));
    if ((e = attach_tc(i->index, BPF_TC_EGRESS, ROOST_TC_HANDLE, guard)))
        return roost_complain(why, e, "cannot attach the egress guard to %s: %m (tc clsact and cls_bpf needed)",
                              ifname);
    LIBBPF_OPTS(bpf_xdp_query_opts, query);
    if (!bpf_xdp_query((int)i->index, 0, &query))
        i->generic = query.attach_mode == XDP_ATTACHED_SKB;
    d->filter_gate->interface[place] = servers ? 0 : i->index;
    if (place < d->interfaces)
        return i->generic ? 2 : 1;
    for (int later = place + 1; later < ROOST_FILTER_INTERFACES; later++)
        d->filter_gate->interface[later] = 0;
    d->interfaces++;
    return i->generic ? 2 : 1;
}

int roost_datapath_steer(struct roost_datapath *d, struct roost_reason *why) {
    static const struct roost_sizes adopted;
    return roost_datapath_load(d, d->bpf_dir, "steer", &adopted, &d->steer, why);
}

int roost_datapath_attach_steer(struct roost_datapath *d, const char *ifname, bool servers, struct roost_reason *why) {
    const char *name = servers ? "roost_steer_servers" : "roost_steer_clients";
    char path[320], gone[IF_NAMESIZE];
    uint32_t index = if_nametoindex(ifname);
    if (!index)
        return roost_complain(why, ENODEV, "there is no interface %s; `ip link` lists those there are", ifname);
    if (!has_type(ifname, ARPHRD_ETHER))
        return roost_complain(why, EINVAL, "%s has no Ethernet frames: a router cannot steer what arrives there",
                              ifname);
    int place = 0;
    while (place < d->steered_interfaces && if_indextoname(d->steered[place], gone))
        place++; /* not the last: that one is gone */
    if (place == 2 * ROOST_MAX_INTERFACES)
        return roost_complain(why, ENOSPC, "more than %d interfaces", 2 * ROOST_MAX_INTERFACES);
    int program = bpf_program__fd(bpf_object__find_program_by_name(d->steer, name));
    int e = attach_tc(index, BPF_TC_INGRESS, ROOST_TC_HANDLE, program);
    if (e)
        return roost_complain(why, e, "cannot attach the steering to %s: %m (tc clsact and cls_bpf needed)", ifname);
    /* Pinned as a note of where it is attached. */
    roost_interface_pin_path(d->pin_dir, ROOST_STEER_PIN, ifname, path, sizeof(path));
    unlink(path);
    if (bpf_obj_pin(program, path))
        return roost_complain(why, errno, "cannot pin %s: %m", path);
    d->steered[place] = index;
    d->steered_interfaces += place == d->steered_interfaces;
    return 0;
}
