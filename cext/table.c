// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <string.h>

static const uint8_t mapped_prefix[12] = {[10] = 0xff, [11] = 0xff};

bool roost_key_is_v4(const struct roost_key *key) {
    return !memcmp(key->client, mapped_prefix, 12) && !memcmp(key->local, mapped_prefix, 12);
}

static struct roost_key4 narrow(const struct roost_key *key) {
    struct roost_key4 k = {.client_port = key->client_port, .local_port = key->local_port};
    memcpy(&k.client, key->client + 12, 4);
    memcpy(&k.local, key->local + 12, 4);
    return k;
}

static void widen(const struct roost_key4 *k, struct roost_key *key) {
    memcpy(key->client, mapped_prefix, 12);
    memcpy(key->local, mapped_prefix, 12);
    memcpy(key->client + 12, &k->client, 4);
    memcpy(key->local + 12, &k->local, 4);
    key->client_port = k->client_port;
    key->local_port = k->local_port;
}

static struct roost_place place_of(const struct roost_table *t, const struct roost_key *key, bool v4) {
    if (!v4)
        return roost_place_of(roost_hash6(&t->config, key), t->config.buckets6);
    struct roost_key4 k = narrow(key);
    return roost_place_of(roost_hash4(&t->config, &k), t->config.buckets4);
}

struct roost_ka *roost_table_find(struct roost_table *t, const struct roost_key *key) {
    bool v4 = roost_key_is_v4(key);
    if (v4 ? !t->config.buckets4 : !t->config.buckets6)
        return NULL;
    struct roost_place place = place_of(t, key, v4);
    struct roost_key4 k = narrow(key);
    for (int side = 0; side < 2; side++) {
        if (v4) {
            struct roost_bucket4 *b = &t->bucket4[place.bucket[side]];
            for (int i = 0; i < ROOST_BUCKET_SLOTS; i++)
                if (b->tag[i] == place.tag && !memcmp(&b->slot[i].key, &k, sizeof(k)))
                    return &b->slot[i].ka;
        } else {
            struct roost_bucket6 *b = &t->bucket6[place.bucket[side]];
            for (int i = 0; i < ROOST_BUCKET_SLOTS; i++)
                if (b->tag[i] == place.tag && !memcmp(&b->slot[i].key, key, sizeof(*key)))
                    return &b->slot[i].ka;
        }
    }
    return NULL;
}

/* Free position in a bucket, -1 when there is none or when the tag is there too often; *used counts the taken. */
static int free_position(const uint16_t *tags, uint16_t tag, int *used) {
    int position = -1, same = 0;
    *used = 0;
    for (int i = 0; i < ROOST_BUCKET_SLOTS; i++) {
        same += tags[i] == tag;
        if (tags[i])
            ++*used;
        else if (position < 0)
            position = i;
    }
    return same < ROOST_SAME_TAG_MAX ? position : -1;
}

struct roost_ka *roost_table_insert(struct roost_table *t, const struct roost_key *key, const struct roost_ka *ka) {
    bool v4 = roost_key_is_v4(key);
    if (v4 ? !t->config.buckets4 : !t->config.buckets6)
        return NULL;
    struct roost_place place = place_of(t, key, v4);
    uint16_t *tags[2];
    int position[2], used[2];
    for (int side = 0; side < 2; side++) {
        tags[side] = v4 ? t->bucket4[place.bucket[side]].tag : t->bucket6[place.bucket[side]].tag;
        position[side] = free_position(tags[side], place.tag, &used[side]);
    }
    int side = position[0] < 0 || (position[1] >= 0 && used[1] < used[0]);
    if (position[side] < 0) {
        t->refused++;
        return NULL;
    }
    struct roost_ka *slot;
    if (v4) {
        struct roost_slot4 *s = &t->bucket4[place.bucket[side]].slot[position[side]];
        s->key = narrow(key);
        slot = &s->ka;
        t->used4++;
    } else {
        struct roost_slot6 *s = &t->bucket6[place.bucket[side]].slot[position[side]];
        s->key = *key;
        slot = &s->ka;
        t->used6++;
    }
    uint32_t ctl = (ka->ctl & ~0xff00u) | (uint32_t)++t->version << 8;
    __atomic_store_n(&slot->ctl, (ctl & ~0xffu) | ROOST_FREEZING, __ATOMIC_SEQ_CST);
    memcpy((char *)slot + sizeof(slot->ctl), (const char *)ka + sizeof(ka->ctl), sizeof(*ka) - sizeof(ka->ctl));
    __atomic_store_n(&tags[side][position[side]], place.tag, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->ctl, ctl, __ATOMIC_SEQ_CST);
    return slot;
}

