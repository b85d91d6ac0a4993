// SPDX-License-Identifier: Apache-2.0
/* Single frames: from the XDP programs, into the stack, and out by the routing table. */
#include "datapath.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#define LEAST_REPLAYED_LIVE 4 /* a run takes 16 us, a frame by itself 5 */

int roost_datapath_run(const struct roost_datapath *d, const struct bpf_test_run_opts *options) {
    struct bpf_test_run_opts once = *options;
    int fd = bpf_program__fd(bpf_object__find_program_by_name(d->inactive, "roost_inactive"));
    return bpf_prog_test_run_opts(fd, &once) ? -errno : 0;
}

/* Frames of XDP. The frame that the kernel starts from is as large as any: the program cuts it. */
static int replay(struct roost_datapath *d, uint32_t count, uint32_t ifindex, uint32_t queue) {
    union {
        struct roost_errand errand;
        uint8_t bytes[ROOST_FRAME_MAX];
    } frame = {.errand = {.ethertype = htons(ROOST_ERRAND_ETHERTYPE)}};
    struct xdp_md context = {.data_end = sizeof(frame), .ingress_ifindex = ifindex, .rx_queue_index = queue};
    /* Attached generically the program is not in the kernel's dispatcher: there, one run a frame is the quick way. */
    uint32_t at_once = roost_datapath_generic(d, ifindex) ? 1 : count;
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = &frame, .data_size_in = sizeof(frame), .ctx_in = &context,
                .ctx_size_in = sizeof(context), .repeat = (int)at_once, .batch_size = at_once,
                .flags = BPF_F_TEST_XDP_LIVE_FRAMES);
    memcpy(frame.errand.secret, d->secret, sizeof(d->secret));
    __atomic_store_n(&d->runs->cursor, 0, __ATOMIC_SEQ_CST);
    int e = 0;
    for (uint32_t done = 0; done < count && !e; done += at_once)
        e = roost_datapath_run(d, &options);
    return e;
}

static bool inject(const struct roost_datapath *d, const struct roost_outbox_item *item, uint32_t ifindex) {
    struct __sk_buff context = {.ifindex = ifindex};
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = item->data, .data_size_in = item->length, .ctx_in = &context,
                .ctx_size_in = sizeof(context), .repeat = 1);
    return !bpf_prog_test_run_opts(d->inject_fd, &options) && !options.retval;
}

uint32_t roost_datapath_replay(struct roost_datapath *d, uint32_t count, uint32_t ifindex, uint32_t queue) {
    uint32_t left = count;
    if (count < LEAST_REPLAYED_LIVE) {
        left = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (inject(d, &d->out[i], ifindex))
                continue;
            if (left != i)
                d->out[left] = d->out[i];
            left++; /* the processor's queue of received frames may be full, which frames of XDP do not go through */
        }
    }
    if (left && replay(d, left, ifindex, queue)) {
        d->replay_failed += left;
        count -= left;
    }
    return count;
}

bool roost_datapath_send(struct roost_datapath *d, const uint8_t *packet, size_t length) {
    ssize_t sent;
    if (packet[0] >> 4 == 4) {
        struct sockaddr_in to = {.sin_family = AF_INET};
        memcpy(&to.sin_addr, packet + 16, 4);
        sent = sendto(d->raw4, packet, length, 0, (struct sockaddr *)&to, sizeof(to));
    } else {
        struct sockaddr_in6 to = {.sin6_family = AF_INET6};
        memcpy(&to.sin6_addr, packet + 24, 16);
        sent = sendto(d->raw6, packet, length, 0, (struct sockaddr *)&to, sizeof(to));
    }
    d->probe_raw++;
    return sent == (ssize_t)length;
}
