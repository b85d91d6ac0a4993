// SPDX-License-Identifier: Apache-2.0
/* What the steering programs (ebpf/tc/steer.bpf.c) are told: which services are transparent, and where. */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ebpf/shared/steer.h"
#include "conn.h"

int roost_router_manage(struct roost_engine *e, const struct roost_service *service, char *err, uint32_t err_len) {
    struct roost_managed_key key = {.port = htons(service->listen_port)};
    struct roost_managed value = {.fail_closed = service->fail_closed};
    memcpy(key.address, service->listen, sizeof(key.address));
    if (!e->path.steer) {
        snprintf(err, err_len, "service %u is transparent, and this is no router", service->index);
        return -EINVAL;
    }
    if (!bpf_map_update_elem(roost_datapath_steer_map(&e->path, "managed"), &key, &value, BPF_ANY))
        return 0;
    int error = -errno;
    snprintf(err, err_len, "cannot steer port %u: %s", service->listen_port, strerror(-error));
    return error;
}

int roost_router_attach(struct roost_engine *e, const char *ifname, int servers, char *err, uint32_t err_len) {
    if (!e->path.steer) {
        snprintf(err, err_len, "this is no router");
        return -EINVAL;
    }
    return roost_datapath_attach_steer(&e->path, ifname, servers, err, err_len);
}

int roost_router_attach_port(struct roost_engine *e, uint16_t port) {
    uint16_t port_be = htons(port);
    uint8_t yes = 1;
    if (!e->path.steer)
        return -EINVAL;
    return bpf_map_update_elem(roost_datapath_steer_map(&e->path, "attach_ports"), &port_be, &yes, BPF_ANY) ? -errno
                                                                                                            : 0;
}
