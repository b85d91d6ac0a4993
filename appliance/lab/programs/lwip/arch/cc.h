/* SPDX-License-Identifier: Apache-2.0 */
/* What lwIP asks of its compiler and platform, where its defaults for the GNU C library will not do. */
#ifndef ROOST_LWIP_CC_H
#define ROOST_LWIP_CC_H

#include <stdio.h>
#include <stdlib.h>

#define LWIP_RAND() ((u32_t)random())
#define LWIP_PLATFORM_ASSERT(what)                                                                                     \
    do {                                                                                                               \
        fprintf(stderr, "lwip-host: %s (%s:%d)\n", what, __FILE__, __LINE__);                                          \
        abort();                                                                                                       \
    } while (0)

#endif
