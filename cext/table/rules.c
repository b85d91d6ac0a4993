// SPDX-License-Identifier: Apache-2.0
#include "rules.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 129 /* networks of which each lies in the one before: of 0 to 128 bits */

typedef unsigned __int128 number;

static number number_of(const uint8_t address[16]) {
    uint64_t high, low;
    memcpy(&high, address, 8);
    memcpy(&low, address + 8, 8);
    return (number)__builtin_bswap64(high) << 64 | __builtin_bswap64(low);
}

/* The bits that a network leaves open. */
static number open_bits(uint8_t bits) {
    return bits < 128 ? ~(number)0 >> bits : 0;
}

static uint64_t section_of(uint16_t service, uint32_t local, uint8_t group) {
    return (uint64_t)service << 40 | (uint64_t)local << 8 | group;
}

static int compare_local(uint16_t service, const uint8_t address[16], uint16_t other_service, const uint8_t other[16]) {
    return service != other_service ? service - other_service : memcmp(address, other, 16);
}

int roost_rules_compare(const void *one, const void *other) { /* what lies in a network follows it */
    const struct roost_rule *a = one, *b = other;
    int by_local = compare_local(a->service, a->local, b->service, b->local);
    if (by_local || a->group != b->group)
        return by_local ? by_local : a->group - b->group;
    int by_network = memcmp(a->network, b->network, sizeof(a->network));
    return by_network ? by_network : a->bits - b->bits;
}

int roost_rules_sort(struct roost_rule *rule, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (!rule[i].service || rule[i].service >= ROOST_CLASS_SERVICES || rule[i].bits > 128 ||
            number_of(rule[i].network) & open_bits(rule[i].bits))
            return -EINVAL;
    qsort(rule, count, sizeof(*rule), roost_rules_compare);
    for (uint32_t i = 1; i < count; i++)
        if (!roost_rules_compare(&rule[i - 1], &rule[i]))
            return -EINVAL;
    return 0;
}

/* The ranges of one section, while they are made. */
struct making {
    struct roost_rule_range *range;
    uint32_t count;
    struct {
        number last; /* address */
        uint32_t value;
    } open[DEPTH]; /* networks that have the address where the making is, the longest last */
    int depth;
};

static uint32_t innermost(const struct making *m) {
    return m->depth ? m->open[m->depth - 1].value : ROOST_NO_RULE;
}

/* From this address on the innermost network counts. */
static void begin_range(struct making *m, number from) {
    if (m->count && m->range[m->count - 1].from == from)
        m->count--;
    if (innermost(m) != (m->count ? m->range[m->count - 1].value : ROOST_NO_RULE))
        m->range[m->count++] = (struct roost_rule_range){.from = from, .value = innermost(m)};
}

/* The networks that end before this address. */
static void leave(struct making *m, number before, bool all) {
    while (m->depth && (all || m->open[m->depth - 1].last < before)) {
        number last = m->open[--m->depth].last;
        if (last != ~(number)0)
            begin_range(m, last + 1);
    }
}

static bool same_section(const struct roost_rule *a, const struct roost_rule *b) {
    return !compare_local(a->service, a->local, b->service, b->local) && a->group == b->group;
}

/* Of one section. How many rules there were of it. */
static uint32_t make(struct making *m, const struct roost_rule *rule, uint32_t count) {
    uint32_t i = 0;
    for (; i < count && same_section(&rule[i], &rule[0]); i++) {
        number from = number_of(rule[i].network);
        leave(m, from, false);
        m->open[m->depth].last = from | open_bits(rule[i].bits);
        m->open[m->depth++].value = rule[i].policy;
        begin_range(m, from);
    }
    leave(m, 0, true);
    return i;
}

bool roost_rule_is_of_any(const struct roost_rule *rule) {
    static const uint8_t any[16];
    return !memcmp(rule->local, any, sizeof(any));
}

