# SPDX-License-Identifier: Apache-2.0
"""How the tests are shared out among workers, with workers that are played."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distribution import Distribution


@dataclass(eq=False)
class Worker:
    """Runs a test once it knows the next one, or that there is none, as pytest-xdist's workers do."""

    name: str
    told: list[int] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(id=self.name)

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert not self.shutting_down
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def may_run(self) -> bool:
        return len(self.told) > (0 if self.shutting_down else 1)


class Run:
    """Tests of files a, b and so on, and of those that run alone; `ran`: (worker, test) in the order they ran."""

    def __init__(
        self,
        tmp_path: Path,
        workers: int,
        sizes: Sequence[int],
        alone: int,
        first: Sequence[str] = (),
        background: Sequence[str] = (),
        whole: Sequence[str] = (),
        names: str | Sequence[str] = "abcdefgh",
    ) -> None:
        together = [f"{names[number]}.py::t{test}" for number, size in enumerate(sizes) for test in range(size)]
        self.ids = together + [f"a.py::alone{number}" for number in range(alone)]
        self.together = len(together)
        (tmp_path / "together").write_text(str(len(together)))
        self.background = background
        self.yielding: set[str] = set()
        self.plan = Distribution(workers, tmp_path / "together", first, background, self.set_yielding, whole)
        self.workers = [Worker(f"gw{number}") for number in range(workers)]
        self.ran: list[tuple[str, str]] = []
        for worker in self.workers:
            self.plan.add_node(worker)
            self.plan.add_node_collection(worker, self.ids)
        assert self.plan.collection_is_completed
        self.plan.schedule()

    def set_yielding(self, node: Any, yields: bool) -> None:
        assert yields != (node.name in self.yielding)
        self.yielding ^= {node.name}

    def is_background(self, test: int) -> bool:
        return self.ids[test].partition("::")[0] in self.background

    def step(self, worker: Worker) -> None:
        """One test, or the worker's end."""
        if worker.may_run:
            test = worker.told.pop(0)
            self.ran.append((worker.name, self.ids[test]))
            if test >= self.together:
                others = [other for other in self.workers if other is not worker and other.name not in self.yielding]
                busy = [other for other in others if other.told]
                assert busy == [], "it runs alone"
            assert self.is_background(test) or worker.name not in self.yielding
            self.plan.mark_test_complete(worker, test)
        elif worker.shutting_down:
            self.workers.remove(worker)
            assert self.plan.remove_node(worker) is None

    def replace(self, worker: Worker) -> str | None:
        """It dies, and another begins."""
        crashed = self.plan.remove_node(worker)
        self.workers.remove(worker)
        self.workers.append(Worker(worker.name + "'"))
        self.plan.add_node(self.workers[-1])
        self.plan.add_node_collection(self.workers[-1], self.ids)
        self.plan.schedule()
        return crashed

    def finish(self, luck: random.Random) -> list[str]:
        """To the end, the workers in any order; the tests that ran, each once."""
        for _ in range(10_000):
            if not self.workers:
                break
            self.step(luck.choice(self.workers))
        assert self.plan.tests_finished
        assert not self.plan.has_pending
        return [test for _, test in self.ran]


@pytest.mark.parametrize("seed", range(20))
def test_each_test_runs_once_files_stay_together_and_those_that_run_alone_come_last(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    sizes = [luck.randrange(1, 9) for _ in range(luck.randrange(1, 8))]
    run = Run(tmp_path, luck.randrange(1, 5), sizes, luck.randrange(4))
    ran = run.finish(luck)
    assert sorted(ran) == sorted(run.ids)
    for number in range(len(sizes)):
        assert len({worker for worker, test in run.ran if test.startswith("abcdefgh"[number] + ".py::t")}) == 1
    assert ran[run.together :] == run.ids[run.together :]


def test_files_that_take_long_begin_first(tmp_path: Path) -> None:
    run = Run(tmp_path, 2, [3, 3, 3, 3], 1, first=["d.py", "c.py"])
    assert [run.ids[worker.told[0]] for worker in run.workers] == ["d.py::t0", "c.py::t0"]


def test_files_that_count_as_one_have_one_worker_and_its_place(tmp_path: Path) -> None:
    names = ["a", "x/b", "x/y/c", "xx", "z"]
    run = Run(tmp_path, 3, [2, 1, 1, 2, 1], 0, first=["x"], whole=["x", "z.py"], names=names)
    assert [run.ids[number] for number in run.workers[0].told] == ["x/b.py::t0", "x/y/c.py::t0", "z.py::t0"]
    run.finish(random.Random(1))
    assert len({worker for worker, test in run.ran if test.startswith(("x/", "z."))}) == 1


def test_a_worker_is_told_little_ahead_so_that_a_run_can_be_stopped(tmp_path: Path) -> None:
    run = Run(tmp_path, 1, [100], 0)
    assert run.workers[0].told == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_what_only_computes_yields_to_those_that_run_alone_and_to_nobody_once_they_have_run(
    tmp_path: Path, seed: int
) -> None:
    luck = random.Random(seed)
    run = Run(tmp_path, 3, [4, 5, 1, 6], 5, background=["b.py", "d.py"])
    while not any("alone" in test for _, test in run.ran):
        run.step(luck.choice([worker for worker in run.workers if worker.name not in run.yielding]))
    assert run.yielding, "files of the background begin as the last others do"
    while len([test for _, test in run.ran if "alone" in test]) < 5:
        run.step(luck.choice([worker for worker in run.workers if worker.name not in run.yielding]))
    assert not run.yielding
    assert sorted(run.finish(luck)) == sorted(run.ids)


@pytest.mark.parametrize("seed", range(20))
def test_of_a_worker_that_dies_one_test_is_lost_and_others_run_the_rest(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    run = Run(tmp_path, luck.randrange(1, 4), [5, 1, 7, 2], 3, background=["c.py"])
    for _ in range(luck.randrange(30)):
        run.step(luck.choice(run.workers))
        if not run.workers:
            return
    dying = luck.choice(run.workers)
    had = bool(dying.told)
    crashed = run.replace(dying)
    assert (crashed is not None) == had
    assert sorted([*run.finish(luck), *([crashed] if crashed else [])]) == sorted(run.ids)


def test_with_nothing_to_run_the_run_is_over(tmp_path: Path) -> None:
    run = Run(tmp_path, 2, [], 0)
    assert run.plan.tests_finished
    assert all(worker.shutting_down for worker in run.workers)
