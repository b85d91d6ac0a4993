# SPDX-License-Identifier: Apache-2.0
"""[attach] local_connect: at which places the engine is told that clients connect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from appliance.box import mounts
from appliance.engine import Engine
from appliance.wire import NEAR_ENDS, ServerAddress, ServiceSpec
from control.clients.local_addresses import LocalAddresses
from control.daemon import local_connect
from control.daemon.error import DaemonError
from control.daemon.local_connect import LocalConnect

SPEC = ServiceSpec(0, "192.0.2.1", 7000, ())
HERE = ["127.0.0.1", "192.0.2.1", "2001:db8::1"]


class Told(LocalConnect):
    """Of an engine that keeps what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[list[ServerAddress]] = []
        self.here = list(HERE)
        monkeypatch.setattr(LocalAddresses, "texts", lambda _: self.here)
        super().__init__(cast(Engine, self))

    def local_connect_at(self, places: Sequence[ServerAddress]) -> None:
        self.told.append(list(places))


def test_a_service_on_every_address_is_at_each_of_its_family_for_as_long_as_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Told(monkeypatch)
    every = [SPEC, replace(SPEC, listen="0.0.0.0", listen_port=1), replace(SPEC, listen="::", listen_port=2)]
    engine.look(every)
    assert engine.told == [[("192.0.2.1", 7000), ("127.0.0.1", 1), ("192.0.2.1", 1), ("2001:db8::1", 2)]]
    engine.look(every)
    assert len(engine.told) == 1, "nothing has changed"
    del engine.here[1]
    engine.look(every)
    assert engine.told[1] == [("192.0.2.1", 7000), ("127.0.0.1", 1), ("2001:db8::1", 2)]


def test_clients_of_other_machines_addresses_and_those_that_nobody_may_reach_are_at_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Told(monkeypatch)
    engine.look([replace(SPEC, listen="0.0.0.0", transparent=True), replace(SPEC, unreachable=True)])
    assert engine.told == []
    engine.look([replace(SPEC, transparent=True)])
    assert engine.told == [[("192.0.2.1", 7000)]]


def test_of_too_many_the_first_are_told_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Told(monkeypatch)
    many = [replace(SPEC, listen_port=1 + n) for n in range(NEAR_ENDS + 1)]
    engine.look(many)
    engine.look(many)
    assert engine.told == [[("192.0.2.1", 1 + n) for n in range(NEAR_ENDS)]]
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "[attach] local_connect: programs reach clients at 256 of 257 places where services listen"
    ]


def test_without_control_groups_of_version_2_it_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_connect, "cgroup2", lambda: None)
    with pytest.raises(DaemonError, match="mount -t cgroup2"):
        Told(monkeypatch).open()


def test_where_they_are_mounted_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "30 23 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
    monkeypatch.setattr(mounts, "_read", lambda _: mounts.parse(lines))
    assert mounts.cgroup2() == "/sys/fs/cgroup/unified"
    monkeypatch.setattr(mounts, "_read", lambda _: [])
    assert mounts.cgroup2() is None
