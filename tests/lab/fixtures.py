# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that drive an engine (tests/lab, tests/security): one lab a module, and one engine for tests
that want it alike."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from appliance.lab import Lab
from appliance.lab.processes import Spawner
from tests import warm
from tests.lab.engine_lab import EngineLab


@pytest.fixture(scope="module")
def nat_free_lab() -> Iterator[Lab]:
    with Lab(clients=100, nat=False) as lab:
        yield lab


def ip(lab: Lab, space: str, *words: str) -> None:
    """`ip` with these words, in a namespace of the lab's."""
    with lab.enter(space):
        subprocess.run(["ip", *words], check=True)


class Engines:
    """One engine at a time in the module's lab. Loading the programs takes 0.4 s of a processor, so a test gets the one
    of the test before if it is configured alike and found as new."""

    def __init__(self, lab: Lab, make: Callable[..., EngineLab] = EngineLab) -> None:
        self._lab = lab
        self._make = make
        self._box: EngineLab | None = None
        self._arguments: dict[str, Any] = {}

    def take(self, arguments: dict[str, Any]) -> EngineLab:
        if self._box is None or self._arguments != arguments:
            self.close()
            self._box = self._make(self._lab, **arguments).__enter__()
            self._arguments = arguments
        return self._box

    def close(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            box.__exit__(None, None, None)


@pytest.fixture(scope="module")
def engines(nat_free_lab: Lab) -> Iterator[Engines]:
    engines = Engines(nat_free_lab)
    yield engines
    engines.close()


@pytest.fixture
def box(engines: Engines, request: pytest.FixtureRequest) -> Iterator[EngineLab]:
    """An engine in the module's lab; `@pytest.mark.engine(...)` gives EngineLab's arguments, `own_engine` one that no
    test had before."""
    own = request.node.get_closest_marker("own_engine") is not None
    mark = request.node.get_closest_marker("engine")
    failed = request.session.testsfailed
    if own:
        engines.close()
    box = engines.take(dict(mark.kwargs) if mark else {})
    yield box
    if own or request.session.testsfailed > failed or not box.is_as_new():
        engines.close()


@pytest.fixture
def empty_lab(engines: Engines, nat_free_lab: Lab) -> Lab:
    """The module's lab without an engine, for a test that starts its own."""
    engines.close()
    return nat_free_lab


@pytest.fixture
def unhurried(nat_free_lab: Lab) -> Iterator[None]:
    """The ends of connections wait 3 s and not 200 ms before they send again what was not acknowledged, send no tail
    loss probes, and take nothing for lost because later segments came first, up to 127 of them: what is sent again was
    lost, and did not only wait for a processor, or come in another order. For connections made from here on.
    """
    _resend(nat_free_lab, tail_loss_probes=0, rto_min=["rto_min", "3s"], recovery=0, reordering=127)
    yield
    _resend(nat_free_lab, tail_loss_probes=3, rto_min=[], recovery=1, reordering=3)


def _resend(lab: Lab, tail_loss_probes: int, rto_min: list[str], recovery: int, reordering: int) -> None:
    """For all ways out of "wan" and "lan"; the appliance itself is no gateway of "lan", but on its link."""
    for family in (4, 6):
        box = lab.address("box", "lan0", family)
        ways = (("wan", "default", lab.address("nat", "inside", family)), ("lan", "default", box), ("lan", box, ""))
        for end, destination, gateway in ways:
            route = [destination, *(["via", gateway] if gateway else []), "dev", "eth0", *rto_min]
            ip(lab, end, f"-{family}", "route", "replace", *route)
    for end in ("wan", "lan"):
        lab.sysctl(end, "net.ipv4.tcp_early_retrans", tail_loss_probes)
        lab.sysctl(end, "net.ipv4.tcp_recovery", recovery)
        lab.sysctl(end, "net.ipv4.tcp_reordering", reordering)


def pytest_configure(config: pytest.Config) -> None:
    if "ROOST_SANITIZED" not in os.environ:
        Spawner.popen = staticmethod(partial(warm.popen, Spawner.popen))
    config.addinivalue_line("markers", "engine(**arguments): arguments of EngineLab for the fixture `box`")
    config.addinivalue_line("markers", "own_engine(reason): the fixture `box` is an engine that no test had before")
    config.addinivalue_line("markers", "appliance(fixture): the fixture whose appliance the fixture `ward` is about")
