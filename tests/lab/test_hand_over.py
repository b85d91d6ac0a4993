# SPDX-License-Identifier: Apache-2.0
"""A restart of the service keeps awake connections as they are: neither end hears of it, and no byte is lost."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appliance.lab import DaemonError, Lab, wait_until
from appliance.lab.daemon import DaemonHandle
from appliance.lab.service_manager import ServiceManager
from tests.lab.test_restart import left_open

CLIENTS, PORT = 20, 8000
AWAKE = {"active_quiet": "never", "standby_quiet": "never", "idle_quiet": "never"}


@contextlib.contextmanager
def awake(directory: Path) -> Iterator[tuple[ServiceManager, Callable[[], None]]]:
    """Clients whose daemon this manager has begun; the function, which is called afterwards, too, says that all of them
    are awake, and have lost nothing."""
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=AWAKE), start=False)
        with ServiceManager(daemon, directory) as manager:
            manager.start()
            clients = lab.swarm()
            assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
            assert clients.say(CLIENTS).answered == CLIENTS
            before = sorted(row["id"] for row in daemon.connections())

            def check() -> None:
                assert sorted(row["id"] for row in daemon.connections()) == before
                assert daemon.status()["connections"]["ACTIVE"] == CLIENTS
                assert clients.say(CLIENTS).answered == CLIENTS
                assert (clients.stats().open, clients.stats().dead) == (CLIENTS, {})

            yield manager, check
            check()


@contextlib.contextmanager
def starting(manager: ServiceManager, ends: Collection[int]) -> Iterator[None]:
    """It begins the daemon meanwhile, and then ends it for a restart, with one of these exit statuses."""
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(manager.start)
        wait_until(lambda: manager.daemon.running, 5, "it is begun")
        yield
        assert manager.stop("restart") in ends
        assert started.exception() is None or isinstance(started.exception(), DaemonError)


def test_what_is_awake_goes_on(tmp_path: Path) -> None:
    with awake(tmp_path) as (manager, check):
        for _ in range(2):
            manager.restart()
            check()
            assert left_open(manager.daemon) == CLIENTS
            manager.hear()
            assert not manager.kept


def test_a_daemon_that_does_not_start_loses_nothing(tmp_path: Path) -> None:
    """Its configuration is not good, three times; meanwhile a bridge moves what is said."""
    with awake(tmp_path) as (manager, _):
        manager.stop("restart")
        good = manager.daemon.config.read_text()
        for _ in range(3):
            manager.daemon.config.write_text("nonsense")
            with pytest.raises(DaemonError, match="not TOML"):
                manager.start(5)
            manager.hear()
            assert len(manager.kept) == 1
        manager.daemon.config.write_text(good)
        manager.start()


def test_a_daemon_that_is_ended_while_it_starts_loses_nothing(tmp_path: Path) -> None:
    """Restarts in a row, each at any moment of the one before."""
    with awake(tmp_path) as (manager, _):
        manager.stop("restart")
        for after_s in (0.2, 0.5, 0.7, 0.9, 1.1):
            with starting(manager, ends=(0, -signal.SIGTERM)):  # the latter: Python itself begins
                time.sleep(after_s)
        manager.start()


def test_a_daemon_that_is_ended_with_all_taken_up_loses_nothing(tmp_path: Path) -> None:
    """Its engine has them, and its event loop, which hears signals later, has not begun."""
    with awake(tmp_path) as (manager, _):
        manager.stop("restart")
        with starting(manager, ends=(0,)):
            wait_until(lambda: "roost-engine" in threads(manager.daemon), 10, "its engine runs", 0.0005)
        manager.start()


def threads(daemon: DaemonHandle) -> str:
    """Their names, as far as they live."""
    names = []
    for one in Path(f"/proc/{daemon.pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            names.append(one.read_text())
    return " ".join(names)
