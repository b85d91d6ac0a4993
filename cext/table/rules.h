/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which class a client's network gives, for each service: the longest network that has the client. Networks nest, so they
 * cut the addresses into ranges, two at most for each; the ranges of a service lie sorted, and a look-up halves them: 15
 * steps for 10,000 networks.
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

struct roost_rules { /* all zeros: there are none */
    struct roost_rule_range *range;
    uint32_t first[ROOST_CLASS_SERVICES + 1]; /* of each service, and where those of the last one end */
};

/* By service and network: struct roost_rule, for qsort and bsearch. */
int roost_rules_compare(const void *one, const void *other);
/* Puts them into that order. -EINVAL: a service or a network is none, or a service has a network twice. */
int roost_rules_sort(struct roost_rule *rule, uint32_t count);
/* Out of sorted ones; the values are their policies. 0 or -ENOMEM. */
int roost_rules_make(struct roost_rules *rules, const struct roost_rule *rule, uint32_t count);
/* Puts the value of each policy in its place. */
void roost_rules_name(struct roost_rules *rules, const uint32_t *value);
void roost_rules_free(struct roost_rules *rules);

/* The value for a client of a service, or ROOST_NO_RULE. */
uint32_t roost_rules_find(const struct roost_rules *rules, uint16_t service, const uint8_t client[16]);

#endif
