# SPDX-License-Identifier: Apache-2.0
"""As test_interleavings.py, for processors that reorder loads: the ways of XDP's readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interleave.explore import BrokenClaimError, build, explore
from tests.mutants import Mutant, plant

pytestmark = pytest.mark.timeout(1800)  # as there

FIND = "ebpf/lib/find.h"
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
MUTANTS = (
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
    return build(tmp_path_factory.mktemp("reordering"), in_order=False)


def test_every_interleaving_where_loads_are_reordered_keeps_every_connection(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explored = explore(model, *REORDERED)
    assert {one.name for one in explored} == set(REORDERED)
    with capsys.disabled():
        print(f" {sum(one.schedules for one in explored)} schedules of {len(explored)} scenarios ", end="")


@pytest.mark.soak
@pytest.mark.timeout(7200)  # others go before
def test_every_interleaving_of_all_scenarios_keeps_every_connection(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explored = explore(model)
    with capsys.disabled():
        print(f" {sum(one.schedules for one in explored)} schedules of {len(explored)} scenarios ", end="")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_barrier_that_is_missing_is_found(mutant: Mutant, model: Path, tmp_path: Path) -> None:
    broken = build(tmp_path, plant(mutant, tmp_path / "tree"), changed=mutant.file, made=model.parent, in_order=False)
    with pytest.raises(BrokenClaimError) as caught:
        explore(broken, mutant.target)
    assert mutant.says in str(caught.value)
