# SPDX-License-Identifier: Apache-2.0
"""An engine in a lab: real clients, the appliance's engine without its daemon, and servers that the test plays itself.

    with EngineLab() as box:
        pair = box.connect()            # a client's socket, and the server's at the other end
        box.to_idle(pair)
        pair.client.sendall(b"wake")
        assert box.accept().recv(9) == b"wake"

A thread takes the engine's events and does what the control plane would: QUIET moves a connection on, SLEEP_DUE,
NEED_RECORD and CANDIDATE are answered from a dict. The lab has no address translation: a client's address is its
key.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from appliance.box.router import open_routes
from appliance.engine import Engine, unpin
from appliance.engine.bridge import Bridge
from appliance.lab import DaemonHandle, Lab, leftovers, wait_until
from appliance.paths import bpf_objects
from appliance.wire import Command, EngineOptions, Event, EventType, Key, Op, Record, ServiceSpec, Sought
from control.core.states import Cause, State

PORT: Final = 27400  # below those that clients are given, and no dissector claims it
SERVICE: Final = {4: 1, 6: 2}
QUICK_KEEPALIVES: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000),
)
Transition = tuple[State, State, Cause]
CHANGES_NOTHING: Final = frozenset(
    [
        "dial",
        "find",
        "find_client",
        "find_obstacles",
        "find_own",
        "find_peer",
        "list",
        "memory",
        "servers",
        "slots_in_sleep",
        "states",
        "stats",
        "submit",
        "submit_many",
        "vlan",
    ]
)
"""What a test may call of an engine that the next test is to have, too: all other methods change its configuration, or
take its events."""
EMPTY: Final = ("awake", "table_ipv4", "table_ipv6", "idle_records", "born", "filter_members", "perhaps_waiting",
                "servers_waiting", "events_waiting")  # fmt: skip
LEVELS: Final = frozenset({*EMPTY, "sockets_spare", "ipv4_slots", "ipv6_slots", "idle_slots", "filter_slots"})
"""Stats that say what is; the others count."""


class _Lent:
    """An engine, and a note of whether anything was called that the next test would feel."""

    def __init__(self, engine: Engine) -> None:
        self._lent = engine
        self.as_it_was = True

    def __getattr__(self, name: str) -> Any:
        self.as_it_was &= name in CHANGES_NOTHING
        return getattr(self._lent, name)


@dataclass
class Pair:
    """A client of the lab, and the socket of the server that it was linked to first."""

    client: socket.socket
    server: socket.socket
    key: Key
    id: int


class EngineLab:
    """`options` go to EngineOptions, `service` to both services (IPv4 and IPv6, port PORT, server on the LAN). router:
    clients connect to the server's own address, and servers to the clients'."""

    def __init__(self, lab: Lab | None = None, service: dict[str, Any] | None = None, xdp_mode: str = "auto",
                 exact_frames: bool = False, router: bool = False, attach_ports: Sequence[int] = (),
                 wait_ms: int = 0, dial_ms: int = 0, link_ports: tuple[int, int] | None = None,
                 **options: Any) -> None:  # fmt: skip
        self._stack = ExitStack()
        self._sockets = ExitStack()
        self.lab = lab or self._stack.enter_context(Lab(clients=100, nat=False, exact_frames=exact_frames))
        self._pins = str(leftovers.BPFFS / leftovers.new_name())
        self._options = EngineOptions(self._pins, str(bpf_objects()), ipv4_slots=4000, ipv6_slots=4000, idle_slots=4000)
        self._options = replace(self._options, **options)
        self._service = service or {}
        self._xdp_mode = xdp_mode
        self._router = router
        self._attach_ports = attach_ports
        self._wait_ms = wait_ms
        self._dial_ms = dial_ms
        self._link_ports = link_ports
        self._engine: Engine | None = None
        self._lent: _Lent | None = None
        self._before: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._driving = False
        self._batches = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._listeners: dict[int, socket.socket] = {}
        self.attached = ""
        self.events: list[Event] = []
        self.rows: dict[bytes, Record] = {}
        """What the database would hold: the records of SLEEP connections."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self._stack.pop_all())
            stack.callback(self._close_listeners)
            self._listen()
            stack.callback(self.unpin)
            stack.callback(self.stop)
            self.start()
            self._lent = _Lent(self.engine)
            stack.enter_context(self._sockets)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._stack.close()
        if self._error is not None and error is None:
            raise self._error

    def _listen(self) -> None:
        for family in (4, 6):
            with self.lab.enter("lan"):
                listener = self._listeners[family] = socket.create_server(
                    (self.lab.address("lan", "eth0", family), PORT),
                    family=socket.AF_INET6 if family == 6 else socket.AF_INET, backlog=1000)  # fmt: skip
            listener.settimeout(5)

    def _close_listeners(self) -> None:
        while self._listeners:
            self._listeners.popitem()[1].close()

    def is_as_new(self) -> bool:
        """Ends the test's connections. Whether another test finds everything as in an engine that has just begun, apart
        from what the tests of one lab share anyway, and from its memory of how this service's clients behave."""
        self._sockets.close()
        self._close_listeners()
        lent, self._lent = self._lent, None
        if self._engine is None or self._thread is None or lent is None or not lent.as_it_was:
            return False
        closing = [Command(Op.CLOSE, cause=Cause.COMMAND, id=event.id, key=event.record.key_raw)
                   for event in self._engine.list(Sought(born=True))]  # fmt: skip
        self._engine.submit(closing)
        stats = self._engine.stats
        try:
            self.wait(lambda: not any(stats()[name] for name in EMPTY), "every connection is closed", 2)
            batches = self._batches
            self._engine.wake()
            self.wait(lambda: self._batches > batches, "the last events are taken", 2)
        except (AssertionError, TimeoutError):
            return False
        self.events.clear()
        self.rows.clear()
        self._before = {name: value for name, value in stats().items() if name not in LEVELS}
        self._listen()
        self._lent = _Lent(self._engine)
        return True

    # The engine

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "the engine is stopped"
        return cast(Engine, self._lent or self._engine)

    def spec(self, family: int, **changes: Any) -> ServiceSpec:
        server = self.lab.address("lan", "eth0", family)
        if self._router:
            spec = ServiceSpec(SERVICE[family], server, PORT, (), transparent=True, as_client=True)
        else:
            spec = ServiceSpec(SERVICE[family], self.lab.address("box", "wan0", family), PORT, ((server, PORT),))
        return replace(spec, **{**self._service, **changes})

    @property
    def pin_dir(self) -> Path:
        self._lent = None  # what looks in there may write there
        return Path(self._pins)

    def resize(self, **options: Any) -> None:
        """What the next engine is asked for."""
        self._options = replace(self._options, **options)

    def start(self, bridge: Bridge | None = None, specs: Sequence[ServiceSpec] | None = None) -> int:
        """Start an engine; it adopts what an earlier one left. bridge: has what was awake, which this engine takes up.
        specs: other services. How many connections it has taken up."""
        taken = self.make(bridge, specs)
        self.begin()
        return taken

    def begin(self) -> None:
        """The engine that was made."""
        engine = self.engine
        with self.lab.enter("box"):
            engine.start()
        self._driving = True
        self._thread = threading.Thread(target=self._drive, args=(engine,), name="engine-lab")
        self._thread.start()

    def make(self, bridge: Bridge | None = None, specs: Sequence[ServiceSpec] | None = None) -> int:
        """As `start`, but for the start itself."""
        taken = 0
        with self.lab.enter("box"):
            engine = self._engine = Engine(self._options)
            self.attached = engine.attach("wan0", self._xdp_mode)
            if self._service.get("persistent"):
                engine.attach("lan0", self._xdp_mode, servers=True)
            if self._router:
                open_routes()
                engine.open_router(self._attach_ports, self._wait_ms, self._dial_ms)
                engine.steer("wan0", servers=False)
                engine.steer("lan0", servers=True)
            if bridge is not None:
                engine.inherit(bridge)
            for spec in [self.spec(family) for family in (4, 6)] if specs is None else specs:
                engine.add_service(spec)
            if self._link_ports:
                engine.link_ports(*self._link_ports)
            if bridge is not None:
                taken = engine.inherit_connections()
        return taken

    def restart_as(self, router: bool) -> None:
        """Start with another configuration; the engine must be stopped."""
        self._router = router
        self.start()

    def stop(self) -> None:
        """What a crash leaves: the pinned objects, and the kernel's farewell to the awake connections."""
        self._lent = None
        if self._engine is None:
            return
        self.hand_over()
        self._engine.stop()
        self._engine.close()
        self._engine = None

    def leave_awake(self, moves: bool = True) -> Bridge:
        """Ends the engine; what is awake is in the bridge, which moves its bytes if asked to."""
        self.hand_over()
        bridge, engine = Bridge(), self.engine
        engine.stop()
        engine.hand_over(bridge)
        self.events += engine.events(timeout_ms=0)
        engine.close()
        self._engine = None
        self._before = {}
        if moves:
            bridge.start()
        return bridge

    def take_up(self, bridge: Bridge, moves: bool = True, specs: Sequence[ServiceSpec] | None = None) -> int:
        """An engine that has what was awake, which another bridge has meanwhile. How many connections."""
        second = passed_on(bridge)
        if moves:
            second.start()
        taken = self.start(second, specs)
        second.close()
        return taken

    def exchange_engine(self, moves: bool = True) -> int:
        """The engine ends, and another takes up what was awake, how many connections."""
        return self.take_up(self.leave_awake(moves), moves)

    def hand_over(self) -> None:
        """From here on the test takes the engine's events itself."""
        self._lent = None
        if self._thread is not None:  # else it did not get as far as to run
            self._driving = False
            self.engine.wake()
            self._thread.join()
            self._thread = None

    def unpin(self) -> None:
        """What a reboot leaves: nothing. The engine must be stopped."""
        with self.lab.enter("box"):
            unpin(self._pins)

    def _drive(self, engine: Engine) -> None:
        try:
            while self._driving:
                events = engine.events(timeout_ms=100)
                self._batches += 1
                engine.submit([command for event in events if (command := self._decide(event)) is not None])
                if events:
                    with self._changed:
                        self.events += events
                        self._changed.notify_all()
        except BaseException as error:
            self._error = error
            raise

    def _decide(self, event: Event) -> Command | None:
        key = event.record.key_raw
        match event.type:
            case EventType.QUIET:
                awake = event.from_state == State.ACTIVE and not self._service.get("persistent")
                op = Op.STANDBY if awake else Op.IDLE
                return Command(op, cause=Cause.QUIET, id=event.id)
            case EventType.SLEEP_DUE:
                event.record.peer = engine_peer(self.engine, event.record)
                self.rows[key] = event.record
                return Command(Op.SLEEP, cause=Cause.QUIET, id=event.id, record=event.record)
            case EventType.NEED_RECORD:
                row = self.rows.get(key)
                return Command(Op.RESTORE, key=key, record=row, error=0 if row else errno.ENOENT)
            case EventType.CANDIDATE:
                row = self.rows.get(key)
                return Command(Op.CANDIDATE, key=key, record=row, error=0 if row else errno.ENOENT)
        return None

    # What it does

    def submit(self, op: Op, pair: Pair, cause: Cause = Cause.COMMAND, **more: Any) -> None:
        self.engine.submit([Command(op, cause=cause, id=pair.id, key=pair.key, **more)])

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 5.0) -> None:
        """Until the condition holds; it is looked at after each batch of events, and every 20 ms."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                assert self._error is None, self._error
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{what}: not within {timeout_s} s; stats {self.nonzero_stats()}")
                self._changed.wait(0.02)

    def state(self, pair: Pair) -> State | None:
        """None: there is no such connection."""
        found = self.engine.find(pair.key)
        return State(found.to_state) if found else None

    def record(self, pair: Pair) -> Record:
        """Its record as it stands in the table."""
        found = self.engine.find(pair.key)
        assert found is not None
        return found.record

    def wait_state(self, pair: Pair, state: State, timeout_s: float = 5.0) -> None:
        """Until the engine has told the transition and the table says the same."""
        self.wait(lambda: self.told(pair) is state and self.state(pair) is (None if state is State.CLOSED else state),
                  f"{pair.key.client_text} is {state.name}", timeout_s)  # fmt: skip

    def told(self, pair: Pair) -> State | None:
        """The state that the connection is in according to the events."""
        transitions = self.transitions(pair)
        return transitions[-1][1] if transitions else None

    def transition_events(self, pair: Pair) -> list[Event]:
        key = pair.key.pack()
        return [e for e in self.events if e.type == EventType.TRANSITION and e.record.key_raw == key]

    def transitions(self, pair: Pair) -> list[Transition]:
        return [(State(e.from_state), State(e.to_state), Cause(e.cause)) for e in self.transition_events(pair)]

    def refusals(self, pair: Pair) -> list[tuple[Op, int]]:
        key = pair.key.pack()
        return [(Op(e.op), e.error) for e in self.events
                if e.type == EventType.REFUSED and (e.id == pair.id or e.record.key_raw == key)]  # fmt: skip

    def stat(self, name: str) -> int:
        """Counted since the test began."""
        return self.engine.stats()[name] - self._before.get(name, 0)

    def frames_sent(self) -> dict[str, int]:
        """By the appliance, by interface."""
        with self.lab.enter("box"):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        return {name: int(words.split()[9]) for name, _, words in (line.strip().partition(":") for line in lines)}

    def nonzero_stats(self) -> dict[str, int]:
        return {name: value for name, value in self.engine.stats().items() if value} if self._engine else {}

    # The two ends

    def target(self, family: int = 4) -> tuple[str, int]:
        """Where clients connect to."""
        spec = self.spec(family)
        return spec.listen, spec.listen_port

    def dial(self, family: int = 4, keepalives: bool = False, before: Callable[[socket.socket], None] | None = None,
             source: str | None = None, space: str = "wan", to: str | None = None) -> socket.socket:  # fmt: skip
        """A client's socket, connected to the appliance; `to`: at another of its addresses."""
        client = self.client_socket(space, family)
        self._sockets.callback(client.close)
        for option in QUICK_KEEPALIVES if keepalives else ():
            client.setsockopt(*option)
        if before is not None:
            before(client)
        client.settimeout(5)
        if source is not None:
            client.bind((source, 0))
        address, port = self.target(family)
        client.connect((to or address, port))
        return client

    def client_socket(self, space: str, family: int) -> socket.socket:
        """A client's, not connected yet."""
        with self.lab.enter(space):
            return socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET)

    def accept(self, family: int = 4) -> socket.socket:
        """The next connection that reaches the server."""
        server = self._listeners[family].accept()[0]
        server.settimeout(5)
        self._sockets.callback(server.close)
        return server

    def set_server_buffer(self, family: int, size: int) -> None:
        """Of the connections that reach the server from now on: how many bytes its kernel takes, about."""
        self._listeners[family].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def no_server_is_asked(self, family: int = 4, within_s: float = 0.0) -> bool:
        return not select.select([self._listeners[family]], [], [], within_s)[0]

    def key_of(self, client: socket.socket) -> Key:
        here, there = client.getsockname()[:2], client.getpeername()[:2]
        return Key.of(*here, *there)

    def connect(self, family: int = 4, greet: bool = True, **options: Any) -> Pair:
        """A client, linked to a server; greet: each has said a word to the other."""
        client = self.dial(family, **options)
        server = self.accept(family)
        key = self.key_of(client)
        self.wait(lambda: any(e.record.key_raw == key.pack() for e in self.events), "the engine tells of the client")
        number = next(e.id for e in reversed(self.events) if e.record.key_raw == key.pack() and e.id)
        pair = Pair(client, server, key, number)
        if greet:
            self.exchange(pair)
        return pair

    @staticmethod
    def exchange(pair: Pair, size: int = 20) -> None:
        """A question and its answer."""
        question, answer = bytes(range(256)) * (size // 256 + 1), b"-" * size
        pair.client.sendall(question[:size])
        assert receive(pair.server, size) == question[:size]
        pair.server.sendall(answer)
        assert receive(pair.client, size) == answer

    def to_standby(self, pair: Pair, cause: Cause = Cause.COMMAND) -> None:
        self.submit(Op.STANDBY, pair, cause)
        assert pair.server.recv(1) == b"", "a server whose client falls quiet is told by FIN"
        pair.server.close()
        self.wait_state(pair, State.STANDBY)

    def to_idle(self, pair: Pair) -> None:
        if self.state(pair) is State.ACTIVE:
            self.to_standby(pair)
        self.wait_for_quiet(pair)
        self.submit(Op.IDLE, pair)
        self.wait_state(pair, State.IDLE)

    def to_sleep(self, pair: Pair) -> None:
        if self.state(pair) is not State.IDLE:
            self.to_idle(pair)
        self.rows[pair.key.pack()] = record = self.record(pair)
        record.peer = engine_peer(self.engine, record)
        self.engine.submit([Command(Op.SLEEP, cause=Cause.COMMAND, id=pair.id, record=record)])
        self.wait_state(pair, State.SLEEP)

    def to(self, pair: Pair, state: State) -> None:
        {State.STANDBY: self.to_standby, State.IDLE: self.to_idle, State.SLEEP: self.to_sleep}[state](pair)

    def close(self, pair: Pair) -> None:
        """By command: both ends learn it by RST."""
        self.submit(Op.CLOSE, pair)
        self.wait_state(pair, State.CLOSED)

    def wait_for_quiet(self, pair: Pair) -> None:
        """Until the client's kernel has acknowledged all (a delayed ACK takes 40 ms): a freeze needs that."""
        self.wait(lambda: not tcp_info(pair.client).unacked, "the client's data is acknowledged")
        time.sleep(0.06)

    def wake_and_answer(self, pair: Pair, size: int = 20) -> None:
        """The client speaks, a server answers: the connection lives."""
        family = 4 if pair.client.family == socket.AF_INET else 6
        pair.client.sendall(bytes(size))
        pair.server = self.accept(family)
        assert receive(pair.server, size) == bytes(size)
        pair.server.sendall(b"answer")
        assert receive(pair.client, 6) == b"answer"
        self.wait_state(pair, State.ACTIVE)  # payload may overtake the event that tells of its transition

    def attach(self, pair: Pair, preamble: bytes = b"", early: bytes = b"", token: int = 0,
               timeout_ms: int = 0) -> socket.socket:  # fmt: skip
        """A server comes by itself: its end of the connection it has to the client."""
        with self.lab.enter("box"):
            listener = socket.create_server((self.lab.address("box", "lan0"), 0))
        with listener:
            with self.lab.enter("lan"):
                server = socket.create_connection(listener.getsockname(), 5)
            accepted = listener.accept()[0]
        self._sockets.callback(server.close)
        self.submit(Op.ATTACH, pair, Cause.SERVER_ATTACH, fd=accepted.detach(), preamble=preamble, early=early,
                    token=token, count=timeout_ms)  # fmt: skip
        return server


def passed_on(bridge: Bridge) -> Bridge:
    """What is there, through a queue as between two daemons; the first bridge is closed."""
    bridge.stop()
    second = Bridge()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), 1 << 28)
        bridge.send(ours.fileno())
        bridge.close()
        refused = second.receive(theirs.fileno())
    assert not refused, f"{refused} messages are of no use"
    return second


