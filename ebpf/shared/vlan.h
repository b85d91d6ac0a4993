/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The VLANs that this machine is in: the map `vlans`, from what a tagged frame says, and the interface that it came by, to the
 * index of the VLAN device that the kernel gives it to. A trie takes memory with each entry alone; whole keys are looked up.
 */
#ifndef ROOST_VLAN_H
#define ROOST_VLAN_H

#include <linux/types.h>

#define ROOST_VLANS_MAX (8 * 4096)
#define ROOST_VLAN_ID 0x0fff /* of a tag's second half, IEEE 802.1Q 9.6: priority and DEI are above */

struct roost_vlan {
    __u32 bits;      /* ROOST_VLAN_BITS */
    __u32 ifindex;   /* that the frame came by */
    __be16 protocol; /* ETH_P_8021Q or ETH_P_8021AD */
    __be16 id;
};

#define ROOST_VLAN_BITS 64u

#endif
