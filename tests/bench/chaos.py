# SPDX-License-Identifier: Apache-2.0
"""Not a byte is lost, however often a connection is frozen and thawed in the middle of its traffic.

Method. Clients of both families, with timestamps, SACK and window scaling each on and off (16 kinds), and with several
MSS of each kind, exchange random chunks (1 byte to 64 KiB) with a server in both directions, after random pauses; some
read slowly. Meanwhile every connection that is awake is told to freeze, again and again, as fast as the engine takes
it (ROOST_OP_FREEZE_HELD: the server link stays, so that either end's next byte thaws it; in the mode `persistent`
ROOST_OP_IDLE: both legs freeze, as a pair). Every stream is a function of its connection and position, so each end
checks each byte: lost, doubled, out of order or wrong. Freezing goes on while
the connections end. A pair is a freeze that led to a closed socket and the thaw that rebuilt it, as the engine counts.

A freeze that is refused because bytes were in flight at that moment is no error; it is counted as cancelled.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from errno import EAGAIN, EALREADY, EBUSY, ENOENT, ENOTCONN

from appliance.engine import Engine, EngineError
from appliance.lab import ChaosPair, Lab, wait_until
from appliance.wire import Command, Event, EventType, Key, Op
from control.core.states import Cause, State
from tests.bench.direct import WAN, alarms, names, need_room, running_engine, say, services
from tests.bench.figures import Report, Target
from tests.bench.proxying import Attaching, running_proxy

PORT = 9000
LET_GO_PORT = 9001
MSS = (536, 700, 1000, 1300, 1460)
KINDS = list(itertools.product((4, 6), (True, False), (True, False), (True, False)))
"""Family, timestamps, SACK, window scaling."""

MODES = ("service", "router", "proxy", "persistent")
"""To a service's own address and port; to the server's, with a transparent router in between; as the first, with
servers that come by themselves, by HTTP CONNECT; as the first, with both legs freezing and thawing together."""

PAIRS_A_SECOND = 100_000 / 60
COUNTED_S = 5.0
"""How often the screen is told."""

NOT_NOW = {EAGAIN, EBUSY}
"""Refusals that mean: bytes are under way, try again."""

NO_ERROR = NOT_NOW | {EALREADY, ENOENT, ENOTCONN}
"""Those, and: it is being frozen already, or it is closing or gone."""


class Freezer(threading.Thread):
    """Freezes whatever is linked, from `begin` until it is told to end; `see` is given every event."""

    def __init__(self, engine: Engine, op: Op, see: Callable[[Event], None] = lambda event: None) -> None:
        super().__init__(name="freezer", daemon=True)
        self._engine = engine
        self._op = op
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
                if event.to_state == State.ACTIVE:
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
            self._engine.submit([Command(self._op, cause=Cause.COMMAND, id=number) for number in self._todo])
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


def shares(clients: int) -> list[tuple[int, tuple[int, bool, bool, bool], int]]:
    """(how many, kind, MSS): every kind gets the same share (+-1), and within its share every MSS."""
    groups = [(kind, mss) for mss in MSS for kind in KINDS]
    each, more = divmod(clients, len(groups))
    return [(each + (index < more), kind, mss) for index, (kind, mss) in enumerate(groups) if each or index < more]


class Clients:
    """Which there are, and in which state, as the engine tells."""

    def __init__(self) -> None:
        self.states: dict[int, int] = {}
        self.keys: dict[str, Key] = {}

    def see(self, event: Event) -> None:
        if event.type == EventType.TRANSITION:
            self.states[event.id] = event.to_state
            self.keys[event.record.key.client_text] = event.record.key


def reach(pair: ChaosPair, engine: Engine, clients: Clients, proxy: tuple[str, int]) -> None:
    """The servers of the clients' service let go of them, and come by the proxy."""

    def unlinked() -> bool:
        linked = [number for number, state in clients.states.items() if state == State.ACTIVE]
        engine.submit([Command(Op.STANDBY, cause=Cause.COMMAND, id=number) for number in linked])
        return not linked

    wait_until(unlinked, 20, "every client in STANDBY", every_s=0.2)
    pair.reach(proxy, list(clients.keys))


