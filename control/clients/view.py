# SPDX-License-Identifier: Apache-2.0
"""Connections and transitions as people and programs read them: lists, one with all that is known, history."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from appliance.frontends.handshake import refusal_for
from appliance.wire import KA, REST, Ends, Event, Key, Sought, pack_address
from control.clients.locate import Locator
from control.clients.registry import Registry, RegistryError, judge
from control.clients.rules import Follows
from control.clients.scope import SCOPE, in_scope, service_to_list
from control.clients.transitions import error_text, transition
from control.config import Service
from control.config.values import parse_network
from control.core.errors import OperationError
from control.core.names import is_like
from control.core.ports import EnginePort
from control.core.states import INACTIVE, State
from control.store import records
from control.store.appended import Attach
from control.store.sleeping import SleepingRow
from control.store.store import Store

CHUNK: Final = 500
"""Connections in one chunk of a list."""

PAGE: Final = 1000
"""Rows of the database, or names, that are read at a time."""

OF_ONE: Final = 1000
"""Transitions of one connection that are told at once."""

FIRST: Final = "first"
POSITION_MAX: Final = 2**62


Followers = tuple[frozenset[int] | None, Follows]
"""Policy classes, None: all, and which clients of theirs."""

EVERYBODY: Final[Followers] = (None, lambda _service, _address, _number: True)


class Found(NamedTuple):
    """What is asked of the engine for what is wanted, and of what it finds."""

    sought: Sought
    follows: Callable[[Event], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which connections are to be shown; what is empty, or 0, does not matter. client: how its ``address:port`` begins.
    name: a pattern with `*` and `?`. tag: of its name. quiet_s: without payload for so long at least. silence_s: not
    heard for so long at least, of those that are inactive and have a slot. rule: those to whom the rule of this name
    gives a value."""

    state: State | None = None
    client: str = ""
    network: str = ""
    service: str = ""
    name: str = ""
    tag: str = ""
    quiet_s: int = 0
    silence_s: int = 0
    rule: str = ""

    def fits(self, event: Event, found: Found) -> bool:
        """Whether it is one of them; what the engine has looked at already, too, for not all are found by it."""
        sought = found.sought
        key, record = event.record.key, event.record
        address, wanted = (int.from_bytes(packed, "big") for packed in (key.client, sought.network))
        return (
            self.state in (None, event.to_state)
            and sought.service in (0, record.service)
            and (address ^ wanted) >> (128 - sought.bits) == 0
            and key.client_text.startswith(self.client)
            and (event.to_state == State.SLEEP or event.gap_ms >= self.quiet_s * 1000)
            and (not self.silence_s or (self._has_slot(event) and record.silence_s >= self.silence_s))
            and found.follows(event)
        )

    @staticmethod
    def _has_slot(event: Event) -> bool:
        return event.to_state in INACTIVE and not event.candidate


EVERYTHING: Final = Wanted()


