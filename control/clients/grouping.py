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
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from appliance.wire import GIVEN_GROUP, OVERRIDES, Command, Key, Op
from control.clients.living import living
from control.clients.registry import Registry
from control.clients.rules import Rules
from control.core.errors import OperationError
from control.core.logs import about
from control.core.ports import EnginePort
from control.core.states import Cause
from control.policy.rules import NOBODY
from control.store.database import reason
from control.store.store import Store

log = logging.getLogger("roost.policy")

PAGE: Final = 2_000
"""Names that are read at once."""

TOLD_AT_ONCE: Final = 256
PAUSE_S: Final = 0.02
"""After a page that is as it was, or so many connections that are told another group: each of them that sleeps without
a slot is a row to be read, of which packets want some, too."""

TODO_MAX: Final = 100_000
"""Connections that wait to be looked at. If there are more, every name is."""

AGAIN_S: Final = 5.0
"""Until the database is asked again, after it could not be read or written."""

CHECK_S: Final = 2.0
CHECKS: Final = 3
"""Whoever was told another group is looked at again so much later, and so often: the engine may have had no room."""

Connection = tuple[bytes, int]
"""A connection's packed key and its number."""


class Grouping:
    """`run` is for a thread of its own, the others may be called from any."""

    def __init__(self, engine: EnginePort, store: Store, names: Registry, rules: Rules) -> None:
        self._engine = engine
        self._store = store
        self._names = names
        self._rules = rules
        self._work = threading.Condition()
        self._todo: set[Connection] = set()
        self._all = False
        self._told: dict[Connection, tuple[int, int]] = {}
        """Those to be checked: the group that each was told last, which the engine may not have carried out yet, and
        how often."""

        self._error = ""
        self._stopping = False

    # -- what is to be looked at --------------------------------------------------------------------------------------

    def losing(self, connections: Collection[Connection]) -> None:
        """These are about to have no name any more, and are in no group from this moment on: were the daemon to end
        now, nothing would say later that they had one."""
        if connections and self._matters():
            with suppress(OperationError):  # they are looked at, too
                self._submit(dict.fromkeys(self._living(connections), 0))

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
        while True:
            with self._work:
                self._work.wait_for(self._is_wanted, CHECK_S if self._told else None)
                if self._stopping:
                    return
                everything, self._all = self._all, False
                if not self._todo and not everything:
                    self._todo.update(self._told)
            try:
                self._look(everything)
            except Exception as error:  # whatever it is, the next one is looked at
                self._failed(error, everything)

    def _is_wanted(self) -> bool:
        return bool(self._todo or self._all or self._stopping)

    def _look(self, everything: bool) -> None:
        short = bool(self._rules.short)
        if everything:
            self._look_at_all()
        self._look_at_some()
        if self._rules.short and not short and not everything:
            self.look_at_all()  # which forgets those that no connection has any more
        if self._error:
            log.warning("policy: rules by name and by tag are in force again")
            self._error = ""

    def _failed(self, error: Exception, everything: bool) -> None:
        if str(error) != self._error:
            self._error = str(error)
            known = isinstance(error, OperationError)
            log.error("policy: rules by name and by tag are not in force for every client: %s", error,
                      exc_info=None if known else error)  # fmt: skip
        with self._work:
            self._all |= everything
            self._work.wait_for(lambda: self._stopping, AGAIN_S)

    def stop(self) -> None:
        """Let `run` return soon."""
        with self._work:
            self._stopping = True
            self._work.notify()

    def _look_at_all(self) -> None:
        seen: set[frozenset[str]] = set()
        after = ""
        began, looked = time.monotonic(), 0
        self._names.commit()
        while page := self._names.like("*", "", after, PAGE):
            of = {name: (one.key, one.id) for name, one in page.items() if one.connected}
            seen |= self._tell({of[name]: group for name, group in self._groups_of(list(of)).items()})
            looked += len(of)
            after = next(reversed(page))
            seen |= self._look_at_some()
            if self._pause() or self._all:
                return  # from the beginning, with the rules that are in force then
        if self._rules.forget_groups(keep=seen):
            self.look_at_all()
        log.info("policy: looked at the names of %d connections in %.1f s: rules by name or tag make %d groups of them",
                 looked, time.monotonic() - began, len(seen - {NOBODY}))  # fmt: skip

    def _pause(self) -> bool:
        """Let others have the engine and the database; whether the end has come."""
        with self._work:
            return self._work.wait_for(lambda: self._stopping, PAUSE_S)

    def _look_at_some(self) -> set[frozenset[str]]:
        with self._work:
            todo, self._todo = self._todo, set()
        seen: set[frozenset[str]] = set()
        connections = list(todo)
        try:
            for start in range(0, len(connections), PAGE):
                seen |= self._tell(self._groups_at(connections[start : start + PAGE]))
        except Exception:
            with self._work:
                self._todo |= todo
            raise
        return seen

    def _groups_at(self, connections: Sequence[Connection]) -> dict[Connection, frozenset[str]]:
        alive = self._living(connections)
        for dead in set(connections).difference(alive):
            self._told.pop(dead, None)
        known_as = self._names.names_of([number for _, number in alive])
        names = {one: known_as[one[1]][0] for one in alive if one[1] in known_as}
        groups = self._groups_of(list(names.values()))
        return {one: groups[names[one]] if one in names else NOBODY for one in alive}

    def _living(self, connections: Collection[Connection]) -> list[Connection]:
        """Those of them that live: another may have the same key."""
        try:
            return list(compress(connections, living(self._engine, self._store, list(connections))))
        except SQLAlchemyError as error:
            raise OperationError(503, f"the sleepers cannot be read: store: {reason(error)}") from error

    def _groups_of(self, names: Sequence[str]) -> dict[str, frozenset[str]]:
        rules = self._rules.state.rules
        tags = {}
        if any(rule.tag is not None for rule in rules.by_name):
            self._names.commit()  # a name that is removed takes its tags along
            tags = self._names.tags_of(names)
        return {name: rules.group_of(name, frozenset(tags.get(name, ()))) for name in names}

    # -- telling ------------------------------------------------------------------------------------------------------

    def _tell(self, groups: Mapping[Connection, frozenset[str]]) -> set[frozenset[str]]:
        """Tell the engine of those that are in another one there; the sets that there are."""
        sets = set(groups.values())
        numbers = self._rules.group_numbers(dict.fromkeys(sets, 0) | self._services_of(groups))
        others, in_vain = dict[Connection, int](), list[Connection]()
        for one, group in groups.items():
            wanted, (told, times) = numbers[group], self._told.pop(one, (numbers[group], 0))
            if told == wanted and self._engine.find_own(*one).group == wanted:
                continue
            others[one] = wanted
            times = times + 1 if told == wanted else 1
            if times > CHECKS:
                in_vain.append(one)
            elif len(self._told) < TODO_MAX:
                self._told[one] = wanted, times
        if in_vain:
            client = Key.unpack(in_vain[0][0])
            log.error("policy: %s and %d other connections do not get the values of rules by name or tag: the engine "
                      "has no room for them, or their rows cannot be read",
                      client.client_text, len(in_vain) - 1,
                      extra=about(connection=in_vain[0][1], client=client))  # fmt: skip
        self._submit(others)
        return sets

    def _services_of(self, groups: Mapping[Connection, frozenset[str]]) -> dict[frozenset[str], int]:
        """By set the number of the service of a client that has it, where the rules do not know of one."""
        one_of = {group: key for (key, _), group in groups.items() if group and not self._rules.holds(group)}
        found = self._engine.find_many([*one_of.values()])
        return {group: event.service for group, event in zip(one_of, found, strict=True) if event is not None}

    def _submit(self, groups: Mapping[Connection, int]) -> None:
        commands = [
            Command(op=Op.GIVE, cause=Cause.COMMAND, key=key, id=number, count=GIVEN_GROUP,
                    overrides=OVERRIDES.pack(0, 0, 0, 0, 0, 0, 0, group))
            for (key, number), group in groups.items()
        ]  # fmt: skip
        for start in range(0, len(commands), TOLD_AT_ONCE):
            if start and self._pause():
                return
            self._engine.submit(commands[start : start + TOLD_AT_ONCE])
