# SPDX-License-Identifier: Apache-2.0
"""Freezing, sleeping and thawing against packets, in every order there is (tests/interleave)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interleave.explore import BrokenClaimError, build, explore, scenarios
from tests.mutants import Mutant, plant

TABLE, FIND, INSERT, MODEL = "cext/table/table.c", "ebpf/lib/find.h", "ebpf/lib/insert.h", "tests/interleave/model.c"
FILTER = "cext/table/filter.c"
MUTANTS = (
    Mutant(
        "a reader does not look whether the slot changed hands",
        "a probe while the slot gets another owner",
        FIND,
        "    return ctl_of(found->slot) == found->ctl;",
        "    return 1;",
        "an answer for A from no record of its own",
    ),
    Mutant(
        "a slot's next owner has the version of its last",
        "a probe while the slot is given to somebody put back",
        TABLE,
        "(ka->ctl & ~0xff00u) | ((slot->ctl + 0x100u) & 0xff00u)",
        "(ka->ctl & ~0xff00u) | (slot->ctl & 0xff00u)",
        "an answer for A from no record of its own",
    ),
    Mutant(
        "a record is published without a barrier",
        "a probe while freezing",
        TABLE,
        "sizeof(*ka) - sizeof(ka->ctl));\n    __atomic_store_n(&slot->ctl, ctl, __ATOMIC_SEQ_CST);\n}",
        "sizeof(*ka) - sizeof(ka->ctl));\n    __atomic_store_n(&slot->ctl, ctl, __ATOMIC_RELAXED);\n}",
        "an answer for A from no record of its own",
    ),
    Mutant(
        "a freeze does not wait for packets on their way",
        "data while freezing",
        MODEL,
        "    memcpy(waited_for, flying, sizeof(flying));\n",
        "",
        "a packet of A came to the stack, and there is no socket: RST",
    ),
    Mutant(
        "who is to be born is not looked up again under the lock",
        "two acknowledgements of one birth",
        INSERT,
        "(same_a | same_b) && find_in##family(table, &place, &n->key, &found)",
        "0 && found.slot",
        "C is in the table twice",
    ),
    Mutant(
        "a birth does not lock",
        "a birth while another falls asleep",
        INSERT,
        "ROOST_LOCK_FREE, ROOST_LOCK_XDP) == ROOST_LOCK_FREE)",
        "ROOST_LOCK_FREE, ROOST_LOCK_XDP) <= ROOST_LOCK_ENGINE)",
        "CLAIM BROKEN",
    ),
    Mutant(
        "a dead engine's locks stay",
        "data while freezing",
        TABLE,
        "    break_locks(t);\n",
        "",
        "a bucket is locked, and nobody holds the lock",
    ),
    Mutant(
        "a slot whose move was cut short is adopted twice",
        "data while its slot is moved",
        TABLE,
        "        if (is_copy(t, slot, &key)) {",
        "        if (0 && is_copy(t, slot, &key)) {",
        "A is in the table twice",
    ),
    Mutant(
        "a record whose socket lived is adopted",
        "data while thawing",
        TABLE,
        "    if (phase == ROOST_WAKING)\n",
        "    if (phase == ROOST_WAKING || phase == ROOST_THAWED)\n",
        "A's socket died with the engine, and its record lives on",
    ),
    Mutant(
        "a connection leaves the filter without a word",
        "data while it comes back from the filter",
        FILTER,
        "        count_move(f);\n        put(",
        "        put(",
        "a packet of A came to the stack, and there is no socket: RST",
    ),
    Mutant(
        "a fingerprint is moved without a word",
        "data while another takes its place in the filter",
        FILTER,
        "        count_move(f);\n        f->moves++;",
        "        f->moves++;",
        "a packet of A came to the stack, and there is no socket: RST",
    ),
)

REORDERED = (  # the ways of a reader, each once
    "data while freezing",
    "a probe while freezing",
    "two packets while thawing",
    "a probe of the slot's next owner",
    "a probe while the slot is given to somebody put back",
    "a probe of somebody put back",
    "a probe for whom the new table takes in",
    "a birth while a slot is left",
    "who is born speaks at once",
    "a birth while the table is adopted",
    "data while its slot is moved",
    "a probe while its slot is moved",
    "data while its slot is left for the filter",
    "data while it comes back from the filter",
    "data while it comes back and wakes",
    "data while another takes its place in the filter",
)
REORDERED_MUTANTS = (
    Mutant(
        "the short way reads a record without barriers",
        "a probe of the slot's next owner",
        "ebpf/xdp/fast.h",
        "#else\n    return ctl_of(slot);",
        "#else\n    return *(volatile __u32 *)&slot->ctl;",
        "an answer for B from no record of its own",
    ),
    Mutant(
        "the long way reads a record without barriers",
        "a probe while freezing",
        FIND,
        "    return __sync_fetch_and_add(&slot->ctl, 0);",
        "    return *(volatile __u32 *)&slot->ctl;",
        "an answer for A from no record of its own",
    ),
    Mutant(
        "the count of moves is read without a barrier",
        "data while it comes back from the filter",
        FIND,
        "    return __sync_fetch_and_add(&gate->moved, 0);",
        "    return *(volatile __u32 *)&gate->moved;",
        "a packet of A came to the stack, and there is no socket: RST",
    ),
    Mutant(
        "the filter may be read before the tags",
        "data while its slot is left for the filter",
        "ebpf/lib/candidate.h",
        "    if (moves_of(gate) != found->moved) /* orders",
        "    if (0) /* orders",
        "a packet of A came to the stack, and there is no socket: RST",
    ),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reordering_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("reordering"), in_order=False)


def test_every_interleaving_keeps_every_connection(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explored = explore(model)
    assert [one.name for one in explored] == scenarios(model)
    with capsys.disabled():
        print(f" {sum(one.schedules for one in explored)} schedules of {len(explored)} scenarios ", end="")


def test_every_interleaving_where_loads_are_reordered_keeps_every_connection(
    reordering_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explored = explore(reordering_model, *REORDERED)
    assert {one.name for one in explored} == set(REORDERED)
    with capsys.disabled():
        print(f" {sum(one.schedules for one in explored)} schedules of {len(explored)} scenarios ", end="")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_interleaving_with_one_more_preemption_keeps_every_connection(
    model: Path, reordering_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explored = explore(model, deeper=True) + explore(reordering_model)
    with capsys.disabled():
        print(f" {sum(one.schedules for one in explored)} schedules of {len(explored)} scenarios ", end="")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_race_is_found(mutant: Mutant, tmp_path: Path) -> None:
    model = build(tmp_path, plant(mutant, tmp_path / "tree"))
    with pytest.raises(BrokenClaimError) as caught:
        explore(model, mutant.target)
    assert mutant.says in str(caught.value)


@pytest.mark.parametrize("mutant", REORDERED_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_barrier_that_is_missing_is_found(mutant: Mutant, tmp_path: Path) -> None:
    model = build(tmp_path, plant(mutant, tmp_path / "tree"), in_order=False)
    with pytest.raises(BrokenClaimError) as caught:
        explore(model, mutant.target)
    assert mutant.says in str(caught.value)
