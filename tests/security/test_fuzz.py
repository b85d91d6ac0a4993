# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets (tests/fuzz): some seconds of each from its seeds, half an hour of each as a soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.mutants import MUTANTS
from tests.fuzz.targets import TARGETS, Target, build, run
from tests.mutants import Mutant, plant

SECONDS = 4
REORDERING_S = 2
SOAK_S = 1800
MUTANT_S = 20

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)


@each_target
def test_nothing_is_found_from_the_seeds(target: Target, tmp_path: Path) -> None:
    finding, _ = run(build(target, tmp_path), target, tmp_path, seconds=SECONDS)
    assert not finding, str(finding)


@pytest.mark.parametrize("name", ["xdp", "tc"])
def test_nothing_is_found_in_the_programs_for_processors_that_reorder_loads(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    finding, _ = run(build(target, tmp_path, in_order=False), target, tmp_path, seconds=REORDERING_S)
    assert not finding, str(finding)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 300)
@each_target
def test_nothing_is_found_in_half_an_hour(target: Target, tmp_path: Path) -> None:
    finding, _ = run(build(target, tmp_path), target, tmp_path, seconds=SOAK_S)
    assert not finding, str(finding)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.target}: {mutant.name}")
def test_a_planted_bug_is_found(mutant: Mutant, tmp_path: Path) -> None:
    target = TARGETS[mutant.target]
    tree = plant(mutant, tmp_path / "tree")
    finding, _ = run(build(target, tmp_path, tree), target, tmp_path, seconds=MUTANT_S)
    assert finding, f"{MUTANT_S} s of fuzzing did not notice that {mutant.name}"
    assert mutant.says in finding.said
