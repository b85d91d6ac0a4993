/* SPDX-License-Identifier: Apache-2.0 */
/* What an interface has dropped instead of sending it. A veth counts what finds no room in its peer's ring; other drivers
 * may count such frames elsewhere, or not at all. */
#ifndef ROOST_CEXT_DROPS_H
#define ROOST_CEXT_DROPS_H

#include <stdint.h>

/* A socket to ask by, of this thread's network namespace, or -errno. */
int roost_drops_open(void);
/* Frames since the interface was made; 0 where the kernel does not say. */
uint64_t roost_drops_of(int fd, uint32_t ifindex);

#endif
