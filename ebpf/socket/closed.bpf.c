// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Socket filter that lets nothing in. The engine attaches it to a socket before it reads the sequence numbers, so that
 * a straggler cannot be acknowledged after they were read. Its sender retransmits it, and XDP holds it then.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

SEC("socket")
int roost_closed(struct __sk_buff *skb) {
    return 0;
}
