// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cext/base/address.h"
#include "cext/base/count.h"

/* A slot's name: family, generation, position in it. */
#define NAME_V6 0x80000000u
#define NAME_GENERATION_SHIFT 29
#define NAME_OFFSET ((1u << NAME_GENERATION_SHIFT) - 1)

#define SPINS 1000 /* XDP holds a lock for less than a microsecond; unless its processor was taken from the machine */

bool roost_key_is_v4(const struct roost_key *key) {
    return roost_address_is_v4(key->client) && roost_address_is_v4(key->local);
}

/* Both kinds of slot as one: what lies before ka. */
struct far {
    uint16_t *port, *endpoint;
};

static struct far far_of(struct roost_ka *slot) {
    uint16_t *end = (uint16_t *)slot;
    return (struct far){end - 2, end - 1};
}

static uint32_t endpoint_of(const struct roost_ka *slot) {
    return ((const uint16_t *)slot)[-1];
}

static const struct roost_endpoint *near_of(const struct roost_table *t, const struct roost_ka *slot) {
    return &t->endpoints.entry[endpoint_of(slot) % t->endpoints.slots];
}

uint16_t roost_table_service(const struct roost_table *t, const struct roost_ka *slot) {
    return near_of(t, slot)->service;
}

/* The slots of one generation, and where they lie. */
static struct roost_bucket_head *head_of(const struct roost_generation *g, bool v4, uint32_t bucket) {
    return v4 ? &g->bucket4[bucket].head : &g->bucket6[bucket].head;
}

static struct roost_ka *slot_of(const struct roost_generation *g, bool v4, uint32_t bucket, uint32_t i) {
    return v4 ? &g->bucket4[bucket].slot[i].ka : &g->bucket6[bucket].slot[i].ka;
}

static size_t bucket_size(bool v4) {
    return v4 ? sizeof(struct roost_bucket4) : sizeof(struct roost_bucket6);
}

static struct roost_generation *current(struct roost_table *t, bool v4) {
    return v4 ? &t->gen4[ROOST_CURRENT(t->config.v4.in_use)] : &t->gen6[ROOST_CURRENT(t->config.v6.in_use)];
}

/* The far address of a slot, as a record has it. */
static void far_address(const struct roost_ka *slot, bool v4, uint8_t address[16]) {
    if (v4)
        roost_address_map_v4(address, (const char *)slot - 8);
    else
        memcpy(address, (const char *)slot - 20, 16);
}

static void key_of(const struct roost_table *t, const struct roost_ka *slot, bool v4, struct roost_key *key) {
    const struct roost_endpoint *near = near_of(t, slot);
    bool server = ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER;
    memcpy(server ? key->client : key->local, near->address, 16);
    far_address(slot, v4, server ? key->local : key->client);
    uint16_t port = ((const uint16_t *)slot)[-2];
    key->client_port = server ? near->port : port;
    key->local_port = server ? port : near->port;
}

static struct roost_place place_of(const struct roost_table *t, const struct roost_key *key, bool v4,
                                   uint32_t buckets) {
    return roost_place_of(v4 ? roost_hash4(&t->config, key) : roost_hash6(&t->config, key), buckets);
}

static struct roost_ka *find_in(struct roost_table *t, const struct roost_generation *g, bool v4,
                                const struct roost_key *key) {
    struct roost_place place = place_of(t, key, v4, g->buckets);
    struct roost_key found;
    for (int side = 0; side < 2; side++) {
        const struct roost_bucket_head *head = head_of(g, v4, place.bucket[side]);
        for (uint32_t i = 0; i < ROOST_BUCKET_SLOTS; i += 8) {
            uint64_t same = roost_same_tags(__atomic_load_n(&head->tags[i / 8], __ATOMIC_ACQUIRE), place.tag);
            for (; same; same &= same - 1) {
                struct roost_ka *slot = slot_of(g, v4, place.bucket[side], i + (uint32_t)__builtin_ctzll(same) / 8);
                key_of(t, slot, v4, &found);
                if (!memcmp(&found, key, sizeof(found)))
                    return slot;
            }
        }
    }
    return NULL;
}