def run(seconds: float = 60.0, clients: int = 320, pause_ms: float = 250.0, mode: str = "service") -> Report:
    """Freeze and thaw `clients` connections for `seconds`; pause_ms is the longest pause between two chunks. mode: how
    they get through the appliance (MODES)."""
    router, proxy, persistent = (mode == one for one in MODES[1:])
    need_room(clients, descriptors_each=2)
    report = Report("chaos")
    with Lab(clients=clients) as lab:
        pair = lab.chaos(PORT)
        if proxy:
            lab.server(LET_GO_PORT)
        port = LET_GO_PORT if proxy else PORT
        specs = services(lab, port, close_with_server=not proxy, router=router, persistent=persistent)
        with ExitStack() as stack:
            slots, max_awake = 8 * clients + 1000, 2 * clients + 100
            engine = stack.enter_context(running_engine(lab, specs, slots=slots, max_awake=max_awake))
            known = Clients()
            attaching = Attaching(engine, known.keys)

            def see(event: Event) -> None:
                known.see(event)
                attaching.see(event)

            freezer = Freezer(engine, Op.IDLE if persistent else Op.FREEZE_HELD, see)
            freezer.start()
            try:
                for count, (family, timestamps, sack, scaling), mss in shares(clients):
                    target = lab.address(*("lan", "eth0") if router else ("box", WAN), family)
                    pair.connect(count, (target, port), mss=mss, timestamps=timestamps, sack=sack,
                                 window_scaling=scaling, silent=proxy)  # fmt: skip
                if proxy:
                    reach(pair, engine, known, stack.enter_context(running_proxy(lab, attaching)))
                freezer.begin()
                say(f"{clients} clients of {len(KINDS)} kinds are connected; freezing for {seconds:g} s")
                before, began = engine.stats(), time.monotonic()
                pair.start(pause_ms=pause_ms)
                while (left := began + seconds - time.monotonic()) > 0:
                    time.sleep(min(left, COUNTED_S))
                    freezer.alive()
                    say(f"{engine.stats()['thawed'] - before['thawed']:,} pairs")
                stats, elapsed = engine.stats(), time.monotonic() - began
                result = pair.finish(client_first=proxy)
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
        f"checked in both directions during {elapsed:.0f} s of freezing"
    )
    report.add_zero("lost_bytes", result.lost_bytes, "bytes")
    report.add_zero("duplicated_bytes", result.duplicated_bytes, "bytes")
    report.add_zero("reordered", result.reordered, "chunks")
    report.add_zero("corrupted_bytes", result.corrupted_bytes, "bytes")
    report.add_zero("unexpected_resets", result.unexpected_resets.total(), "connections")
    report.add_zero("left_over", left_over, "connections")
    report.add("pairs", pairs, "pairs", Target(at_least=PAIRS_A_SECOND * seconds))
    report.add("pairs_per_s", pairs / elapsed, "1/s")
    report.add("cancelled", after["freeze_cancelled"] - before["freeze_cancelled"], "freezes")
    report.add("bytes", result.received_bytes, "bytes")
    report.add("clients", result.connections, "clients")
    unexpected = Counter({error: n for error, n in freezer.refused.items() if error not in NO_ERROR})
    report.add_zero("refused_unexpectedly", unexpected.total(), "commands")
    if unexpected:
        report.problems.append(f"commands were refused with errors that mean more than 'not now': {names(unexpected)}")
    if result.unexpected_resets:
        report.problems.append(f"connections ended by: {dict(result.unexpected_resets)}")
    if left_over:
        report.problems.append(f"{left_over} connections are still there after both ends closed them")
    report.problems += alarms(before, after)
    say(f"refused: {names(freezer.refused) or 'nothing'}")
    return report
