// SPDX-License-Identifier: Apache-2.0
#include "spares.h"

#include <string.h>
#include <unistd.h>

#include "cext/base/address.h"

#define TRIM_SHARE 20 /* of what was not needed: at 50 ms a time, most of it is gone after two seconds */

/* Where a spare socket is looked for: its local address, or the unspecified one of its family. */
static void place_of(const struct roost_key *key, bool bound, uint8_t local[16], __be16 *port) {
    memset(local, 0, 16);
    if (bound)
        memcpy(local, key->local, 16);
    else if (roost_address_is_v4(key->local))
        local[10] = local[11] = 0xff;
    *port = bound ? key->local_port : 0;
}

static uint32_t shelf_of(const uint8_t local[16], __be16 port) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (int i = 0; i < 16; i++)
        hash = (hash ^ local[i]) * 16777619u;
    return (hash ^ port) * 16777619u >> 16 & (ROOST_SPARE_SHELVES - 1);
}

static int remove_at(struct roost_spares *s, uint16_t *at) {
    uint16_t index = *at;
    struct roost_spare *spare = &s->spare[index - 1];
    *at = spare->next;
    spare->next = s->free;
    s->free = index;
    s->count--;
    if (s->count < s->least)
        s->least = s->count;
    return spare->fd;
}

int roost_spares_take(struct roost_spares *s, const struct roost_key *key, bool *bound) {
    uint8_t local[16];
    __be16 port;
    for (int i = 0; i < 2 && s->count; i++) {
        *bound = !i;
        place_of(key, *bound, local, &port);
        for (uint16_t *at = &s->shelf[shelf_of(local, port)]; *at; at = &s->spare[*at - 1].next)
            if (s->spare[*at - 1].port == port && !memcmp(s->spare[*at - 1].local, local, sizeof(local)))
                return remove_at(s, at);
    }
    return -1;
}

bool roost_spares_put(struct roost_spares *s, const struct roost_key *key, bool bound, int fd) {
    if (!s->free && s->fresh == ROOST_SPARES_MAX)
        return false;
    uint16_t index = s->free ? s->free : ++s->fresh;
    struct roost_spare *spare = &s->spare[index - 1];
    if (s->free)
        s->free = spare->next;
    place_of(key, bound, spare->local, &spare->port);
    uint16_t *shelf = &s->shelf[shelf_of(spare->local, spare->port)];
    spare->fd = fd;
    spare->next = *shelf;
    *shelf = index;
    s->count++;
    return true;
}

void roost_spares_trim(struct roost_spares *s, uint32_t most) {
    uint32_t close_now = (s->least + TRIM_SHARE - 1) / TRIM_SHARE;
    if (s->count > most && s->count - most > close_now)
        close_now = s->count - most;
    while (close_now && s->count) {
        uint16_t *shelf = &s->shelf[s->trim_at];
        if (*shelf) {
            close(remove_at(s, shelf)); /* silent: it is not connected */
            close_now--;
        } else {
            s->trim_at = (s->trim_at + 1) % ROOST_SPARE_SHELVES;
        }
    }
    s->least = s->count;
}
