/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which class a client's network gives, for each service and group: the longest network that has the client. Networks nest, so
 * they cut the addresses into ranges, two at most for each. Those of one service and group are a section, in which they lie
 * sorted; a look-up halves the sections, then the ranges: 15 steps for 10,000 networks.
 */
#ifndef ROOST_CEXT_RULES_H
#define ROOST_CEXT_RULES_H

#include <stdint.h>

#include "cext/base/types.h"
#include "ebpf/shared/class.h"
#include "ebpf/shared/rule.h"

#define ROOST_NO_RULE 0xffffffffu

struct roost_rule_range {
    unsigned __int128 from; /* the first address, as a number; it ends where the next one begins */
    uint32_t value;         /* of the policy, or ROOST_NO_RULE */
};

struct roost_rule_section {
    uint32_t of;    /* service and group */
    uint32_t first; /* of its ranges; they end where those of the next one begin */
};

struct roost_rules { /* all zeros: there are none */
    struct roost_rule_range *range;
    struct roost_rule_section *section; /* sorted, and one behind that says where the ranges end */
    uint32_t sections;
};

/* By service, group and network: struct roost_rule, for qsort and bsearch. */
int roost_rules_compare(const void *one, const void *other);
/* Puts them into that order. -EINVAL: a service or a network is none, or a service has a network twice for a group. */
int roost_rules_sort(struct roost_rule *rule, uint32_t count);
/* Out of sorted ones; the values are their policies. 0 or -ENOMEM. */
int roost_rules_make(struct roost_rules *rules, const struct roost_rule *rule, uint32_t count);
/* Puts the value of each policy in its place. */
void roost_rules_name(struct roost_rules *rules, const uint32_t *value);
void roost_rules_free(struct roost_rules *rules);

/* The value for a client of a service, or ROOST_NO_RULE. A group without rules for this service has those without a group. */
uint32_t roost_rules_find(const struct roost_rules *rules, uint16_t service, uint8_t group, const uint8_t client[16]);

#endif
