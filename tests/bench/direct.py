# SPDX-License-Identifier: Apache-2.0
"""The engine by itself in a lab's appliance, for benches of the engine: no daemon, no store, no policy."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import errorcode

from appliance.box.router import open_routes
from appliance.engine import Engine, EngineError, unpin
from appliance.lab import Lab
from appliance.lab.processes import descriptor_limit
from appliance.paths import BPFFS, bpf_objects
from appliance.wire import EngineOptions, Event, EventType, OnServerClose, ServiceSpec
from control.daemon.daemon import SWITCH_INTERVAL_S

WAN, LAN = "wan0", "lan0"
SPARE_DESCRIPTORS = 500  # for what is no connection: libraries, maps, pipes to the peers

ALARMS = ("events_lost", "replay_failed", "ring_full", "table_full", "table_refused", "thaw_failed", "frames_bad",
          "frames_oversize")  # fmt: skip
"""Counters of the engine that stand still as long as nothing goes wrong."""


def say(text: str) -> None:
    """Progress, for people; standard output belongs to the figures."""
    print(text, file=sys.stderr, flush=True)


def need_room(connections: int, descriptors_each: int = 1, others: int = 0) -> None:
    """EngineError when so many connections need more descriptors than one process may have."""
    limit = descriptor_limit()
    most = (limit - others - SPARE_DESCRIPTORS) // descriptors_each
    if connections > most:
        raise EngineError(f"{connections:,} connections do not fit into this machine's limit of {limit:,} descriptors: "
                          f"at most {most:,}, or raise it (ulimit -Hn)")  # fmt: skip


def services(
    lab: Lab, port: int, close_with_server: bool = False, router: bool = False, persistent: bool = False
) -> list[ServiceSpec]:
    """One service for each family, towards the same port of the lab's server; router: at the server's own address."""
    return [
        ServiceSpec(
            index,
            lab.address(*("lan", "eth0") if router else ("box", WAN), family),
            port,
            () if router else ((lab.address("lan", "eth0", family), port),),
            on_server_close=OnServerClose.CLIENT if close_with_server else OnServerClose.STANDBY,
            transparent=router,
            as_client=router,
            persistent=persistent,
        )
        for index, family in ((1, 4), (2, 6))
    ]


@contextmanager
def running_engine(lab: Lab, specs: Sequence[ServiceSpec], slots: int, max_awake: int) -> Iterator[Engine]:
    """An engine at work in the appliance, which is a router when a service is transparent; nothing of it stays."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pin_dir = str(BPFFS / f"{lab.name}-1")  # a name that the next lab removes should this process be killed
    options = EngineOptions(pin_dir, str(bpf_objects()), slots, slots, slots, max_awake=max_awake)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with lab.enter("box"):  # its thread, and every socket that it makes, stay there
            engine = Engine(options)
        try:
            with lab.enter("box"):
                engine.attach(WAN)
                if any(spec.persistent for spec in specs):
                    engine.attach(LAN, servers=True)
                if any(spec.transparent for spec in specs):
                    open_routes()
                    engine.open_router()
                    engine.steer(WAN, servers=False)
                    engine.steer(LAN, servers=True)
                for spec in specs:
                    engine.add_service(spec)
                engine.start()
            yield engine
        finally:
            engine.stop()
            engine.close()
            with lab.enter("box"):
                unpin(pin_dir)
    finally:
        sys.setswitchinterval(interval)


def until(engine: Engine, done: Callable[[], bool], see: Callable[[Event], None], timeout_s: float, what: str) -> None:
    """Take events until `done`; EngineError with `what` when that takes too long, or when the engine stops."""
    deadline = time.perf_counter() + timeout_s
    while not done():
        events = engine.events(8192, 100)
        for event in events:
            if event.type == EventType.FATAL:
                raise EngineError(f"the engine stopped: {errorcode.get(event.error, event.error)}")
            see(event)
        if time.perf_counter() > deadline:
            raise EngineError(f"{what}: not within {timeout_s} s")


def names(errors: Counter[int]) -> str:
    """ "EAGAIN 12, EBUSY 3" """
    return ", ".join(f"{errorcode.get(error, str(error))} {number:,}" for error, number in errors.most_common())


def alarms(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Sentences about counters of ALARMS that moved."""
    moved = {name: after[name] - before[name] for name in ALARMS if after[name] != before[name]}
    return [f"the engine counted {number:,} {name}" for name, number in moved.items()]
