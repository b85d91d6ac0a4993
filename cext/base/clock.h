/* SPDX-License-Identifier: Apache-2.0 */
/* The clocks. */
#ifndef ROOST_CEXT_CLOCK_H
#define ROOST_CEXT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t roost_clock_ms(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline uint64_t roost_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* For what is measured in less than a millisecond. */
static inline uint64_t roost_monotonic_ns(void) {
    return roost_clock_ns(CLOCK_MONOTONIC);
}

/* The clock behind TCP timestamps and every *_ms and *_s field of the record. */
static inline uint64_t roost_monotonic_ms(void) {
    return roost_clock_ms(CLOCK_MONOTONIC);
}

/* The same as of the kernel's last tick, by which XDP answers. Whatever else is sent in the name of a connection without a
 * socket goes by it, too, or its TSvals would go back. */
static inline uint64_t roost_coarse_ms(void) {
    return roost_clock_ms(CLOCK_MONOTONIC_COARSE);
}

/* Since 1970: for people and for the history. */
static inline uint64_t roost_realtime_ms(void) {
    return roost_clock_ms(CLOCK_REALTIME);
}

#endif
