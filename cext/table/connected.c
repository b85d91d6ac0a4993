// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "connected.h"

static bool counts(const struct roost_counted *s) {
    return s->limits && s->limits->counting;
}

/* The cells of a source. */
static void find(const struct roost_counted *s, const uint8_t client[16], uint16_t service, uint32_t level,
                 uint32_t *cell[ROOST_CONNECTED_ROWS]) {
    __u64 address[2];
    memcpy(address, client, sizeof(address));
    uint64_t cells = roost_limit_cells(s->limits, ROOST_LIMIT_CONNECTIONS, service, level, address);
    for (int row = 0; row < ROOST_CONNECTED_ROWS; row++)
        cell[row] = &s->connected[roost_connected_at(cells, row, s->limits->counting)].count[row];
}

void roost_counted_more(const struct roost_counted *s, const uint8_t client[16], uint16_t service) {
    uint32_t *cell[ROOST_CONNECTED_ROWS];
    for (uint32_t level = 0; level < ROOST_LIMIT_LEVELS && counts(s); level++) {
        find(s, client, service, level, cell);
        for (int row = 0; row < ROOST_CONNECTED_ROWS; row++)
            __atomic_fetch_add(cell[row], 1, __ATOMIC_RELAXED); /* XDP adds, too */
    }
}

void roost_counted_less(const struct roost_counted *s, const uint8_t client[16], uint16_t service) {
    uint32_t *cell[ROOST_CONNECTED_ROWS];
    for (uint32_t level = 0; level < ROOST_LIMIT_LEVELS && counts(s); level++) {
        find(s, client, service, level, cell);
        for (int row = 0; row < ROOST_CONNECTED_ROWS; row++)
            if (__atomic_load_n(cell[row], __ATOMIC_RELAXED)) /* XDP only adds */
                __atomic_fetch_sub(cell[row], 1, __ATOMIC_RELAXED);
    }
}

uint32_t roost_counted_of(const struct roost_counted *s, const uint8_t client[16], uint16_t service, uint32_t level) {
    uint32_t least = 0, *cell[ROOST_CONNECTED_ROWS];
    if (!counts(s))
        return 0;
    find(s, client, service, level, cell);
    for (int row = 0; row < ROOST_CONNECTED_ROWS; row++) {
        uint32_t count = __atomic_load_n(cell[row], __ATOMIC_RELAXED);
        least = !row || count < least ? count : least;
    }
    return least;
}
