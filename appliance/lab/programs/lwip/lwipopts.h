/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lwIP as a small device has it: its raw interface, one loop, no threads. LWIP_TCP_TIMESTAMPS comes with the compiler's
 * call; the receive window and the first sequence number are the program's arguments.
 */
#ifndef ROOST_LWIPOPTS_H
#define ROOST_LWIPOPTS_H

#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_NETCONN 0
#define LWIP_SOCKET 0
#define LWIP_STATS 0
#define LWIP_UDP 0
#define LWIP_RAW 0

#define MEM_LIBC_MALLOC 1
#define MEMP_MEM_MALLOC 1
#define MEM_ALIGNMENT 8

#define LWIP_IPV6 1
#define LWIP_IPV6_MLD 0
#define IPV6_FRAG_COPYHEADER 1 /* a pointer has 8 bytes here */
#define LWIP_IPV6_AUTOCONFIG 0
#define LWIP_IPV6_DUP_DETECT_ATTEMPTS 0
#define LWIP_IPV6_SEND_ROUTER_SOLICIT 0

extern unsigned short host_window;
#define TCP_MSS 1460
#define TCP_WND host_window
#define TCP_SND_BUF (16 * TCP_MSS)
#define TCP_SND_QUEUELEN 64
#define LWIP_DISABLE_TCP_SANITY_CHECKS 1 /* they are for windows that the compiler knows */
#define LWIP_TCP_KEEPALIVE 1

#define LWIP_HOOK_FILENAME "hooks.h"
#define LWIP_HOOK_TCP_ISN(local, local_port, remote, remote_port) host_isn
#define LWIP_HOOK_ND6_GET_GW(netif, destination) (&host_gateway6)

#endif
