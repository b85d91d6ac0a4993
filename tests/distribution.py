# SPDX-License-Identifier: Apache-2.0
"""How pytest-xdist's workers share the tests (`pytest -n`): whole files side by side, then the tests marked `alone`.
Files and directories that share what takes long to start count as one file.

Those that run alone wait more than they compute. What computes only is done meanwhile, where no other task wants the
processor (SCHED_IDLE, sched(7)), and with a share like any other's once none is left that runs alone.

A worker holds a test back until it knows the one after it, since that decides which fixtures end in between. So each is
told two tests beyond the one that it runs, and no more: with -x the others stop as soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from xdist.workermanage import WorkerController

_AHEAD: Final = 3


class Distribution:
    """pytest-xdist's scheduler; its methods are called by xdist.dsession, as xdist.scheduler.protocol says.

    `first`: files, as ids begin, that are not to be the last ones to begin, since the whole run would wait for them.
    `background`: files that may run while others run alone; `yielding(node, True)` is called as a worker begins to.
    `whole`: files and directories that count as one file; `first` and `background` name them by the first of them.
    `together`: a file that says, once the tests are collected, how many of them may run beside others; the rest follow.
    """

    def __init__(
        self,
        workers: int,
        together: Path,
        first: Sequence[str] = (),
        background: Sequence[str] = (),
        yielding: Callable[[WorkerController, bool], None] = lambda node, does: None,
        whole: Sequence[str] = (),
    ) -> None:
        self._workers = workers
        self._count = together
        self._first = first
        self._background = background
        self._yielding = yielding
        self._whole = tuple(whole)
        self._together = 0
        self._ids: list[str] = []
        self._collected: dict[WorkerController, list[str]] = {}
        self._files: deque[deque[int]] = deque()  # numbers in _ids; those of tests that run alone come last
        self._begun: dict[WorkerController, deque[int]] = {}  # what is left of the file that a worker is at
        self._told: dict[WorkerController, list[int]] = {}  # not reported yet
        self._behind: set[WorkerController] = set()  # those that yield

    @property
    def nodes(self) -> list[WorkerController]:
        return list(self._told)

    @property
    def collection_is_completed(self) -> bool:
        return bool(self._ids) or len(self._collected) >= self._workers

    @property
    def has_pending(self) -> bool:
        return bool(self._files) or any(self._begun.values()) or any(self._told.values())

    @property
    def tests_finished(self) -> bool:
        waiting = bool(self._files) or any(self._begun.values())
        return self.collection_is_completed and not waiting and all(len(told) < 2 for told in self._told.values())

    def add_node(self, node: WorkerController) -> None:
        self._told[node] = []
        self._begun[node] = deque()

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        self._collected[node] = list(collection)

    def schedule(self) -> None:
        """Called once each worker has told what it collected, and for each that takes the place of one that died."""
        if not self._ids:
            self._ids = next(iter(self._collected.values()))
            self._together = int(self._count.read_text())
            self._files = self._sorted()
        for node in self.nodes:
            if self._collected.get(node) not in (None, self._ids):
                raise RuntimeError(f"{node.gateway.id} collected other tests than the first worker")
            self._feed(node)
        self._set_priorities()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        self._told[node].remove(item_index)
        for one in (node, *self.nodes):
            self._feed(one)
        self._set_priorities()

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker has ended. The id of the test that ended it, or None; the other tests that it had go to others."""
        told, begun = self._told.pop(node), self._begun.pop(node)
        self._collected.pop(node, None)
        crashed = told.pop(0) if told else None
        if told or begun:
            self._files.appendleft(deque([*told, *begun]))
        self._behind.discard(node)
        for other in self.nodes:
            self._feed(other)
        self._set_priorities()
        return None if crashed is None else self._ids[crashed]

    def mark_test_pending(self, item: str) -> NoReturn:
        raise NotImplementedError("for pytest-rerunfailures and the like")

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> NoReturn:
        raise NotImplementedError("no test is taken back from a worker")

    def _sorted(self) -> deque[deque[int]]:
        files: dict[tuple[bool, str], deque[int]] = {}
        for number, name in enumerate(self._ids):
            files.setdefault((number >= self._together, self._file_of(name)), deque()).append(number)
        first = {name: place for place, name in enumerate(self._first)}
        order = sorted(files, key=lambda file: (file[0], file[1] in self._background, first.get(file[1], len(first))))
        return deque(files[file] for file in order)

    def _file_of(self, name: str) -> str:
        file = name.partition("::")[0]
        return self._whole[0] if any(f"{file}/".startswith(f"{one}/") for one in self._whole) else file

    def _feed(self, node: WorkerController) -> None:
        """Tell a worker what comes next, or that nothing does."""
        if node.shutting_down or node not in self._collected:
            return
        told, begun = self._told[node], self._begun[node]
        while len(told) < (_AHEAD if begun else 2) and (begun or self._files):
            if not begun:
                if self._files[0][0] >= self._together and not self._may_be_alone(node):
                    return
                begun.extend(self._files.popleft())
            told.append(begun.popleft())
            node.send_runtest_some(told[-1:])
        if not begun and not self._files:
            node.shutdown()

    def _may_be_alone(self, node: WorkerController) -> bool:
        """The tests that run alone are the last worker's; the others end first, or are in the background. Until then
        it waits."""
        others = [other for other in self.nodes if other is not node]
        if any(not other.shutting_down and not any(self._background_of(other)) for other in others):
            node.shutdown()
        return all(self._is_behind(other) for other in others)

    def _background_of(self, node: WorkerController) -> list[bool]:
        """Of each test that a worker has been given, whether it may run in the background."""
        given = [*self._told[node], *self._begun[node]]
        return [self._file_of(self._ids[test]) in self._background for test in given]

    def _is_behind(self, node: WorkerController) -> bool:
        given = self._background_of(node)
        return bool(given) and all(given)

    def _set_priorities(self) -> None:
        given = [test for tests in (*self._told.values(), *self._begun.values(), *self._files) for test in tests]
        awaited = any(test >= self._together for test in given)
        behind = {node for node in self.nodes if awaited and self._is_behind(node)}
        for node in behind ^ self._behind:
            self._yielding(node, node in behind)
        self._behind = behind
