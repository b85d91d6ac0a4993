# SPDX-License-Identifier: Apache-2.0
"""Which rules by name and by tag are for which connection.

The engine knows no names. Each connection has a number there, its group, which stands for a set of rules
(Rules.groups), and of each group the engine has the values. Here it is told the group of a connection whose name is
given or taken, or whose tags change, and of every one that has a name when rules change, or the daemon starts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from appliance.wire import GIVEN_GROUP, OVERRIDES, Command, Op
from control.clients.registry import Registry
from control.clients.rules import Rules
from control.core.errors import OperationError
from control.core.ports import BATCH, EnginePort
from control.core.states import Cause
from control.policy.rules import NOBODY
from control.store.database import StoreError

log = logging.getLogger("roost.policy")

PAGE: Final = 2_000
"""Names that are read at once."""

PAUSE_S: Final = 0.02
"""After each page of them: others want the engine and the database, too."""

TODO_MAX: Final = 20_000
"""Connections that wait to be looked at. If there are more, every name is."""

AGAIN_S: Final = 5.0
"""Until the database is asked again, after it could not be read or written."""

Connection = tuple[bytes, int]
"""A connection's packed key and its number."""


class Grouping:
    """`run` is for a thread of its own, the others may be called from any."""

    def __init__(self, engine: EnginePort, names: Registry, rules: Rules) -> None:
        self._engine = engine
        self._names = names
        self._rules = rules
        self._work = threading.Condition()
        self._todo: set[Connection] = set()
        self._all = False
        self._stopping = False

    # -- what is to be looked at --------------------------------------------------------------------------------------

    def look(self, connections: Iterable[Connection]) -> None:
        """The names of these, or their tags, are others now."""
        if not self._matters():
            return
        with self._work:
            self._todo.update(connections)
            if len(self._todo) > TODO_MAX:
                self._todo.clear()
                self._all = True
            self._work.notify()

    def look_at_all(self) -> None:
        """Rules are others now, or this daemon does not know what the engine was told."""
        if not self._matters():
            return
        with self._work:
            self._all = True
            self._work.notify()

    def _matters(self) -> bool:
        """Whether a connection may be in a group, or is to be."""
        return bool(self._rules.state.rules.by_name or self._rules.groups)

    # -- looking ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Look at what is to be looked at, until `stop`."""
        while not self._stopping:
            with self._work:
                self._work.wait_for(lambda: self._todo or self._all or self._stopping)
                everything, self._all = self._all, False
            try:
                if everything:
                    self._look_at_all()
                self._look_at_some()
            except (OperationError, StoreError) as error:
                log.error("policy: rules by name and by tag are not in force for every client: %s", error)
                self.look_at_all()
                with self._work:
                    self._work.wait_for(lambda: self._stopping, AGAIN_S)

    def stop(self) -> None:
        """Let `run` return."""
        with self._work:
            self._stopping = True
            self._work.notify()

    def _look_at_all(self) -> None:
        seen: set[frozenset[str]] = set()
        after = ""
        began, told = time.monotonic(), 0
        while page := self._names.like("*", "", after, PAGE):
            of = {name: (one.key, one.id) for name, one in page.items() if one.connected}
            seen |= self._tell({of[name]: group for name, group in self._groups_of(list(of)).items()})
            told += len(of)
            after = next(reversed(page))
            self._look_at_some()
            with self._work:
                if self._all or self._work.wait_for(lambda: self._stopping, PAUSE_S):
                    return  # from the beginning, with the rules that are in force then
        if self._rules.forget_groups(keep=seen):
            self.look_at_all()
        log.info("policy: looked at the names of %d connections in %.1f s: rules by name or tag make %d groups of them",
                 told, time.monotonic() - began, len(seen - {NOBODY}))  # fmt: skip

    def _look_at_some(self) -> None:
        with self._work:
            todo, self._todo = self._todo, set()
        try:
            connections = list(todo)
            for start in range(0, len(connections), PAGE):
                self._tell(self._groups_at(connections[start : start + PAGE]))
        except (OperationError, StoreError):
            with self._work:
                self._all = True
            raise

    def _groups_at(self, connections: Sequence[Connection]) -> dict[Connection, frozenset[str]]:
        known_as = self._names.names_of([number for _, number in connections])
        names = {connection: known_as[connection[1]][0] for connection in connections if connection[1] in known_as}
        groups = self._groups_of(list(names.values()))
        return {one: groups[names[one]] if one in names else NOBODY for one in connections}

    def _groups_of(self, names: Sequence[str]) -> dict[str, frozenset[str]]:
        rules = self._rules.state.rules
        tags = self._names.tags_of(names) if any(rule.tag is not None for rule in rules.by_name) else {}
        return {name: rules.group_of(name, frozenset(tags.get(name, ()))) for name in names}

    def _tell(self, groups: Mapping[Connection, frozenset[str]]) -> set[frozenset[str]]:
        """Tell the engine; the sets that there are."""
        sets = set(groups.values())
        numbers = self._rules.group_numbers(sets)
        commands = [
            Command(op=Op.GIVE, cause=Cause.COMMAND, key=key, id=number, count=GIVEN_GROUP,
                    overrides=OVERRIDES.pack(0, 0, 0, 0, 0, 0, 0, numbers[group]))
            for (key, number), group in groups.items()
        ]  # fmt: skip
        for start in range(0, len(commands), BATCH):
            self._engine.submit(commands[start : start + BATCH])
        return sets
