// SPDX-License-Identifier: Apache-2.0
/*
 * Rules by the network of a client: in force at once for what comes, and for what exists by a round of the sweep, which gives each
 * slot and each awake connection its class. XDP, which gives newborn ones theirs, is told before that round.
 */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "conn.h"

#define GRACE_NS 50000000 /* where the kernel refuses membarrier: longer than a packet is in XDP */
#define COUNTED_AT_ONCE 4096

/* What a call brings, checked and sorted. */
struct brought {
    struct roost_rule *rule;
    uint32_t count;
    struct roost_rules ranges; /* to policies */
    uint32_t *class;           /* of each policy */
};

static void release(struct brought *b) {
    free(b->rule);
    free(b->class);
    roost_rules_free(&b->ranges);
}

static int take(struct brought *b, const struct roost_rule *rule, uint32_t count, const struct roost_class *policy,
                uint32_t policies, struct roost_reason *why) {
    if (count > ROOST_RULES_MAX || policies > ROOST_RULE_CLASSES)
        return roost_complain(why, ENOSPC, "%u networks of services, %u policies: there is room for %u and %u", count,
                              policies, (unsigned)ROOST_RULES_MAX, (unsigned)ROOST_RULE_CLASSES);
    b->count = count;
    b->rule = malloc((count + 1ULL) * sizeof(*b->rule));
    b->class = malloc((policies + 1ULL) * sizeof(*b->class));
    if (!b->rule || !b->class)
        return roost_complain(why, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        if (rule[i].policy >= policies || policy[rule[i].policy].service != rule[i].service)
            return roost_complain(why, EINVAL, "a network has no policy of its service");
        b->rule[i] = rule[i];
    }
    if (roost_rules_sort(b->rule, count))
        return roost_complain(why, EINVAL, "a network is none, or is given twice");
    return roost_rules_make(&b->ranges, b->rule, count) ? roost_complain(why, ENOMEM, "out of memory") : 0;
}

static int put_in_force(struct roost_engine *e, struct brought *b, const struct roost_class *policy,
                        uint32_t policies) {
    roost_lock(e);
    int error = roost_classes_rule(&e->table.classes, policy, policies, b->class);
    if (!error) {
        roost_rules_name(&b->ranges, b->class);
        roost_rules_free(&e->rules.in_force);
        e->rules.in_force = b->ranges;
        memset(&b->ranges, 0, sizeof(b->ranges));
        e->rules.walking = false; /* what is retired now may be in slots that the round has passed */
    }
    roost_unlock(e);
    return error;
}

static struct roost_rule_key key_of(const struct roost_rule *rule) {
    struct roost_rule_key key = {.bits = ROOST_RULE_BITS + rule->bits, .service = rule->service};
    memcpy(key.network, rule->network, sizeof(key.network));
    return key;
}

/* A newborn has no group, and its service listens at one address, of which the rules are given for none. */
static bool is_for_newborn(const struct roost_rule *rule) {
    return !rule->group && roost_rule_is_of_any(rule);
}

/* Not at once: meanwhile a newborn gets its class by the rules from before, by these, or by a shorter network's. The round that
 * follows finds it. How many networks there was no memory for. */
static int tell_xdp(struct roost_engine *e, struct brought *b) {
    int map = e->path.map_fd[ROOST_MAP_rules], told = 0, untold = 0;
    for (uint32_t i = 0; i < e->rules.told_count; i++) {
        struct roost_rule_key key = key_of(&e->rules.told[i]);
        if (is_for_newborn(&e->rules.told[i]) &&
            !bsearch(&e->rules.told[i], b->rule, b->count, sizeof(*b->rule), roost_rules_compare))
            bpf_map_delete_elem(map, &key);
    }
    for (uint32_t i = 0; i < b->count; i++) {
        struct roost_rule_key key = key_of(&b->rule[i]);
        if (!is_for_newborn(&b->rule[i]))
            continue;
        told++;
        untold += bpf_map_update_elem(map, &key, &b->class[b->rule[i].policy], BPF_ANY) != 0;
    }
    e->path.births_gate->ruled = told > 0;
    free(e->rules.told);
    e->rules.told = b->rule;
    e->rules.told_count = b->count;
    b->rule = NULL;
    return untold;
}

/* Afterwards no packet is in XDP that has seen what was there before. */
static void wait_for_xdp(void) {
    const struct timespec grace = {.tv_nsec = GRACE_NS};
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0))
        nanosleep(&grace, NULL);
}

static void begin_round(struct roost_engine *e) {
    roost_lock(e);
    e->rules.walking = true;
    roost_class_round(e);
    roost_unlock(e);
}

int roost_rules_set(roost_engine *e, const struct roost_rule *rules, uint32_t count, const struct roost_class *policies,
                    uint32_t policies_count, uint32_t *class, struct roost_reason *why) {
    struct brought b = {0};
    int error = take(&b, rules, count, policies, policies_count, why);
    if (!error && put_in_force(e, &b, policies, policies_count))
        error =
            roost_complain(why, ENOSPC, "rules and connections have as many different policies as there is room for");
    if (error) {
        release(&b);
        return error;
    }
    memcpy(class, b.class, policies_count * sizeof(*class));
    int untold = e->path.inactive ? tell_xdp(e, &b) : 0;
    wait_for_xdp();
    begin_round(e);
    release(&b);
    return untold;
}

/* Of one connection: which policy it would have, and whether its values are others now. */
static void tally(struct roost_engine *e, const struct brought *b, const struct roost_event *event,
                  const struct roost_class *policy, uint32_t policies, uint64_t *counts) {
    const struct roost_key *key = &event->record.key;
    const struct roost_conn *c = roost_conn_by_key(e, key);
    uint16_t service = event->record.service;
    const struct roost_class *now = roost_class_of(e, c ? c->class : event->record.ka.class);
    uint32_t found = roost_rules_find(&b->ranges, key, service, now->own.group);
    uint32_t at = found == ROOST_NO_RULE ? policies : found;
    const struct roost_class *base =
        found == ROOST_NO_RULE ? roost_class_of(e, roost_class_of_service(service)) : &policy[found];
    struct roost_class then = roost_class_derive(base, &now->own);
    then.base = now->base;
    counts[2 * at]++;
    counts[2 * at + 1] += memcmp(&then, now, sizeof(then)) != 0;
}

int roost_rules_count(roost_engine *e, const struct roost_rule *rules, uint32_t count,
                      const struct roost_class *policies, uint32_t policies_count, uint64_t *counts,
                      struct roost_reason *why) {
    struct brought b = {0};
    struct roost_event *events = malloc(COUNTED_AT_ONCE * sizeof(*events));
    roost_listing *listing = roost_list_begin(e, &(struct roost_sought){.born = 1});
    int error = take(&b, rules, count, policies, policies_count, why);
    memset(counts, 0, 2 * (policies_count + 1ULL) * sizeof(*counts));
    if (!error && (!events || !listing))
        error = roost_complain(why, ENOMEM, "out of memory");
    while (!error && !roost_list_done(listing)) {
        int listed = roost_list(e, listing, events, COUNTED_AT_ONCE);
        roost_lock(e);
        for (int i = 0; i < listed; i++)
            tally(e, &b, &events[i], policies, policies_count, counts);
        roost_unlock(e);
    }
    if (listing)
        roost_list_end(e, listing);
    free(events);
    release(&b);
    return error;
}

void roost_rules_close(struct roost_engine *e) {
    roost_rules_free(&e->rules.in_force);
    free(e->rules.told);
}