/* The number of the local address of a rule, which is the last one that has a number or the next one. */
static uint32_t number_local(struct roost_rules *rules, const struct roost_rule *rule) {
    const struct roost_rule_local *last = rules->locals ? &rules->local[rules->locals - 1] : NULL;
    if (roost_rule_is_of_any(rule))
        return 0;
    if (!last || compare_local(last->service, last->address, rule->service, rule->local)) {
        struct roost_rule_local *next = &rules->local[rules->locals++];
        next->service = rule->service;
        memcpy(next->address, rule->local, sizeof(next->address));
    }
    return rules->locals;
}

int roost_rules_make(struct roost_rules *rules, const struct roost_rule *rule, uint32_t count) {
    void *range = NULL;
    memset(rules, 0, sizeof(*rules));
    if (!count)
        return 0;
    rules->section = malloc((count + 1ULL) * sizeof(*rules->section));
    rules->local = malloc((uint64_t)count * sizeof(*rules->local));
    if (!rules->section || !rules->local ||
        posix_memalign(&range, _Alignof(struct roost_rule_range), 2ULL * count * sizeof(*rules->range))) {
        roost_rules_free(rules);
        return -ENOMEM;
    }
    rules->range = range;
    uint32_t ranges = 0;
    for (uint32_t i = 0; i < count;) {
        struct making m = {.range = rules->range + ranges};
        rules->section[rules->sections++] = (struct roost_rule_section){
            .of = section_of(rule[i].service, number_local(rules, &rule[i]), rule[i].group), .first = ranges};
        i += make(&m, &rule[i], count - i);
        ranges += m.count;
    }
    rules->section[rules->sections].first = ranges;
    return 0;
}

void roost_rules_name(struct roost_rules *rules, const uint32_t *value) {
    uint32_t ranges = rules->sections ? rules->section[rules->sections].first : 0;
    for (uint32_t i = 0; i < ranges; i++)
        if (rules->range[i].value != ROOST_NO_RULE)
            rules->range[i].value = value[rules->range[i].value];
}

void roost_rules_free(struct roost_rules *rules) {
    free(rules->range);
    free(rules->section);
    free(rules->local);
    memset(rules, 0, sizeof(*rules));
}

static int against_section(const void *of, const void *section) {
    uint64_t wanted = *(const uint64_t *)of, has = ((const struct roost_rule_section *)section)->of;
    return wanted < has ? -1 : wanted > has;
}

static const struct roost_rule_section *section(const struct roost_rules *rules, uint64_t of) {
    return bsearch(&of, rules->section, rules->sections, sizeof(*rules->section), against_section);
}

static int against_local(const void *one, const void *other) {
    const struct roost_rule_local *a = one, *b = other;
    return compare_local(a->service, a->address, b->service, b->address);
}

/* 0: the address has no rules of its own. */
static uint32_t find_local(const struct roost_rules *rules, uint16_t service, const uint8_t address[16]) {
    struct roost_rule_local wanted = {.service = service};
    memcpy(wanted.address, address, sizeof(wanted.address));
    const struct roost_rule_local *found =
        bsearch(&wanted, rules->local, rules->locals, sizeof(*rules->local), against_local);
    return found ? (uint32_t)(found - rules->local) + 1 : 0;
}

uint32_t roost_rules_find(const struct roost_rules *rules, const struct roost_key *key, uint16_t service,
                          uint8_t group) {
    if (!rules->sections)
        return ROOST_NO_RULE;
    uint32_t local = find_local(rules, service, key->local);
    const struct roost_rule_section *in = section(rules, section_of(service, local, group));
    if (!in && group)
        in = section(rules, section_of(service, local, 0));
    if (!in)
        return ROOST_NO_RULE;
    /* The first of the section, and the one behind that which has the client. */
    uint32_t first = in->first, behind = first, end = in[1].first;
    number address = number_of(key->client);
    while (behind < end) {
        uint32_t middle = behind + (end - behind) / 2;
        if (rules->range[middle].from <= address)
            behind = middle + 1;
        else
            end = middle;
    }
    return behind == first ? ROOST_NO_RULE : rules->range[behind - 1].value;
}