uint32_t roost_table_places(struct roost_table *t, const struct roost_key *key,
                            struct roost_ka *slots[ROOST_PLACES_OF_KEY]) {
    bool v4 = roost_key_is_v4(key);
    const struct roost_generation *g = current(t, v4);
    struct roost_place place = place_of(t, key, v4, g->buckets);
    uint32_t count = 0;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < ROOST_BUCKET_SLOTS; i++) {
            slots[count] = roost_table_slot(head_of(g, v4, place.bucket[side]), v4, i);
            count += slots[count] != NULL;
        }
    return count;
}

void roost_table_prefetch(struct roost_table *t, const struct roost_key *key) {
    bool v4 = roost_key_is_v4(key);
    const struct roost_generation *g = current(t, v4);
    if (!g->memory)
        return;
    struct roost_place place = place_of(t, key, v4, g->buckets);
    for (int side = 0; side < 2; side++) {
        const char *head = (const char *)head_of(g, v4, place.bucket[side]);
        __builtin_prefetch(head);
        __builtin_prefetch(head + sizeof(struct roost_bucket_head) - 1); /* every second one of IPv6 is in two lines */
    }
}

struct roost_ka *roost_table_find(struct roost_table *t, const struct roost_key *key) {
    bool v4 = roost_key_is_v4(key);
    struct roost_generation *generation = v4 ? t->gen4 : t->gen6;
    for (int i = 0; i < ROOST_GENERATIONS; i++) { /* at most two; nothing moves while this thread looks */
        struct roost_ka *slot = generation[i].memory ? find_in(t, &generation[i], v4, key) : NULL;
        if (slot)
            return slot;
    }
    return NULL;
}

