// SPDX-License-Identifier: Apache-2.0
/*
 * A host whose TCP is lwIP's, on a tap device that it makes; its connections are had by sockets of the loopback.
 *
 *     lwip-host TAP ADDRESS GATEWAY ADDRESS6 GATEWAY6 WINDOW ISN
 *
 * It prints the port of 127.0.0.1 where it listens. A line begins what a socket that comes there is for:
 *
 *     dial ADDRESS PORT LOCAL_PORT IDLE_S INTERVAL_S COUNT    (LOCAL_PORT 0: any; COUNT 0: no keep-alives)
 *         Answered with the local port once connected; from then on the socket is the connection: bytes, FIN and RST of
 *         either side become the other's. RST before that: it could not be connected.
 *     info LOCAL_PORT      Answered with what lwIP knows of a connection (tell() below), then closed.
 *     forget LOCAL_PORT    The device loses its power: lwIP forgets the connection without a word; then closed.
 */
#define _GNU_SOURCE /* accept4 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lwip/etharp.h"
#include "lwip/ethip6.h"
#include "lwip/init.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/timeouts.h"
#include "netif/ethernet.h"

#define MTU 1500
#define FRAME (MTU + 14)
#define FRAMES_A_TURN 64
#define CHANNELS 256
#define LINE 128

/* A socket of the loopback; and the connection that it is, once a line has said so. */
struct channel {
    int fd; /* -1: free */
    struct tcp_pcb *pcb;
    struct pbuf *received; /* of the network, not yet of the socket */
    bool connected;
    bool ended_here;  /* the socket has said all */
    bool ended_there; /* FIN has come; behind `received` */
    size_t length;
    char line[LINE];
};

unsigned short host_window;
u32_t host_isn;
ip6_addr_t host_gateway6;

static int tap, listener;
static struct netif device;
static struct channel channels[CHANNELS];

static void die(const char *what) {
    perror(what);
    exit(1);
}

u32_t sys_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u32_t)now.tv_sec * 1000 + (u32_t)(now.tv_nsec / 1000000);
}

/* The tap device */

static err_t device_send(struct netif *netif, struct pbuf *frame) {
    uint8_t bytes[FRAME];
    u16_t length = pbuf_copy_partial(frame, bytes, sizeof bytes, 0);
    (void)netif;
    if (write(tap, bytes, length) != length && errno != EIO) /* EIO: it is down, and the frame lost */
        die("write to the tap device");
    return ERR_OK;
}

static void device_receive(void) {
    uint8_t bytes[FRAME];
    ssize_t length;
    for (int i = 0; i < FRAMES_A_TURN && (length = read(tap, bytes, sizeof bytes)) > 0; i++) {
        struct pbuf *frame = pbuf_alloc(PBUF_RAW, (u16_t)length, PBUF_POOL);
        if (!frame)
            die("pbuf_alloc");
        pbuf_take(frame, bytes, (u16_t)length);
        if (device.input(frame, &device) != ERR_OK)
            pbuf_free(frame);
    }
}

static err_t device_begin(struct netif *netif) {
    netif->name[0] = 't';
    netif->name[1] = 'p';
    netif->mtu = MTU;
    netif->hwaddr_len = 6;
    memcpy(netif->hwaddr, (const uint8_t[6]){0x02, 0, 0, 0x1c, 0x1b, 1}, 6);
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET | NETIF_FLAG_LINK_UP;
    netif->output = etharp_output;
    netif->output_ip6 = ethip6_output;
    netif->linkoutput = device_send;
    return ERR_OK;
}

static void open_tap(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request))
        die("the tap device");
}

static void open_device(char **words) {
    ip4_addr_t address, mask, gateway;
    ip6_addr_t address6;
    s8_t at;
    IP4_ADDR(&mask, 255, 255, 255, 0);
    if (!ip4addr_aton(words[0], &address) || !ip4addr_aton(words[1], &gateway) || !ip6addr_aton(words[2], &address6) ||
        !ip6addr_aton(words[3], &host_gateway6)) {
        fprintf(stderr, "lwip-host: an address is none\n");
        exit(2);
    }
    if (!netif_add(&device, &address, &mask, &gateway, NULL, device_begin, ethernet_input))
        die("netif_add");
    netif_create_ip6_linklocal_address(&device, 1);
    if (netif_add_ip6_address(&device, &address6, &at) != ERR_OK)
        die("netif_add_ip6_address");
    netif_ip6_addr_set_state(&device, 0, IP6_ADDR_PREFERRED);
    netif_ip6_addr_set_state(&device, at, IP6_ADDR_PREFERRED);
    netif_set_default(&device);
    netif_set_up(&device);
}

/* Channels */

