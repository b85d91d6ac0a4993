# SPDX-License-Identifier: Apache-2.0
"""In which VLANs this machine is, as netlink says, and how the engine is told."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import cast

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from appliance.box import links as box_links
from appliance.box import vlans as box_vlans
from appliance.box.links import beneath, links, parse
from appliance.box.vlans import Vlan, vlans, vlans_of
from appliance.engine import Engine, EngineError
from control.daemon import vlans as told_vlans
from control.daemon.vlans import Vlans

Q, AD = 0x8100, 0x88A8


def link(index: int, kind: str = "veth", master: int = 0, on: int = 0, vlan: tuple[int, int] | None = None,
         **more: int) -> bytes:  # fmt: skip
    """A message as the kernel's; vlan: protocol and id."""
    message = ifinfmsg()
    message["index"] = index
    message["header"]["type"] = 16  # RTM_NEWLINK
    info = [("IFLA_INFO_KIND", kind)]
    if vlan:
        info.append(("IFLA_INFO_DATA", {"attrs": [("IFLA_VLAN_PROTOCOL", vlan[0]), ("IFLA_VLAN_ID", vlan[1])]}))  # type: ignore[arg-type]
    attributes = [("IFLA_IFNAME", f"if{index}"), *([("IFLA_MASTER", master)] if master else [])]
    message["attrs"] = [*attributes, ("IFLA_LINK", on), *more.items(), ("IFLA_LINKINFO", {"attrs": info})]
    message.encode()
    return bytes(message.data)


PORTS = (link(2, master=8), link(3, master=8), link(8, "bond", master=9), link(9, "bridge"),
         link(10, "vlan", on=9, vlan=(Q, 7)), link(11, "vlan", on=8, vlan=(Q, 7)),
         link(12, "vlan", on=3, vlan=(Q, 7)), link(13, "vlan", on=9, vlan=(Q, 8)))  # fmt: skip


def found_in(*messages: bytes) -> dict[Vlan, int]:
    return vlans_of(parse(b"".join(messages)))


def test_frames_come_to_a_device_by_those_beneath_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ends of a cable within a namespace name each other; neither is on the other."""
    cable = (link(20, on=21), link(21, on=20), link(22, "macvlan", on=10))
    monkeypatch.setattr(box_links, "_dump", lambda: b"".join((*PORTS, *cable)))
    assert {name: beneath(name) for name in ("if2", "if9", "if12", "if20", "if22", "no such")} == {
        "if2": set(), "if9": {"if2", "if3", "if8"}, "if12": {"if3"}, "if20": set(),
        "if22": {"if10", "if9", "if8", "if3", "if2"}, "no such": set(),
    }  # fmt: skip


def test_a_vlan_is_that_of_a_device_by_protocol_and_id_where_its_link_is() -> None:
    several = [link(2), link(3, "vlan", on=2, vlan=(Q, 7)), link(4, "vlan", on=2, vlan=(AD, 4094)), link(5)]
    assert found_in(*several) == {Vlan(2, Q, 7): 3, Vlan(2, AD, 4094): 4}


def test_a_device_that_is_in_another_namespace_is_none_of_ours() -> None:
    """Nor is one in ours whose link is in another."""
    assert found_in(link(2), link(3, "vlan", on=2, vlan=(Q, 7), IFLA_LINK_NETNSID=0)) == {}


def test_a_device_on_a_bond_or_bridge_is_for_what_comes_by_its_ports_unless_they_have_their_own() -> None:
    found = found_in(*PORTS)
    assert {vlan.ifindex: device for vlan, device in found.items() if vlan.number == 7} == {2: 11, 3: 12, 8: 11, 9: 10}
    assert {vlan.ifindex: device for vlan, device in found.items() if vlan.number == 8} == dict.fromkeys(
        (2, 3, 8, 9), 13
    )


def test_the_kernel_tells_every_interface() -> None:
    assert [(link.index, link.name) for link in links()] == socket.if_nameindex()


def test_the_kernel_is_asked_only_where_there_is_a_vlan_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_vlans, "links", lambda: parse(link(3, "vlan", on=2, vlan=(Q, 7)) + link(2)))
    assert vlans(tmp_path) == {}, "a kernel without VLANs"
    (tmp_path / "vlan").mkdir()
    (tmp_path / "vlan" / "config").touch()
    assert vlans(tmp_path) == {}
    (tmp_path / "vlan" / "wan0.7").touch()
    assert vlans(tmp_path) == {Vlan(2, Q, 7): 3}


class Told(Vlans):
    """Of an engine that keeps what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here: dict[Vlan, int] = {}
        self.told: list[tuple[int, ...]] = []
        self.error = False
        monkeypatch.setattr(told_vlans, "vlans", lambda: dict(self.here))
        super().__init__(cast(Engine, self))

    def vlan(self, *what: int) -> None:
        if self.error:
            raise EngineError("VLAN 7: no memory")
        self.told.append(what)

    def changes(self) -> list[tuple[int, ...]]:
        self.told.clear()
        self.look()
        return self.told


def test_the_engine_is_told_of_each_change_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Told(monkeypatch)
    assert engine.changes() == []
    engine.here = {Vlan(2, Q, 7): 3, Vlan(2, Q, 8): 4}
    assert engine.changes() == [(2, Q, 7, 3), (2, Q, 8, 4)]
    assert engine.changes() == []
    engine.here = {Vlan(2, Q, 7): 9}
    assert engine.changes() == [(2, Q, 8, 0), (2, Q, 7, 9)]


def test_what_the_engine_does_not_take_is_logged_once_and_told_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Told(monkeypatch)
    engine.here, engine.error = {Vlan(2, Q, 7): 3}, True
    assert engine.changes() == engine.changes() == []
    assert [one.getMessage() for one in caplog.records] == [
        "in which VLANs clients are heard stays what it was: VLAN 7: no memory"
    ]
    engine.error = False
    assert engine.changes() == [(2, Q, 7, 3)]
