# SPDX-License-Identifier: Apache-2.0
"""An engine without a kernel: connections are rows of a dict, commands change their state as cext/base/types.h says.

Tests put events in (`connect`, `quiet`, ...), take commands out (`commands`), or let `submit` carry them out.
"""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from errno import EBUSY, EEXIST, ENOENT, ENOSPC, EOPNOTSUPP, ESTALE

from appliance.engine import EngineError
from appliance.wire import (
    CANDIDATE,
    GIVEN_GROUP,
    KA,
    KEY,
    NO_ENDS,
    NO_REST,
    REST,
    ROW_BITS,
    Bounds,
    Census,
    Command,
    EngineOptions,
    Event,
    EventType,
    Key,
    Limited,
    Obstacle,
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
from appliance.wire.record import PAIRED, low_bits_of
from control.core.states import AWAKE, Cause, State


def key(number: int = 1, port: int = 40000) -> Key:
    return Key.of(f"192.0.{number >> 8 & 255}.{number & 255}", port, "10.0.0.1", 7000)


def record(
    k: Key, identity: int, service: int = 1, *, active_ms: int = 0, ts_offset: int = 0, by_key: bool = False,
    flags: int = 0,
) -> Record:  # fmt: skip
    """by_key: nothing but its row will know its number when it sleeps."""
    rest = NO_REST if by_key or not identity else 1 << ROW_BITS | identity % (1 << ROW_BITS)
    ctl = State.IDLE | flags << 16
    ka = KA.pack(ctl, 1000, 2000, ts_offset, 0, int(time.monotonic()) << 12, 512, 0, rest, service, 0)
    return Record(k.pack(), ka, REST.pack(identity, active_ms, 65535, 65535, 0, 1460, 0, 0, 0))


def event(kind: EventType, k: Key, identity: int = 0, **fields: int) -> Event:
    values = dict.fromkeys(
        ("from_state", "to_state", "cause", "op", "error", "count", "token", "rx_bytes", "tx_bytes", "gap_ms"), 0
    )
    values["at_ms"] = time.time_ns() // 1_000_000
    values.update(fields)
    return Event(type=kind, id=identity, record=record(k, identity), rows=b"", ends=NO_ENDS, **values)


@dataclass
class Connection:
    key: Key
    id: int
    state: State
    record: Record


@dataclass
class FakeEngine:
    """carry_out: commands change connections and are answered, as the engine does it; else they are only noted."""

    carry_out: bool = True
    options: EngineOptions | None = None
    commands: list[Command] = field(default_factory=list)
    connections: dict[Key, Connection] = field(default_factory=dict)
    pending: deque[Event] = field(default_factory=deque)
    started: bool = False
    closed: bool = False
    shifted: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Those that were put back: by how much."""
    services: list[ServiceSpec] = field(default_factory=list)
    updates: list[ServiceSpec] = field(default_factory=list)
    marks: list[tuple[int, ServerAddress, bool]] = field(default_factory=list)
    patience_ms: int = 0  # of the thread that took events last
    policy: dict[str, int] = field(default_factory=dict)
    own: Own = field(default_factory=Own)
    obstacles: Obstacles = field(default_factory=lambda: Obstacles(Obstacle(0), 0, 0, 0, 0, 0))
    counted: dict[str, int] = field(default_factory=dict)
    beyond: set[Limited] = field(default_factory=set)
    """Limits that every source is beyond."""
    tallied: list[Tally] = field(default_factory=list)
    silent: dict[int, Silences] = field(default_factory=dict)
    entries: Sequence[RuleEntry] = ()
    policies: Sequence[ServiceSpec] = ()
    rules_set: int = 0  # how often
    grouped: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """The group of each connection that was told of one, by key and number."""
    rules_untold: int = 0  # networks that XDP has no memory for
    rules_refused_for_groups: bool = False
    submit_refused: Exception | None = None
    grouping: bool = True  # whether it does as it is told about groups
    rules_refused: Exception | None = None
    """What it says to more rules."""
    filters: bool = False
    """Whether those whose rows are found by their keys sleep without a slot."""
    without_slot: dict[Key, int] = field(default_factory=dict)
    """The keys that its filter takes for sleepers, and the number of each that is one; 0: it is a stranger."""

    def __post_init__(self) -> None:
        self._ready = threading.Condition()

    # -- what tests do ----

    def add(self, k: Key, identity: int, state: State, by_key: bool = False) -> Connection:
        self.connections[k] = Connection(k, identity, state, record(k, identity, by_key=by_key))
        return self.connections[k]

    def say(self, *events: Event) -> None:
        with self._ready:
            self.pending.extend(events)
            self._ready.notify_all()

    def move(self, c: Connection, to: State, cause: Cause, token: int = 0) -> None:
        source, c.state = c.state, to
        if to is State.CLOSED:
            self.connections.pop(c.key, None)
        self.say(event(EventType.TRANSITION, c.key, c.id, from_state=source, to_state=to, cause=cause, token=token))

    def ops(self) -> list[Op]:
        return [command.op for command in self.commands]

    # -- the engine's face ----

    def put_back(self, keys: bytes, kas: bytes, numbers: array[int], clocks: array[int],
                 shifts: Mapping[int, tuple[int, int]]) -> tuple[int, bytes]:  # fmt: skip
        errors = bytearray(len(numbers))
        for at, number in enumerate(numbers):
            k = Key.unpack(keys[at * KEY.size : (at + 1) * KEY.size])
            ka = KA.unpack(kas[at * KA.size : (at + 1) * KA.size])
            if clocks[at] not in shifts or (k not in self.connections and ka[8] == NO_REST):
                errors[at] = ESTALE
            elif k not in self.connections and ka[0] >> 16 & PAIRED:
                errors[at] = EOPNOTSUPP
            elif k in self.connections:
                errors[at] = 0 if self.connections[k].id == number else EEXIST
            else:
                self.add(k, number, State.SLEEP)
                self.shifted[number] = shifts[clocks[at]]
        return len(numbers), bytes(errors)

    def attach(self, ifname: str, mode: str = "auto", servers: bool = False) -> str:
        return "native" if mode == "native" else "generic"

    def add_service(self, s: ServiceSpec) -> None:
        self.services.append(s)

    def update_service(self, s: ServiceSpec) -> None:
        self.updates.append(s)

    def set_rules(self, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> tuple[int, list[int]]:
        if self.rules_refused is not None:
            raise self.rules_refused
        if self.rules_refused_for_groups and (groups := {entry.group for entry in entries if entry.group}):
            raise EngineError(f"no room for {len(groups)} group", ENOSPC)
        self.entries, self.policies = tuple(entries), tuple(policies)
        self.rules_set += 1
        return self.rules_untold, [1024 + place for place in range(len(policies))]

    def count_rules(self, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> list[tuple[int, int]]:
        counts = [[0, 0] for _ in (*policies, None)]
        for c in self.connections.values():
            (at, then), (_, now) = _policy_of(c, entries, policies), _policy_of(c, self.entries, self.policies)
            counts[at][0] += 1
            counts[at][1] += then != now
        return [(have, change) for have, change in counts]

    def groups(self) -> frozenset[int]:
        return frozenset(self.grouped.values()) - {0}

    def mark_server(self, service: int, server: ServerAddress, up: bool) -> None:
        self.marks.append((service, server, up))

    def servers(self, service: int) -> list[ServerStatus]:
        """Of the service's latest configuration; up as it was marked last."""
        specs = [spec for spec in (*self.services, *self.updates) if spec.index == service][-1:]
        marks = {server: up for index, server, up in self.marks if index == service}
        return [ServerStatus(s, marks.get(s, True), False, 0, 0, 0) for spec in specs for s in spec.servers]

    def set_limits(self, bounds: Bounds) -> None:
        pass

    def link_ports(self, first: int, last: int) -> None:
        pass

    def reserve_link_port(self, port: int) -> None:
        pass

    def unreserve_link_ports(self) -> None:
        pass

    def start(self) -> None:
        self.started = True

    def submit_many(
        self, op: Op, cause: int, ids: Sequence[int] | None = None, keys: Sequence[bytes] | None = None, token: int = 0
    ) -> None:
        assert ids is None, "the product names them by their keys"
        self.submit([Command(op=op, cause=cause, key=key, token=token) for key in keys or ()])

    def submit(self, commands: Sequence[Command]) -> None:
        if self.submit_refused is not None:
            raise self.submit_refused
        self.commands.extend(commands)
        for one in commands:
            if self.grouping and one.op is Op.GIVE and one.count == GIVEN_GROUP:
                key = one.key.pack() if isinstance(one.key, Key) else one.key
                self.grouped[key or b"", one.id] = one.overrides[-1]
        if self.carry_out:
            for command in commands:
                self._do(command)

    def batch(self, max_events: int = 4096, timeout_ms: int = 200, patience_ms: int = 0) -> list[Event]:
        with self._ready:
            self.patience_ms = patience_ms
            if not self.pending:
                self._ready.wait(timeout_ms / 1000)
            return [self.pending.popleft() for _ in range(min(max_events, len(self.pending)))]

    def wake_none(self) -> None:
        """It wakes none by itself."""

    def stop_listening(self) -> None:
        """It has no listeners."""

    def wake(self) -> None:
        with self._ready:
            self._ready.notify_all()

    def find_client(self, address: bytes, port: int, local: bytes, one: bool = False) -> list[Event]:
        ports = {s.listen_port for s in self.services}
        found = (c for k, c in self.connections.items() if (k.client, k.client_port) == (address, port))
        known = [self._as_event(c) for c in found if not ports or c.key.local_port in ports]
        if known and one:
            return known[:1]
        candidates = (k for k in self.without_slot if (k.client, k.client_port) == (address, port))
        return known + [event for k in candidates if (event := self.find(k)) is not None]

    def find_peer(self, key: bytes) -> Record | None:
        return None

    def find_own(self, key: bytes, number: int) -> Own:
        return self.own._replace(group=self.grouped.get((key, number), 0))

    def find_class(self, key: bytes) -> dict[str, int]:
        return {"probe_interval_s": 0, "most_probe_s": 0, "second_server": 0, "second_server_ms": 0, **self.policy}

    def find_obstacles(self, key: bytes) -> Obstacles | None:
        c = self.connections.get(Key.unpack(key))
        return self.obstacles if c is not None and c.state in AWAKE else None

    def dial(self, service: int, client: ServerAddress, server: bytes) -> tuple[int, bytes]:
        """As the engine, from where this machine likes; the key has nothing of that."""
        key = Key.of(*client, "10.0.0.1", 7000)
        if key in self.connections:
            return -EEXIST, key.pack()
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(client)
        return sock.detach(), key.pack()

    def list(self, sought: Sought = Sought()) -> Iterator[Event]:  # noqa: B008 (frozen)
        for c in tuple(self.connections.values())[sought.after :]:
            found = self._as_event(c)
            fits = (sought.network[: sought.bits // 8] == c.key.client[: sought.bits // 8]  # whole bytes, here
                    and sought.service in (0, found.service)
                    and (not sought.numbers or found.number in sought.numbers)
                    and (c.state is State.SLEEP or found.gap_ms >= sought.quiet_s * 1000))  # fmt: skip
            if c.state in (sought.states or tuple(State)) and fits:
                yield found

    def page(self, sought: Sought, limit: int) -> tuple[Sequence[Event], int]:
        found = [*self.list(sought)]
        here = found[:limit]
        if len(here) == len(found):
            return here, 0
        return here, 1 + [*self.connections].index(here[-1].record.key) if here else sought.after

    def slots_in_sleep(self) -> int:
        return sum(c.state is State.SLEEP for c in self.connections.values())

    def find(self, key: Key) -> Event | None:
        c = self.connections.get(key)
        if c is None and key in self.without_slot:
            return event(EventType.TRANSITION, key, from_state=State.SLEEP, to_state=State.SLEEP, count=1)
        return self._as_event(c) if c else None

    def find_many(self, keys: Sequence[bytes]) -> Sequence[Event | None]:
        return [self.find(Key.unpack(key)) for key in keys]

    def states(self, keys: bytes, numbers: array[int]) -> bytes:
        found = [self._numbered(Key.unpack(keys[36 * at : 36 * at + 36]), number) for at, number in enumerate(numbers)]
        return bytes(e.to_state | (CANDIDATE if e.candidate else 0) if e is not None else 0 for e in found)

    def _numbered(self, k: Key, number: int) -> Event | None:
        c = self.connections.get(k)
        by_number = c is not None and c.state is State.SLEEP and low_bits_of(c.record.ka) != 0
        return None if by_number and c is not None and c.id != number else self.find(k)

    def within_limit(self, what: Limited, address: str) -> bool:
        return what not in self.beyond

    def last_refused(self, what: Limited) -> str:
        return "192.0.2.9"

    def stats(self) -> dict[str, int]:
        return {
            "keepalives_answered": 7,
            "born": 0,
            "filter_members": len(self.without_slot),
            **self.counted,
        }

    def gauges(self) -> frozenset[str]:
        return frozenset({"born", "filter_members"})

    def tallies(self) -> Sequence[Tally]:
        taken, self.tallied = self.tallied, []
        return taken

    def silences(self) -> dict[int, Silences]:
        return self.silent

    def census(self) -> dict[int, Census]:
        """All are of class 1, of service 1."""
        counts = Counter(c.state for c in self.connections.values())
        return {1: Census(1, tuple(counts[state] for state in State), 0)} if counts else {}

    def memory(self) -> int:
        return 160 * 1000

    def stop(self) -> None:
        self.started = False
        for c in tuple(self.connections.values()):
            if c.state in AWAKE:
                self.move(c, State.CLOSED, Cause.SHUTDOWN)

    def close(self) -> None:
        self.closed = True

    # -- how commands are carried out ----

    def _as_event(self, c: Connection) -> Event:
        found = event(EventType.TRANSITION, c.key, 0 if c.state is State.SLEEP else c.id, to_state=c.state)
        record = c.record if c.state is not State.SLEEP else Record(c.key.pack(), c.record.ka, bytes(REST.size))
        return found._replace(record=record)

    def _refuse(self, command: Command, k: Key, error: int) -> None:
        self.say(
            event(
                EventType.REFUSED, k, command.id, op=command.op, error=error, token=command.token, cause=command.cause
            )
        )

    def _do(self, command: Command) -> None:
        if command.op is Op.PRESSURE:
            return
        where = Key.unpack(command.key) if isinstance(command.key, bytes) else command.key
        c = self.connections.get(where) if where else None
        if c is None and command.id:
            c = next((one for one in self.connections.values() if one.id == command.id), None)
        cause, token = Cause(command.cause), command.token
        if command.op is Op.INSERT:
            assert where is not None
            assert command.record is not None
            if c is not None:
                self._refuse(command, where, EEXIST)
                return
            c = Connection(where, command.record.id, State.NONE, command.record)
            self.move(c, State.SLEEP, cause)
            if self.filters and KA.unpack(c.record.ka)[8] == NO_REST:
                self.without_slot[c.key] = c.id
            else:
                self.connections[c.key] = c
            return
        if c is None and where and self.without_slot.get(where) and command.op in (Op.WAKE, Op.CLOSE, Op.ATTACH):
            c = self.add(where, self.without_slot.pop(where), State.SLEEP)
        if c is None:
            self._refuse(command, where or key(0), ENOENT)
        elif command.op is Op.STANDBY and c.state is State.ACTIVE:
            self.move(c, State.STANDBY, cause, token)
        elif command.op is Op.IDLE and c.state in AWAKE:
            if c.state is State.ACTIVE:
                self.move(c, State.STANDBY, cause, token)
            self.move(c, State.IDLE, cause, token)
        elif command.op is Op.SLEEP and c.state is State.IDLE and c.id == command.id:
            self.move(c, State.SLEEP, cause, token)
        elif command.op is Op.WAKE and c.state is State.IDLE:
            self.move(c, State.STANDBY, cause, token)
        elif command.op in (Op.WAKE, Op.ATTACH) and c.state is State.SLEEP:
            needed = event(EventType.NEED_RECORD, c.key, op=command.op, cause=cause, token=token)
            self.say(needed._replace(record=self._as_event(c).record))
        elif command.op is Op.ATTACH and c.state is not State.ACTIVE:
            self.move(c, State.ACTIVE, cause, token)
        elif command.op is Op.CLOSE:
            self.move(c, State.CLOSED, cause, token)
        elif command.op is Op.RESTORE:
            if command.error:
                self.move(c, State.CLOSED, Cause.RESTORE, token)
            else:
                target = State.ACTIVE if cause is Cause.SERVER_ATTACH else State.STANDBY
                self.move(c, target, cause or Cause.CLIENT_DATA, token)
        else:
            self._refuse(command, c.key, EBUSY)


def _policy_of(
    c: Connection, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]
) -> tuple[int, ServiceSpec | None]:
    """Of the longest network that a connection's client lies in, and its place; (-1, None): of none."""
    client, service = int.from_bytes(c.key.client, "big"), c.record.service
    ours = [e for e in entries if e.service == service]
    inside = (e for e in ours if (int.from_bytes(e.network, "big") ^ client) >> (128 - e.bits) == 0)
    found = max(inside, key=lambda e: e.bits, default=None)
    return (-1, None) if found is None else (found.policy, policies[found.policy])
