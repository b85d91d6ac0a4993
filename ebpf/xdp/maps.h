/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The maps of the XDP program alone. The types of their values stand where they are used. */
#ifndef ROOST_XDP_MAPS_H
#define ROOST_XDP_MAPS_H

#include "ebpf/lib/maps.h"
#include "ebpf/shared/rule.h"

#define ROUTES 1024 /* the highest 10 bits of a hash */

ROOST_XDP_MAPS(ROOST_DEFINE_MAP)

#endif