static void lock(struct roost_bucket_head *head) {
    for (int spins = 0;; spins++) {
        uint32_t expected = ROOST_LOCK_FREE;
        if (__atomic_compare_exchange_n(&head->lock, &expected, ROOST_LOCK_ENGINE, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return;
        if (spins > SPINS)
            sched_yield();
    }
}

static void unlock(struct roost_bucket_head *head) {
    __atomic_store_n(&head->lock, ROOST_LOCK_FREE, __ATOMIC_RELEASE);
}

/* In the order of their numbers: XDP gives up instead of waiting, and no other thread takes two. */
static void lock_both(const struct roost_generation *g, bool v4, const struct roost_place *place) {
    lock(head_of(g, v4, place->bucket[0]));
    if (place->bucket[1] != place->bucket[0])
        lock(head_of(g, v4, place->bucket[1]));
}

static void unlock_both(const struct roost_generation *g, bool v4, const struct roost_place *place) {
    unlock(head_of(g, v4, place->bucket[0]));
    if (place->bucket[1] != place->bucket[0])
        unlock(head_of(g, v4, place->bucket[1]));
}

/* Free position in a bucket, one of a key's home if there is; -1 when there is none or when the tag is there too often.
 * *used counts the taken. */
static int free_position(const struct roost_bucket_head *head, const struct roost_place *place, int side, int *used) {
    int position = -1, at_home = -1, same = 0;
    *used = 0;
    for (int i = 0; i < ROOST_BUCKET_SLOTS; i++) {
        same += head->tag[i] == place->tag;
        if (head->tag[i]) {
            ++*used;
            continue;
        }
        if (position < 0)
            position = i;
        if (at_home < 0 && !side && i >= place->home && i < place->home + ROOST_HOME_SLOTS)
            at_home = i;
    }
    if (same >= ROOST_SAME_TAG_MAX)
        return -1;
    return at_home < 0 ? position : at_home;
}

static uint64_t *used(struct roost_table *t, bool v4) {
    return v4 ? &t->used4 : &t->used6;
}

/* Puts a slot into a generation: the far end and endpoint are set. NULL: there is no room. */
static struct roost_ka *put(struct roost_table *t, const struct roost_generation *g, bool v4,
                            const struct roost_key *key, const struct roost_ka *ka, uint32_t endpoint) {
    struct roost_place place = place_of(t, key, v4, g->buckets);
    bool server = ROOST_FLAGS(ka->ctl) & ROOST_F_SERVER;
    const uint8_t *far = server ? key->local : key->client;
    int position[2], used[2];
    struct roost_ka *slot = NULL;
    lock_both(g, v4, &place);
    for (int side = 0; side < 2; side++)
        position[side] = free_position(head_of(g, v4, place.bucket[side]), &place, side, &used[side]);
    int side = position[0] < 0 || (position[1] >= 0 && roost_side((uint32_t)used[0], (uint32_t)used[1]));
    if (position[side] >= 0) {
        uint32_t at = (uint32_t)position[side];
        slot = slot_of(g, v4, place.bucket[side], at);
        /* Another version than the last owner's: a reader that began with its record must notice. */
        uint32_t ctl = (ka->ctl & ~0xff00u) | ((slot->ctl + 0x100u) & 0xff00u);
        __atomic_store_n(&slot->ctl, (ctl & ~0xffu) | ROOST_FREEZING, __ATOMIC_SEQ_CST);
        memcpy(v4 ? (char *)slot - 8 : (char *)slot - 20, v4 ? far + 12 : far, v4 ? 4 : 16);
        *far_of(slot).port = server ? key->local_port : key->client_port;
        *far_of(slot).endpoint = (uint16_t)endpoint;
        memcpy((char *)slot + sizeof(slot->ctl), (const char *)ka + sizeof(ka->ctl), sizeof(*ka) - sizeof(ka->ctl));
        __atomic_store_n(&head_of(g, v4, place.bucket[side])->tag[at], place.tag, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->ctl, ctl, __ATOMIC_SEQ_CST);
        roost_table_due(head_of(g, v4, place.bucket[side]), 0);
    }
    unlock_both(g, v4, &place);
    return slot;
}

struct roost_ka *roost_table_insert(struct roost_table *t, const struct roost_key *key, const struct roost_ka *ka,
                                    uint16_t service) {
    bool v4 = roost_key_is_v4(key), server = ROOST_FLAGS(ka->ctl) & ROOST_F_SERVER;
    struct roost_generation *g = current(t, v4);
    if (!g->memory)
        return NULL;
    uint32_t endpoint = roost_endpoints_take(&t->endpoints, server ? key->client : key->local,
                                             server ? key->client_port : key->local_port, service);
    struct roost_ka *slot = endpoint == ROOST_NO_ENDPOINT ? NULL : put(t, g, v4, key, ka, endpoint);
    if (!slot) {
        if (endpoint != ROOST_NO_ENDPOINT)
            roost_endpoints_drop(&t->endpoints, endpoint);
        t->refused++;
        return NULL;
    }
    roost_classes_hold(&t->classes, slot->class);
    ++*used(t, v4);
    if (!server)
        roost_counted_more(&t->counted, key->client, service);
    return slot;
}

bool roost_table_has_rest(const struct roost_ka *slot) {
    return !ROOST_IS_STORED(slot->rest) && !ROOST_IS_BORN(slot->rest);
}

void roost_table_rest_release(struct roost_table *t, uint32_t index) {
    memset(&t->rest[index], 0, sizeof(t->rest[index]));
    t->rest[index].snd_wnd = t->rest_free;
    t->rest_free = index;
    ROOST_ONE_LESS(t->rest_used);
}

uint32_t roost_table_rest_alloc(struct roost_table *t, bool to_wake) {
    uint32_t index = t->rest_free, wakers = t->rest_slots / ROOST_REST_WAKERS;
    if (!to_wake && t->rest_used + wakers >= t->rest_slots)
        return ROOST_NO_REST;
    if (index != ROOST_NO_REST)
        t->rest_free = t->rest[index].snd_wnd;
    else if (t->rest_fresh < t->rest_slots)
        index = t->rest_fresh++;
    else
        return ROOST_NO_REST;
    t->rest_used++;
    return index;
}

/* Which generation a slot lies in, and where there. */
struct location {
    const struct roost_generation *generation;
    uint32_t which, bucket, i;
    bool v4;
};

static bool lies_in(const struct roost_generation *g, bool v4, const struct roost_ka *slot, struct location *l) {
    const char *at = (const char *)slot, *base = g->memory;
    if (!base || at < base || at >= base + (size_t)g->buckets * bucket_size(v4))
        return false;
    size_t slot_size = v4 ? sizeof(struct roost_slot4) : sizeof(struct roost_slot6);
    size_t offset = (size_t)(at - base) % bucket_size(v4) - sizeof(struct roost_bucket_head);
    l->generation = g;
    l->bucket = (uint32_t)((size_t)(at - base) / bucket_size(v4));
    l->i = (uint32_t)(offset / slot_size);
    l->v4 = v4;
    return true;
}

static struct location locate(const struct roost_table *t, const struct roost_ka *slot) {
    struct location l = {0};
    for (l.which = 0; l.which < ROOST_GENERATIONS; l.which++)
        if (lies_in(&t->gen4[l.which], true, slot, &l) || lies_in(&t->gen6[l.which], false, slot, &l))
            return l;
    abort(); /* a pointer to no slot: going on would overwrite another connection's */
}

/* FREE first, which holds packets: with the tag gone the slot can be taken. */
static void clear(struct roost_table *t, struct roost_ka *slot, const struct location *l) {
    uint32_t endpoint = endpoint_of(slot), class = slot->class;
    roost_table_set_phase(slot, ROOST_FREE);
    __atomic_store_n(&head_of(l->generation, l->v4, l->bucket)->tag[l->i], 0, __ATOMIC_SEQ_CST);
    roost_endpoints_drop(&t->endpoints, endpoint);
    roost_classes_drop(&t->classes, class);
    --*used(t, l->v4); /* below 0, when XDP put it in: births.c adds what it did */
}

void roost_table_remove(struct roost_table *t, struct roost_ka *slot) {
    struct location l = locate(t, slot);
    uint32_t rest = roost_table_has_rest(slot) ? slot->rest : ROOST_NO_REST;
    if (!(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER)) {
        uint8_t client[16];
        far_address(slot, l.v4, client);
        roost_counted_less(&t->counted, client, roost_table_service(t, slot));
    }
    clear(t, slot, &l);
    if (rest < t->rest_slots)
        roost_table_rest_release(t, rest);
}

void roost_table_set_phase(struct roost_ka *slot, enum roost_phase phase) {
    __atomic_store_n(&slot->ctl, (slot->ctl & ~0xffu) | phase, __ATOMIC_SEQ_CST);
}

void roost_table_publish(struct roost_ka *slot, const struct roost_ka *ka, enum roost_phase phase) {
    uint32_t ctl = (ka->ctl & ~0xffffu) | (slot->ctl & 0xff00u) | phase;
    struct roost_ka whole = *ka;
    whole.class = slot->class;
    memcpy((char *)slot + sizeof(slot->ctl), (const char *)&whole + sizeof(ka->ctl), sizeof(*ka) - sizeof(ka->ctl));
    __atomic_store_n(&slot->ctl, ctl, __ATOMIC_SEQ_CST);
}

void roost_table_set_class(struct roost_table *t, struct roost_ka *slot, uint32_t class) {
    struct location l = locate(t, slot);
    roost_classes_drop(&t->classes, slot->class);
    slot->class = (uint16_t) class;
    roost_table_due(head_of(l.generation, l.v4, l.bucket), 0);
}

static const struct roost_generation *nth(const struct roost_table *t, int n, bool *v4) {
    *v4 = n < ROOST_GENERATIONS;
    return *v4 ? &t->gen4[n] : &t->gen6[n - ROOST_GENERATIONS];
}

uint64_t roost_table_buckets(const struct roost_table *t) {
    uint64_t buckets = 0;
    bool v4;
    for (int n = 0; n < 2 * ROOST_GENERATIONS; n++)
        buckets += nth(t, n, &v4)->buckets;
    return buckets;
}

struct roost_bucket_head *roost_table_bucket(const struct roost_table *t, uint64_t bucket) {
    bool v4;
    for (int n = 0; n < 2 * ROOST_GENERATIONS; n++) {
        const struct roost_generation *g = nth(t, n, &v4);
        if (bucket < g->buckets)
            return head_of(g, v4, (uint32_t)bucket);
        bucket -= g->buckets;
    }
    return NULL;
}

struct roost_stretch roost_table_stretch(const struct roost_table *t, uint64_t bucket) {
    bool v4;
    for (int n = 0; n < 2 * ROOST_GENERATIONS; n++) {
        const struct roost_generation *g = nth(t, n, &v4);
        if (bucket < g->buckets)
            return (struct roost_stretch){(char *)head_of(g, v4, (uint32_t)bucket), bucket_size(v4),
                                          g->buckets - bucket, v4};
        bucket -= g->buckets;
    }
    return (struct roost_stretch){0};
}

struct roost_ka *roost_table_slot(struct roost_bucket_head *bucket, bool v4, uint32_t i) {
    if (!__atomic_load_n(&bucket->tag[i], __ATOMIC_ACQUIRE))
        return NULL;
    return v4 ? &((struct roost_bucket4 *)bucket)->slot[i].ka : &((struct roost_bucket6 *)bucket)->slot[i].ka;
}

void roost_table_key(const struct roost_table *t, const struct roost_ka *slot, bool v4, struct roost_key *key) {
    key_of(t, slot, v4, key);
}

void roost_table_due(struct roost_bucket_head *head, uint32_t due_s) {
    uint32_t now = __atomic_load_n(&head->due_s, __ATOMIC_RELAXED);
    while (due_s < now &&
           !__atomic_compare_exchange_n(&head->due_s, &now, due_s, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

uint64_t roost_table_positions(const struct roost_table *t) {
    return roost_table_buckets(t) * ROOST_BUCKET_SLOTS;
}

uint64_t roost_table_slots(const struct roost_table *t, bool v4) {
    const struct roost_generations *g = v4 ? &t->config.v4 : &t->config.v6;
    return (uint64_t)g->buckets[ROOST_CURRENT(g->in_use)] * ROOST_BUCKET_SLOTS;
}

static struct roost_ka *taken(struct roost_table *t, const struct roost_generation *g, bool v4, uint64_t position,
                              struct roost_key *key) {
    uint32_t bucket = (uint32_t)(position / ROOST_BUCKET_SLOTS), i = position % ROOST_BUCKET_SLOTS;
    if (bucket >= g->buckets || !__atomic_load_n(&head_of(g, v4, bucket)->tag[i], __ATOMIC_ACQUIRE))
        return NULL;
    struct roost_ka *slot = slot_of(g, v4, bucket, i);
    key_of(t, slot, v4, key);
    return slot;
}

struct roost_ka *roost_table_at(struct roost_table *t, uint64_t position, struct roost_key *key) {
    bool v4;
    for (int n = 0; n < 2 * ROOST_GENERATIONS; n++) {
        const struct roost_generation *g = nth(t, n, &v4);
        uint64_t here = (uint64_t)g->buckets * ROOST_BUCKET_SLOTS;
        if (position < here)
            return taken(t, g, v4, position, key);
        position -= here;
    }
    return NULL;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first tag is a word's lowest byte");

/* The first slot in use from *i on. */
static bool first_in_use(const struct roost_bucket_head *head, uint32_t *i) {
    uint64_t wanted = ~0ULL << *i % 8 * 8;
    for (uint32_t word = *i / 8; word < ROOST_BUCKET_SLOTS / 8; word++, wanted = ~0ULL) {
        uint64_t tags = __atomic_load_n(&head->tags[word], __ATOMIC_ACQUIRE) & wanted;
        if (tags) {
            *i = word * 8 + (uint32_t)__builtin_ctzll(tags) / 8;
            return true;
        }
    }
    return false;
}

/* The first position from p on that may be in use, at most end. */
static uint64_t skip_empty(const struct roost_table *t, uint64_t p, uint64_t end) {
    while (p < end) {
        uint64_t bucket = p / ROOST_BUCKET_SLOTS;
        uint32_t i = p % ROOST_BUCKET_SLOTS;
        struct roost_stretch s = roost_table_stretch(t, bucket);
        if (!s.buckets)
            return end;
        for (; s.buckets && p < end; s.buckets--, s.first += s.bucket_size) {
            if (first_in_use((struct roost_bucket_head *)s.first, &i)) {
                p = bucket * ROOST_BUCKET_SLOTS + i;
                return p < end ? p : end;
            }
            i = 0;
            p = ++bucket * ROOST_BUCKET_SLOTS;
        }
    }
    return end;
}

struct roost_ka *roost_table_walk(struct roost_table *t, uint64_t *p, uint64_t end, struct roost_key *key) {
    while (*p < end) {
        struct roost_ka *slot = roost_table_at(t, (*p)++, key);
        if (slot)
            return slot;
        *p = skip_empty(t, *p, end);
    }
    return NULL;
}

uint64_t roost_table_position(const struct roost_table *t, const struct roost_ka *slot) {
    struct location l = locate(t, slot);
    uint64_t before = 0;
    bool v4;
    for (int n = 0; n < 2 * ROOST_GENERATIONS; n++) {
        const struct roost_generation *g = nth(t, n, &v4);
        if (g == l.generation)
            break;
        before += g->buckets;
    }
    return (before + l.bucket) * ROOST_BUCKET_SLOTS + l.i;
}

uint32_t roost_table_name(const struct roost_table *t, const struct roost_ka *slot) {
    struct location l = locate(t, slot);
    return (l.v4 ? 0 : NAME_V6) | l.which << NAME_GENERATION_SHIFT | (l.bucket * ROOST_BUCKET_SLOTS + l.i);
}

struct roost_ka *roost_table_named(struct roost_table *t, uint32_t name, struct roost_key *key) {
    bool v4 = !(name & NAME_V6);
    uint32_t which = (name & ~NAME_V6) >> NAME_GENERATION_SHIFT;
    return taken(t, v4 ? &t->gen4[which] : &t->gen6[which], v4, name & NAME_OFFSET, key);
}

void roost_table_begin(struct roost_table *t, bool v4, uint32_t which, void *memory, uint32_t buckets) {
    struct roost_generations *told = v4 ? &t->config.v4 : &t->config.v6;
    struct roost_generation *g = v4 ? &t->gen4[which] : &t->gen6[which];
    bool first = !current(t, v4)->memory;
    g->memory = memory;
    g->buckets = buckets;
    told->buckets[which] = buckets;
    told->in_use = which | (first ? 0 : (ROOST_CURRENT(told->in_use) + 1) << 8);
}

bool roost_table_is_previous(const struct roost_table *t, const struct roost_ka *slot) {
    struct location l = locate(t, slot);
    return l.which != ROOST_CURRENT(l.v4 ? t->config.v4.in_use : t->config.v6.in_use);
}

struct roost_ka *roost_table_move(struct roost_table *t, const struct roost_key *key, struct roost_ka *slot,
                                  struct roost_rest *peer) {
    struct location l = locate(t, slot);
    struct roost_ka copy = *slot; /* XDP may note meanwhile that the client was heard: that much is lost */
    uint32_t endpoint = endpoint_of(slot);
    struct roost_ka *moved = put(t, current(t, l.v4), l.v4, key, &copy, endpoint);
    if (!moved)
        return NULL;
    roost_endpoints_hold(&t->endpoints, endpoint);
    roost_classes_hold(&t->classes, moved->class);
    ++*used(t, l.v4);
    if (peer) /* before the name that it has is no slot's any more: adoption mends it after a kill in between */
        roost_table_pair(t, peer, moved);
    clear(t, slot, &l);
    return moved;
}

bool roost_table_previous_is_empty(struct roost_table *t, bool v4) {
    uint32_t which = (ROOST_PREVIOUS(v4 ? t->config.v4.in_use : t->config.v6.in_use) - 1) % ROOST_GENERATIONS;
    const struct roost_generation *g = v4 ? &t->gen4[which] : &t->gen6[which];
    uint64_t any = 0;
    for (uint32_t bucket = 0; bucket < g->buckets && !any; bucket++) {
        struct roost_bucket_head *head = head_of(g, v4, bucket);
        lock(head); /* XDP looks under the lock whether this is still the table that clients are born into */
        for (int i = 0; i < ROOST_BUCKET_SLOTS / 8; i++)
            any |= head->tags[i];
        unlock(head);
    }
    return !any;
}

void *roost_table_end_previous(struct roost_table *t, bool v4, uint32_t *which) {
    struct roost_generations *told = v4 ? &t->config.v4 : &t->config.v6;
    *which = (ROOST_PREVIOUS(told->in_use) - 1) % ROOST_GENERATIONS;
    struct roost_generation *g = v4 ? &t->gen4[*which] : &t->gen6[*which];
    void *memory = g->memory;
    told->in_use = ROOST_CURRENT(told->in_use);
    told->buckets[*which] = 0;
    g->memory = NULL;
    g->buckets = 0;
    return memory;
}

uint64_t roost_table_buckets_max(void) {
    return NAME_OFFSET / ROOST_BUCKET_SLOTS;
}

void roost_table_pair(struct roost_table *t, struct roost_rest *rest, const struct roost_ka *other) {
    rest->peer = roost_table_name(t, other);
    rest->peer_version = ROOST_VERSION(other->ctl);
}

struct roost_ka *roost_table_peer(struct roost_table *t, const struct roost_ka *slot, struct roost_key *key) {
    const struct roost_rest *rest = &t->rest[slot->rest];
    struct roost_ka *peer = roost_table_named(t, rest->peer, key);
    bool server = ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER;
    if (!peer || !(ROOST_FLAGS(peer->ctl) & ROOST_F_PAIRED) || ROOST_VERSION(peer->ctl) != rest->peer_version ||
        !(ROOST_FLAGS(peer->ctl) & ROOST_F_SERVER) != server)
        return NULL;
    if (ROOST_IS_STORED(peer->rest)) /* a client in SLEEP, or being frozen */
        return server ? peer : NULL;
    return t->rest[peer->rest].id == rest->id ? peer : NULL;
}

bool roost_table_orphan(struct roost_table *t, const struct roost_ka *slot) {
    struct roost_key key;
    if (!(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER))
        return false;
    const struct roost_ka *client = roost_table_peer(t, slot, &key);
    return !client || (!ROOST_IS_STORED(client->rest) && t->rest[client->rest].peer != roost_table_name(t, slot));
}

/* A dead engine's locks. XDP's are let go of by XDP. */
static void break_locks(struct roost_table *t) {
    bool v4;
    for (int n = 0; n < 2 * ROOST_GENERATIONS; n++) {
        const struct roost_generation *g = nth(t, n, &v4);
        for (uint32_t bucket = 0; bucket < g->buckets; bucket++) {
            uint32_t expected = ROOST_LOCK_ENGINE;
            __atomic_compare_exchange_n(&head_of(g, v4, bucket)->lock, &expected, ROOST_LOCK_FREE, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
        }
    }
}

/* What a slot of an adopted table is worth: its phase from now on, or FREE. */
static enum roost_phase adopted_phase(const struct roost_table *t, const struct roost_ka *slot) {
    enum roost_phase phase = ROOST_PHASE(slot->ctl);
    if (ROOST_IS_BORN(slot->rest)) /* FREEZING: XDP puts it in just now */
        return phase == ROOST_IDLE || phase == ROOST_FREEZING ? phase : ROOST_FREE;
    bool has_rest = slot->rest < t->rest_slots && t->rest[slot->rest].id;
    if (phase == ROOST_WAKING)
        return has_rest ? ROOST_IDLE : ROOST_SLEEP;
    return phase == ROOST_SLEEP || (phase == ROOST_IDLE && has_rest) ? phase : ROOST_FREE;
}

/* A slot's class is one of its service's, or none: a pair's leg to a server on this machine. What else is there, an earlier
 * layout or a predecessor that was killed has left; the service's default takes its place. */
static void adopt_class(struct roost_table *t, struct roost_ka *slot) {
    uint16_t service = near_of(t, slot)->service;
    bool none = ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER && slot->class == ROOST_CLASS_NONE;
    if (!none && !roost_classes_fit(&t->classes, slot->class, service))
        slot->class = service < ROOST_CLASS_SERVICES ? service : ROOST_CLASS_NONE;
    roost_classes_hold(&t->classes, slot->class);
}

/* What is there, before any of it is removed. */
static int count_slots(struct roost_table *t) {
    struct roost_key key;
    struct roost_ka *slot;
    uint64_t p = 0;
    t->used4 = t->used6 = t->rest_used = 0;
    memset(t->endpoints.uses, 0, t->endpoints.slots * sizeof(*t->endpoints.uses));
    memset(t->classes.uses, 0, sizeof(t->classes.uses));
    while ((slot = roost_table_walk(t, &p, UINT64_MAX, &key))) {
        adopt_class(t, slot);
        ++*used(t, locate(t, slot).v4);
        if (ROOST_IS_BORN(slot->rest)) /* more may be coming */
            roost_endpoints_pin(&t->endpoints, endpoint_of(slot));
        else
            roost_endpoints_hold(&t->endpoints, endpoint_of(slot));
    }
    roost_endpoints_settle(&t->endpoints);
    return roost_classes_settle(&t->classes);
}

/* The slot in the previous generation of which this is a copy, or NULL: the predecessor was killed while it moved it. */
static struct roost_ka *original_of(struct roost_table *t, const struct roost_ka *slot, const struct roost_key *key) {
    bool v4 = roost_key_is_v4(key);
    const struct roost_generations *told = v4 ? &t->config.v4 : &t->config.v6;
    uint32_t previous = ROOST_PREVIOUS(told->in_use);
    if (!previous || roost_table_is_previous(t, slot))
        return NULL;
    struct roost_ka *original = find_in(t, v4 ? &t->gen4[previous - 1] : &t->gen6[previous - 1], v4, key);
    return original && ROOST_PHASE(original->ctl) != ROOST_FREE ? original : NULL; /* FREE: it has moved */
}

/* The pair that names a copy names the original again. */
static void name_original(struct roost_table *t, uint32_t copy, const struct roost_ka *original) {
    struct roost_key key;
    const struct roost_ka *slot;
    uint64_t p = 0;
    while ((slot = roost_table_walk(t, &p, UINT64_MAX, &key)))
        if (ROOST_FLAGS(slot->ctl) & ROOST_F_PAIRED && slot->rest < t->rest_slots && t->rest[slot->rest].peer == copy)
            roost_table_pair(t, &t->rest[slot->rest], original);
}

/* A predecessor that was killed while it woke this one, or put it to sleep, may have left it its rest slot. */
static void name_row(const struct roost_table *t, struct roost_ka *slot) {
    bool has_rest = slot->rest < t->rest_slots && t->rest[slot->rest].id;
    if (!ROOST_IS_STORED(slot->rest))
        slot->rest = has_rest ? ROOST_ROW(t->rest[slot->rest].id) : ROOST_NO_REST;
}

static uint64_t adopt_slots(struct roost_table *t, uint64_t *max_id) {
    uint64_t removed = 0, p = 0;
    struct roost_key key;
    struct roost_ka *slot;
    while ((slot = roost_table_walk(t, &p, UINT64_MAX, &key))) {
        /* An IPv4-mapped address of an IPv6 packet, which XDP once took for a client's: no look-up finds the slot. */
        bool misplaced = roost_key_is_v4(&key) != locate(t, slot).v4;
        struct roost_ka *original = misplaced ? NULL : original_of(t, slot, &key);
        if (original) {
            name_original(t, roost_table_name(t, slot), original);
            slot->rest = ROOST_NO_REST;
            roost_table_remove(t, slot);
            continue;
        }
        enum roost_phase phase = misplaced ? ROOST_FREE : adopted_phase(t, slot);
        if (phase == ROOST_FREE) { /* its rest slot is named by no slot then, and freed below */
            slot->rest = ROOST_NO_REST;
            roost_table_remove(t, slot);
            removed++;
            continue;
        }
        if (ROOST_IS_BORN(slot->rest)) {
            t->born++;
            continue;
        }
        if (phase != ROOST_PHASE(slot->ctl))
            roost_table_set_phase(slot, phase);
        if (phase == ROOST_SLEEP) {
            name_row(t, slot);
            continue;
        }
        t->rest_used++;
        if (t->rest[slot->rest].id > *max_id)
            *max_id = t->rest[slot->rest].id;
        if (slot->rest >= t->rest_fresh)
            t->rest_fresh = slot->rest + 1;
    }
    return removed;
}

static uint64_t remove_orphans(struct roost_table *t) {
    uint64_t removed = 0, p = 0;
    struct roost_key key;
    struct roost_ka *slot;
    while ((slot = roost_table_walk(t, &p, UINT64_MAX, &key))) {
        if (roost_table_orphan(t, slot)) {
            slot->rest = ROOST_NO_REST;
            ROOST_ONE_LESS(t->rest_used);
            roost_table_remove(t, slot);
            removed++;
        }
    }
    return removed;
}

/* Rest slots below rest_fresh that no slot names are free. named: a bit for each of them, all 0. */
static void free_unnamed_rests(struct roost_table *t, uint64_t *named) {
    struct roost_key key;
    const struct roost_ka *taken;
    uint64_t p = 0;
    while ((taken = roost_table_walk(t, &p, UINT64_MAX, &key)))
        if (roost_table_has_rest(taken))
            named[taken->rest / 64] |= 1ULL << taken->rest % 64;
    for (uint32_t i = t->rest_fresh; i-- > 0;) {
        if (named[i / 64] >> i % 64 & 1)
            continue;
        memset(&t->rest[i], 0, sizeof(t->rest[i]));
        t->rest[i].snd_wnd = t->rest_free;
        t->rest_free = i;
    }
}

int64_t roost_table_adopt(struct roost_table *t, uint64_t *max_id) {
    t->rest_free = ROOST_NO_REST;
    t->rest_fresh = 0;
    t->born = 0;
    *max_id = 0;
    break_locks(t);
    if (count_slots(t))
        return -ENOMEM;
    uint64_t removed = adopt_slots(t, max_id);
    removed += remove_orphans(t);
    uint64_t *named = calloc((size_t)t->rest_fresh / 64 + 1, sizeof(*named));
    if (!named)
        return -ENOMEM;
    free_unnamed_rests(t, named);
    free(named);
    return (int64_t)removed;
}
