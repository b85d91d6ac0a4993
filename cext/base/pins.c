// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "pins.h"

#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define BPFFS_MAGIC 0xcafe4a11

int roost_complain(struct roost_reason *why, int error, const char *format, ...) {
    va_list args;
    error = error < 0 ? -error : error;
    errno = error; /* for %m */
    va_start(args, format);
    if (why)
        vsnprintf(why->text, sizeof(why->text), format, args);
    va_end(args);
    return -error;
}

void roost_pin_path(const char *pin_dir, const char *name, char *path, size_t size) {
    snprintf(path, size, "%s/%s", pin_dir, name);
}

/* Bpffs takes no dot in a name, and no interface has a colon in its. */
void roost_interface_pin_path(const char *pin_dir, const char *prefix, const char *ifname, char *path, size_t size) {
    size_t from = (size_t)snprintf(path, size, "%s/%s", pin_dir, prefix);
    snprintf(path + from, size - from, "%s", ifname);
    for (char *at = path + from; *at; at++)
        if (*at == '.')
            *at = ':';
}

uint32_t roost_interface_of_pin(const char *pin, const char *prefix) {
    char name[64];
    if (strncmp(pin, prefix, strlen(prefix)))
        return 0;
    snprintf(name, sizeof(name), "%s", pin + strlen(prefix));
    for (char *at = name; *at; at++)
        if (*at == ':')
            *at = '.';
    return if_nametoindex(name);
}

bool roost_is_bpffs(const char *path) {
    struct statfs fs;
    return !statfs(path, &fs) && (unsigned long)fs.f_type == BPFFS_MAGIC;
}

/* Whoever may write to a directory below the bpffs may put other maps and programs in the place of ours. */
static int distrust(const char *path, struct roost_reason *why) {
    struct stat about;
    if (lstat(path, &about))
        return roost_complain(why, errno, "cannot look at the pin directory %s: %m", path);
    if (!S_ISDIR(about.st_mode))
        return roost_complain(why, ENOTDIR, "the pin directory %s is no directory", path);
    if (about.st_uid != geteuid() || about.st_mode & (S_IWGRP | S_IWOTH))
        return roost_complain(
            why, EPERM,
            "the pin directory %s is not safe: it belongs to user %u with mode %04o, and must belong to "
            "user %u, who alone may write to it; remove it or mend that: chown %u %s; chmod 0700 %s",
            path, about.st_uid, about.st_mode & 07777, geteuid(), geteuid(), path, path);
    return 0;
}

int roost_make_pin_dir(const char *pin_dir, struct roost_reason *why) {
    char path[256];
    bool below = false; /* the bpffs: what stands above it is not ours to make or to judge */
    int e;
    snprintf(path, sizeof(path), "%s", pin_dir);
    for (char *at = path + 1; *at; at++) {
        if (at[1] && at[1] != '/')
            continue;
        char saved = at[1];
        at[1] = 0;
        if (below && mkdir(path, 0700) && errno != EEXIST)
            return roost_complain(why, errno, "cannot make the pin directory %s: %m%s", path,
                                  errno == EROFS    ? "; mount -o remount,rw /sys/fs/bpf"
                                  : errno == EACCES ? "; run as root"
                                                    : "");
        if (below && (e = distrust(path, why)))
            return e;
        if (below && !saved)
            return 0;
        below = roost_is_bpffs(path);
        at[1] = saved;
    }
    if (below)
        return roost_complain(why, EINVAL, "%s is the bpf file system itself: give the pins a directory below it",
                              pin_dir);
    return roost_complain(why, ENODEV, "%s is not on a bpf file system: mount -t bpf -o mode=700 bpffs /sys/fs/bpf",
                          pin_dir);
}

int roost_complain_of_version(const char *path, struct roost_reason *why) {
    return roost_complain(
        why, EINVAL,
        "%s was made by another version of Roost and its layout does not fit; let the connections go with "
        "`roost unpin`, or run the version that made it",
        path);
}

uint64_t roost_fdinfo(const char *process, int fd, const char *name) {
    char path[64], line[256];
    unsigned long long value = 0;
    size_t length = strlen(name);
    snprintf(path, sizeof(path), "/proc/%.20s/fdinfo/%d", process, fd);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    while (fgets(line, sizeof(line), f))
        if (!strncmp(line, name, length) && sscanf(line + length, ": %llu", &value) == 1)
            break;
    fclose(f);
    return value;
}

uint64_t roost_bpf_memory(int fd) {
    return roost_fdinfo("self", fd, "memlock");
}
