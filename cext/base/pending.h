/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROOST_CEXT_PENDING_H
#define ROOST_CEXT_PENDING_H

#include <stdint.h>

struct roost_pending { /* read from one leg, not yet taken by the other */
    uint32_t from, to;
    uint8_t data[];
};

#endif
