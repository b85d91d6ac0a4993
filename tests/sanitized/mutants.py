# SPDX-License-Identifier: Apache-2.0
"""Bugs that tests of the engine do not see, and that the sanitizers must."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS = (
    Mutant(
        "the endpoints have room for one too few",
        "tests/unit/test_table.py",
        "cext/table/endpoints.c",
        "e->next = calloc(e->slots, sizeof(*e->next));",
        "e->next = calloc(e->slots - 1, sizeof(*e->next));",
        "heap-buffer-overflow",
    ),
    Mutant(
        "a port's bit is looked for in the first word",
        "tests/unit/test_filter.py",
        "cext/table/filter.c",
        "1u << port % 32, __ATOMIC_SEQ_CST",
        "1u << port, __ATOMIC_SEQ_CST",
        "shift exponent",
    ),
    Mutant(
        "the next dead connection is read from the one before, which is freed",
        "tests/lab/test_wake_packets.py",
        "cext/engine.c",
        "        roost_inband_free(c);\n        free(c);\n",
        "        roost_inband_free(c);\n        free(c);\n        *at = c->next_dead;\n",
        "heap-use-after-free",
    ),
    Mutant(
        "an engine that is closed keeps its endpoints",
        "tests/lab/test_wake_packets.py",
        "cext/engine.c",
        "    roost_endpoints_free(&e->table.endpoints);\n",
        "",
        "in roost_endpoints_init",
    ),
)