static void let_go(struct channel *channel, bool reset) {
    struct linger at_once = {1, 0};
    if (reset)
        setsockopt(channel->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(channel->fd);
    if (channel->received)
        pbuf_free(channel->received);
    *channel = (struct channel){.fd = -1};
}

static void part(struct channel *channel) {
    tcp_arg(channel->pcb, NULL);
    tcp_recv(channel->pcb, NULL);
    tcp_err(channel->pcb, NULL);
}

static void abort_both(struct channel *channel) {
    struct tcp_pcb *pcb = channel->pcb;
    part(channel);
    let_go(channel, true);
    tcp_abort(pcb);
}

/* What the network said goes to the socket. Other than ERR_OK: the channel is gone; ERR_ABRT: so is the pcb. */
static err_t hand_over(struct channel *channel) {
    while (channel->received) {
        struct pbuf *first = channel->received;
        ssize_t written = send(channel->fd, first->payload, first->len, MSG_NOSIGNAL);
        if (written < 0 && errno == EAGAIN)
            return ERR_OK;
        if (written < 0) { /* the socket was closed */
            abort_both(channel);
            return ERR_ABRT;
        }
        channel->received = pbuf_free_header(first, (u16_t)written);
        tcp_recved(channel->pcb, (u16_t)written);
    }
    if (!channel->ended_there)
        return ERR_OK;
    shutdown(channel->fd, SHUT_WR);
    if (!channel->ended_here)
        return ERR_OK;
    part(channel);
    tcp_close(channel->pcb);
    let_go(channel, false);
    return ERR_CLSD;
}

static err_t on_received(void *argument, struct tcp_pcb *pcb, struct pbuf *bytes, err_t error) {
    struct channel *channel = argument;
    (void)pcb, (void)error;
    if (!bytes)
        channel->ended_there = true;
    else if (channel->received)
        pbuf_cat(channel->received, bytes);
    else
        channel->received = bytes;
    return hand_over(channel) == ERR_ABRT ? ERR_ABRT : ERR_OK;
}

/* RST has come, or lwIP gave the connection up; the pcb is gone. */
static void on_error(void *argument, err_t error) {
    (void)error;
    let_go(argument, true);
}

static err_t on_connected(void *argument, struct tcp_pcb *pcb, err_t error) {
    struct channel *channel = argument;
    (void)error;
    channel->connected = true;
    dprintf(channel->fd, "%u\n", pcb->local_port);
    return ERR_OK;
}

/* What the socket said goes to the network. */
static void take(struct channel *channel) {
    uint8_t bytes[4096];
    size_t room = LWIP_MIN(sizeof bytes, tcp_sndbuf(channel->pcb));
    ssize_t length = recv(channel->fd, bytes, room, 0);
    if (length < 0 && errno == EAGAIN)
        return;
    if (length < 0) {
        abort_both(channel);
        return;
    }
    if (length == 0) {
        channel->ended_here = true;
        tcp_shutdown(channel->pcb, 0, 1);
        hand_over(channel);
        return;
    }
    if (tcp_write(channel->pcb, bytes, (u16_t)length, TCP_WRITE_FLAG_COPY) != ERR_OK) {
        fprintf(stderr, "lwip-host: tcp_write\n");
        exit(1);
    }
    tcp_output(channel->pcb);
}

static bool takes(const struct channel *channel) {
    return channel->connected && !channel->ended_here && tcp_sndbuf(channel->pcb) >= TCP_MSS &&
           tcp_sndqueuelen(channel->pcb) + 8 < TCP_SND_QUEUELEN;
}

/* Lines */

static bool dial(struct channel *channel) {
    char text[64];
    unsigned port, local_port, idle_s, interval_s, count;
    ip_addr_t to;
    if (sscanf(channel->line, "dial %63s %u %u %u %u %u", text, &port, &local_port, &idle_s, &interval_s, &count) !=
            6 ||
        !ipaddr_aton(text, &to))
        return false;
    struct tcp_pcb *pcb = channel->pcb = tcp_new_ip_type(IP_GET_TYPE(&to));
    if (!pcb)
        die("tcp_new");
    if (count) {
        ip_set_option(pcb, SOF_KEEPALIVE);
        pcb->keep_idle = idle_s * 1000;
        pcb->keep_intvl = interval_s * 1000;
        pcb->keep_cnt = count;
    }
    tcp_arg(pcb, channel);
    tcp_recv(pcb, on_received);
    tcp_err(pcb, on_error);
    if ((!local_port || tcp_bind(pcb, IP_ANY_TYPE, (u16_t)local_port) == ERR_OK) &&
        tcp_connect(pcb, &to, (u16_t)port, on_connected) == ERR_OK)
        return true;
    part(channel);
    tcp_abort(pcb);
    return false;
}

static struct channel *by_port(unsigned port) {
    for (struct channel *channel = channels; channel < channels + CHANNELS; channel++)
        if (channel->fd >= 0 && channel->connected && channel->pcb->local_port == port)
            return channel;
    return NULL;
}

static unsigned segments(const struct tcp_seg *segment) {
    unsigned count = 0;
    for (; segment; segment = segment->next)
        count++;
    return count;
}

/* "UNACKED PROBES RETRANSMISSIONS HEARD_MS OWES_ACK": segments not acknowledged and bytes not sent, probes and
 * retransmissions since the last answer, since when nothing was heard, whether an ACK is delayed. */
static void tell(int fd, const struct channel *of) {
    const struct tcp_pcb *pcb = of->pcb;
    int waiting = 0;
    if (ioctl(of->fd, FIONREAD, &waiting))
        die("FIONREAD");
    dprintf(fd, "%u %u %u %u %u\n", segments(pcb->unacked) + segments(pcb->unsent) + (unsigned)waiting,
            pcb->keep_cnt_sent, pcb->nrtx, (tcp_ticks - pcb->tmr) * TCP_SLOW_INTERVAL,
            (pcb->flags & (TF_ACK_DELAY | TF_ACK_NOW)) != 0);
}

static void forget(struct channel *channel) {
    struct tcp_pcb *pcb = channel->pcb;
    let_go(channel, true);
    tcp_clear_flags(pcb, TF_ACK_DELAY | TF_ACK_NOW);
    tcp_pcb_remove(&tcp_active_pcbs, pcb);
    tcp_free(pcb);
}

static void obey(struct channel *channel) {
    unsigned port;
    struct channel *meant = NULL;
    if (!strncmp(channel->line, "dial ", 5)) {
        if (!dial(channel)) {
            fprintf(stderr, "lwip-host: cannot %s\n", channel->line);
            let_go(channel, true);
        }
        return;
    }
    if (sscanf(channel->line, "info %u", &port) == 1 && (meant = by_port(port)))
        tell(channel->fd, meant);
    else if (sscanf(channel->line, "forget %u", &port) == 1 && (meant = by_port(port)))
        forget(meant);
    let_go(channel, !meant);
}

static void read_line(struct channel *channel) {
    for (;;) {
        char *next = channel->line + channel->length;
        ssize_t read_now = recv(channel->fd, next, 1, 0);
        if (read_now < 0 && errno == EAGAIN)
            return;
        if (read_now <= 0 || channel->length == LINE - 1) {
            let_go(channel, true);
            return;
        }
        if (*next == '\n') {
            *next = 0;
            obey(channel);
            return;
        }
        channel->length++;
    }
}

static void accept_one(void) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    for (struct channel *channel = channels; channel < channels + CHANNELS; channel++)
        if (channel->fd < 0) {
            channel->fd = fd;
            return;
        }
    close(fd);
}

