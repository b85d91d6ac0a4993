// SPDX-License-Identifier: Apache-2.0
/* Open addressing with linear probing; removal moves later entries of the run back, so there are no tombstones. */
#include "hosts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ebpf/shared/table.h"

#define FIRST_SIZE 1024

static uint64_t hash_of(const struct roost_hosts *h, const uint8_t client[16]) {
    __u64 word[2];
    memcpy(word, client, sizeof(word));
    uint64_t hash = roost_siphash(h->seed, word, 2);
    return hash ? hash : 1;
}

/* Its entry, or the free one where it belongs. */
static struct roost_host *place(const struct roost_hosts *h, uint64_t hash) {
    uint64_t at = hash & (h->size - 1);
    while (h->host[at].hash && h->host[at].hash != hash)
        at = (at + 1) & (h->size - 1);
    return &h->host[at];
}

int roost_hosts_open(struct roost_hosts *h, const __u64 seed[2]) {
    memset(h, 0, sizeof(*h));
    memcpy(h->seed, seed, sizeof(h->seed));
    h->host = calloc(FIRST_SIZE, sizeof(*h->host));
    h->size = h->host ? FIRST_SIZE : 0;
    return h->host ? 0 : -ENOMEM;
}

void roost_hosts_close(struct roost_hosts *h) {
    free(h->host);
    memset(h, 0, sizeof(*h));
}

static bool grow(struct roost_hosts *h) {
    struct roost_hosts larger = *h;
    larger.size = h->size * 2;
    larger.host = calloc(larger.size, sizeof(*larger.host));
    if (!larger.host)
        return false;
    for (uint64_t i = 0; i < h->size; i++)
        if (h->host[i].hash)
            *place(&larger, h->host[i].hash) = h->host[i];
    free(h->host);
    *h = larger;
    return true;
}

void roost_hosts_add(struct roost_hosts *h, const struct roost_key *key) {
    if (!h->size)
        return;
    uint64_t hash = hash_of(h, key->client);
    struct roost_host *host = place(h, hash);
    if (!host->hash) {
        if (h->used + h->used / 3 >= h->size) { /* at most three quarters full */
            if (!grow(h))
                return;
            host = place(h, hash);
        }
        h->used++;
        host->hash = hash;
    }
    host->count++;
    host->client_port = key->client_port;
    host->local_port = key->local_port;
}

void roost_hosts_remove(struct roost_hosts *h, const struct roost_key *key) {
    struct roost_host *host = h->size ? place(h, hash_of(h, key->client)) : NULL;
    if (!host || !host->hash)
        return;
    if (--host->count) {
        if (host->client_port == key->client_port && host->local_port == key->local_port)
            host->client_port = host->local_port = 0;
        return;
    }
    h->used--;
    uint64_t mask = h->size - 1, hole = (uint64_t)(host - h->host);
    for (uint64_t at = (hole + 1) & mask; h->host[at].hash; at = (at + 1) & mask) {
        uint64_t home = h->host[at].hash & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) /* it may not stand before its home */
            continue;
        h->host[hole] = h->host[at];
        hole = at;
    }
    h->host[hole].hash = 0;
    h->host[hole].count = 0;
    h->host[hole].client_port = h->host[hole].local_port = 0;
}

struct roost_host *roost_hosts_find(struct roost_hosts *h, const uint8_t client[16]) {
    struct roost_host *host = h->size ? place(h, hash_of(h, client)) : NULL;
    return host && host->hash ? host : NULL;
}
