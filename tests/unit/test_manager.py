# SPDX-License-Identifier: Apache-2.0
"""What the service manager is told (control/daemon/manager.py)."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.daemon.manager import A_PERIOD, Manager

PERIOD_S = 0.3


@pytest.fixture(params=["path", "abstract"])
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Where a manager listens, and what it calls that."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@roost-test-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        listening.settimeout(5)
        yield listening, name


def heard(listening: socket.socket) -> list[str]:
    return listening.recv(4096).decode().split("\n")


def test_what_the_daemon_does_is_told(told: tuple[socket.socket, str]) -> None:
    listening, name = told
    environment = {"NOTIFY_SOCKET": name, "PATH": "/bin"}
    manager = Manager(int, environment)
    assert environment == {"PATH": "/bin"}, "not for the daemon's own processes"
    manager.ready("serves 2 services")
    assert heard(listening) == ["READY=1", "STATUS=serves 2 services"]
    manager.reloading()
    assert [line.partition("=")[0] for line in heard(listening)] == ["RELOADING", "MONOTONIC_USEC"]
    manager.stopping()
    assert [line.partition("=")[0] for line in heard(listening)] == ["STOPPING", "STATUS"]
    manager.stopping(600)
    assert heard(listening)[-1] == "EXTEND_TIMEOUT_USEC=600000000", "else it is killed after TimeoutStopSec"
    asyncio.run(manager.run())  # ends at once: no sign of life is waited for


def test_signs_of_life_are_given_while_the_engine_gives_its_lock(told: tuple[socket.socket, str]) -> None:
    listening, name = told
    hung, asked = threading.Event(), 0

    def alive() -> None:
        nonlocal asked
        asked += 1
        if asked > 3:
            hung.wait(10)

    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": str(round(PERIOD_S * 1e6)), "WATCHDOG_PID": str(os.getpid())}
    manager = Manager(alive, environment)
    assert environment == {}

    async def run() -> None:
        living = asyncio.create_task(manager.run())
        for _ in range(3):
            assert await asyncio.to_thread(heard, listening) == ["WATCHDOG=1"]
        listening.settimeout(2 * PERIOD_S)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(heard, listening)
        hung.set()
        assert await asyncio.to_thread(heard, listening) == ["WATCHDOG=1"]
        living.cancel()

    asyncio.run(run())
    assert A_PERIOD > 2, "one that comes late is no reason to kill"


@pytest.mark.parametrize("environment", [
    {}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": ""},
])  # fmt: skip
def test_where_nobody_waits_for_signs_of_life_none_are_given(environment: dict[str, str]) -> None:
    asyncio.run(Manager(lambda: pytest.fail("the engine is not asked"), environment).run())


def test_a_manager_that_is_gone_is_told_of_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Manager(int, {}).ready("there is no manager")
    assert not caplog.records
    Manager(int, {"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("well")
    assert [f"{tmp_path}/gone: No such file or directory" in one.message for one in caplog.records] == [True]


@pytest.mark.parametrize(("jobs", "restarts"), [
    ("7 roost.service restart running", True),
    ("7 roost.service stop running", False),
    ("7 roost-api.service restart running\n8 roost.service stop waiting", False),
    ("8 roost-api.service stop waiting\n7 roost.service restart running", True),
    ("No jobs running.", False),
])  # fmt: skip
def test_the_manager_says_whether_another_daemon_follows(
    jobs: str, restarts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\n[ $1 = list-jobs ] && echo '{jobs}'\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    environment = {"NOTIFY_SOCKET": "@nowhere", "ROOST_UNIT": "roost.service"}
    assert Manager(int, environment).restarts() is restarts
    assert environment == {}
    assert not Manager(int, {"NOTIFY_SOCKET": "@nowhere"}).restarts(), "it is not known which unit it is"
    assert not Manager(int, {"ROOST_UNIT": "roost.service"}).restarts()


def test_a_manager_that_cannot_be_asked_is_taken_for_one_that_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not Manager(int, {"NOTIFY_SOCKET": "@nowhere", "ROOST_UNIT": "roost.service"}).restarts()
    assert "systemctl list-jobs" in caplog.text
