# SPDX-License-Identifier: Apache-2.0
"""What clients notice meanwhile: one that is awake speaks all the time, and clients that sleep wake one by one.

Both ends run before all others on their processor, as they would on machines of their own: else what is timed is, for
the larger part, how long these programs of the lab wait for a processor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from appliance.lab import Lab, wait_until
from appliance.lab.cores import before_all_others
from appliance.lab.groups import SwarmGroup
from tests.bench.policy import Questions, asking
from tests.bench.simulated import PORT, Nursery

WAKERS: Final = 500
APART_MS: Final = 10.0
AT_A_TIME: Final = 20
"""Clients that wake, one after the other, between two looks whether it is over."""

WAKE_PORT: Final = PORT + 1
QUIET: Final = {"active_quiet": "200ms", "standby_quiet": "500ms"}


def services(lab: Lab) -> list[dict[str, Any]]:
    """Of the clients that wake; their server is begun, too."""
    before_all_others([lab.server(WAKE_PORT).process.pid])
    others: list[dict[str, Any]] = lab.config(WAKE_PORT, service={"born": "always", **QUIET})["service"]
    return [{**service, "name": f"wake-{service['name']}"} for service in others]


@dataclass(slots=True)
class Noticed:
    """How long answers took, in ms: to the one that is awake, and to those that woke."""

    relay: list[float] = field(default_factory=list)
    wake: list[float] = field(default_factory=list)
    failed: int = 0


class Beside:
    """Clients of an interface of their own."""

    def __init__(self, questions: Questions, swarm: SwarmGroup) -> None:
        self._questions = questions
        self._swarm = swarm

    @contextmanager
    def noticing(self, into: Noticed) -> Iterator[None]:
        """What they notice within a `with` is added to it."""
        over = threading.Event()

        def wake() -> None:
            while not over.is_set():
                said = self._swarm.say(AT_A_TIME, concurrency=1, apart_ms=APART_MS)
                into.wake += [us / 1000 for us in said.rtt_us]
                into.failed += sum(dict(said.failed).values())

        waking = threading.Thread(target=wake)
        self._questions.took_ms()
        waking.start()
        try:
            yield
        finally:
            over.set()
            waking.join()
            into.relay += self._questions.took_ms()


@contextmanager
def beside(born: Nursery) -> Iterator[Beside]:
    """They sleep, but for the one. The daemon has `services`, and hears wan0."""
    swarm = born.lab.swarm()
    swarm.connect(WAKERS, (born.lab.address("box", "wan0"), WAKE_PORT))
    before_all_others([peer.process.pid for peer in swarm.peers])
    wait_until(lambda: not born.daemon.status()["awake"], 30, "they sleep")
    with asking(born) as questions:
        yield Beside(questions, swarm)
