/* SPDX-License-Identifier: Apache-2.0 */
/* What is pinned on the bpf file system, so that it outlives the daemon: where, what to say when it cannot be, and how much
 * memory it takes. */
#ifndef ROOST_CEXT_PINS_H
#define ROOST_CEXT_PINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cext/base/types.h"

#define ROOST_XDP_PIN "xdp-"
#define ROOST_STEER_PIN "steer-"
#define ROOST_LOOPBACK_PIN "loopback-"

/* Writes a sentence to why, unless that is NULL. `error` as a negative errno, whichever sign it has. */
int roost_complain(struct roost_reason *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Of what is pinned there: -EINVAL. */
int roost_complain_of_version(const char *path, struct roost_reason *why);

bool roost_is_bpffs(const char *path);
/* Makes the directory and those above it, below a bpffs and nowhere else; one that is there must be this user's, and no other's
 * to write to. 0 or -errno with a sentence in why. */
int roost_make_pin_dir(const char *pin_dir, struct roost_reason *why);
void roost_pin_path(const char *pin_dir, const char *name, char *path, size_t size);
/* The pin of something that is attached to an interface; prefix: ROOST_..._PIN. */
void roost_interface_pin_path(const char *pin_dir, const char *prefix, const char *ifname, char *path, size_t size);
/* The interface that such a pin is of; 0 when the name is none of that prefix or the interface is gone. */
uint32_t roost_interface_of_pin(const char *pin, const char *prefix);

/* A number that the kernel tells of a descriptor, by its name in /proc/PID/fdinfo; 0: none. process: a PID, or "self". */
uint64_t roost_fdinfo(const char *process, int fd, const char *name);
uint64_t roost_bpf_memory(int fd); /* bytes of one map or program, from its fdinfo; 0: not known */

#endif
