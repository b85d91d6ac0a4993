# SPDX-License-Identifier: Apache-2.0
"""What is not there yet at start is waited for; all else goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import ExitStack
from errno import EADDRINUSE, EADDRNOTAVAIL, EBUSY, ENODEV

import pytest

from appliance.box.reachability import UnreachableError
from appliance.box.vlans import Vlan
from appliance.engine import EngineError
from appliance.lab import wait_until
from appliance.wire import Bounds, ServiceSpec
from control.config import Config, Service, parse
from control.daemon import engine_setup, vlans
from control.daemon import waiting as waiting_module
from control.daemon.engine_setup import EngineSetup
from control.daemon.error import DaemonError
from control.daemon.waiting import NotYetError, Waiting
from control.policy.services import service_spec
from tests.unit.fake_engine import FakeEngine

TEXT = """
[network]
interfaces = ["wan0", "late0"]
[[service]]
name = "here"
listen = "192.0.2.1:5"
server = "10.0.0.2:6"
[[service]]
name = "late"
listen = "192.0.2.2:5"
server = "10.0.0.2:6"
[[service]]
name = "session"
listen = "192.0.2.1:7"
server = "10.0.0.3:6"
interface = "persistent"
"""


class Machine(FakeEngine):
    """The engine on a machine that has these interfaces, addresses and routes."""

    def __init__(self) -> None:
        super().__init__()
        self.links = {"wan0"}
        self.made_anew = Counter[str]()
        self.addresses = {"192.0.2.1"}
        self.routes = {"10.0.0.2": "wan0"}
        self.attached: list[tuple[str, bool]] = []
        self.vlans: list[tuple[int, ...]] = []
        self.error = 0

    def attach(self, ifname: str, mode: str = "auto", servers: bool = False) -> str:
        if ifname not in self.links:
            raise EngineError(f"there is no interface {ifname}", ENODEV)
        if self.error:
            raise EngineError("another XDP program", self.error)
        self.attached.append((ifname, servers))
        return "native"

    def vlan(self, *what: int) -> None:
        self.vlans.append((len(self.attached), *what))

    def set_limits(self, bounds: Bounds) -> None:
        pass

    def add_service(self, spec: ServiceSpec) -> None:
        if spec.listen not in self.addresses:
            raise EngineError(f"service at {spec.listen}: cannot listen on port 5: no", EADDRNOTAVAIL)
        super().add_service(spec)

    def index(self, ifname: str) -> int:
        return 1 + self.made_anew[ifname] if ifname in self.links else 0

    def towards(self, address: str) -> str:
        if address not in self.routes:
            raise UnreachableError(f"no route to {address}")
        return self.routes[address]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(engine_setup, "interface_towards", machine.towards)
    monkeypatch.setattr(engine_setup, "_index", machine.index)
    return machine


def begin(machine: Machine, config: Config, waiting: Waiting) -> EngineSetup:
    def spec(number: int) -> tuple[Service, ServiceSpec]:
        service = config.service[number - 1]
        return service, service_spec(service, number, config)

    setup = EngineSetup(machine, config, waiting)  # type: ignore[arg-type]
    setup.begin(range(1, len(config.service) + 1), spec, ExitStack())
    return setup


def test_interfaces_addresses_and_routes_are_waited_for_and_the_rest_goes_on(machine: Machine) -> None:
    waiting = Waiting()
    setup = begin(machine, parse(TEXT), waiting)
    assert [spec.index for spec in machine.services] == [1]
    assert setup.interfaces == {"wan0": "native"}
    assert [sentence.split(":")[0] for sentence in waiting.told] == [
        "interface late0",
        'service "late"',
        'service "session"',
    ]
    assert "there is no interface late0" in waiting.told[0]
    assert "This machine has no such address: ip -brief address" in waiting.told[1]
    assert "no route to 10.0.0.3; add the route" in waiting.told[2]
    assert not waiting.again()

    machine.links |= {"late0", "lan0"}
    machine.addresses.add("192.0.2.2")
    machine.routes["10.0.0.3"] = "lan0"
    told = waiting.told
    assert waiting.again()
    assert told == [] == waiting.told
    assert [spec.index for spec in machine.services] == [1, 2, 3]
    assert machine.attached == [("wan0", False), ("late0", False), ("lan0", True)]
    assert not waiting.again()


def test_vlan_devices_are_told_before_an_interface_is_heard_and_followed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {Vlan(2, 0x8100, 7): 3}
    monkeypatch.setattr(vlans, "vlans", lambda: dict(here))
    waiting = Waiting()
    begin(machine, parse(TEXT), waiting)
    assert machine.vlans == [(0, 2, 0x8100, 7, 3)]
    here.clear()
    waiting.look()
    assert machine.vlans[1:] == [(1, 2, 0x8100, 7, 0)]


def test_an_interface_that_has_gone_is_waited_for_and_one_that_was_made_anew_is_attached_to_again(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.links |= {"late0", "lan0"}
    machine.addresses.add("192.0.2.2")
    machine.routes["10.0.0.3"] = "lan0"
    waiting = Waiting()
    setup = begin(machine, parse(TEXT), waiting)
    assert not waiting.again()
    attached = list(machine.attached)
    machine.links.remove("wan0")
    assert not waiting.again()
    assert waiting.told == ["interface wan0: there is no interface wan0"]
    assert "interface wan0 waits: it has gone" in caplog.text
    assert sorted(setup.interfaces) == ["lan0", "late0"]
    machine.links.add("wan0")
    machine.made_anew["wan0"] += 1
    machine.made_anew["lan0"] += 1  # between two looks
    assert waiting.again()
    assert sorted(machine.attached[len(attached) :]) == [("lan0", True), ("wan0", False)]
    assert waiting.told == []
    assert not waiting.again()


def test_a_session_is_not_served_before_its_server_can_be_heard(machine: Machine) -> None:
    waiting = Waiting()
    named = TEXT.replace("[[service]]", 'server_interfaces = ["lan0"]\n[[service]]', 1)
    begin(machine, parse(named), waiting)
    assert 'service "session": there is no interface lan0' in waiting.told
    machine.links.add("lan0")
    waiting.again()
    assert 3 in [spec.index for spec in machine.services]
    assert machine.attached.count(("lan0", True)) == 1


def test_a_service_that_waits_is_told_nothing_and_one_whose_server_moves_is_heard_there(machine: Machine) -> None:
    config = parse(TEXT)
    setup = begin(machine, config, Waiting())
    setup.update(config.service[1], service_spec(config.service[1], 2, config))
    assert machine.updates == []
    machine.routes["10.0.0.3"] = "lan0"
    machine.links.add("lan0")
    setup = begin(machine, config, Waiting())
    moved = config.service[2].model_copy(update={"server": "10.0.0.4:6"})
    with pytest.raises(NotYetError, match=r"no route to 10\.0\.0\.4"):
        setup.update(moved, service_spec(moved, 3, config))
    machine.routes["10.0.0.4"] = "lan1"
    machine.links.add("lan1")
    setup.update(moved, service_spec(moved, 3, config))
    assert machine.attached[-1] == ("lan1", True)
    assert machine.updates[-1].servers == (("10.0.0.4", 6),)


def test_a_session_is_heard_where_its_server_is_reached_later(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_setup, "ROUTES_S", 0.0)
    machine.routes["10.0.0.3"] = "wan0"
    waiting = Waiting()
    setup = begin(machine, parse(TEXT), waiting)
    assert list(setup.interfaces) == ["wan0"]
    machine.routes["10.0.0.3"] = "lan0"

    def waits() -> bool:
        waiting.again()
        return "interface lan0: there is no interface lan0" in waiting.told

    wait_until(waits, 5, "the way is looked at")
    machine.links.add("lan0")
    waiting.again()
    assert machine.attached == [("wan0", False), ("lan0", True)]
    assert setup.interfaces == {"wan0": "native", "lan0": "native"}
    del machine.routes["10.0.0.3"]
    for _ in range(3):
        waiting.again()
        time.sleep(0.01)
    assert not any("lan0" in sentence for sentence in waiting.told), "it goes on being heard there"


def test_what_no_waiting_mends_is_refused_at_start(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.error = EBUSY
    with pytest.raises(EngineError, match="another XDP program"):
        begin(machine, parse(TEXT), Waiting())
    machine.error = 0

    def add(spec: ServiceSpec) -> None:
        raise EngineError("cannot listen on port 5", EADDRINUSE)

    monkeypatch.setattr(machine, "add_service", add)
    with pytest.raises(DaemonError, match=r'service "here": cannot listen on port 5\. Another program has it'):
        begin(machine, parse(TEXT), Waiting())


def test_what_is_waited_for_is_logged_at_first_and_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(waiting_module, "RETRY_S", 0.001)
    monkeypatch.setattr(waiting_module, "REMIND_S", 0.0)
    waiting = Waiting()
    tried: list[int] = []

    def step() -> None:
        tried.append(1)
        if len(tried) < 4:
            raise NotYetError("not here")
        if len(tried) < 6:
            raise EngineError("busy")

    waiting.attempt("thing", step)

    async def until_it_is_there() -> None:
        done = asyncio.Event()
        running = asyncio.create_task(waiting.run(done.set))
        await asyncio.wait_for(done.wait(), 10)
        running.cancel()

    asyncio.run(until_it_is_there())
    said = [record.getMessage() for record in caplog.records if record.name == "roost.daemon"]
    assert said.count("thing waits: not here") == 1
    assert said.count("still waiting: thing: not here") >= 2
    assert said.count("thing waits: busy") == 1
    assert said[-1] == "thing is there now"