static void listen_here(void) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, CHANNELS) ||
        getsockname(listener, (struct sockaddr *)&here, &length))
        die("the listener");
    printf("%u\n", ntohs(here.sin_port));
    fflush(stdout);
}

/* One turn: the tap's frames, the timers of lwIP, each socket. */
static void turn(void) {
    struct pollfd polled[CHANNELS + 2] = {{tap, POLLIN, 0}, {listener, POLLIN, 0}};
    for (int i = 0; i < CHANNELS; i++) {
        struct channel *channel = &channels[i];
        short events = channel->pcb && !takes(channel) ? 0 : POLLIN;
        polled[i + 2] = (struct pollfd){channel->fd, events | (channel->received ? POLLOUT : 0), 0};
    }
    u32_t sleep_ms = sys_timeouts_sleeptime();
    if (poll(polled, CHANNELS + 2, sleep_ms > 1000 ? 1000 : (int)sleep_ms) < 0 && errno != EINTR)
        die("poll");
    if (polled[0].revents)
        device_receive();
    sys_check_timeouts();
    for (int i = 0; i < CHANNELS; i++) {
        struct channel *channel = &channels[i];
        short events = polled[i + 2].revents;
        if (!events || channel->fd != polled[i + 2].fd)
            continue;
        if (!channel->pcb)
            read_line(channel);
        else if (events & POLLERR || !channel->connected) /* reset; or it does not wait for the connection any more */
            abort_both(channel);
        else if ((!channel->received || hand_over(channel) == ERR_OK) && takes(channel))
            take(channel);
    }
    if (polled[1].revents)
        accept_one();
}

int main(int count, char **words) {
    if (count != 8) {
        fprintf(stderr, "usage: lwip-host TAP ADDRESS GATEWAY ADDRESS6 GATEWAY6 WINDOW ISN\n");
        return 2;
    }
    host_window = (unsigned short)strtoul(words[6], NULL, 10);
    host_isn = (u32_t)strtoul(words[7], NULL, 10);
    for (int i = 0; i < CHANNELS; i++)
        channels[i].fd = -1;
    lwip_init();
    open_tap(words[1]);
    open_device(words + 2);
    listen_here();
    for (;;)
        turn();
}
