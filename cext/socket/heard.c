// SPDX-License-Identifier: Apache-2.0
#include "heard.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "repair.h"

static int set(int fd, int option, int value) {
    return setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value)) ? -errno : 0;
}

static int get(int fd, int option, void *value, socklen_t size) {
    return getsockopt(fd, IPPROTO_TCP, option, value, &size) ? -errno : 0;
}

int roost_heard_ask(int fd, uint32_t *mark) {
    uint32_t rcv_nxt = 0;
    int e = set(fd, TCP_REPAIR, TCP_REPAIR_ON);
    if (e)
        return e;
    if (!(e = set(fd, TCP_REPAIR_QUEUE, TCP_RECV_QUEUE)))
        e = get(fd, TCP_QUEUE_SEQ, &rcv_nxt, sizeof(rcv_nxt));
    *mark = rcv_nxt - 1;
    int left = roost_repair_leave(fd, e ? TCP_REPAIR_OFF_NO_WP : TCP_REPAIR_OFF); /* which sends it */
    return e ? e : left;
}

bool roost_heard_since(int fd, uint32_t mark) {
    struct tcp_repair_window window;
    if (set(fd, TCP_REPAIR, TCP_REPAIR_ON))
        return true;
    bool known = !get(fd, TCP_REPAIR_WINDOW, &window, sizeof(window));
    roost_repair_undo(fd, -1);
    return !known || window.snd_wl1 != mark;
}

uint32_t roost_heard_ago_ms(int fd) {
    struct tcp_info info;
    memset(&info, 0, sizeof(info));
    if (get(fd, TCP_INFO, &info, sizeof(info)))
        return 0;
    return info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv : info.tcpi_last_data_recv;
}
