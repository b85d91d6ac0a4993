// SPDX-License-Identifier: Apache-2.0
#include "endpoints.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

int roost_endpoints_init(struct roost_endpoints *e, struct roost_endpoint *entry, uint32_t slots) {
    memset(e, 0, sizeof(*e));
    e->entry = entry;
    e->slots = slots < ROOST_MAX_ENDPOINTS ? slots : ROOST_MAX_ENDPOINTS;
    for (e->heads = 16; e->heads < e->slots; e->heads *= 2)
        ;
    e->uses = calloc(e->slots, sizeof(*e->uses));
    e->next = calloc(e->slots, sizeof(*e->next));
    e->head = calloc(e->heads, sizeof(*e->head));
    if (!e->uses || !e->next || !e->head) {
        roost_endpoints_free(e);
        return -ENOMEM;
    }
    roost_endpoints_settle(e);
    return 0;
}

void roost_endpoints_free(struct roost_endpoints *e) {
    free(e->uses);
    free(e->next);
    free(e->head);
    e->uses = e->next = e->head = NULL;
}

/* Who chooses these addresses is the operator, or the servers that he has: FNV-1a will do. */
static uint32_t *chain_of(struct roost_endpoints *e, const struct roost_endpoint *one) {
    uint32_t hash = 2166136261u;
    const uint8_t *byte = (const uint8_t *)one;
    for (size_t i = 0; i < sizeof(*one); i++)
        hash = (hash ^ byte[i]) * 16777619u;
    return &e->head[(hash ^ hash >> 16) & (e->heads - 1)];
}

static void link_into(struct roost_endpoints *e, uint32_t index) {
    uint32_t *chain = chain_of(e, &e->entry[index]);
    e->next[index] = *chain;
    *chain = index;
    e->used++;
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
    memset(e->head, 0xff, e->heads * sizeof(*e->head));
    e->free = NONE;
    e->used = 0;
    for (uint32_t i = e->slots; i-- > 0;) {
        if (e->uses[i]) {
            link_into(e, i);
        } else {
            e->next[i] = e->free;
            e->free = i;
        }
    }
}

uint32_t roost_endpoints_take(struct roost_endpoints *e, const uint8_t address[16], uint16_t port, uint16_t service) {
    struct roost_endpoint wanted = {.port = port, .service = service};
    memcpy(wanted.address, address, sizeof(wanted.address));
    uint32_t index = *chain_of(e, &wanted);
    while (index != NONE && memcmp(&e->entry[index], &wanted, sizeof(wanted)))
        index = e->next[index];
    if (index == NONE) {
        index = e->free;
        if (index == NONE)
            return ROOST_NO_ENDPOINT;
        e->free = e->next[index];
        e->entry[index] = wanted;
        link_into(e, index);
    }
    roost_endpoints_hold(e, index);
    return index;
}

void roost_endpoints_drop(struct roost_endpoints *e, uint32_t index) {
    if (index >= e->slots || !e->uses[index] || e->uses[index] == ROOST_ENDPOINT_PINNED || --e->uses[index])
        return;
    uint32_t *at = chain_of(e, &e->entry[index]);
    while (*at != index)
        at = &e->next[*at];
    *at = e->next[index];
    e->next[index] = e->free;
    e->free = index;
    e->used--;
}