void roost_table_rest_release(struct roost_table *t, uint32_t index) {
    memset(&t->rest[index], 0, sizeof(t->rest[index]));
    t->rest[index].snd_wnd = t->rest_free;
    t->rest_free = index;
    t->rest_used--;
}

uint32_t roost_table_rest_alloc(struct roost_table *t) {
    uint32_t index = t->rest_free;
    if (index != ROOST_NO_REST)
        t->rest_free = t->rest[index].snd_wnd;
    else if (t->rest_fresh < t->rest_slots)
        index = t->rest_fresh++;
    else
        return ROOST_NO_REST;
    t->rest_used++;
    return index;
}

uint32_t roost_table_position(const struct roost_table *t, const struct roost_ka *slot) {
    const char *at = (const char *)slot, *base4 = (const char *)t->bucket4;
    size_t size4 = (size_t)t->config.buckets4 * sizeof(struct roost_bucket4);
    if (base4 && at >= base4 && at < base4 + size4) {
        size_t bucket = (size_t)(at - base4) / sizeof(struct roost_bucket4);
        size_t i = (size_t)(at - (const char *)t->bucket4[bucket].slot) / sizeof(struct roost_slot4);
        return (uint32_t)(bucket * ROOST_BUCKET_SLOTS + i);
    }
    size_t bucket = (size_t)(at - (const char *)t->bucket6) / sizeof(struct roost_bucket6);
    size_t i = (size_t)(at - (const char *)t->bucket6[bucket].slot) / sizeof(struct roost_slot6);
    return (uint32_t)((t->config.buckets4 + bucket) * ROOST_BUCKET_SLOTS + i);
}

void roost_table_remove(struct roost_table *t, struct roost_ka *slot) {
    uint32_t position = roost_table_position(t, slot), bucket = position / ROOST_BUCKET_SLOTS;
    uint16_t *tag;
    if (bucket < t->config.buckets4) {
        tag = &t->bucket4[bucket].tag[position % ROOST_BUCKET_SLOTS];
        t->used4--;
    } else {
        tag = &t->bucket6[bucket - t->config.buckets4].tag[position % ROOST_BUCKET_SLOTS];
        t->used6--;
    }
    uint32_t rest = slot->rest;
    __atomic_store_n(tag, 0, __ATOMIC_SEQ_CST);
    roost_table_set_phase(slot, ROOST_FREE); /* a reader that still has the slot holds its packet */
    if (rest != ROOST_NO_REST && rest < t->rest_slots)
        roost_table_rest_release(t, rest);
}

void roost_table_set_phase(struct roost_ka *slot, enum roost_phase phase) {
    __atomic_store_n(&slot->ctl, (slot->ctl & ~0xffu) | phase, __ATOMIC_SEQ_CST);
}

void roost_table_publish(struct roost_ka *slot, const struct roost_ka *ka, enum roost_phase phase) {
    uint32_t ctl = (ka->ctl & ~0xffffu) | (slot->ctl & 0xff00u) | phase;
    memcpy((char *)slot + sizeof(slot->ctl), (const char *)ka + sizeof(ka->ctl), sizeof(*ka) - sizeof(ka->ctl));
    __atomic_store_n(&slot->ctl, ctl, __ATOMIC_SEQ_CST);
}

uint64_t roost_table_positions(const struct roost_table *t) {
    return ((uint64_t)t->config.buckets4 + t->config.buckets6) * ROOST_BUCKET_SLOTS;
}

struct roost_ka *roost_table_at(struct roost_table *t, uint64_t position, struct roost_key *key) {
    uint64_t bucket = position / ROOST_BUCKET_SLOTS;
    uint32_t i = position % ROOST_BUCKET_SLOTS;
    if (bucket < t->config.buckets4) {
        struct roost_bucket4 *b = &t->bucket4[bucket];
        if (!b->tag[i])
            return NULL;
        widen(&b->slot[i].key, key);
        return &b->slot[i].ka;
    }
    bucket -= t->config.buckets4;
    if (bucket >= t->config.buckets6 || !t->bucket6[bucket].tag[i])
        return NULL;
    *key = t->bucket6[bucket].slot[i].key;
    return &t->bucket6[bucket].slot[i].ka;
}

