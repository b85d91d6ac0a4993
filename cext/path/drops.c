// SPDX-License-Identifier: Apache-2.0
#include "drops.h"

#include <errno.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

int roost_drops_open(void) {
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    return fd < 0 ? -errno : fd;
}

/* RTM_GETSTATS: the one block of counters, and not all that there is to say about a link. */
uint64_t roost_drops_of(int fd, uint32_t ifindex) {
    struct {
        struct nlmsghdr header;
        struct if_stats_msg stats;
    } request = {.header = {.nlmsg_len = sizeof(request), .nlmsg_type = RTM_GETSTATS, .nlmsg_flags = NLM_F_REQUEST},
                 .stats = {.ifindex = ifindex, .filter_mask = IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)}};
    struct {
        struct nlmsghdr header;
        struct if_stats_msg stats;
        struct rtattr attribute;
        uint8_t counters[1024];
    } answer;
    struct rtnl_link_stats64 counters;
    if (fd < 0 || send(fd, &request, sizeof(request), 0) != sizeof(request))
        return 0;
    ssize_t length = recv(fd, &answer, sizeof(answer), 0); /* the kernel has answered before send returned */
    if (length < (ssize_t)(offsetof(struct rtnl_link_stats64, tx_dropped) + sizeof(counters.tx_dropped) +
                           (sizeof(answer) - sizeof(answer.counters))) ||
        answer.header.nlmsg_type != RTM_NEWSTATS || answer.attribute.rta_type != IFLA_STATS_LINK_64)
        return 0;
    memcpy(&counters, answer.counters, sizeof(counters));
    return counters.tx_dropped;
}
