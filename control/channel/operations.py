# SPDX-License-Identifier: Apache-2.0
"""What can be asked of a running daemon, apart from the way it is asked: look, find, move one connection.

A connection is named by its number, by ``client-address:port``, or by its registered name with the domain. Where it is
found depends on its state: awake and IDLE ones by the engine, the numbers of SLEEP ones by the store alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EIO, ELOOP, ENOENT, ENOTCONN, ETIMEDOUT
from pathlib import Path
from typing import Any, Final, Protocol

from appliance.engine import KA, REST, Command, Event, Key, Op, pack_address
from appliance.frontends.target import Address, Name, Target, parse_address
from control.config import Attach, Policy, Service, parse_endpoint
from control.health import Health
from control.monitor import EnginePort, Monitor, Outcome
from control.reach.absent import ABSENT
from control.reach.linker import Linker
from control.reach.reach import Reach
from control.reach.server import Server
from control.registry import Named, Registry, RegistryError, canonical
from control.states import AWAKE, INACTIVE, Cause, State
from control.store import records
from control.store.store import Store

COMMAND_TIMEOUT_S: Final = 10.0
SETTLE_S: Final = 2.0
"""A link that ends for the sake of another server is looked at once a second."""

CHUNK: Final = 500


class OperationError(Exception):
    """It cannot be done; status is the HTTP status that says so best."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class StatsPort(EnginePort, Protocol):
    """The engine, with its counters."""

    def stats(self) -> dict[str, int]: ...
    def memory(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Located:
    """A connection that was found; id 0 when nobody knows it (SLEEP without a database)."""

    id: int
    state: State
    event: Event

    @property
    def key(self) -> Key:
        return self.event.record.key


def local_addresses(proc: Path = Path("/proc/thread-self/net")) -> list[str]:
    """The addresses of this network namespace, for services that listen on all of them.

    From /proc, not by netlink: this is asked for inside of the event loop, where pyroute2 cannot open its socket, and
    pyroute2 alone would cost the daemon 10 MB."""
    found: set[str] = set()
    address = ""
    for line in (proc / "fib_trie").read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            address = words[1]
        elif words == ["/32", "host", "LOCAL"]:
            found.add(address)
    inet6 = proc / "if_inet6"
    if inet6.exists():  # not there when IPv6 is switched off
        for line in inet6.read_text(encoding="ascii").splitlines():
            found.add(str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))))
    return sorted(found)


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Operations:
    """Everything the local API and the attach front end do. `locate`, `connections` and `show` may block for as long as
    the engine and the database take: call them from a thread that may."""

    def __init__(
        self,
        engine: StatsPort,
        store: Store,
        monitor: Monitor,
        registry: Registry,
        services: Mapping[int, Service],
        policies: Mapping[int, Policy],
        health: Health,
        attach: Attach,
        facts: dict[str, Any],
        reach: Reach | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._monitor = monitor
        self._registry = registry
        self._services = services
        self._policies = policies
        self._health = health
        self._domain = attach.domain
        listens = [*attach.listen, *(service.listen for service in services.values())]  # a reload does not change them
        self._listens = [(ipaddress.ip_address(where), port) for where, port in map(parse_endpoint, listens)]
        self._facts = facts
        self._reach = reach
        self._linker = reach.linker if reach else Linker(monitor)
        self._began = time.monotonic()
        self._addresses: tuple[set[str], bytes] = (set(), b"")
        self._addresses_read = -math.inf

    # -- looking ------------------------------------------------------------------------------------------------------

    def service_name(self, index: int) -> str:
        service = self._services.get(index)
        return service.name if service else f"#{index}"

    def status(self) -> dict[str, Any]:
        """The whole state of the daemon as plain data."""
        self._monitor.catch_up()
        states = {state.label: max(self._monitor.states[state], 0) for state in State if state not in (0, 5)}
        stats = self._engine.stats()
        states["IDLE"] += stats["born"]  # the monitor knows none of them until it speaks
        store = self._store.status
        inactive = states["IDLE"] + states["SLEEP"]
        memory = self._engine.memory()
        counters = self._monitor.counters
        return {
            **self._facts,
            "uptime_s": round(time.monotonic() - self._began, 3),
            "connections": states,
            "awake": states["ACTIVE"] + states["STANDBY"],
            "memory": {
                "maps_bytes": memory,
                "daemon_rss_bytes": rss_bytes(),
                "maps_bytes_per_inactive": round(memory / inactive, 1) if inactive else None,
            },
            "store": {
                "state": store.text,
                "pending_sleep": store.pending_sleep,
                "pending_history": store.pending_history,
                "dropped_history": store.dropped_history,
                "written_history": store.written_history,
                "last_commit_ms": round(store.last_commit_ms, 3),
            },
            "control": {name: getattr(counters, name) for name in counters.__dataclass_fields__},
            "services": [self._service_row(index, service) for index, service in tuple(self._services.items())],
            "agents": self._reach.counts() if self._reach else {},
            "counters": stats,
        }

    def _service_row(self, index: int, service: Service) -> dict[str, Any]:
        return {
            "name": service.name,
            "index": index,
            "listen": service.listen,
            "server": " ".join(service.every_server) or (service.listen if service.kind == "server" else service.kind),
            "transparent": service.transparent,
            "interface": service.interface,
            "balance": service.balance,
            "check": service.check,
            "servers": self._health.rows(index),
        }

    def connections(
        self, state: State | None = None, client: str = "", limit: int | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """Chunks of connections: of one state if given, whose ``address:port`` begins with `client`."""
        left = limit if limit is not None else -1
        chunk: list[Event] = []
        for event in itertools.chain(self._engine.list(born=True), self._without_slot(state)):
            if left == 0:
                break
            if state is not None and event.to_state != state:
                continue
            if client and not event.record.key.client_text.startswith(client):
                continue
            chunk.append(event)
            left -= 1
            if len(chunk) == CHUNK:
                yield self._rows(chunk)
                chunk = []
        if chunk:
            yield self._rows(chunk)

    def _without_slot(self, state: State | None) -> Iterator[Event]:
        """The connections in SLEEP of which nothing is in memory, in the form in which the engine lists the others."""
        if state not in (None, State.SLEEP) or self._store.status.error:
            return
        if not self._engine.stats().get("filter_members"):
            return
        after = b""
        while page := self._store.sleeping_rows(after):
            after = page[-1].key
            for row in page:
                event = self._engine.find(Key.unpack(row.key))
                if event is not None and event.perhaps:
                    yield event._replace(id=row.id)

    def _rows(self, events: list[Event]) -> list[dict[str, Any]]:
        asleep = [event.record.key_raw for event in events if event.to_state == State.SLEEP]
        ids = self._ids_of(asleep)
        return [self._row(event, event.id or ids.get(event.record.key_raw, 0)) for event in events]

    def _ids_of(self, keys: list[bytes]) -> dict[bytes, int]:
        # Without the database the table can still be shown; status says that the database is missing.
        if not keys or self._store.status.error:
            return {}
        return self._store.sleeping_ids(keys)

    def _row(self, event: Event, number: int) -> dict[str, Any]:
        key = event.record.key
        return {
            "id": number or event.record.id or None,
            "name": self._registry.name_at(event.record.key_raw),
            "state": State(event.to_state).label,
            "client": key.client_text,
            "local": key.local_text,
            "service": self.service_name(event.record.service),
            "quiet_s": round(event.gap_ms / 1000, 3) if event.to_state != State.SLEEP or event.gap_ms else None,
        }

    def show(self, name: str) -> dict[str, Any]:
        """Everything known about one connection."""
        located = self.locate(name)
        shown = self._row(located.event, located.id)
        record = located.event.record
        rest = record.rest
        if located.state in INACTIVE and len(record.ka) == KA.size and not located.event.perhaps:
            ka = KA.unpack(record.ka)
            shown["keep_alive"] = {
                "snd_nxt": ka[1],
                "rcv_nxt": ka[2],
                "ts_offset": ka[3],
                "ts_recent": ka[4],
                "heard_s_ago": record.silence_s,
                "window": ka[6],
                "probe_interval_s": self._engine.find_class(record.key_raw)["probe_interval_s"],
                "probes_unanswered": record.probes_unanswered,
            }
        if located.state is State.SLEEP and not self._store.status.error:
            row = self._store.sleeping_by_id(located.id) if located.id else None
            if row is not None:
                record = records.unpack(row.key, row.ka + row.rest)
                rest = record.rest
                shown["slept_at_ms"] = row.slept_at
        if located.state in INACTIVE and len(rest) == REST.size and any(rest):
            values = REST.unpack(rest)
            shown["record"] = {"snd_wnd": values[2], "max_window": values[3], "mss": values[5]}
            shown["quiet_s"] = round(max(time.monotonic() * 1000 - values[1], 0) / 1000, 3)
        if located.state in INACTIVE and record.paired:
            peer = record.peer or self._engine.find_peer(record.key_raw)
            shown["server"] = peer.key.client_text if peer else None
        if set_in_band := self._engine.find_overrides(record.key_raw, located.id):
            shown["in_band"] = set_in_band
        if located.id and not self._store.status.error:
            shown["history"] = [self.transition_row(row) for row in self._store.history_of(located.id)]
        return shown

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last transitions in the history, oldest first."""
        return [self.transition_row(row) for row in self._store.recent_history(limit)]

    def transition_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of history as people and programs read it."""
        return {
            "at_ms": row["at"],
            "id": row["id"],
            "client": row["client"],
            "service": self.service_name(row["service"]),
            "from": State(row["from"]).label,
            "to": State(row["to"]).label,
            "cause": Cause(row["cause"]).label,
            "rx_bytes": row["rx_bytes"],
            "tx_bytes": row["tx_bytes"],
            "gap_ms": row["gap_ms"],
        }

    def transition_event(self, event: Event) -> dict[str, Any]:
        """A transition as it happens, in the form of `transition_row`."""
        row = {"at": event.at_ms, "id": event.id, "client": event.record.key.client_text}
        row |= {"service": event.record.service, "from": event.from_state, "to": event.to_state, "cause": event.cause}
        row |= {"rx_bytes": event.rx_bytes, "tx_bytes": event.tx_bytes, "gap_ms": event.gap_ms}
        return self.transition_row(row)

    # -- finding ------------------------------------------------------------------------------------------------------

    def find(self, target: Target) -> Key:
        """The 4-tuple of the client that a server wants. Raises OSError: ENOENT, ENOTCONN, ELOOP or EIO, as
        appliance.frontends.handshake.ANSWERS explains them."""
        return self._wanted(target)[0].record.key

    def _wanted(self, target: Target) -> list[Event]:
        """The connection that is meant, or those of which one may be (`perhaps`); raises as `find` does."""
        if isinstance(target, Address):
            if self._is_own(target):
                raise OSError(ELOOP, "the target is the appliance itself")
            if not (events := self._find(target.host, target.port)):
                raise OSError(ENOENT, "no such connection")
            return self._reachable(events)
        if target.text == "localhost" or target.text.endswith(".localhost"):  # RFC 6761 6.3
            raise OSError(ELOOP, "the target is the appliance itself")
        if not self._registry.loaded:
            raise OSError(EIO, "names cannot be read")
        if (named := self._named(target)) is None:
            raise OSError(ENOENT, "no such name")
        if (event := self._event_of(named)) is None:
            raise OSError(ENOTCONN, "the client of this name is not connected")
        return self._reachable([event])

    def _reachable(self, events: Sequence[Event]) -> list[Event]:
        """They; but a server must not speak to an agent, which obeys what it is told on its control connection."""
        reachable = [event for event in events if not self._is_of_an_agent(event)]
        if not reachable:
            raise OSError(ELOOP, "the target is an agent's connection to the appliance itself")
        return reachable

    def _is_of_an_agent(self, event: Event) -> bool:
        service = self._services.get(event.service)
        return service is not None and service.kind == "agents"

    def _named(self, target: Name) -> Named | None:
        name, dot, domain = target.text.rpartition(f".{self._domain}")
        return self._registry.find(name) if dot and not domain else None

    def _event_of(self, named: Named) -> Event | None:
        """The connection of a name, if it lives."""
        event = self._engine.find(Key.unpack(named.key)) if named.connected else None
        return event if event is not None and (event.id or event.record.id) in (0, named.id) else None

    def _is_own(self, target: Address) -> bool:
        """Whether the address is one that this appliance listens on."""
        ip = ipaddress.ip_address(target.host)
        for listening, port in self._listens:
            if port != target.port or listening.version != ip.version:
                continue
            everywhere = listening.is_unspecified and (ip.is_loopback or self.has_address(target.host))
            if ip == listening or ip.is_unspecified or everywhere:
                return True
        return False

    def _find(self, address: str, port: int) -> Sequence[Event]:
        return self._engine.find_client(pack_address(address), port, self._local_addresses()[1])

    def has_address(self, address: str) -> bool:
        """Whether this machine has the address."""
        return address in self._local_addresses()[0]

    def _local_addresses(self) -> tuple[set[str], bytes]:
        """Those of this machine: as texts, and packed one after the other."""
        now = time.monotonic()
        if now - self._addresses_read > 5.0:
            texts = local_addresses()
            self._addresses_read = now
            self._addresses = set(texts), b"".join(map(pack_address, texts))
        return self._addresses

    def locate(self, name: str) -> Located:
        """The connection with this number, ``client-address:port``, or name with its domain."""
        event: Event | None = None
        number = 0
        if name.isascii() and name.isdigit():
            number = int(name)
            event = self._asleep_numbered(number)
            if event is None and number:
                event = next((one for one in self._engine.list() if number in (one.id, one.record.id)), None)
                event = event or self._asleep_numbered(number)  # since it went to SLEEP meanwhile
        elif name.lower().endswith(f".{self._domain}"):
            if (named := self._named(Name(name.lower()))) is not None:
                event, number = self._event_of(named), named.id
        else:
            try:
                client = parse_address(name)
            except ValueError:
                message = f'"{name}" is no number of a connection, no client-address:port, and no client\'s name.'
                raise OperationError(400, f"{message}{self._domain}") from None
            event = self._asleep_among(self._find(client.host, client.port))
        key = event.record.key_raw if event is not None else b""
        if event is not None:
            number = number or event.id or event.record.id or self._ids_of([key]).get(key, 0)
            if event.perhaps and not number and not self._store.status.error:
                event = None  # nobody's, as it turns out
        if event is None:
            raise OperationError(404, f'no connection "{name}"')
        return Located(number, State(event.to_state), event)

    def _asleep_numbered(self, number: int) -> Event | None:
        """The connection that a row of `sleeping` is about."""
        if self._store.status.error or not 0 < number < 2**63 or not (row := self._store.sleeping_by_id(number)):
            return None
        event = self._engine.find(Key.unpack(row.key))
        # The row may be about to be removed, and its 4-tuple another connection's by now.
        return event if event is not None and event.id in (0, number) else None

    def _asleep_among(self, events: Sequence[Event]) -> Event | None:
        """Of several that may be asleep, the one that has a row; without the database, nobody can tell."""
        ids = self._ids_of([event.record.key_raw for event in events]) if len(events) > 1 else {}
        return next((event for event in events if event.record.key_raw in ids), events[0] if events else None)

    # -- clients that are reached by other ways -----------------------------------------------------------------------

    def agents(self) -> list[dict[str, Any]]:
        """The clients that agents speak for."""
        return self._reach.agents.clients() if self._reach else []

    def dialled(self) -> list[dict[str, Any]]:
        """The clients that were dialled in vain."""
        return self._reach.dialled.all() if self._reach else []

    # -- names --------------------------------------------------------------------------------------------------------

    def give_name(self, connection: str, name: str) -> dict[str, Any]:
        """Let a name stand for a connection; returns when that is written."""
        wanted = _canonical(name, self._domain)
        located = self.locate(connection)
        if not located.id:
            raise OperationError(503, f"the connection's number is unknown: store: {self._store.status.text}")
        try:
            self._registry.give(wanted, located.key.pack(), located.id)
            self._registry.commit()
        except RegistryError as error:
            raise OperationError(503, str(error)) from None
        target = f"{wanted}.{self._domain}"
        return {"id": located.id, "client": located.key.client_text, "name": wanted, "target": target}

    def take_name(self, connection: str) -> dict[str, Any]:
        """Forget the name of a connection."""
        located = self.locate(connection)
        if (name := self._registry.name_at(located.key.pack())) is None:
            raise OperationError(404, f'the connection "{connection}" has no name')
        return self.forget_name(name)

    def forget_name(self, name: str) -> dict[str, Any]:
        """Forget a name, whether or not its connection lives."""
        wanted = _canonical(name, self._domain)
        try:
            if not self._registry.remove(wanted):
                raise OperationError(404, f'nobody has the name "{name}"')
            self._registry.commit()
        except RegistryError as error:
            raise OperationError(503, str(error)) from None
        return {"name": wanted}

    # -- moving -------------------------------------------------------------------------------------------------------

    async def act(self, name: str, action: str) -> dict[str, Any]:
        """Carry out standby, idle, sleep, wake or close; returns where the connection is then."""
        located = await asyncio.to_thread(self.locate, name)
        state = located.state
        targets = {
            "standby": [State.STANDBY],
            "idle": [State.IDLE],
            "sleep": [State.SLEEP],
            "wake": [State.STANDBY, State.ACTIVE],  # ACTIVE: one that sleeps with its server
        }.get(action, [State.CLOSED])
        before = state.label
        if state in targets:
            return {"id": located.id, "client": located.key.client_text, "before": before, "state": before}
        if action in ("standby", "idle") and state in INACTIVE:
            raise OperationError(409, f"the connection is {before}; wake it first")
        if action == "sleep":
            outcome = await self._sleep(located)
        else:
            op = {"standby": Op.STANDBY, "idle": Op.IDLE, "wake": Op.WAKE, "close": Op.CLOSE}[action]
            outcome = await self._command(op, located, targets)
        if outcome.error:
            raise _refused(action, before, outcome.error)
        after = State(outcome.state).label
        return {"id": located.id or outcome.id, "client": located.key.client_text, "before": before, "state": after}

    async def _command(self, op: Op, located: Located, targets: list[State]) -> Outcome:
        command = Command(op=op, cause=Cause.COMMAND, id=located.id if located.state in AWAKE else 0, key=located.key)
        return await asyncio.wrap_future(self._monitor.command(command, targets, COMMAND_TIMEOUT_S))

    async def _sleep(self, located: Located) -> Outcome:
        if not self._store.sleep_allowed:
            raise OperationError(503, f"nothing can SLEEP now: store: {self._store.status.text}")
        if located.state in AWAKE:
            outcome = await self._command(Op.IDLE, located, [State.IDLE])
            if outcome.error:
                return outcome
        event = await asyncio.to_thread(self._engine.find, located.key)
        if event is None or event.to_state != State.IDLE or not event.record.id:
            raise OperationError(409, "the connection was woken in the meantime")
        return await asyncio.wrap_future(self._monitor.sleep(event.record, COMMAND_TIMEOUT_S))

    async def attach(self, target: Target, fd: int, preamble: bytes, early: bytes, timeout_s: float) -> int:
        """Link a server's socket to a client, waking it; 0 or an errno. fd is closed, or the engine's, from here on."""
        server = Server(fd, preamble, early, timeout_s)
        try:
            try:
                candidates = self._wanted(target)
            except OSError as why:
                return await self._attach_absent(target, why.errno or EIO, server)
            for wanted in candidates:
                policy = self._policies.get(wanted.service)
                may_wait = policy is not None and policy.on_second_server != "refuse"
                # The engine keeps to it, and says so when it is over.
                server.timeout_s = timeout_s + (policy.second_server_wait + SETTLE_S if policy and may_wait else 0.0)
                error = await self._linker.link(wanted.record.key, server)
                if error != ENOENT or not wanted.perhaps:  # else it was not asleep, but nobody
                    return error
            return await self._attach_absent(target, ENOENT, server)
        finally:
            server.close()

    async def _attach_absent(self, target: Target, error: int, server: Server) -> int:
        absent = self._reach.absent if self._reach else None
        if absent is None or error not in ABSENT:
            return error
        return await absent.reach(target, error, server)


def _canonical(name: str, domain: str) -> str:
    try:
        return canonical(name, domain)
    except ValueError as error:
        raise OperationError(400, str(error)) from None


def _refused(action: str, before: str, error: int) -> OperationError:
    if error == ETIMEDOUT:
        return OperationError(504, f"{action}: no answer in {COMMAND_TIMEOUT_S:.0f} s; the connection was {before}")
    if error == EIO:
        return OperationError(503, f"{action}: the connection's row could not be read; it stays as it is, {before}")
    return OperationError(409, f"{action}: refused while {before}: {os.strerror(error)}")
