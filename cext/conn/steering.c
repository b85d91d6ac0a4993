// SPDX-License-Identifier: Apache-2.0
/* What the steering programs (ebpf/tc/steer.bpf.c) are told: which services are transparent, and where. */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ebpf/shared/steer.h"
#include "conn.h"

int roost_router_manage(struct roost_engine *e, const struct roost_service *service, struct roost_reason *why) {
    struct roost_managed_key key = {.port = htons(service->listen_port)};
    struct roost_managed value = {.fail_closed = service->fail_closed};
    memcpy(key.address, service->listen, sizeof(key.address));
    if (!e->path.steer)
        return roost_complain(why, EINVAL, "service %u is transparent, and this is no router", service->index);
    if (bpf_map_update_elem(e->path.map_fd[ROOST_MAP_managed], &key, &value, BPF_ANY))
        return roost_complain(why, errno, "cannot steer port %u: %m", service->listen_port);
    return 0;
}

int roost_router_attach(struct roost_engine *e, const char *ifname, int servers, struct roost_reason *why) {
    if (!e->path.steer)
        return roost_complain(why, EINVAL, "this is no router");
    return roost_datapath_attach_steer(&e->path, ifname, servers, why);
}

int roost_router_attach_port(struct roost_engine *e, uint16_t port) {
    uint16_t port_be = htons(port);
    uint8_t yes = 1;
    if (!e->path.steer)
        return -EINVAL;
    return bpf_map_update_elem(e->path.map_fd[ROOST_MAP_attach_ports], &port_be, &yes, BPF_ANY) ? -errno : 0;
}
