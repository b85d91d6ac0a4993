// SPDX-License-Identifier: Apache-2.0
#include "endpoints.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

static bool is_same(const void *entry, const void *wanted) {
    return !memcmp(entry, wanted, sizeof(struct roost_endpoint));
}

/* FNV-1a: the configuration chooses these addresses, not clients. */
static uint64_t hash_of(const struct roost_endpoint *one) {
    return roost_hash_of_number(roost_fnv1a(one, sizeof(*one)));
}

int roost_endpoints_init(struct roost_endpoints *e, struct roost_endpoint *entry, uint32_t slots) {
    memset(e, 0, sizeof(*e));
    e->entry = entry;
    e->slots = slots < ROOST_MAX_ENDPOINTS ? slots : ROOST_MAX_ENDPOINTS;
    e->uses = calloc(e->slots, sizeof(*e->uses));
    e->next = calloc(e->slots, sizeof(*e->next));
    if (!e->uses || !e->next) {
        roost_endpoints_free(e);
        return -ENOMEM;
    }
    roost_endpoints_settle(e);
    return 0;
}

void roost_endpoints_free(struct roost_endpoints *e) {
    free(e->uses);
    free(e->next);
    roost_hash_free(&e->used);
    e->uses = e->next = NULL;
}

void roost_endpoints_hold(struct roost_endpoints *e, uint32_t index) {
    if (index < e->slots && e->uses[index] != ROOST_ENDPOINT_PINNED)
        e->uses[index]++;
}

void roost_endpoints_pin(struct roost_endpoints *e, uint32_t index) {
    if (index < e->slots)
        e->uses[index] = ROOST_ENDPOINT_PINNED;
}

void roost_endpoints_settle(struct roost_endpoints *e) {
    roost_hash_clear(&e->used);
    e->free = NONE;
    for (uint32_t i = e->slots; i-- > 0;) {
        if (e->uses[i]) {
            roost_hash_put(&e->used, hash_of(&e->entry[i]), &e->entry[i]); /* no memory: it gets a second number */
        } else {
            e->next[i] = e->free;
            e->free = i;
        }
    }
}

uint32_t roost_endpoints_take(struct roost_endpoints *e, const uint8_t address[16], uint16_t port, uint16_t service) {
    struct roost_endpoint wanted = {.port = port, .service = service};
    memcpy(wanted.address, address, sizeof(wanted.address));
    const struct roost_endpoint *entry = roost_hash_find(&e->used, hash_of(&wanted), is_same, &wanted);
    uint32_t index = entry ? (uint32_t)(entry - e->entry) : e->free;
    if (index == NONE || (!entry && !roost_hash_put(&e->used, hash_of(&wanted), &e->entry[index])))
        return ROOST_NO_ENDPOINT;
    if (!entry) {
        e->free = e->next[index];
        e->entry[index] = wanted;
    }
    roost_endpoints_hold(e, index);
    return index;
}

void roost_endpoints_drop(struct roost_endpoints *e, uint32_t index) {
    if (index >= e->slots || !e->uses[index] || e->uses[index] == ROOST_ENDPOINT_PINNED || --e->uses[index])
        return;
    roost_hash_drop(&e->used, hash_of(&e->entry[index]), &e->entry[index]);
    e->next[index] = e->free;
    e->free = index;
}