def thread_of_engine() -> int:
    """Its number; of the one engine of this process."""
    (thread,) = (thread for thread, stat in threads_of(os.getpid()).items() if "(roost-engine)" in stat)
    return thread


def threads_of(process: int) -> dict[int, str]:
    """What proc_pid_stat(5) says of each thread; of those that end meanwhile nothing."""
    stats = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            stats[int(task.name)] = (task / "stat").read_text()
    return stats


@contextmanager
def stopped(daemon: DaemonHandle) -> Iterator[None]:
    """Whatever the kernel receives meanwhile, the engine finds in one turn of its loop. A thread goes on for some
    milliseconds after the signal is sent."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all(") T " in stat for stat in threads_of(daemon.pid).values()), 10, "all stopped")
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def engine_peer(engine: Engine, record: Record) -> Record | None:
    """The server's leg of a pair, which a row has, too."""
    return engine.find_peer(record.key_raw) if record.paired else None


@dataclass(frozen=True)
class TcpInfo:
    """Some of struct tcp_info of linux/tcp.h."""

    state: int
    probes: int
    unacked: int
    last_ack_recv_ms: int
    retransmits: int
    segments_in: int


def tcp_info(sock: socket.socket) -> TcpInfo:
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 144)
    unacked, last_ack, retransmits, heard = (struct.unpack_from("=I", raw, at)[0] for at in (24, 56, 100, 140))
    return TcpInfo(raw[0], raw[3], unacked, last_ack, retransmits, heard)


def reset(sock: socket.socket) -> None:
    """Ends it by RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def receive(sock: socket.socket, size: int) -> bytes:
    """Exactly size bytes, or what there was before the end."""
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(1 << 16, size - len(data)))
        if not part:
            break
        data += part
    return bytes(data)


@contextmanager
def sending(sock: socket.socket, data: bytes) -> Iterator[None]:
    """Send more than the buffers on the way are sure to hold: who reads is in the block."""
    thread = threading.Thread(target=sock.sendall, args=(data,))
    thread.start()
    try:
        yield
    finally:
        thread.join()
