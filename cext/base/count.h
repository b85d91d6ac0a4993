/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts go down here. One that fell below 0 would be some 2^64, and so grow tables and shut doors: builds without NDEBUG
 * (those of the sanitizers, the fuzz targets and the interleavings) end there, in service it stays 0.
 */
#ifndef ROOST_CEXT_COUNT_H
#define ROOST_CEXT_COUNT_H

#include <assert.h>
#include <stdint.h>

/* Of a count that this thread alone changes. */
#define ROOST_ONE_LESS(count)                                                                                          \
    do {                                                                                                               \
        assert((count) > 0);                                                                                           \
        (count) -= (count) > 0;                                                                                        \
    } while (0)

/* What is left of some of a count that others change meanwhile: they may be behind with it. */
static inline uint64_t roost_less(uint64_t of, uint64_t gone) {
    return (int64_t)(of - gone) > 0 ? of - gone : 0;
}

#endif