class View:
    """services: by number, as the daemon keeps them. linked: the servers that wait for a first byte, which have no row
    yet. followers: of a rule (Rules.followers). Everything may block for as long as engine and database take."""

    def __init__(self, engine: EnginePort, store: Store, names: Registry, services: Mapping[int, Service],
                 locator: Locator, linked: Callable[[], Sequence[Attach]] = list,
                 followers: Callable[[str], Followers] = lambda _: EVERYBODY) -> None:  # fmt: skip
        self._engine = engine
        self._store = store
        self._names = names
        self._services = services
        self._locator = locator
        self._linked = linked
        self._followers = followers

    def service_name(self, index: int) -> str:
        """Of a service that is configured; else its number, ``#7``."""
        service = self._services.get(index)
        return service.name if service else f"#{index}"

    # -- connections --------------------------------------------------------------------------------------------------

    def connections(self, wanted: Wanted = EVERYTHING, limit: int | None = None) -> Iterator[list[dict[str, Any]]]:
        """Chunks of those that are wanted. One that is there from the first to the last is shown once."""
        found = itertools.islice(self.found(wanted), limit)
        while chunk := list(itertools.islice(found, CHUNK)):
            yield self._rows(chunk, wanted)

    def at(self, keys: Sequence[Key]) -> Iterator[list[dict[str, Any]]]:
        """Those of these 4-tuples, in one chunk; but those that sleep without a slot."""
        found = self._engine.find_many([key.pack() for key in keys])
        events = [event for event in found if event is not None and not event.candidate]
        yield self._rows([one for one in events if in_scope(self.service_name(one.record.service))], EVERYTHING)

    def found(self, wanted: Wanted, states: Collection[State] = (), born: bool = True,
              over: Callable[[], bool] = lambda: False) -> Iterator[Event]:  # fmt: skip
        """Those that are wanted, and of them those in these states, () of any. born: those that were born asleep and
        have not spoken, too, which have no record. over: when no more are wanted. Where a list is taken slowly, what is
        found at last may have changed: see `still`."""
        asked = self._asked(wanted)
        in_states = {wanted.state or state for state in states or State if wanted.state in (None, state)}
        if not in_states:
            return iter(())
        sought = replace(asked.sought, states=tuple(map(int, in_states)), born=born)
        found = self._with_names(wanted) if wanted.name or wanted.tag else self._all(sought)
        found = itertools.takewhile(lambda _: not over(), found)
        return (event for event in found if event.to_state in in_states and wanted.fits(event, asked))

    def still(self, wanted: Wanted, events: Sequence[Event], states: Collection[State]) -> Iterator[Event]:
        """As they are now, those of them that are wanted still, and in one of these states."""
        asked = self._asked(wanted)
        meant = self._meant(wanted, [event.number for event in events]) if wanted.name or wanted.tag else None
        found = self._engine.find_many([event.record.key_raw for event in events])
        for listed, event in zip(events, found, strict=True):
            if event is None or event.to_state not in states or not wanted.fits(event, asked):
                continue
            is_another = listed.number and event.number not in (0, listed.number)
            if not is_another and (meant is None or listed.number in meant):
                yield event

    def _meant(self, wanted: Wanted, numbers: Sequence[int]) -> set[int]:
        """Those of these connections that have a name and a tag as they are wanted."""
        names = {name: number for number, several in self._names.names_of(numbers).items() for name in several
                 if is_like(name, wanted.name or "*")}  # fmt: skip
        if wanted.tag:
            names = {name: names[name] for name, tags in self._names.tags_of(list(names)).items() if wanted.tag in tags}
        return set(names.values())

    def page(self, wanted: Wanted, after: str, limit: int) -> dict[str, Any]:
        """`connections`, no more than `limit` unless the engine has that many awake in one place, and `next`: the
        `after` of the page that follows, None: there is none. after: FIRST for the first. A page may have fewer, even
        none, when those that are wanted are few. Of connections that move between two pages, some may be on both, or
        on none."""
        if SCOPE.get() is not None:  # where a page ends is said by rows that may be of others
            raise OperationError(
                403, "after: pages are for whoever may see all services; without it the list comes whole"
            )
        asked = self._asked(wanted)
        events: Sequence[Event]
        kind, _, rest = ("" if after == FIRST else after).rpartition(":")
        try:
            if kind not in ("", "row"):
                raise ValueError
            if wanted.name or wanted.tag:
                events, after_that = self._page_of_names(wanted, rest, limit)
            elif kind == "row":
                events, after_that = self._page_without_slot(bytes.fromhex(rest), limit)
            else:
                at = int(rest or 0)
                events, position = self._engine.page(replace(asked.sought, after=min(max(at, 0), POSITION_MAX)), limit)
                without = self._has_without_slot(asked.sought.states)
                after_that = str(position) if position else "row:" if without else None
        except ValueError:
            raise OperationError(400, f'after="{after[:100]}" is not what a page ended with') from None
        fitting = [event for event in events if wanted.fits(event, asked)]
        return {"connections": self._rows(fitting, wanted), "next": after_that}

    def _asked(self, wanted: Wanted) -> Found:
        judge(wanted.name or "*", wanted.tag)
        service, network, bits = 0, bytes(16), 0
        numbers = {self.service_name(number): number for number in tuple(self._services)}
        if name := service_to_list(wanted.service, numbers):
            service = numbers[name]
        if wanted.network:
            try:
                found = parse_network(wanted.network)
            except ValueError as error:
                raise OperationError(400, f"`network`: {error}") from None
            network = pack_address(str(found.network_address))
            bits = found.prefixlen + (96 if found.version == 4 else 0)
        if wanted.rule and SCOPE.get() is not None:
            raise OperationError(403, "rule: which rules there are is for whoever may see all services")
        states = () if wanted.state is None else (int(wanted.state),)
        quiet_s, silence_s = (min(seconds, 2**32 - 1) for seconds in (wanted.quiet_s, wanted.silence_s))
        classes, by_rule = self._followers(wanted.rule) if wanted.rule else EVERYBODY

        def follows(event: Event) -> bool:
            if classes is None:
                return True
            record = event.record
            own = self._engine.find_own(record.key_raw, event.id)
            return by_rule(record.service, record.key, own.group)

        return Found(Sought(True, states, service, network, bits, quiet_s, silence_s, classes=classes), follows)

    def _all(self, sought: Sought) -> Iterator[Event]:
        yield from self._engine.list(sought)
        after: str | None = "row:" if self._has_without_slot(sought.states) else None
        while after is not None:
            events, after = self._page_without_slot(bytes.fromhex(after.removeprefix("row:")), PAGE)
            yield from events

    def _has_without_slot(self, states: Collection[int]) -> bool:
        if (states and State.SLEEP not in states) or self._store.status.error:
            return False
        return bool(self._engine.stats().get("filter_members"))

    def _page_without_slot(self, after: bytes, limit: int) -> tuple[list[Event], str | None]:
        """The connections in SLEEP of which nothing is in memory, in the form in which the engine lists the others."""
        rows = self._store.rows_by_key(after, limit)
        found = self._engine.find_many([row.key for row in rows])
        events = [
            event._replace(id=row.id)
            for row, event in zip(rows, found, strict=True)
            if event is not None and event.candidate
        ]
        return events, f"row:{rows[-1].key.hex()}" if rows else None

    def _with_names(self, wanted: Wanted) -> Iterator[Event]:
        after: str | None = ""
        while after is not None:
            events, after = self._page_of_names(wanted, after, PAGE)
            yield from events

    def _page_of_names(self, wanted: Wanted, after: str, limit: int) -> tuple[list[Event], str | None]:
        names = self._names.like(wanted.name or "*", wanted.tag, after, limit)
        found = self._engine.find_many([named.key for named in names.values()])
        events = [event._replace(id=named.id) for named, event in zip(names.values(), found, strict=True)
                  if event is not None and named.connected]  # fmt: skip
        return events, max(names) if names else None

    def _rows(self, events: list[Event], wanted: Wanted) -> list[dict[str, Any]]:
        asleep = {event.record.key_raw: event.reference for event in events if event.to_state == State.SLEEP}
        # Without the database the table can still be shown, and the status says that the database is missing.
        rows = {} if self._store.status.error else {row.key: row for row in self._store.rows_at(asleep)}
        shown = [self._row(event, event.id, rows.get(event.record.key_raw)) for event in events]
        if wanted.quiet_s:
            shown = [one for one in shown if one["quiet_s"] is None or one["quiet_s"] >= wanted.quiet_s]
        return self._named(shown)

    def _named(self, shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same with the names of all of them, and their tags."""
        tags: dict[str, list[str]] = {}
        try:
            names = self._names.names_of([one["id"] for one in shown if one["id"]])
            if names:
                tags = self._names.tags_of([name for several in names.values() for name in several])
        except RegistryError:
            names = {}
        for one in shown:
            known_as = names.get(one["id"], [])
            one["name"] = known_as[0] if known_as else None
            one["tags"] = sorted({tag for name in known_as for tag in tags.get(name, ())})
        return shown

    def _row(self, event: Event, number: int, row: SleepingRow | None = None) -> dict[str, Any]:
        """row: of one in SLEEP, where there is one."""
        key = event.record.key
        quiet_s = round(event.gap_ms / 1000, 3) if event.to_state != State.SLEEP or event.gap_ms else None
        if row is not None:
            number, quiet_s = number or row.id, _quiet_s(row.rest, row.slept_at)
        return {
            "id": number or event.record.id or None,
            "name": None,
            "tags": [],
            "state": State(event.to_state).label,
            "client": key.client_text,
            "local": key.local_text,
            "service": self.service_name(event.record.service),
            "quiet_s": quiet_s,
        }

    def show(self, name: str) -> dict[str, Any]:
        """Everything known about one connection."""
        located = self._locator.locate(name)
        (shown,) = self._named([self._row(located.event, located.id)])
        record = located.event.record
        rest, slept_at = record.rest, 0
        if located.state in INACTIVE and len(record.ka) == KA.size and not located.event.candidate:
            ka, policy = KA.unpack(record.ka), self._engine.find_class(record.key_raw)
            shown["keep_alive"] = {
                "snd_nxt": ka[1],
                "rcv_nxt": ka[2],
                "ts_offset": ka[3],
                "ts_recent": ka[4],
                "heard_s_ago": record.silence_s,
                "window": ka[6],
                "probe_interval_s": policy["probe_interval_s"],
                **({"most_probe_interval_s": most} if (most := policy["most_probe_s"]) else {}),
                "probes_unanswered": record.probes_unanswered,
            }
        if located.state is State.SLEEP and not self._store.status.error:
            row = self._store.sleeping_by_id(located.id) if located.id else None
            if row is not None:
                record = records.unpack(row.key, row.ka + row.rest)
                rest = record.rest
                shown["slept_at_ms"] = slept_at = row.slept_at
        if located.state in INACTIVE and len(rest) == REST.size and any(rest):
            values = REST.unpack(rest)
            shown["record"] = {"snd_wnd": values[2], "max_window": values[3], "mss": values[5]}
            shown["quiet_s"] = _quiet_s(rest, slept_at)
        if located.state in INACTIVE and record.paired:
            peer = record.peer or self._engine.find_peer(record.key_raw)
            shown["server"] = peer.key.client_text if peer else None
        own = self._engine.find_own(record.key_raw, located.id)
        given = {"in_band": own.in_band, "by_command": own.by_command}
        shown |= {by: dict(values) for by, values in given.items() if values}
        if located.id and not self._store.status.error:
            if earlier := self._store.predecessors_of(located.id):
                shown["came_back_from"] = earlier
            shown["history"] = [self.transition_row(row) for row in self._store.history_of(located.id)]
        return shown

    # -- history ------------------------------------------------------------------------------------------------------

    def recent(self, limit: int, number: int | None = None) -> list[dict[str, Any]]:
        """The last transitions in the history, oldest first. number: of this connection alone, OF_ONE at most, for they
        are looked for while the store waits."""
        if number is None:
            found = self._store.recent_history(limit)
        else:
            found = self._store.history_of(number, min(limit, OF_ONE))
        return [self.transition_row(row) for row in found]

    def attaches(self, limit: int, failed: bool) -> list[dict[str, Any]]:
        """The last servers that asked for a client, those that asked first before the others. failed: those that were
        refused."""
        linked = () if failed else self._linked()  # first: then each has been given to the store, or is one of these
        rows = self._store.recent_attaches(limit, failed)
        written = {(row.at, row.server) for row in rows}
        rows += (row for row in linked if (row.at, row.server) not in written)
        rows.sort(key=lambda row: row.at)
        return [self._attach_row(row) for row in rows[max(len(rows) - limit, 0) :]]

    def _attach_row(self, row: Attach) -> dict[str, Any]:
        return {
            "at_ms": row.at,
            "way": row.way,
            "server": row.server,
            "target": row.target,
            "step": row.step or None,
            "id": row.id or None,
            "client": row.client or None,
            "service": self.service_name(row.service) if row.service else None,
            "found": State(row.found).label if row.found else None,
            "error": error_text(row.error),
            "reason": refusal_for(row.error).reason if row.error else None,
            "answer_ms": row.answer_ms,
            "first_ms": row.first_ms,
        }

    def audit(self, limit: int, who: str, refused: bool) -> list[dict[str, Any]]:
        """The last changes that were asked for, oldest first. who, refused: appended.recent_audit."""
        return [
            {
                "at_ms": row.at,
                "who": row.who,
                "origin": row.origin,
                "method": row.method,
                "path": row.path,
                "body": row.body,
                "status": row.status,
                "error": row.error or None,
            }
            for row in self._store.recent_audit(limit, who, refused)
        ]

    def snapshots(self, moments: int) -> list[dict[str, Any]]:
        """What was counted at the last moments, the first ones first."""
        return [
            {
                "at_ms": row.at,
                "span_ms": row.span_ms,
                "service": self.service_name(row.service) if row.service else None,
                "rules": row.rules or None,
                "counts": json.loads(row.counts),
            }
            for row in self._store.recent_snapshots(moments)
        ]

    def transition_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """control.clients.transitions.transition."""
        return transition(row, self.service_name)

    def transition_event(self, event: Event) -> dict[str, Any]:
        """A transition as it happens, in the form of `transition_row`."""
        row = {"at": event.at_ms, "id": event.id, "client": event.record.key.client_text}
        row |= {"service": event.record.service, "from": event.from_state, "to": event.to_state, "cause": event.cause}
        row |= {"rx_bytes": event.rx_bytes, "tx_bytes": event.tx_bytes, "gap_ms": event.gap_ms}
        row |= Ends.unpack(event.ends)._asdict()
        return self.transition_row(row)


def _quiet_s(rest: bytes, slept_at_ms: int) -> float:
    """Seconds since the last payload byte of a frozen connection; since it went to SLEEP, where its record's clock is
    that of an earlier boot. slept_at_ms: since 1970; 0: it is not in SLEEP."""
    by_record_ms: float = time.monotonic() * 1000 - REST.unpack(rest[: REST.size])[1]
    by_row_ms: float = time.time() * 1000 - slept_at_ms if slept_at_ms else 0
    return round(max(by_record_ms, by_row_ms, 0) / 1000, 3)
