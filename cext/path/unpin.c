// SPDX-License-Identifier: Apache-2.0
/* The end of what is pinned and attached: all of it (`roost unpin`), what a start that failed had made, and the steering that
 * is not wanted any more. Interfaces have their numbers in one network namespace alone: that of the pinned socket lookup. */
#define _GNU_SOURCE
#include "datapath.h"
#include "cext/base/hash.h"

#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OWN_NAMESPACE "/proc/thread-self/ns/net"

/* Several instances may be on one machine, and there is one loopback interface: to each a handle of its own, FNV-1a of its
 * pin directory. */
uint32_t roost_loopback_handle(const char *pin_dir) {
    return 1 + roost_fnv1a(pin_dir, strlen(pin_dir)) % 0xffff;
}

static void detach_tc(uint32_t index, enum bpf_tc_attach_point where, uint32_t handle) {
    LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)index, .attach_point = where);
    LIBBPF_OPTS(bpf_tc_opts, filter, .handle = handle, .priority = 1);
    bpf_tc_detach(&hook, &filter); /* none there: nothing to do */
}

void roost_datapath_end_old_steering(struct roost_datapath *d) {
    DIR *dir = opendir(d->pin_dir);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        uint32_t index = roost_interface_of_pin(entry->d_name, ROOST_STEER_PIN);
        bool wanted = strncmp(entry->d_name, ROOST_STEER_PIN, strlen(ROOST_STEER_PIN)) != 0;
        for (int i = 0; i < d->steered_interfaces && !wanted; i++)
            wanted = index == d->steered[i];
        if (wanted)
            continue;
        if (index)
            detach_tc(index, BPF_TC_INGRESS, ROOST_TC_HANDLE);
        unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

/* ---- the namespace ---- */

static uint32_t inode_of(const char *path) {
    struct stat about;
    return stat(path, &about) ? 0 : (uint32_t)about.st_ino;
}

int roost_namespace_of_pins(const char *pin_dir, uint32_t *inode) {
    struct bpf_link_info info = {0};
    __u32 size = sizeof(info);
    char path[320];
    roost_pin_path(pin_dir, "lookup", path, sizeof(path));
    *inode = 0;
    int link = bpf_obj_get(path);
    if (link < 0)
        return errno == ENOENT ? ROOST_NAMESPACE_HERE : -errno;
    int e = bpf_obj_get_info_by_fd(link, &info, &size) ? -errno : info.type != BPF_LINK_TYPE_NETNS ? -EINVAL : 0;
    close(link);
    if (e)
        return e;
    *inode = info.netns.netns_ino;
    return !*inode                             ? ROOST_NAMESPACE_GONE
           : *inode == inode_of(OWN_NAMESPACE) ? ROOST_NAMESPACE_HERE
                                               : ROOST_NAMESPACE_ELSEWHERE;
}

/* A way into a namespace, by its inode: one of dir/ENTRY/below. A descriptor, or -1. */
static int find_way(const char *parent, const char *below, uint32_t inode) {
    DIR *dir = opendir(parent);
    struct dirent *entry;
    char path[320];
    int found = -1;
    while (dir && found < 0 && (entry = readdir(dir))) {
        snprintf(path, sizeof(path), "%s/%.200s%s", parent, entry->d_name, below);
        if (entry->d_name[0] != '.' && inode_of(path) == inode)
            found = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (dir)
        closedir(dir);
    return found;
}

int roost_datapath_enter(const char *pin_dir, struct roost_reason *why) {
    uint32_t inode;
    int place = roost_namespace_of_pins(pin_dir, &inode);
    if (place < 0)
        return roost_complain(why, place, "cannot read %s/lookup: %m", pin_dir);
    if (place != ROOST_NAMESPACE_ELSEWHERE)
        return place;
    int there = find_way("/run/netns", "", inode);
    if (there < 0)
        there = find_way("/proc", "/ns/net", inode);
    if (there < 0)
        return roost_complain(
            why, ENOENT,
            "the pins in %s belong to another network namespace, net:[%u], and no process and no name in "
            "/run/netns leads to it: nothing was removed; where there is a way into it, run this there: "
            "nsenter --net=...",
            pin_dir, inode);
    int e = setns(there, CLONE_NEWNET) ? errno : 0;
    close(there);
    return e ? roost_complain(why, e, "cannot enter the network namespace of %s, net:[%u]: %m (CAP_SYS_ADMIN)", pin_dir,
                              inode)
             : ROOST_NAMESPACE_ELSEWHERE;
}

/* ---- the pins ---- */

/* What stands in a directory: each name after a newline, and one behind the last. NULL: out of memory. */
static char *list(const char *path) {
    size_t length = 1, size = 4096;
    char *names = malloc(size);
    DIR *dir = opendir(path);
    struct dirent *entry;
    if (names)
        strcpy(names, "\n");
    while (names && dir && (entry = readdir(dir))) {
        size_t more = strlen(entry->d_name) + 1;
        if (length + more >= size) {
            char *larger = realloc(names, size *= 2);
            if (!larger)
                free(names);
            names = larger;
        }
        if (names)
            length += (size_t)sprintf(names + length, "%s\n", entry->d_name);
    }
    if (dir)
        closedir(dir);
    return names;
}

static bool is_listed(const char *names, const char *name) {
    char line[NAME_MAX + 3];
    snprintf(line, sizeof(line), "\n%s\n", name);
    return strstr(names, line) != NULL;
}

/* Ends the attachment of a link now: without it, the kernel does so in a worker of its own once the last descriptor and a
 * grace period have ended, and a start that follows finds the interface taken. Maps and programs stay what they are. */
static void detach_link(const char *pin_dir, const char *name) {
    char path[320];
    roost_pin_path(pin_dir, name, path, sizeof(path));
    int fd = bpf_obj_get(path);
    if (fd < 0)
        return;
    bpf_link_detach(fd);
    close(fd);
}

/* Removes every pin whose name is not in `but`; attached: and ends what it stands for at this namespace's interfaces. */
static int remove_pins(DIR *dir, const char *pin_dir, const char *but, bool attached, struct roost_reason *why) {
    struct dirent *entry;
    int e = 0;
    while ((entry = readdir(dir))) {
        const char *name = entry->d_name;
        if (name[0] == '.' || is_listed(but, name))
            continue;
        uint32_t guarded = attached ? roost_interface_of_pin(name, ROOST_XDP_PIN) : 0;
        uint32_t steered = attached ? roost_interface_of_pin(name, ROOST_STEER_PIN) : 0;
        uint32_t local = attached ? roost_interface_of_pin(name, ROOST_LOOPBACK_PIN) : 0;
        if (guarded)
            detach_tc(guarded, BPF_TC_EGRESS, ROOST_TC_HANDLE);
        if (local)
            detach_tc(local, BPF_TC_INGRESS, roost_loopback_handle(pin_dir));
        if (steered)
            detach_tc(steered, BPF_TC_INGRESS, ROOST_TC_HANDLE);
        detach_link(pin_dir, name);
        if (unlinkat(dirfd(dir), name, 0))
            e = roost_complain(why, errno, "cannot remove %s/%s: %m", pin_dir, name);
    }
    return e;
}

int roost_datapath_note_pins(struct roost_datapath *d, struct roost_reason *why) {
    d->pins_before = list(d->pin_dir);
    return d->pins_before ? 0 : roost_complain(why, ENOMEM, "%m");
}

void roost_datapath_keep_pins(struct roost_datapath *d) {
    free(d->pins_before);
    d->pins_before = NULL;
}

void roost_datapath_undo(struct roost_datapath *d) {
    DIR *dir = d->pins_before ? opendir(d->pin_dir) : NULL;
    if (dir) {
        remove_pins(dir, d->pin_dir, d->pins_before, true, NULL);
        closedir(dir);
    }
    roost_datapath_keep_pins(d);
}

static int unpin_here(const char *pin_dir, bool attached, struct roost_reason *why) {
    DIR *dir = opendir(pin_dir);
    if (!dir)
        return errno == ENOENT ? 0 : roost_complain(why, errno, "cannot open %s: %m", pin_dir);
    int e = roost_is_bpffs(pin_dir)
                ? remove_pins(dir, pin_dir, "", attached, why)
                : roost_complain(why, EINVAL, "%s is not on a bpf file system: nothing was removed", pin_dir);
    closedir(dir);
    if (!e && rmdir(pin_dir))
        e = roost_complain(why, errno, "cannot remove %s: %m", pin_dir);
    return e;
}

int roost_datapath_unpin(const char *pin_dir, struct roost_reason *why) {
    int own = open(OWN_NAMESPACE, O_RDONLY | O_CLOEXEC);
    if (own < 0)
        return roost_complain(why, errno, "cannot open %s: %m", OWN_NAMESPACE);
    int place = roost_datapath_enter(pin_dir, why);
    int e = place < 0 ? place : unpin_here(pin_dir, place != ROOST_NAMESPACE_GONE, why);
    if (place == ROOST_NAMESPACE_ELSEWHERE && setns(own, CLONE_NEWNET) && !e)
        e = roost_complain(why, errno, "cannot return to the network namespace: %m");
    close(own);
    return e;
}
