# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets (tests/fuzz): some thousand inputs of each from its seeds, half an hour of each as a soak."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.fuzz.mutants import MUTANTS
from tests.fuzz.targets import TARGETS, Finding, Target, build, run
from tests.mutants import Mutant, plant

SOAK_S = 1800
MUTANT_RUNS = 300_000  # most are found within 120, from the seeds; one takes some 10,000

pytestmark = pytest.mark.timeout(1800)  # beside busy processes, those that run in the background wait for them

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Target], Path]:
    """The executable of a target, with its objects beside it."""
    return cache(lambda target: build(target, tmp_path_factory.mktemp(target.name)))


@each_target
def test_nothing_is_found_from_the_seeds(target: Target, built: Callable[[Target], Path], tmp_path: Path) -> None:
    finding, _ = run(built(target), target, tmp_path, runs=target.runs)
    assert not finding, str(finding)


@pytest.mark.parametrize("name", ["xdp", "tc"])
def test_nothing_is_found_in_the_programs_for_processors_that_reorder_loads(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    finding, _ = run(build(target, tmp_path, in_order=False), target, tmp_path, runs=target.runs // 2)
    assert not finding, str(finding)


@pytest.fixture(scope="module")
def found(built: Callable[[Target], Path], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest,
          ) -> Iterator[Mapping[str, Future[tuple[Finding | None, str]]]]:  # fmt: skip
    """In half an hour of each target that is asked for, as many at once as there are processors."""
    chosen = [target for target in TARGETS.values() if any(f"half_an_hour[{target.name}]" in item.name
                                                           for item in request.session.items)]  # fmt: skip
    ready = [(built(target), target, tmp_path_factory.mktemp(f"{target.name}-long")) for target in chosen]
    pool = ThreadPoolExecutor(os.cpu_count())
    yield {one[1].name: pool.submit(run, *one, seconds=SOAK_S) for one in ready}
    pool.shutdown(cancel_futures=True)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S * len(TARGETS) + 300)
@each_target
def test_nothing_is_found_in_half_an_hour(target: Target, found: Mapping[str, Future[tuple[Finding | None, str]]],
                                          ) -> None:  # fmt: skip
    finding, _ = found[target.name].result()
    assert not finding, str(finding)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.target}: {mutant.name}")
def test_a_planted_bug_is_found(mutant: Mutant, built: Callable[[Target], Path], tmp_path: Path) -> None:
    made = built(TARGETS[mutant.target]).parent
    target = replace(TARGETS[mutant.target], optimise="-O0")  # sooner compiled, and soon found
    wrong = build(target, tmp_path, plant(mutant, tmp_path / "tree"), mutant.file, made)
    finding, _ = run(wrong, target, tmp_path, runs=MUTANT_RUNS)
    assert finding, f"{MUTANT_RUNS} inputs did not show that {mutant.name}"
    assert mutant.says in finding.said
