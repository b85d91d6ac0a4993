# SPDX-License-Identifier: Apache-2.0
"""How the daemon begins and ends, with an engine that has no kernel."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import click
import pytest

from appliance.box import sysctls
from appliance.engine import EngineError
from appliance.wire import EngineOptions
from control.cli import unpin
from control.cli.client import Client
from control.config import parse, parse_endpoint
from control.core.states import State
from control.daemon import daemon as daemon_module
from control.daemon import lock as lock_module
from control.daemon import serving as serving_module
from control.daemon.daemon import Daemon
from control.daemon.error import DaemonError
from control.daemon.lock import InstanceLock
from control.store.database import StoreError
from control.store.owner import Owner
from control.store.store import Store
from tests.unit.fake_engine import FakeEngine, key
from tests.unit.test_dispatcher import until
from tests.unit.test_store import sleeper


@pytest.fixture(autouse=True)
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ports that a daemon wants reserved; these tests leave the machine's settings alone."""
    wanted: list[int] = []
    monkeypatch.setattr(sysctls, "prepare", wanted.extend)
    return wanted


@pytest.fixture(autouse=True)
def pins_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests have no bpffs."""
    monkeypatch.setattr(lock_module, "make_pin_dir", lambda path: Path(path).mkdir(exist_ok=True))


def configured(tmp_path: Path, extra: str = "") -> str:
    return (
        f'instance = "t"\n[paths]\ndatabase = "{tmp_path}/t.db"\ncontrol_socket = "{tmp_path}/t.sock"\n'
        f'pin_dir = "{tmp_path}/pins"\n[[service]]\nname = "a"\nlisten = "10.0.0.1:7000"\nserver = "10.0.0.2:7000"\n'
        + extra
    )


def test_a_second_daemon_is_refused_with_the_first_ones_pid_and_a_dead_ones_lock_is_not(tmp_path: Path) -> None:
    config = parse(configured(tmp_path))
    lock = InstanceLock(config)
    with pytest.raises(DaemonError, match=rf'instance "t" is running already \(pid {os.getpid()}'):
        InstanceLock(config)
    with pytest.raises(DaemonError, match=r"or another one, with the same \[paths\] control_socket"):
        InstanceLock(parse(configured(tmp_path).replace('"t"', '"u"')))
    elsewhere = parse(configured(tmp_path).replace("t.sock", "other.sock"))
    with pytest.raises(DaemonError, match="another daemon uses the pins"):
        InstanceLock(elsewhere)
    lock.release()
    InstanceLock(config).release()


@pytest.mark.parametrize("earlier", [False, True])
def test_no_other_user_can_hold_the_lock_that_a_killed_daemon_left(earlier: bool, tmp_path: Path) -> None:
    """Opening it is enough to lock it. A directory that is closed stays so."""
    tmp_path.chmod(0o700)
    path = tmp_path / "t.sock.lock"
    if earlier:
        path.touch(mode=0o644)
    before = os.umask(0o022)
    try:
        lock = InstanceLock(parse(configured(tmp_path)))
    finally:
        os.umask(before)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, tmp_path)] == [0o600, 0o700]
    lock.release()


def test_a_lock_that_another_process_holds_is_not_told_as_a_daemon_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "t.sock.lock"
    path.write_text("9999999\n")  # beyond what the kernel gives
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DaemonError, match=r"another process holds .*t\.sock\.lock: .*pid 9999999. is gone"):
            InstanceLock(parse(configured(tmp_path)))
    InstanceLock(parse(configured(tmp_path))).release()


def test_a_lock_goes_with_its_file_and_with_a_directory_for_pins_that_has_none(tmp_path: Path) -> None:
    InstanceLock(parse(configured(tmp_path))).release()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "tables4").touch()
    InstanceLock(parse(configured(tmp_path))).release()
    assert [path.name for path in tmp_path.rglob("*")] == ["pins", "tables4"]


def test_a_lock_that_was_given_up_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it the other daemon may end, and take the file with it."""
    living = [InstanceLock(parse(configured(tmp_path)))]

    def lock(fd: int, how: int, flock: Any = fcntl.flock) -> None:
        if living:
            living.pop().release()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    InstanceLock(parse(configured(tmp_path)))
    assert (tmp_path / "t.sock.lock").read_text() == f"{os.getpid()}\n"


