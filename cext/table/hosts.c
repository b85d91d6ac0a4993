// SPDX-License-Identifier: Apache-2.0
#include "hosts.h"

#include <string.h>

#include "ebpf/shared/table.h"

#define FIRST_HOSTS 768

static uint64_t hash_of(const struct roost_hosts *h, const uint8_t client[16]) {
    __u64 word[2];
    memcpy(word, client, sizeof(word));
    return roost_siphash(h->seed, word, 2);
}

static struct roost_hash_slot *slot_of(const struct roost_hosts *h, const uint8_t client[16]) {
    return roost_hash_slot(&h->hash, hash_of(h, client), NULL, NULL);
}

int roost_hosts_open(struct roost_hosts *h, const __u64 seed[2]) {
    memset(h, 0, sizeof(*h));
    memcpy(h->seed, seed, sizeof(h->seed));
    return roost_hash_reserve(&h->hash, FIRST_HOSTS);
}

void roost_hosts_close(struct roost_hosts *h) {
    roost_hash_free(&h->hash);
}

void roost_hosts_add(struct roost_hosts *h, const struct roost_key *key) {
    if (!h->hash.size)
        return;
    struct roost_hash_slot *slot = slot_of(h, key->client);
    if (!slot && !(slot = roost_hash_add(&h->hash, hash_of(h, key->client))))
        return;
    struct roost_host *host = (struct roost_host *)&slot->number;
    host->count++;
    host->client_port = key->client_port;
    host->local_port = key->local_port;
}

void roost_hosts_remove(struct roost_hosts *h, const struct roost_key *key) {
    struct roost_hash_slot *slot = slot_of(h, key->client);
    if (!slot)
        return;
    struct roost_host *host = (struct roost_host *)&slot->number;
    if (!--host->count)
        roost_hash_remove(&h->hash, slot);
    else if (host->client_port == key->client_port && host->local_port == key->local_port)
        host->client_port = host->local_port = 0;
}

struct roost_host *roost_hosts_find(struct roost_hosts *h, const uint8_t client[16]) {
    struct roost_hash_slot *slot = slot_of(h, client);
    return slot ? (struct roost_host *)&slot->number : NULL;
}
