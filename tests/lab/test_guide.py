# SPDX-License-Identifier: Apache-2.0
"""docs/guide.md, from its configuration to its last command, with a sensor behind a NAT; times are shorter."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
import threading
import time
import tomllib
import types
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest

import control.client
from appliance.lab import DaemonHandle, Lab, endpoint, wait_until
from appliance.lab.processes import python_environment
from tests.lab.documents import blocks

SHORTER: Final = {
    'active_quiet = "10s"': 'active_quiet = "2s"',
    'standby_quiet = "20s"': 'standby_quiet = "200ms"',
    'idle_quiet = "5m"': 'idle_quiet = "500ms"',
    'probe_interval = "20m"': 'probe_interval = "3s"\nattach_silence = "1s"',
    'probe_retry = "10s"': 'probe_retry = "1s"',
    'timeout = "10s"': 'timeout = "1s"',
}
"""In the configuration."""


class Guide:
    """Its blocks, one after the other."""

    def __init__(self) -> None:
        self.blocks = iter(blocks("guide.md"))
        self.printed: list[str] = []
        self.names: dict[str, Any] = {"print": lambda *words: self.printed.append(" ".join(map(str, words)))}

    def next(self, kind: str) -> str:
        block = next(self.blocks)
        assert block.kind == kind
        return block.text


class Sensor:
    """It answers whoever asks for motion."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        with lab.enter("wan"):
            self.sock = socket.create_connection((lab.address("box", "wan0"), 7000), 5)
        self.sock.settimeout(None)
        self.sock.sendall(b"hello\n")
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        with suppress(OSError):
            while heard := self.sock.recv(100):
                if heard == b"motion?\n":
                    self.sock.sendall(b"none\n")

    def cut(self) -> None:
        """Nothing that it says leaves its home."""
        port = self.sock.getsockname()[1]
        rule = f"type filter hook output priority 0; tcp sport {port} drop"
        self._lab.nft("wan", f"table ip cut {{\nchain out {{ {rule}\n}}\n}}")


def sleeper(daemon: DaemonHandle) -> str:
    """The one sensor's address and port, as the appliance sees it, when it sleeps."""
    wait_until(lambda: [row["state"] for row in daemon.connections()] == ["SLEEP"], 10, "the sensor sleeps")
    (row,) = daemon.connections()
    return str(row["client"])


def test_the_guide_holds_from_its_first_line_to_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Guide()
    with Lab(clients=10, nat=True) as lab:
        lab.server(7000)
        text = guide.next("toml")
        for written, shorter in SHORTER.items():
            assert written in text
            text = text.replace(written, shorter)
        wanted = tomllib.loads(text)
        box, api = lab.address("box", "wan0"), endpoint(lab.address("box", "lan0"), 8443)
        given = (wanted["service"][0], wanted["network"]["interfaces"], wanted["api"]["listen"])
        assert given == ({"name": "alarms", "listen": f"{box}:7000", "server": f"{lab.address('lan', 'eth0')}:7000"},
                         ["wan0"], [api])  # fmt: skip
        wanted["api"] = {"listen": [api], "plain": True, "user": "nobody"}
        with closing(lab.daemon(wanted)) as daemon:
            (tmp_path / "roost").write_text(f'#!/bin/sh\nexec {sys.executable} -m control.cli.main "$@"\n')
            (tmp_path / "roost").chmod(0o755)
            environment = {**os.environ, **python_environment(), "ROOST_CONFIG": str(daemon.config)}
            environment["PATH"] = f"{tmp_path}:{environment['PATH']}"

            def commands(**more: str) -> str:
                done = subprocess.run(["sh", "-e", "-c", guide.next("sh")], cwd=tmp_path, env={**environment, **more},
                                      capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
                assert done.returncode == 0, done.stdout + done.stderr
                return done.stdout

            def program() -> list[str]:
                text = guide.next("python").replace("https://box.example:8443", f"http://{api}")
                guide.printed.clear()
                with lab.enter("lan"):
                    exec(text, guide.names)
                return guide.printed

            monkeypatch.chdir(tmp_path)
            monkeypatch.setenv("ROOST_PLAIN", "1")
            monkeypatch.setitem(sys.modules, "roost", types.ModuleType("roost"))
            monkeypatch.setitem(sys.modules, "roost.client", control.client)
            sensor = Sensor(lab)
            first = sleeper(daemon)
            assert first in commands(SENSOR=first)
            assert program() == ["b'none\\n'"]
            assert sleeper(daemon) == first
            sensor.cut()
            time.sleep(1.5)  # attach_silence
            told = program()
            assert told[0].startswith("504 "), told
            assert "SLEEP" in told[1] or "IDLE" in told[1] or "STANDBY" in told[1], told
            (closed,) = program()
            assert closed.startswith(f"{first} probe-timeout after "), closed
            Sensor(lab)
            back = sleeper(daemon)
            commands(SENSOR=back)
            (raised,) = program()
            assert raised.startswith("480"), raised
            network = str(ipaddress.ip_network(f"{back.rpartition(':')[0]}/24", strict=False))
            said = commands(SENSOR=back, NETWORK=network)
            assert "provider" in said
            assert daemon.get("/v1/policy")["rule"] == []
    assert next(guide.blocks, None) is None