def test_nothing_is_made_for_a_mistyped_path(tmp_path: Path) -> None:
    config = parse(configured(tmp_path).replace("t.sock", "mistyped/run/t.sock"))
    with pytest.raises(DaemonError, match=f"make {tmp_path}/mistyped, or mend .paths. control_socket"):
        InstanceLock(config)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_leaves_no_socket(tmp_path: Path) -> None:
    def refuse(options: EngineOptions) -> FakeEngine:
        assert (tmp_path / "t.sock").exists()
        raise EngineError("no")

    with pytest.raises(EngineError, match="no"):
        Daemon("t.toml", parse(configured(tmp_path)), refuse).run()  # type: ignore[arg-type]
    assert {path.name for path in tmp_path.iterdir()} <= {"t.db", "t.db-wal", "t.db-shm"}


def test_a_daemon_serves_its_api_freezes_on_sigterm_and_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon_module, "SWITCH_INTERVAL_S", 0.005)
    given_back = threading.Event()
    monkeypatch.setattr(serving_module, "GIVE_BACK_S", 0.01)
    monkeypatch.setattr(serving_module, "give_back", given_back.set)
    path = tmp_path / "t.toml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = configured(tmp_path, f'[attach]\nlisten = ["127.0.0.1:{port}"]\n')
    path.write_text(text, encoding="utf-8")
    engine = FakeEngine()
    engine.add(key(1), 1, State.ACTIVE)
    engine.add(key(2), 2, State.IDLE)
    (tmp_path / "pins").mkdir()
    for table in ("tables4", "tables6"):
        (tmp_path / "pins" / table).touch()
    answers: dict[str, Any] = {}

    client = Client(f"{tmp_path}/t.sock")

    def is_ready() -> bool:  # only then is SIGTERM the daemon's, and not the end of this process
        try:
            return bool(client.get("/v1/status"))
        except click.ClickException:
            return False

    def operate() -> None:
        until(is_ready)
        try:
            answers["status"] = client.get("/v1/status")
            answers["all"] = list(client.lines("/v1/connections"))
            answers["sleep"] = client.send("POST", "/v1/connections/2/sleep")
            answers["asleep"] = list(client.lines("/v1/connections", state="SLEEP"))
            answers["show"] = client.get("/v1/connections/192.0.0.2:40000")
            with socket.create_connection(("127.0.0.1", port)) as server:
                server.sendall(b"CONNECT 192.0.0.9:1 HTTP/1.1\r\nHost: x\r\n\r\n")
                answers["unknown"] = server.recv(1000)
            answers["wake"] = client.send("POST", "/v1/connections/2/wake")
            until(lambda: len(client.get("/v1/history")) == 2)
            answers["history"] = client.get("/v1/history")
            asked = {"error": "/99", "unreadable": "?state=AWAKE&limit=x", "none": "/7/nothing/there"}
            for what, place in asked.items():
                try:
                    list(client.lines(f"/v1/connections{place}"))
                except click.ClickException as error:
                    answers[what] = str(error)
            rule = {"rule": {"network": "192.0.0.0/24", "idle_quiet": 7}, "who": "ann"}
            answers["rule"] = client.send("PUT", "/v1/policy/rules/net", rule)
            answers["ruled"] = [(p.standby_quiet_ms, p.sleep_quiet_ms) for p in engine.policies]
            answers["explained"] = client.get("/v1/connections/2/policy")["values"]
            path.write_text(text.replace('"a"', '"a"\nactive_quiet = 5'), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: engine.updates)
            until(lambda: [(p.standby_quiet_ms, p.sleep_quiet_ms) for p in engine.policies] == [(5000, 7000)])
            answers["policy"] = client.get("/v1/status")["policy"]
            answers["given back"] = given_back.wait(10)
            (tmp_path / "pins" / "tables4").unlink()
            until(lambda: client.get("/v1/status")["waiting"])
            answers["told"] = client.get("/v1/status")["attention"]
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    operator = threading.Thread(target=operate)
    operator.start()
    daemon = Daemon(str(path), parse(text), lambda options: engine)  # type: ignore[arg-type, return-value]
    assert daemon.run() == 0
    operator.join(10)
    assert "removed or replaced while the daemon ran: 2 IDLE connections end with it" in caplog.text
    assert answers["status"]["connections"] == {"ACTIVE": 1, "STANDBY": 0, "IDLE": 1, "SLEEP": 0}
    assert answers["status"]["store"]["state"] == "ok"
    assert {row["client"] for row in answers["all"]} == {"192.0.0.1:40000", "192.0.0.2:40000"}
    assert (answers["sleep"]["before"], answers["sleep"]["state"]) == ("IDLE", "SLEEP")
    assert [(row["id"], row["quiet_s"] > 0) for row in answers["asleep"]] == [(2, True)]
    assert (answers["show"]["id"], answers["show"]["state"]) == (2, "SLEEP")
    assert (answers["rule"]["version"], answers["ruled"]) == (1, [(60_000, 7000)])
    assert {"idle_quiet": "rule net (version 1)"}.items() <= {
        v["key"]: v["source"] for v in answers["explained"]
    }.items()
    assert answers["policy"] == {"version": 1, "rules": 1, "error": "", "problems": 0, "problem": ""}
    assert answers["given back"], "memory that was freed"
    (told,) = [one["what"] for one in answers["told"] if one["object"] == f"what is pinned in {tmp_path}/pins"]
    assert "restart it" in told
    assert answers["unknown"].startswith(b"HTTP/1.1 404 ")
    assert (answers["wake"]["before"], answers["wake"]["state"]) == ("SLEEP", "STANDBY")
    assert [row["to"] for row in answers["history"]] == ["SLEEP", "STANDBY"]
    assert answers["error"] == 'no connection "99"'
    assert answers["unreadable"].startswith("query.state: Input should be 'ACTIVE', 'STANDBY'")
    assert "; query.limit: " in answers["unreadable"]
    assert answers["none"] == "Not Found"
    assert engine.updates[0].standby_quiet_ms == 5000
    assert {c.state for c in engine.connections.values()} == {State.IDLE}, "SIGTERM freezes what was awake"
    assert engine.closed
    assert not (tmp_path / "t.sock").exists()
    json.dumps(answers["status"])


