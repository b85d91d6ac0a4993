// SPDX-License-Identifier: Apache-2.0
/* The guard, as it is: a program of tc, and so a unit of its own beside product.c. They share their maps, as common
 * variables (-fcommon) of one name, as they do by their pins. */
#define _license guard_license
#define GLOBAL static __attribute__((noinline, unused))
#include "ebpf/tc/guard.bpf.c"
