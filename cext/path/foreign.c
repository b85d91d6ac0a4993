// SPDX-License-Identifier: Apache-2.0
/* Whose the XDP program is that keeps ours from an interface, and how it is detached. */
#define _GNU_SOURCE
#include "datapath.h"

#include <bpf/bpf.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEEPEST 16 /* directories that are open at a time */

/* Of nftw, which takes no context. */
static __thread struct {
    uint32_t program;
    char pin[256];
} search;

/* Stops at a pin of the program, or of its link. */
static int at_file(const char *path, const struct stat *about, int type, struct FTW *where) {
    (void)about;
    (void)where;
    int fd = type == FTW_F && strlen(path) < sizeof(search.pin) ? bpf_obj_get(path) : -1;
    if (fd < 0)
        return 0;
    bool found = roost_fdinfo("self", fd, "prog_id") == search.program;
    close(fd);
    if (found)
        snprintf(search.pin, sizeof(search.pin), "%s", path);
    return found;
}

/* The process that holds it open, which is what keeps a link without a pin; 0: there is none. Its name into comm. */
static int holder(uint32_t program, char *comm, size_t size) {
    DIR *processes = opendir("/proc");
    struct dirent *process, *file;
    char path[300];
    int found = 0;
    while (processes && !found && (process = readdir(processes))) {
        if (!isdigit((unsigned char)process->d_name[0]))
            continue;
        snprintf(path, sizeof(path), "/proc/%s/fdinfo", process->d_name);
        DIR *files = opendir(path);
        while (files && !found && (file = readdir(files)))
            if (file->d_name[0] != '.' && roost_fdinfo(process->d_name, atoi(file->d_name), "prog_id") == program)
                found = atoi(process->d_name);
        if (files)
            closedir(files);
    }
    if (processes)
        closedir(processes);
    snprintf(path, sizeof(path), "/proc/%d/comm", found);
    FILE *f = found ? fopen(path, "r") : NULL;
    if (!f || !fgets(comm, (int)size, f))
        comm[0] = 0;
    comm[strcspn(comm, "\n")] = 0;
    if (f)
        fclose(f);
    return found;
}

/* The number of the link that attaches it to the interface; 0: it is attached without one. */
static uint32_t link_of(uint32_t program, uint32_t ifindex) {
    struct bpf_link_info info;
    for (__u32 id = 0; !bpf_link_get_next_id(id, &id);) {
        __u32 size = sizeof(info);
        int fd = bpf_link_get_fd_by_id(id);
        memset(&info, 0, sizeof(info));
        bool is = fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &size) && info.type == BPF_LINK_TYPE_XDP &&
                  info.prog_id == program && info.xdp.ifindex == ifindex;
        if (fd >= 0)
            close(fd);
        if (is)
            return id;
    }
    return 0;
}

static bool is_ours(char *pin) {
    char *base = strrchr(pin, '/');
    char path[320];
    if (!base || strncmp(base + 1, ROOST_XDP_PIN, strlen(ROOST_XDP_PIN)))
        return false;
    snprintf(path, sizeof(path), "%.*s/tables4", (int)(base - pin), pin);
    return !access(path, F_OK);
}

static uint32_t attached(const struct bpf_xdp_query_opts *query, const char **how) {
    const struct {
        uint32_t program;
        const char *how;
    } ways[] = {{query->drv_prog_id, "xdpdrv"}, {query->skb_prog_id, "xdpgeneric"}, {query->hw_prog_id, "xdpoffload"}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        *how = ways[i].how;
        if (ways[i].program)
            return ways[i].program;
    }
    return 0;
}

int roost_datapath_complain_of_foreign(const char *ifname, uint32_t ifindex, int error, struct roost_reason *why) {
    LIBBPF_OPTS(bpf_xdp_query_opts, query);
    struct bpf_prog_info info = {0};
    __u32 size = sizeof(info);
    char comm[32], who[200], out[700];
    const char *how = "xdp";
    search.program = 0;
    search.pin[0] = 0;
    uint32_t program = bpf_xdp_query((int)ifindex, 0, &query) ? 0 : attached(&query, &how);
    int fd = program ? bpf_prog_get_fd_by_id(program) : -1;
    if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &size))
        return roost_complain(why, error, "another XDP program is attached to %s: `ip link show %s` names it", ifname,
                              ifname);
    snprintf(who, sizeof(who), "program %u%s%s%s, loaded by user %u", program, info.name[0] ? " \"" : "", info.name,
             info.name[0] ? "\"" : "", info.created_by_uid);
    close(fd);

    search.program = program;
    uint32_t link = link_of(program, ifindex);
    if (link)
        nftw("/sys/fs/bpf", at_file, DEEPEST, FTW_PHYS);
    int process = link && !search.pin[0] ? holder(program, comm, sizeof(comm)) : 0;
    if (is_ours(search.pin))
        snprintf(out, sizeof(out),
                 "; it is the Roost's whose pins are in %.*s: leave the interface to it, or end it and let its "
                 "connections go "
                 "with `roost unpin -c` and its configuration",
                 (int)(strrchr(search.pin, '/') - search.pin), search.pin);
    else if (search.pin[0])
        snprintf(out, sizeof(out), ", pinned at %s; detach it: rm %s", search.pin, search.pin);
    else if (process)
        snprintf(out, sizeof(out), "; process %d (%s) holds it: end that, or take the interface from it", process,
                 comm);
    else if (link)
        snprintf(out, sizeof(out), "; detach it: bpftool link detach id %u", link);
    else
        snprintf(out, sizeof(out), "; detach it: ip link set dev %s %s off", ifname, how);
    return roost_complain(why, error, "another XDP program is attached to %s: %s%s", ifname, who, out);
}

int roost_datapath_find_foreign(const char *ifname, const char *pin_dir, struct roost_reason *why) {
    LIBBPF_OPTS(bpf_xdp_query_opts, query);
    uint32_t ifindex = if_nametoindex(ifname);
    const char *how;
    if (!ifindex || bpf_xdp_query((int)ifindex, 0, &query) || !attached(&query, &how))
        return 0;
    int e = roost_datapath_complain_of_foreign(ifname, ifindex, EBUSY, why);
    size_t length = strlen(pin_dir);
    bool ours = !strncmp(search.pin, pin_dir, length) && search.pin[length] == '/';
    return !search.program || ours ? 0 : e;
}
