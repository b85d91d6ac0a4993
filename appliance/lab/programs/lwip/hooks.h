/* SPDX-License-Identifier: Apache-2.0 */
/* What lwipopts.h lets lwIP ask host.c for. */
#ifndef ROOST_LWIP_HOOKS_H
#define ROOST_LWIP_HOOKS_H

#include "lwip/ip6_addr.h"

extern u32_t host_isn;
extern ip6_addr_t host_gateway6;

#endif
