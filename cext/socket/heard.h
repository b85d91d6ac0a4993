/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the far end of a live connection is there: a probe, and whether a segment of it has come since.
 *
 * The kernel counts in jiffies when it heard the far end last, which is too coarse for a socket that was made just now. But it keeps
 * SND.WL1 (RFC 9293 3.10.7.4), the sequence number of the segment that told our window last; a probe of a socket in repair mode, and
 * TCP_REPAIR_WINDOW as repair.c sets it, put it one before RCV.NXT, where no valid segment leaves it.
 */
#ifndef ROOST_CEXT_HEARD_H
#define ROOST_CEXT_HEARD_H

#include <stdbool.h>
#include <stdint.h>

/* Sends a keep-alive probe now. *mark: SND.WL1 until the far end is heard. 0 or -errno. */
int roost_heard_ask(int fd, uint32_t *mark);
/* Whether it was heard since SND.WL1 was this. True, too, where the socket cannot tell. */
bool roost_heard_since(int fd, uint32_t mark);
/* Milliseconds since it was heard, as the kernel counts; not before its socket was made. */
uint32_t roost_heard_ago_ms(int fd);

#endif
