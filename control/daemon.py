# SPDX-License-Identifier: Apache-2.0
"""The daemon: wires engine, store, monitor, attach front end and local API; adopts what a predecessor left asleep.

Threads: the engine's own (C), the monitor (events and decisions), the store's writer, and the main thread with an event
loop for the local API, the attach front end and the signals.

    SIGTERM, SIGINT   freeze what can be frozen, flush, exit; a second one exits at once
    SIGHUP            read the configuration again, take over the policy and the servers

Order at start: lock, listening sockets, store, engine (adopts the pinned table), reconcile *before* the engine runs,
since until then nothing moves and what the table and the store say can be compared; then the engine, then the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import EADDRINUSE, EADDRNOTAVAIL
from itertools import islice
from pathlib import Path
from typing import Any, Final, TextIO

from appliance import __version__, sysctls
from appliance.engine import (
    PERHAPS,
    REST_SIZE,
    WAITING_MAX,
    Command,
    Engine,
    EngineError,
    EngineOptions,
    EventType,
    Key,
    Op,
    Record,
    ServiceSpec,
    default_workers,
)
from appliance.frontends.frontend import MAX_HANDSHAKES, MAX_TURNED_AWAY, Frontend, Settings, bind
from appliance.frontends.passwords import PasswordHash, Users
from appliance.frontends.target import parse_address
from appliance.paths import bpf_objects
from appliance.reachability import UnreachableError, interface_towards
from appliance.router import RouterError, close_routes, open_routes
from control import config as configuration
from control.channel.operations import Operations
from control.config import Config, ConfigError, Service, parse_endpoint, parse_ports
from control.health import Health
from control.in_band import InBand
from control.monitor import BATCH, EnginePort, Monitor, history_row
from control.overrides import Overrides
from control.policy import needs_restart, reloaded, service_spec
from control.reach.links import MAX_LINKS
from control.reach.reach import Reach
from control.reach.tls import server_context
from control.registry import Registry
from control.states import AWAKE, LEGAL, Cause, State
from control.store import records
from control.store.database import READ_CHUNK
from control.store.reading import SleepingRow
from control.store.schema import KEY
from control.store.store import Store, boot_id, wall_offset_ms

log = logging.getLogger("roost.daemon")

FREEZE_S: Final = 8.0
"""How long SIGTERM waits for connections with bytes in flight to become quiet enough to be frozen."""

SWITCH_INTERVAL_S: Final = 0.0002
"""A client that wakes from SLEEP needs the interpreter some four times. With Python's 5 ms each of them could wait that
long for the store's writer; this keeps the whole within the 10 ms that a wake-up may take."""

SPARE_DESCRIPTORS: Final = 512

READ_AGAIN_S: Final = 5.0
"""Between two attempts to read names and overrides from a database that could not be read at start."""

PUT_BACK_S: Final = 5.0
"""How long the engine may take to carry out a page of insertions."""


class DaemonError(Exception):
    """The daemon cannot start; the message says why and what to do."""


# -- one daemon for each set of pins --------------------------------------------------------------------------------