void roost_table_pair(struct roost_table *t, struct roost_rest *rest, const struct roost_ka *other) {
    rest->peer = roost_table_position(t, other);
    rest->peer_version = ROOST_VERSION(other->ctl);
}

struct roost_ka *roost_table_peer(struct roost_table *t, const struct roost_ka *slot, struct roost_key *key) {
    const struct roost_rest *rest = &t->rest[slot->rest];
    struct roost_ka *peer = roost_table_at(t, rest->peer, key);
    bool server = ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER;
    if (!peer || !(ROOST_FLAGS(peer->ctl) & ROOST_F_PAIRED) || ROOST_VERSION(peer->ctl) != rest->peer_version ||
        !(ROOST_FLAGS(peer->ctl) & ROOST_F_SERVER) != server)
        return NULL;
    if (peer->rest == ROOST_NO_REST) /* a client in SLEEP, or being frozen */
        return server ? peer : NULL;
    return t->rest[peer->rest].id == rest->id ? peer : NULL;
}

bool roost_table_orphan(struct roost_table *t, const struct roost_ka *slot) {
    struct roost_key key;
    if (!(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER))
        return false;
    const struct roost_ka *client = roost_table_peer(t, slot, &key);
    return !client || (client->rest != ROOST_NO_REST && t->rest[client->rest].peer != roost_table_position(t, slot));
}

uint64_t roost_table_adopt(struct roost_table *t, uint64_t *max_id) {
    uint64_t removed = 0, positions = roost_table_positions(t);
    struct roost_key key;
    t->used4 = t->used6 = t->rest_used = 0;
    t->rest_free = ROOST_NO_REST;
    t->rest_fresh = 0;
    *max_id = 0;
    for (uint64_t p = 0; p < positions; p++) { /* counts first: removing counts down */
        if (roost_table_at(t, p, &key)) {
            if (p < (uint64_t)t->config.buckets4 * ROOST_BUCKET_SLOTS)
                t->used4++;
            else
                t->used6++;
        }
    }
    /* A rest slot in use is one that a table slot names: the database row or the table is the owner, never the id. */
    for (uint64_t p = 0; p < positions; p++) {
        struct roost_ka *slot = roost_table_at(t, p, &key);
        if (!slot)
            continue;
        enum roost_phase phase = ROOST_PHASE(slot->ctl);
        bool has_rest = slot->rest != ROOST_NO_REST && slot->rest < t->rest_slots && t->rest[slot->rest].id;
        if (phase == ROOST_WAKING)
            roost_table_set_phase(slot, phase = has_rest ? ROOST_IDLE : ROOST_SLEEP);
        if (phase == ROOST_SLEEP)
            slot->rest = ROOST_NO_REST;
        if ((phase == ROOST_IDLE && has_rest) || phase == ROOST_SLEEP) {
            if (phase == ROOST_IDLE) {
                t->rest_used++;
                if (t->rest[slot->rest].id > *max_id)
                    *max_id = t->rest[slot->rest].id;
                if (slot->rest >= t->rest_fresh)
                    t->rest_fresh = slot->rest + 1;
            }
            t->version = (uint8_t)(ROOST_VERSION(slot->ctl));
            continue;
        }
        slot->rest = ROOST_NO_REST; /* the loop below frees it */
        roost_table_remove(t, slot);
        removed++;
    }
    for (uint64_t p = 0; p < positions; p++) {
        struct roost_ka *slot = roost_table_at(t, p, &key);
        if (slot && roost_table_orphan(t, slot)) {
            slot->rest = ROOST_NO_REST;
            t->rest_used--;
            roost_table_remove(t, slot);
            removed++;
        }
    }
    /* Rest slots below rest_fresh that nobody names are free. Mark the named ones first, in reserved. */
    for (uint32_t i = 0; i < t->rest_fresh; i++)
        t->rest[i].reserved = 0;
    for (uint64_t p = 0; p < positions; p++) {
        struct roost_ka *slot = roost_table_at(t, p, &key);
        if (slot && slot->rest != ROOST_NO_REST)
            t->rest[slot->rest].reserved = 1;
    }
    for (uint32_t i = t->rest_fresh; i-- > 0;) {
        if (t->rest[i].reserved)
            continue;
        memset(&t->rest[i], 0, sizeof(t->rest[i]));
        t->rest[i].snd_wnd = t->rest_free;
        t->rest_free = i;
    }
    return removed;
}
