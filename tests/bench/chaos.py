# SPDX-License-Identifier: Apache-2.0
"""Not a byte is lost, however often a connection is frozen and thawed in the middle of its traffic.

Method. Clients of both families, with timestamps, SACK and window scaling each on and off (16 kinds), with several
MSS of each kind, one in five with a window of two segments or, where the MSS is large, less than one, and another
one in five whose frames come without checksums (CHECKSUM_PARTIAL), exchange random chunks (1 byte to 64 KiB) with a
server in both directions, after random pauses; some read slowly. Meanwhile every connection that is awake is told to
freeze, again and again, as fast as the engine takes it (ROOST_OP_IDLE, as the daemon does). Every stream is a
function of its client and position, so each end checks each byte: lost, doubled, out of order or wrong. Freezing
goes on while the connections end. A pair is a freeze that led to a closed socket and the thaw that rebuilt it, as
the engine counts.

In the mode `persistent` both legs freeze and thaw as a pair, and each client has one server connection all the time.
In the others a freeze ends the server's link first: FIN to the server, once all that the client has said is through;
what the server still says goes to the client (it finishes its chunk, and every fourth time says one more); then the
freeze. The client's next byte makes a new link. So a client's two streams run over many server connections one after
the other, and each goes on at the position where the last one left it; the server knows whose a link is by its PROXY
header (version 1 over IPv4, 2 over IPv6), in the mode `router` by the client's address. What is compared at the end
is, for each client and direction, what was said and what was heard over all of them. A link that ends by anything but
a FIN, and one that comes while another of the same client is open, is an unexpected reset.

In the mode `service` the server speaks while it is linked: a chunk that was due before is the first thing it says. In
the modes `router` and `proxy` it also comes for a client that has no link, to say its chunk, and takes it over should
a link have been made meanwhile.

A freeze that is refused because bytes were in flight at that moment is no error; it is counted as cancelled.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from errno import EAGAIN, EALREADY, EBUSY, ENOENT, ENOTCONN

from appliance.engine import Engine, EngineError
from appliance.lab import Lab
from appliance.lab.topology import UNSUMMED
from appliance.wire import Command, Event, EventType, Key, Op, SecondServer, ServiceSpec
from control.core.states import Cause, State
from tests.bench.direct import WAN, alarms, names, need_room, running_engine, say, services
from tests.bench.figures import Report, Target
from tests.bench.proxying import Attaching, running_proxy

PORT = 9000
MSS = (536, 700, 1000, 1300, 1460)
KINDS = list(itertools.product((4, 6), (True, False), (True, False), (True, False)))
"""Family, timestamps, SACK, window scaling."""

SMALL_WINDOW = 1152
"""Bytes, the smallest that the kernel lets a client ask for."""

MODES = ("service", "router", "proxy", "persistent")
"""To a service's own address and port; to the server's, with a transparent router in between, and servers that come by
the clients' addresses; as the first, with servers that come by HTTP CONNECT; as the first, with both legs freezing and
thawing together."""

BY = {"router": "address", "persistent": "stream"}
"""What tells the server whose a link is; else a PROXY header does."""

PROXY_VERSION = {1: 1, 2: 2}
"""Of the header, by the number of the service: one for each family."""

PAIRS_A_SECOND = 100_000 / 60
COUNTED_S = 5.0
"""How often the screen is told."""

NOT_NOW = {EAGAIN, EBUSY}
"""Refusals that mean: bytes are under way, try again."""

NO_ERROR = NOT_NOW | {EALREADY, ENOENT, ENOTCONN}
"""Those, and: it is being frozen already, or it is closing or gone."""


class Freezer(threading.Thread):
    """Freezes whatever is linked, from `begin` until it is told to end; `see` is given every event."""

    def __init__(self, engine: Engine, see: Callable[[Event], None] = lambda event: None) -> None:
        super().__init__(name="freezer", daemon=True)
        self._engine = engine
        self._see = see
        self._begun = threading.Event()
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self.known: set[int] = set()
        self.refused: Counter[int] = Counter()
        self._todo: set[int] = set()  # awake, and not told to freeze since

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._turn()
        except Exception as problem:  # told in end(), by the thread that can act on it
            self._failure = problem

    def _turn(self) -> None:
        for event in self._engine.events(8192, 5):
            self._see(event)
            if event.type == EventType.TRANSITION:
                self.known.add(event.id)
                if event.to_state == State.ACTIVE or (event.to_state == State.STANDBY and not ours(event)):
                    self._todo.add(event.id)
                else:
                    self._todo.discard(event.id)
                if event.to_state == State.CLOSED:
                    self.known.discard(event.id)
            elif event.type == EventType.REFUSED:
                self.refused[event.error] += 1
                if event.error in NOT_NOW and event.id in self.known:
                    self._todo.add(event.id)
            elif event.type == EventType.FATAL:
                raise EngineError(f"the engine stopped: error {event.error}")
        if self._begun.is_set():
            self._engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, id=number) for number in self._todo])
            self._todo.clear()
        time.sleep(0.002)  # a connection that was just refused has nothing new to say before

    def begin(self) -> None:
        self._begun.set()

    def alive(self) -> None:
        """EngineError if it had to give up."""
        if self._failure is not None:
            raise EngineError(f"freezing ended early: {self._failure}") from self._failure

    def end(self) -> None:
        self._ending.set()
        self.join()
        self.alive()


def shares(clients: int) -> list[tuple[int, tuple[int, bool, bool, bool], int, int, int]]:
    """(how many, kind, MSS, window or 0, mark): every kind gets the same share (+-1), and within its share every MSS;
    of each kind, and of each MSS, a fifth has a small window, and another fifth sends no checksums."""
    groups = [(kind, mss) for mss in MSS for kind in KINDS]
    each, more = divmod(clients, len(groups))
    window, mark = (SMALL_WINDOW, 0, 0, 0, 0), (0, UNSUMMED, 0, 0, 0)
    return [(each + (index < more), kind, mss, window[index % len(MSS)], mark[index % len(MSS)])
            for index, (kind, mss) in enumerate(groups) if each or index < more]  # fmt: skip


def ours(event: Event) -> bool:
    """Whether a transition follows from our command: to STANDBY is then a step on the way to IDLE."""
    return event.cause == Cause.COMMAND


class Watch:
    """What the engine tells of its clients."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self.wakes: Counter[int] = Counter()  # from IDLE, by cause

    def see(self, event: Event) -> None:
        if event.type != EventType.TRANSITION:
            return
        if event.from_state == State.NONE:
            self.keys[event.record.key.client_text] = event.record.key
        elif event.from_state == State.IDLE:
            self.wakes[event.cause] += 1


