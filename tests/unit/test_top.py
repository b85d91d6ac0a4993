# SPDX-License-Identifier: Apache-2.0
"""`roost top`: rates, talkers, and what fits on the screen."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import pytest
from rich.console import Console

from control.cli.top import TALKED_S, Look, frame
from tests.mutants import ROOT


def status(uptime_s: float, pid: int = 1, **counters: int) -> dict[str, Any]:
    names = ("accepted", "born_ipv4", "born_ipv6", "closed", "thawed", "frozen", "linked", "keepalives_answered",
             "probes_sent", "bytes_from_clients", "bytes_to_clients", "thaw_ns")  # fmt: skip
    return {
        "instance": "main", "version": "1", "pid": pid, "uptime_s": uptime_s, "awake": 3, "max_awake": 10,
        "connections": {"ACTIVE": 1, "STANDBY": 2, "IDLE": 1000 + counters.get("frozen", 0), "SLEEP": 0},
        "memory": {"maps_bytes": 1, "daemon_rss_bytes": 1}, "pressure": {"reached": {"memory": 91.2}, "asked": {}},
        "store": {"state": "ok", "pending_sleep": 0, "pending_history": 7, "last_commit_ms": 1.0},
        "counters": dict.fromkeys(names, 0) | counters,
        "attention": [{"name": "x", "object": "the disk", "what": "it is full", "do": "make room"}],
    }  # fmt: skip


def row(client: str, rx_bytes: int, tx_bytes: int) -> dict[str, Any]:
    return {"client": client, "rx_bytes": rx_bytes, "tx_bytes": tx_bytes}


def printed(told: dict[str, Any], height: int, width: int = 120) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(frame(told, "bytes", height))
    return captured.get().splitlines()


def test_rates_are_of_the_daemons_clock_and_of_one_daemon() -> None:
    look = Look()
    look.take(status(10.0, thawed=5, thaw_ns=5))
    assert look.told("bytes", 0)["rates"] is None
    look.take(status(12.0, thawed=105, thaw_ns=2_000_005, frozen=40, accepted=2, born_ipv4=4))
    told = look.told("bytes", 0)
    assert {key: one for key, one in told["rates"].items() if one} == {"woken": 50.0, "frozen": 20.0, "accepted": 3.0}
    assert (told["wake_us"], told["states"]["IDLE"]) == (20.0, 20.0)
    look.take(status(0.5, pid=2))
    assert look.told("bytes", 0)["rates"] is None, "another daemon counts from 0"


def test_who_talks_most_comes_first_and_who_is_quiet_goes() -> None:
    look = Look()
    look.take(status(1.0))
    look.hear(row("a", 1000, 0), 5)
    for now in (70, 71, 72):
        look.hear(row("b", 5, 1), now)
    look.hear(row("c", 0, 100), 72)
    clients = {key: [one["client"] for one in look.told(key, 64)["talkers"]] for key in ("bytes", "tx_bytes")}
    assert clients == {"bytes": ["a", "c", "b"], "tx_bytes": ["c", "b", "a"]}
    assert look.told("transitions", 5 + TALKED_S + 1)["talkers"] == [
        {"client": "b", "bytes": 18, "rx_bytes": 15, "tx_bytes": 3, "transitions": 3},
        {"client": "c", "bytes": 100, "rx_bytes": 0, "tx_bytes": 100, "transitions": 1},
    ]


@pytest.mark.parametrize("height", [1, 5, 9, 11, 12, 30])
def test_it_fits_on_the_screen_however_small(height: int) -> None:
    look = Look()
    look.take(status(1.0))
    look.take(status(2.0, frozen=40))
    for number in range(100):
        look.hear(row(f"192.0.2.7:{number}", number, 0), 0)
    told = look.told("bytes", 1)
    for width in (20, 120):
        lines = printed(told, height, width)
        assert len(lines) <= height
        assert lines[0].startswith("main  roost 1, up")
    text = "\n".join(printed(told, 30))
    parts = (
        "IDLE 1,040 (+40/s)",
        "awake 3 of 10; pressure: memory 91 %",
        "40 frozen",
        "7 of history wait",
        "it is full",
    )
    assert [part for part in (*parts, "192.0.2.7:99") if part not in text] == []


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[str]:
    """Of a daemon that says how it stands, and one transition."""
    began = time.monotonic()

    class Daemon(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            now = time.monotonic() - began
            with suppress(BrokenPipeError):
                self.send_response(200)
                self.end_headers()
                if self.path == "/v1/status":
                    self.wfile.write(json.dumps(status(now, frozen=int(now * 1000))).encode())
                else:
                    data = json.dumps(row("192.0.2.7:40123", 5, 6))
                    self.wfile.write(f"event: transition\ndata: {data}\n\n".encode())
                    over.wait(20)

        def address_string(self) -> str:
            return "the test"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    over = threading.Event()
    with ThreadingUnixStreamServer(f"{tmp_path}/socket", Daemon) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{tmp_path}/socket"
        over.set()
        server.shutdown()


def test_without_a_terminal_it_is_one_look_as_text_or_json(socket: str) -> None:
    argv = [sys.executable, "-m", "control.cli.main", "top", "--socket", socket]
    looks = [subprocess.Popen([*argv, *more], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
             for more in ([], ["--json", "--once"])]  # fmt: skip
    text, said = (look.communicate(timeout=20)[0] for look in looks)
    assert [look.returncode for look in looks] == [0, 0]
    assert "192.0.2.7:40123" in text
    told = json.loads(said)
    assert told["rates"]["frozen"] > 500
    assert told["talkers"][0]["bytes"] == 11


def test_on_a_terminal_keys_sort_and_quit(socket: str) -> None:
    ours, its = pty.openpty()
    argv = [sys.executable, "-m", "control.cli.main", "top", "--socket", socket]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    process = subprocess.Popen(argv, cwd=ROOT, stdin=its, stdout=its, env=environment)
    os.close(its)
    seen = b""

    def until(what: bytes) -> None:
        nonlocal seen
        end_s = time.monotonic() + 20
        while what not in seen and select.select([ours], [], [], max(end_s - time.monotonic(), 0))[0]:
            seen += os.read(ours, 65536)
        assert what in seen
        seen = b""

    try:
        until("1 bytes ▼".encode())
        os.write(ours, b"4")
        until("4 transitions ▼".encode())
        os.write(ours, b"q")
        with suppress(OSError):  # the other end is closed
            until(b"\x1b[?1049l")
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