class InstanceLock:
    """Held by the daemon of an instance for as long as it lives. The kernel lets go of it with the process, so a lock
    file that was left behind means nothing."""

    def __init__(self, config: Config) -> None:
        path = Path(config.control_socket + ".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = path.open("a+", encoding="ascii")
        except OSError as error:
            hint = ". Run it as root: sudo ./roost up ..." if isinstance(error, PermissionError) else ""
            raise DaemonError(f"cannot make the lock {path}: {error.strerror}{hint}") from None
        self._pins = -1
        if not _lock(self._file.fileno()):
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise DaemonError(f'instance "{config.instance}" is running already (pid {holder}, lock {path})')
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()
        # The pins themselves too: another instance may have been given the same pin_dir. Without a bpffs there is no
        # such directory yet, and nobody to share it with; the engine says what is missing.
        with contextlib.suppress(OSError):
            os.makedirs(config.pin_dir, exist_ok=True)  # noqa: PTH103
            self._pins = os.open(config.pin_dir, os.O_RDONLY | os.O_DIRECTORY)
        if self._pins >= 0 and not _lock(self._pins):
            self.release()
            raise DaemonError(f"another daemon uses the pins in {config.pin_dir}; give this instance its own pin_dir")

    def release(self) -> None:
        if self._pins >= 0:
            os.close(self._pins)
            self._pins = -1
        self._file.close()


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# -- what a predecessor left ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Inventory:
    """What table and store say when the daemon begins."""

    states: list[int] = field(default_factory=lambda: [0] * len(State))
    idle_ids: array[int] = field(default_factory=lambda: array("Q"))
    sleep_ids: array[int] = field(default_factory=lambda: array("Q"))
    """In ascending order."""
    without_row: list[bytes] = field(default_factory=list)
    """SLEEP in the table, unknown to the store: nobody can rebuild them."""
    without_slot: int = 0
    """Rows of this boot whose connection is gone; forgotten, and CLOSED in the history."""
    other_boot: int = 0
    """Rows from before a reboot: to be put back into the table."""
    ports: set[int] = field(default_factory=set)
    """Ours, of the servers' legs among them: no new link may take one meanwhile."""


def take_inventory(engine: EnginePort, store: Store, boot: str) -> Inventory:
    """Compare the adopted table with the store, and forget rows that mean nothing. The engine must not run yet.

    There may be ten million rows, and nobody is served meanwhile: nothing is done for each of them in Python."""
    found = Inventory()
    for event in engine.list(sleeping=False):
        found.states[event.to_state] += 1
        if event.to_state == State.IDLE:
            found.idle_ids.append(event.id or event.record.id)
    with_slot = engine.slots_in_sleep()
    found.states[State.SLEEP] = with_slot
    if store.status.error:
        log.warning("the store cannot be read: what sleeps is adopted unseen")
        found.states[State.SLEEP] += engine.stats().get("filter_members", 0)
        return found
    all_of_this_boot = not store.has_rows_of_another_boot(boot)
    rows_with_slot = 0
    for keys, numbers in store.sleeping_numbers():
        states = engine.states(keys)
        rows_with_slot += states.count(State.SLEEP)
        found.states[State.SLEEP] += states.count(State.SLEEP | PERHAPS)
        if not (all_of_this_boot and set(states) <= _ASLEEP):  # mostly they are: that is what the row says
            numbers = _take_odd(found, store, boot, keys, numbers, states, all_of_this_boot)
        found.sleep_ids.extend(numbers)
    if rows_with_slot < with_slot:
        _find_slots_without_row(found, engine, store)
    return found


_ASLEEP: Final = frozenset({State.SLEEP, State.SLEEP | PERHAPS})


def _take_odd(
    found: Inventory,
    store: Store,
    boot: str,
    keys: bytes,
    numbers: array[int],
    states: bytes,
    all_of_this_boot: bool,
) -> array[int]:
    """Look at those rows of a page closer that say something else than table and filter; the numbers of who sleeps."""
    at = range(0, len(keys), KEY.size)
    odd = {keys[i : i + KEY.size]: state for i, state in zip(at, states, strict=True)
           if not all_of_this_boot or state not in _ASLEEP}  # fmt: skip
    gone: set[int] = set()
    rows: list[bytes] = []
    deletes: list[tuple[bytes, int]] = []
    for row in store.rows_at(list(odd)):
        state = odd[row.key]
        if row.boot_id != boot and (state == State.NONE or state & PERHAPS):
            found.other_boot += 1  # asleep all the while: it is no transition that the history lacks
            found.states[State.SLEEP] -= bool(state & PERHAPS)  # by another's fingerprint
            if (peer := _record(row).peer) is not None:
                found.ports.add(peer.key.local_port)
        elif state not in _ASLEEP:
            gone.add(row.id)
            deletes.append((row.key, row.id))
            if state == State.NONE:
                found.without_slot += 1
                rows.append(history_row(_record(row), State.SLEEP, State.CLOSED))
            # else it was committed, but SLEEP never became true
    store.add(rows, deletes=deletes)
    return array("Q", (number for number in numbers if number not in gone)) if gone else numbers


def _find_slots_without_row(found: Inventory, engine: EnginePort, store: Store) -> None:
    asleep = (event.record.key_raw for event in engine.list() if event.to_state == State.SLEEP)
    while chunk := list(islice(asleep, READ_CHUNK)):
        known = store.sleeping_ids(chunk)
        found.without_row += [key for key in chunk if key not in known]


def _record(row: SleepingRow) -> Record:
    return records.unpack(row.key, row.ka + row.rest)


def catch_up(store: Store, found: Inventory, first: int, last: int) -> int:
    """Write the transitions that a killed predecessor made or suffered and could not write; returns how many.

    Its last word about each connection stands in history[first..last]; the inventory says what was really found."""
    idle, asleep = array("Q", sorted(found.idle_ids)), found.sleep_ids
    rows: list[bytes] = []
    written = 0
    for number, client, service, last_state in store.last_states(first, last):
        actual = State.IDLE if _holds(idle, number) else State.SLEEP if _holds(asleep, number) else State.CLOSED
        if actual == last_state:
            continue
        steps = _steps(State(last_state), actual)
        address = parse_address(client)
        # The history knows no local address; the row's key is only asked for the client's.
        record = Record(Key.of(address.host, address.port, "::", 0).pack(), _ka_of_service(service), bytes(REST_SIZE))
        rows += [history_row(record, a, b, Cause.RESTORE, number) for a, b in steps]
        written += len(steps)
        if len(rows) >= BATCH:
            store.add(rows)
            rows = []
    store.add(rows)
    return written


def _ka_of_service(service: int) -> bytes:
    return bytes(32) + service.to_bytes(2, sys.byteorder) + bytes(2)


def _holds(ids: array[int], number: int) -> bool:
    at = bisect_left(ids, number)
    return at < len(ids) and ids[at] == number


def _steps(source: State, target: State) -> list[tuple[State, State]]:
    """The legal way from what the history says to what is, by `restore`."""
    if (source, target, Cause.RESTORE) in LEGAL:
        return [(source, target)]
    if target is State.SLEEP:
        return [(source, State.IDLE), (State.IDLE, State.SLEEP)]
    # It woke and was frozen again unrecorded. The history cannot say when; it says nothing rather than something false.
    return []


# -- the daemon -------------------------------------------------------------------------------------------------------


class Daemon:
    """One instance. `run` returns the exit status: 0 asleep in good order, 1 with a reason in the log."""

    def __init__(self, path: str, config: Config, engine_type: Callable[[EngineOptions], Engine] = Engine) -> None:
        self._path = path
        self._config = config
        self._engine_type = engine_type
        self._fatal = ""
        self._terminate = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._endpoint: socket.socket | None = None

    def run(self) -> int:
        """Start, serve until told to end, end."""
        config = self._config
        if not config.service:
            raise DaemonError(f"{self._path}: there is no [[service]]; at least one is needed")
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        max_awake = config.table.max_awake or _descriptor_share(_spare_descriptors(config))
        lock = InstanceLock(config)
        self._listeners: list[socket.socket] = []
        try:
            self._bind()
            self._monitor: Monitor
            self._store = Store(
                config.database_url,
                lambda slept: self._monitor.slept(slept),
                keep_days=config.history.keep_days,
                batch=config.history.batch,
            )
            if error := self._store.open():
                log.error("SLEEP is off until the database can be used (it is tried again and again): %s", error)
            names = [service.name for service in config.service]
            self._indexes = self._store.service_indexes(names)
            self._services = {self._indexes[service.name]: service for service in config.service}
            self._policies = {index: service.policy(config.policy) for index, service in self._services.items()}
            self._engine = self._engine_type(self._options(max_awake))
            try:
                return self._run_engine(max_awake)
            finally:
                self._engine.close()
        finally:
            for listener in [*self._listeners, *([self._endpoint] if self._endpoint else [])]:
                listener.close()
            lock.release()

    def _bind(self) -> None:
        """Take the addresses of attach and of the local API, before anything moves: whoever asks meanwhile waits."""
        from control.channel.api import bind_unix

        config = self._config
        attach = [parse_endpoint(text) for text in config.attach.listen]
        ports = [port for _, port in attach + [parse_endpoint(s.listen) for s in config.service]]
        if any(service.interface == "persistent" for service in config.service):
            first, last = parse_ports(config.network.link_ports)
            ports += range(first, last + 1)
        sysctls.prepare(ports)
        try:
            for address, port in attach:
                self._listeners.append(bind(address, port))
            if any(service.kind != "server" for service in config.service):
                self._endpoint = bind("127.0.0.1", 0)
        except OSError as error:
            raise DaemonError(_port_trouble(str(error.strerror), error.errno)) from None
        try:
            self._listeners.append(bind_unix(config.control_socket))
        except OSError as error:
            reason = error.strerror or error
            raise DaemonError(f"cannot listen on the control socket {config.control_socket}: {reason}") from None

    def _tls(self) -> ssl.SSLContext | None:
        agents = self._config.agents
        if not agents.certificate:
            return None
        try:
            return server_context(agents.certificate, agents.private_key)
        except OSError as error:
            files = f"certificate {agents.certificate}, private_key {agents.private_key}"
            raise DaemonError(f"[agents] {files}: {error.strerror or error}") from None

    def _options(self, max_awake: int) -> EngineOptions:
        config = self._config
        return EngineOptions(
            pin_dir=config.pin_dir,
            bpf_dir=config.paths.bpf_dir or str(bpf_objects()),
            ipv4_slots=config.table.ipv4,
            ipv6_slots=config.table.ipv6,
            idle_slots=config.table.idle,
            filter_slots=config.table.filter,
            ring_bytes=config.table.ring_kb * 1024,
            max_awake=max_awake,
            workers=default_workers() if config.table.workers is None else config.table.workers,
            next_id=self._store.next_id(),
            grow=config.table.grow,
            name=config.instance,
        )

    def _run_engine(self, max_awake: int) -> int:
        config, engine, store = self._config, self._engine, self._store
        tls = self._tls()
        interfaces: dict[str, str] = {}
        for name in config.network.interfaces:
            interfaces[name] = engine.attach(name, config.network.xdp_mode)
            if interfaces[name] == "generic" and config.network.xdp_mode == "auto":
                log.warning("%s: the driver has no native XDP; generic XDP is used, which is slower", name)
        for name in self._server_interfaces():
            interfaces.setdefault(name, engine.attach(name, config.network.xdp_mode, servers=True))
        engine.link_ports(*parse_ports(config.network.link_ports))
        if not interfaces:
            log.warning("no [network] interfaces: connections cannot be kept asleep")
        router = config.router
        if router.lan:
            try:
                open_routes()
            except RouterError as error:
                raise DaemonError(f"[router] {error}") from None
            engine.open_router(router.attach_ports, round(router.wait * 1000))
        for index, service in self._services.items():
            try:
                engine.add_service(self._spec(service, index, config))
            except EngineError as error:
                number = next((n for n in (EADDRINUSE, EADDRNOTAVAIL) if str(error).endswith(os.strerror(n))), None)
                raise DaemonError(_port_trouble(f'service "{service.name}": {error}', number)) from None
        if router.lan:
            for name in router.lan:
                engine.steer(name, servers=True)
            for name in config.network.interfaces:
                engine.steer(name, servers=False)

        persistent = {index for index, service in self._services.items() if service.interface == "persistent"}
        self._monitor = Monitor(engine, store, max_awake, self._on_fatal, persistent)
        found = take_inventory(engine, store, boot_id())
        self._monitor.states = list(found.states)
        for port in found.ports:
            engine.reserve_link_port(port)
        self._health = Health(engine)
        self._monitor.server_down = self._health.link_failed
        self._registry = Registry(store, engine)
        self._registry.load()
        self._monitor.listen(self._registry.hear)
        self._overrides = Overrides(store, engine)
        if not found.other_boot:  # else when all are put back: the engine keeps it in their slots
            self._overrides.load()
        self._monitor.listen(self._overrides.hear)
        self._monitor.handle(EventType.OVERRIDES, self._overrides.keep)
        in_band = InBand(engine, self._registry, config.attach.domain)
        self._monitor.handle(EventType.IN_BAND, in_band.ask)
        self._reach = Reach(config, engine, self._monitor, store, self._registry, self._services, tls)
        self._reach.load()
        span = (0, 0) if store.status.error else store.begin_run()
        store.start()
        engine.start()
        monitor = threading.Thread(target=self._monitor.run, name="roost-monitor", daemon=True)
        monitor.start()
        namer = threading.Thread(target=in_band.run, name="roost-in-band", daemon=True)
        namer.start()
        reconciler = threading.Thread(target=self._reconcile, args=(found, *span), name="roost-reconcile", daemon=True)
        reconciler.start()
        facts: dict[str, Any] = {
            "instance": config.instance,
            "version": __version__,
            "pid": os.getpid(),
            "max_awake": max_awake,
            "interfaces": interfaces,
            "pin_dir": config.pin_dir,
            "database": config.database_url.rpartition("@")[2],
        }
        operations = Operations(engine, store, self._monitor, self._registry, self._services, self._policies,
                                self._health, config.attach, facts, self._reach)  # fmt: skip
        try:
            asyncio.run(self._serve(operations, facts))
        finally:
            if not self._fatal:
                self._freeze_all()
            engine.stop_listening()  # who comes while the store writes is not taken in to be reset
            engine.stop()
            self._monitor.stop()
            monitor.join(5)
            self._monitor.drain()
            in_band.stop()
            store.close()
        if self._fatal:
            log.critical("the daemon ends: %s", self._fatal)
            return 1
        asleep = self._monitor.states[State.IDLE] + self._monitor.states[State.SLEEP]
        log.info("ended; %d connections stay asleep", max(asleep, 0))
        if router.lan and router.fail == "open" and asleep <= 0:  # "closed" needs them to refuse
            try:
                close_routes()
            except RouterError as error:
                log.warning("%s", error)
        return 0

    def _server_interfaces(self) -> list[str]:
        """Where the servers' legs of persistent services are heard, without those that clients are heard on."""
        config = self._config
        persistent = [service for service in config.service if service.interface == "persistent"]
        names = list(config.network.server_interfaces)
        if persistent and not names:
            names += config.router.lan
            for service in persistent:
                for server in service.every_server:
                    try:
                        names.append(interface_towards(parse_endpoint(server)[0]))
                    except UnreachableError as error:
                        raise DaemonError(f'service "{service.name}": {error}; add the route, or name the interface in '
                                          "[network] server_interfaces") from None  # fmt: skip
        return [name for name in dict.fromkeys(names) if name not in config.network.interfaces]

    def _reconcile(self, found: Inventory, first: int, last: int) -> None:
        """Carry out what the inventory asks for, while clients are served already."""
        try:
            inactive = found.states[State.IDLE] + found.states[State.SLEEP]
            if inactive:
                log.info("adopted %d IDLE, %d SLEEP connections", found.states[State.IDLE], found.states[State.SLEEP])
            for start in range(0, len(found.without_row), BATCH):
                keys = found.without_row[start : start + BATCH]
                self._engine.submit([Command(op=Op.CLOSE, cause=Cause.RESTORE, key=key) for key in keys])
            if found.without_row:
                log.error("%d sleeping connections have no record in the store; closed", len(found.without_row))
            if found.without_slot:
                log.warning("%d records belong to connections that are gone; forgotten", found.without_slot)
            if last and (missing := catch_up(self._store, found, first, last)):
                log.warning("history: added %d transitions that the last daemon could not write", missing)
            if found.other_boot:
                log.info("after a reboot: put back %d sleeping connections", self._put_back())
            self._engine.unreserve_link_ports()
            while not self._load() and not self._terminate.is_set():
                time.sleep(READ_AGAIN_S)
            if self._reach.spoken_for.loaded and (strays := self._reach.agents.forget_strays()):
                log.info("closed %d data connections whose sessions ended with the last daemon", strays)
        except Exception as error:
            log.exception("reconciling with the store failed")
            self._on_fatal(f"reconciling with the store: {error}")

    def _load(self) -> bool:
        """Read what the store has about connections that live; whether all of it could be read. Each part once."""
        return self._registry.load() and self._overrides.load() and self._reach.load()

    def _put_back(self) -> int:
        boot, offset = boot_id(), wall_offset_ms()
        put, deadline = 0, 0.0
        last: Record | None = None
        after = b""
        while page := self._store.sleeping_rows(after):
            after = page[-1].key
            # wall_offset_ms is wall clock minus CLOCK_MONOTONIC: the difference of two says how far apart two boots'
            # clocks are. The timestamp clock that the client sees (TSval) so runs on over the time of the reboot.
            records = [_record(row).shifted(row.wall_offset_ms - offset) for row in page if row.boot_id != boot]
            self._monitor.insert(records)
            put += len(records)
            last = records[-1] if records else last
            deadline = time.monotonic() + PUT_BACK_S
            while self._monitor.inserting and not self._terminate.is_set():
                time.sleep(0.01)  # one page at a time: a million records must not stand in memory
        while last is not None and self._engine.find(last.key) is None and time.monotonic() < deadline:
            time.sleep(0.01)  # the engine has the commands, and carries them out in order
        return put

    def _spec(self, service: Service, index: int, config: Config) -> ServiceSpec:
        if self._endpoint is None:
            return service_spec(service, index, config)
        host, port = self._endpoint.getsockname()[:2]
        return service_spec(service, index, config, (host, port))

    def _on_fatal(self, reason: str) -> None:
        self._fatal = self._fatal or reason
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the end has begun already
                self._loop.call_soon_threadsafe(self._terminate.set)

    # -- serving ------------------------------------------------------------------------------------------------------

    async def _serve(self, operations: Operations, facts: dict[str, Any]) -> None:
        from control.channel.api import make_app, make_server

        loop = asyncio.get_running_loop()
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_terminate, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        if self._fatal:
            return
        self._health.watch(self._services)
        frontend = self._frontend(operations)
        *attach, listener = self._listeners
        self._listeners = []  # each is owned by who serves it now
        self._reach.begin(operations.find, operations.has_address, self._endpoint)
        facts["attach"] = [list(frontend.serve(one)) for one in attach]
        facts["attach_protocols"] = list(self._config.attach.protocols)
        facts["attach_counts"] = frontend.counts
        server = make_server(make_app(operations, self._monitor))
        api = loop.create_task(server.serve(sockets=[listener]))
        log.info(
            "ready: %s",
            ", ".join(
                f"{s.name} {s.listen} -> {' '.join(s.every_server) or ('the same' if s.kind == 'server' else s.kind)}"
                for s in self._services.values()
            ),
        )
        try:
            ended = loop.create_task(self._terminate.wait())
            await asyncio.wait({api, ended}, return_when=asyncio.FIRST_COMPLETED)
            if api.done() and not self._terminate.is_set():
                self._fatal = f"the local API ended: {api.exception()}"
        finally:
            self._health.close()
            await frontend.close()
            await self._reach.close()
            server.should_exit = True
            await asyncio.wait({api}, timeout=3)
            Path(self._config.control_socket).unlink(missing_ok=True)

    def _frontend(self, operations: Operations) -> Frontend:
        attach = self._config.attach
        hashes = {name: PasswordHash.parse(text) for name, text in attach.users.items()}
        users = Users(hashes) if attach.auth == "password" else None
        return Frontend(operations, Settings(attach.timeout, attach.protocols, users))

    def _on_terminate(self, number: int) -> None:
        log.info("%s: freezing what can be frozen; once more ends at once", signal.Signals(number).name)
        self._terminate.set()
        for again in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(again)
            signal.signal(again, signal.SIG_DFL)

    def _reload(self) -> None:
        try:
            new = configuration.load(self._path)
        except ConfigError as error:
            log.error("SIGHUP: the configuration stays as it is: %s", error)
            return
        if waiting := needs_restart(self._config, new):
            log.warning("SIGHUP: these wait for a restart: %s", ", ".join(waiting))
        in_force = new.model_copy(update={"router": self._config.router})
        by_name = {service.name: service for service in new.service}
        for index, old in list(self._services.items()):
            if (service := by_name.get(old.name)) is None:
                continue
            kept = reloaded(old, service)
            try:
                self._engine.update_service(self._spec(kept, index, in_force))
            except EngineError as error:
                log.error("SIGHUP: %s", error)
                continue
            self._services[index], self._policies[index] = kept, kept.policy(new.policy)
        self._health.watch(self._services)
        log.info("SIGHUP: policy taken over from %s", self._path)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _freeze_all(self) -> None:
        """Take every awake connection out of the kernel, as far as FREEZE_S allows."""
        deadline = time.monotonic() + FREEZE_S
        left = 0
        while True:
            awake = [event.id for event in self._engine.list() if event.to_state in AWAKE]
            left = len(awake)
            if not left or time.monotonic() > deadline or self._fatal:
                break
            for start in range(0, left, BATCH):
                self._engine.submit(
                    [Command(op=Op.IDLE, cause=Cause.SHUTDOWN, id=one) for one in awake[start : start + BATCH]]
                )
            # Those with bytes in flight are refused and asked again; the pause also keeps freezes in large batches.
            pause = time.monotonic() + 0.5
            while (
                time.monotonic() < min(pause, deadline)
                and self._monitor.states[State.ACTIVE] + self._monitor.states[State.STANDBY] > 0
            ):
                time.sleep(0.02)
        if left:
            log.warning("%d connections could not be frozen and are closed", left)
            close = [Command(op=Op.CLOSE, cause=Cause.SHUTDOWN, id=number) for number in awake]
            self._engine.submit(close)
            end = time.monotonic() + 1.0
            while time.monotonic() < end and any(event.to_state in AWAKE for event in self._engine.list()):
                time.sleep(0.05)


def _port_trouble(message: str, number: int | None) -> str:
    """What to do about a listening address that cannot be had."""
    if number == EADDRINUSE:
        return f"{message}. Another program has it: ss -ltnp shows which; or choose another port."
    if number == EADDRNOTAVAIL:
        return f"{message}. This machine has no such address: ip -brief address shows those it has."
    return message


def _spare_descriptors(config: Config) -> int:
    asking = MAX_HANDSHAKES + MAX_TURNED_AWAY if config.attach.listen else 0
    may_wait = any(service.policy(config.policy).on_second_server != "refuse" for service in config.service)
    spare = SPARE_DESCRIPTORS + asking + (WAITING_MAX if may_wait or config.router.wait else 0)
    if any(service.kind != "server" for service in config.service):
        spare += MAX_LINKS
    return spare + (6 * config.absent.dial_limit if "dial" in config.absent.steps else 0)


def _descriptor_share(spare: int) -> int:
    """Client connections that the descriptor limit allows awake, each with its server link; raises the soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max((min(hard, 2_000_000) - spare) // 2, 64)


def run(path: str) -> int:
    """Load the configuration at `path` and run its daemon in the foreground; returns the exit status."""
    # What is there by now stays to the end. Were the collector of cycles to walk it again and again, reading the rows
    # of who sleeps would take twice as long.
    gc.freeze()
    return Daemon(path, configuration.load(path)).run()
