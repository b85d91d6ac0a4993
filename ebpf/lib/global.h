/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Functions that the verifier follows once, and not for each way that leads to them: a start of the daemon waits for it. It
 * knows nothing then of what their arguments are, nor that a pointer is not NULL.
 */
#ifndef ROOST_GLOBAL_H
#define ROOST_GLOBAL_H

#ifndef GLOBAL
#define GLOBAL __attribute__((noinline))
#endif

#endif