def specs_of(lab: Lab, mode: str) -> list[ServiceSpec]:
    persistent, router = mode == "persistent", mode == "router"
    specs = services(lab, PORT, close_with_server=persistent, router=router, persistent=persistent)
    return [replace(spec, second_server=SecondServer.TAKES_OVER,
                    proxy_header=0 if mode in BY else PROXY_VERSION[spec.index]) for spec in specs]  # fmt: skip


def run(seconds: float = 60.0, clients: int = 320, pause_ms: float = 250.0, mode: str = "service",
        least_pairs: int = 0) -> Report:  # fmt: skip
    """Freeze and thaw `clients` connections for `seconds`, on a slow machine up to ten times as long until there were
    least_pairs; pause_ms is the longest pause between two chunks. mode: how they get through the appliance (MODES)."""
    need_room(clients, descriptors_each=2)
    report = Report("chaos")
    router = mode == "router"
    with Lab(clients=clients, addresses=clients if router else None) as lab:
        lab.sysctl("box", "net.ipv4.tcp_tw_reuse", 1)  # as the daemon does (appliance/sysctls.py)
        lab.unsummed_link()
        pair = lab.chaos(PORT, BY.get(mode, "header"))
        with ExitStack() as stack:
            slots, max_awake = 8 * clients + 1000, 2 * clients + 100
            engine = stack.enter_context(running_engine(lab, specs_of(lab, mode), slots=slots, max_awake=max_awake))
            watch = Watch()
            attaching = Attaching(engine, watch.keys)

            def see(event: Event) -> None:
                watch.see(event)
                attaching.see(event)

            freezer = Freezer(engine, see)
            freezer.start()
            try:
                for count, (family, timestamps, sack, scaling), mss, window, mark in shares(clients):
                    target = lab.address(*("lan", "eth0") if router else ("box", WAN), family)
                    pair.connect(count, (target, PORT), mss=mss, window=window, mark=mark,
                                 timestamps=timestamps, sack=sack, window_scaling=scaling)  # fmt: skip
                if mode in ("router", "proxy"):
                    pair.visit(stack.enter_context(running_proxy(lab, attaching)) if mode == "proxy" else None)
                freezer.begin()
                say(f"{clients} clients of {len(KINDS)} kinds are connected; freezing for {seconds:g} s")
                before, began = engine.stats(), time.monotonic()
                pair.start(pause_ms=pause_ms)
                while (left := began + seconds - time.monotonic()) > 0:
                    time.sleep(min(left, COUNTED_S))
                    freezer.alive()
                    say(f"{engine.stats()['thawed'] - before['thawed']:,} pairs")
                while (engine.stats()["thawed"] - before["thawed"] < least_pairs
                       and time.monotonic() < began + 10 * seconds):  # fmt: skip
                    time.sleep(0.1)
                    freezer.alive()
                stats, elapsed = engine.stats(), time.monotonic() - began
                result = pair.finish()
                deadline = time.monotonic() + 5
                while freezer.known and time.monotonic() < deadline:
                    time.sleep(0.05)
                left_over = len(freezer.known)
            finally:
                freezer.end()
            after = engine.stats()
        pair.close()
    pairs = stats["thawed"] - before["thawed"]
    report.did = (
        f"{clients} clients of {len(KINDS)} kinds, MSS {min(MSS)} to {max(MSS)}, {result.received_bytes:,} bytes "
        f"checked in both directions over {result.made + result.came:,} server connections, during {elapsed:.0f} s of "
        f"freezing"
    )
    report.add_zero("lost_bytes", result.lost_bytes, "bytes")
    report.add_zero("duplicated_bytes", result.duplicated_bytes, "bytes")
    report.add_zero("reordered", result.reordered, "chunks")
    report.add_zero("corrupted_bytes", result.corrupted_bytes, "bytes")
    report.add_zero("unexpected_resets", result.faults.total(), "connections")
    report.add_zero("left_over", left_over, "connections")
    report.add("pairs", pairs, "pairs", Target(at_least=round(PAIRS_A_SECOND * elapsed)))
    report.add("pairs_per_s", pairs / elapsed, "1/s")
    report.add("cancelled", after["freeze_cancelled"] - before["freeze_cancelled"], "freezes")
    report.add("bytes", result.received_bytes, "bytes")
    report.add("clients", result.connections, "clients")
    report.add("server_connections", result.made, "connections")
    report.add("visits", result.came, "connections")
    report.add("woken_by_server", watch.wakes[Cause.SERVER_ATTACH] + watch.wakes[Cause.SERVER_DATA], "clients")
    unexpected = Counter({error: n for error, n in freezer.refused.items() if error not in NO_ERROR})
    report.add_zero("refused_unexpectedly", unexpected.total(), "commands")
    if unexpected:
        report.problems.append(f"commands were refused with errors that mean more than 'not now': {names(unexpected)}")
    if result.faults:
        report.problems.append(f"connections ended by: {dict(result.faults)}")
    kept = {name: after[name] for name in ("awake", "table_ipv4", "table_ipv6", "idle_records") if after[name]}
    if kept:
        report.problems.append(f"the engine still has: {kept}")
    if left_over:
        report.problems.append(f"{left_over} connections are still there after both ends closed them")
    report.problems += alarms(before, after)
    say(f"refused: {names(freezer.refused) or 'nothing'}")
    return report