def test_an_attach_address_in_use_keeps_the_daemon_from_touching_anything(tmp_path: Path) -> None:
    engines: list[FakeEngine] = []

    def make(options: EngineOptions) -> FakeEngine:
        engines.append(FakeEngine(options=options))
        return engines[-1]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = parse(configured(tmp_path, f'[attach]\nlisten = ["127.0.0.1:{port}"]\n'))
        daemon = Daemon("t.toml", config, make)  # type: ignore[arg-type]
        with pytest.raises(DaemonError, match=f"cannot listen on 127.0.0.1 port {port} for attach.*Another program"):
            daemon.run()
    assert engines == []


def test_the_database_of_another_instance_keeps_the_daemon_from_touching_anything(tmp_path: Path) -> None:
    other = Store(f"sqlite:///{tmp_path}/t.db", lambda slept: None, owner=Owner.here("other", f"{tmp_path}/theirs"))
    other.open()
    other.close()
    engines: list[EngineOptions] = []

    def make(options: EngineOptions) -> FakeEngine:
        engines.append(options)
        raise DaemonError("this is far enough")

    config = parse(configured(tmp_path))
    for _ in range(2):
        with pytest.raises(StoreError, match=r'belongs to instance "other".*does not run.*roost up --take-over'):
            Daemon("t.toml", config, make).run()  # type: ignore[arg-type]
        assert engines == []
        with pytest.raises(DaemonError, match="far enough"):
            Daemon("t.toml", config, make, take_over=True).run()  # type: ignore[arg-type]
        engines.clear()  # and the start that failed has left it the other's
    (tmp_path / "theirs").mkdir()
    with pytest.raises(StoreError, match="its connections are asleep in those pins: start it again"):
        Daemon("t.toml", config, make).run()  # type: ignore[arg-type]


def test_unpinning_closes_who_slept_unless_the_database_is_anothers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = parse(configured(tmp_path))
    assert unpin._close_sleepers(config) == 0
    assert list(tmp_path.iterdir()) == [], "it makes no database"
    slept: list[Any] = []
    store = Store(config.database_url, slept.extend, owner=Owner.here("t", config.pin_dir))
    store.open()
    store.start()
    store.add(upserts=[sleeper(n, n) for n in (1, 2, 3)])
    until(lambda: len(slept) == 3)
    store.close()
    assert unpin._close_sleepers(parse(configured(tmp_path).replace('"t"', '"other"'))) == 0
    assert 'still in the database: the database belongs to instance "t"' in capsys.readouterr().err
    assert unpin._close_sleepers(config) == 3
    assert unpin._close_sleepers(config) == 0


def test_the_daemon_has_its_ports_reserved_before_it_takes_them(tmp_path: Path, reserved: list[int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = parse(configured(tmp_path, f'[attach]\nlisten = ["127.0.0.1:{port}"]\n'))
        with pytest.raises(DaemonError):
            Daemon("t.toml", config, lambda options: FakeEngine()).run()  # type: ignore[arg-type, return-value]
    assert reserved == [port, *(parse_endpoint(service.listen)[1] for service in config.service)]


def test_a_configuration_without_a_service_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match=r"t.toml: there is no \[\[service\]\]"):
        Daemon("t.toml", parse("")).run()
