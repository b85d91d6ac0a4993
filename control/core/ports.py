# SPDX-License-Identifier: Apache-2.0
"""Ports: what parts of the control plane need of the engine, and of the dispatcher that stands above them.

appliance.engine.Engine and control.dispatch.Dispatcher have these methods; the tests bring engines without a kernel.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from appliance.wire import (
    Census,
    Command,
    Event,
    Key,
    Limited,
    Obstacles,
    Op,
    Own,
    Record,
    RuleEntry,
    ServerAddress,
    ServerStatus,
    ServiceSpec,
    Silences,
    Sought,
    Tally,
)
from control.core.states import State

BATCH: Final = 512
"""Commands or events in one call of the engine. It is small, so that a record which is needed while a burst is worked
off waits for one batch alone."""


class EnginePort(Protocol):
    """The engine, as far as it deals with connections."""

    def submit(self, commands: Sequence[Command]) -> None: ...
    def submit_many(
        self, op: Op, cause: int, ids: Sequence[int] | None = None, keys: Sequence[bytes] | None = None, token: int = 0
    ) -> None: ...
    def batch(self, max_events: int = 4096, timeout_ms: int = 200, patience_ms: int = 0) -> list[Event]: ...
    def wake(self) -> None: ...
    def list(self, sought: Sought = ...) -> Iterator[Event]: ...
    def page(self, sought: Sought, limit: int) -> tuple[Sequence[Event], int]: ...
    def slots_in_sleep(self) -> int: ...
    def find(self, key: Key) -> Event | None: ...
    def find_many(self, keys: Sequence[bytes]) -> Sequence[Event | None]: ...
    def find_client(self, address: bytes, port: int, local: bytes, one: bool = False) -> Sequence[Event]: ...
    def states(self, keys: bytes, numbers: array[int]) -> bytes: ...
    def stats(self) -> dict[str, int]: ...
    def memory(self) -> int: ...
    def within_limit(self, what: Limited, address: str) -> bool: ...
    def last_refused(self, what: Limited) -> str: ...
    def find_peer(self, key: bytes) -> Record | None: ...
    def find_own(self, key: bytes, number: int) -> Own: ...
    def find_class(self, key: bytes) -> dict[str, int]: ...
    def find_obstacles(self, key: bytes) -> Obstacles | None: ...
    def dial(self, service: int, client: ServerAddress, server: bytes) -> tuple[int, bytes]: ...


class CountsPort(Protocol):
    """The engine, as far as it counts."""

    def stats(self) -> dict[str, int]: ...
    def gauges(self) -> frozenset[str]: ...
    def tallies(self) -> Sequence[Tally]: ...
    def silences(self) -> dict[int, Silences]: ...
    def census(self) -> dict[int, Census]: ...
    def memory(self) -> int: ...


class ServersPort(Protocol):
    """The engine, as far as it deals with servers."""

    def mark_server(self, service: int, server: ServerAddress, up: bool) -> None: ...
    def servers(self, service: int) -> list[ServerStatus]: ...


class RulesPort(Protocol):
    """The engine, as far as it deals with policy rules. Each connection has the policy of the longest network that its
    client lies in, of the entries of its service for its group, or where there are none, for none; without one, the
    service's own. Those that change and count raise OperationError."""

    def set_rules(self, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> tuple[int, list[int]]:
        """These are all the rules there are, from now on; every connection obeys within seconds. How many networks
        there was no memory for in XDP, and the class of each policy. 507: the engine has no room for so many, and
        nothing has changed. By one caller at a time. Entries may be of services that are not there yet."""
        ...

    def count_rules(self, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> list[tuple[int, int]]:
        """Of each policy, and last of those that no rule would be for: how many connections would have it, and for how
        many of them values would change. Takes seconds where there are millions."""
        ...

    def groups(self) -> frozenset[int]:
        """The numbers of those in which a connection may be."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: error is 0 or an errno; state is where the connection is then."""

    error: int
    state: int = int(State.NONE)
    id: int = 0


@dataclass(slots=True)
class Outcomes:
    """How commands with the same token ended. asked: how many were given. done: the connection is in one of `states`.
    closed: it came to CLOSED in place of that. refused: by errno."""

    token: int
    states: frozenset[int]
    asked: int = 0
    done: int = 0
    closed: int = 0
    refused: Counter[int] = field(default_factory=Counter)

    def add(self, outcome: Outcome, state: int | None) -> None:
        """state: that a transition reached; one on the way to another does not count."""
        if outcome.error:
            self.refused[outcome.error] += 1
        elif state is None or state in self.states:
            self.done += 1
        elif state == State.CLOSED:
            self.closed += 1

    @property
    def settled(self) -> int:
        """How many have ended."""
        return self.done + self.closed + self.refused.total()


class CommandsPort(Protocol):
    """Commands with an answer. Either future is done when the connection reaches one of `states` (SLEEP), or the
    command is refused, or after timeout_s (ETIMEDOUT)."""

    def command(
        self, command: Command, states: Iterable[State], timeout_s: float, first: Sequence[Command] = ()
    ) -> Future[Outcome]: ...
    def sleep(self, record: Record, timeout_s: float) -> Future[Outcome]: ...


class ManyPort(Protocol):
    """The same command for many connections. `count` begins to count outcomes, until `uncount`."""

    def count(self, states: Iterable[State]) -> Outcomes: ...
    def uncount(self, outcomes: Outcomes) -> None: ...
    def command_many(self, op: Op, keys: Sequence[bytes], outcomes: Outcomes) -> None: ...
    def sleep_many(self, records: Sequence[Record], outcomes: Outcomes) -> None: ...


Listener = Callable[[Iterable[Event]], None]
"""Is called with each batch of transitions, in the dispatcher's thread: it may not block."""


class TransitionsPort(Protocol):
    """The transitions of all connections, as they happen; `listen` returns how to end it."""

    def listen(self, listener: Listener) -> Callable[[], None]: ...


class DispatcherPort(CommandsPort, ManyPort, TransitionsPort, Protocol):
    """All of it."""
