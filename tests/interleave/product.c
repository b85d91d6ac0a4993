// SPDX-License-Identifier: Apache-2.0
/* The readers of the table, as they are: the XDP program, and the guard. Compiled, as cext/table.c is, with
 * -fsanitize=thread. */
#include "../../ebpf/inactive.bpf.c"
#define _license guard_license
#include "../../ebpf/guard.bpf.c"
