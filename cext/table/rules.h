/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which class a client's network gives, for each service, address that clients connect to and group: the longest network that
 * has the client. Networks nest, so they cut the addresses into ranges, two at most for each. Those of one service, address and
 * group are a section, in which they lie sorted; a look-up halves the sections, then the ranges: 15 steps for 10,000 networks.
 */
#ifndef ROOST_CEXT_RULES_H
#define ROOST_CEXT_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "cext/base/types.h"
#include "ebpf/shared/class.h"
#include "ebpf/shared/record.h"
#include "ebpf/shared/rule.h"

#define ROOST_NO_RULE 0xffffffffu

struct roost_rule_range {
    unsigned __int128 from; /* the first address, as a number; it ends where the next one begins */
    uint32_t value;         /* of the policy, or ROOST_NO_RULE */
};

struct roost_rule_section {
    uint64_t of;    /* service, local address and group */
    uint32_t first; /* of its ranges; they end where those of the next one begin */
};

struct roost_rule_local { /* an address that has rules of its own; its number is its place, counted from 1 */
    uint8_t address[16];
    uint16_t service;
};

struct roost_rules { /* all zeros: there are none */
    struct roost_rule_range *range;
    struct roost_rule_section *section; /* sorted, and one behind that says where the ranges end */
    uint32_t sections;
    struct roost_rule_local *local; /* sorted as rules are */
    uint32_t locals;
};

/* By service, local address, group and network: struct roost_rule, for qsort and bsearch. */
int roost_rules_compare(const void *one, const void *other);
bool roost_rule_is_of_any(const struct roost_rule *rule); /* whatever address the client connects to */
/* Puts them into that order. -EINVAL: a service or a network is none, or one is given twice. */
int roost_rules_sort(struct roost_rule *rule, uint32_t count);
/* Out of sorted ones; the values are their policies. 0 or -ENOMEM. */
int roost_rules_make(struct roost_rules *rules, const struct roost_rule *rule, uint32_t count);
/* Puts the value of each policy in its place. */
void roost_rules_name(struct roost_rules *rules, const uint32_t *value);
void roost_rules_free(struct roost_rules *rules);

/* The value for a connection to a service, or ROOST_NO_RULE. An address without rules of its own has those of no address, a group
 * without rules there those of no group. */
uint32_t roost_rules_find(const struct roost_rules *rules, const struct roost_key *key, uint16_t service,
                          uint8_t group);

#endif
