# SPDX-License-Identifier: Apache-2.0
"""No text of others reaches a terminal as it is: not in a table, not in a sentence, not in an error."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import pytest

from control.clients.view import View, Wanted
from control.config.values import parse_network
from control.core.errors import OperationError
from control.policy.rules import RuleError, read_rule
from tests.mutants import ROOT

EVIL = "\x1b]0;pwned\x07\x1b[2J\r\n\x9b8m\u202eroot\u2066\x1b[31m"
SHOWN = r"\x1b]0;pwned\x07\x1b[2J\r\n\x9b8m\u202eroot\u2066\x1b[31m"
OURS = re.compile(r"\x1b\[(0|1|31|32|33|1;31|1;32|1;33)m")
"""The colours of `roost status`."""

JOB = {"number": 1, "action": "wake", "state": "done", "error": "", "found": 0, "done": 0, "unchanged": 0, "closed": 0,
       "unanswered": 0, "refused": {EVIL: 1}, "missing": 1, "missing_names": [EVIL], "connections": None, "who": EVIL,
       "filter": {"network": f"fe80::1%{EVIL}/128", "client": EVIL}, "asked_at_ms": 0}  # fmt: skip
RULE = {"name": "zone", "network": f"fe80::1%{EVIL}/128", "idle_quiet": EVIL}
CHANGE = {"version": 1, "at_ms": 0, "who": EVIL, "name": "zone", "rule": RULE, "why": EVIL}
POLICY = {
    "version": 1, "rule": [RULE], "error": EVIL,
    "about": {"zone": {"version": 1, "who": EVIL, "why": EVIL, "at_ms": 0, "problems": [EVIL]}},
}  # fmt: skip
STATUS = {
    "instance": EVIL, "version": "1", "pid": 1, "uptime_s": 1, "connections": {"IDLE": 0, "SLEEP": 0, EVIL: 1},
    "awake": 0, "max_awake": 1, "memory": {"maps_bytes": 1, "daemon_rss_bytes": 1, "maps_bytes_per_inactive": 1},
    "store": {"state": EVIL, "pending_sleep": 0, "pending_history": 0, "dropped_history": 0},
    "policy": {"rules": 0, "version": 0}, "attention": [{"object": EVIL, "what": EVIL, "do": EVIL}],
    "interfaces": {EVIL: EVIL}, "services": [], "counters": {EVIL: 1}, "control": {},
}  # fmt: skip
ANSWERS: dict[tuple[str, str], Any] = {
    ("GET", "/v1/jobs"): [JOB], ("GET", "/v1/jobs/1"): JOB, ("GET", "/v1/policy"): POLICY,
    ("GET", "/v1/policy/history"): [CHANGE], ("GET", "/v1/status"): STATUS,
    ("PUT", "/v1/policy/rules/zone"):
        {"version": 2, "changed": [{"name": "zone", "before": RULE, "rule": RULE}]},
}  # fmt: skip
COMMANDS = (
    "job list", "job show 1", "policy list", "policy history", "policy set zone idle_quiet=7m", "status",
    "policy remove zone", "policy recommend FILE",
)  # fmt: skip


class Daemon(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = ANSWERS.get((self.command, self.path.split("?")[0]))
        answer = json.dumps({"error": f"there is no {EVIL}"} if found is None else found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PUT = do_DELETE = do_GET

    def address_string(self) -> str:
        return "the test"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def argv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """How a command reaches it, without the command."""
    path = tmp_path_factory.mktemp("daemon") / "socket"
    with ThreadingUnixStreamServer(str(path), Daemon) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield [sys.executable, "-m", "control.cli.main", "--socket", str(path)]
        server.shutdown()


def run(argv: list[str], words: str, tmp_path: Path) -> list[str]:
    file = tmp_path / "recommendations.json"
    file.write_text(json.dumps({"report": EVIL, "version": 1, "rule": [], "about": {EVIL: {"why": EVIL}}}))
    given = [str(file) if word == "FILE" else word for word in words.split()]
    return [*argv[:3], *given, *argv[3:]]


@pytest.mark.parametrize("words", COMMANDS)
def test_what_others_wrote_is_escaped_on_a_terminal(argv: list[str], words: str, tmp_path: Path) -> None:
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "2000", "LINES": "24"}
    process = subprocess.Popen(run(argv, words, tmp_path), cwd=ROOT, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    seen = b""
    with suppress(OSError):  # the other end is closed
        while data := os.read(ours, 65536):
            seen += data
    os.close(ours)
    process.wait()
    text = OURS.sub("", seen.decode()).replace("\r\n", "\n")
    assert SHOWN.replace(r"\n", "\n") in text or SHOWN in text, text
    assert [one for one in text if not one.isprintable() and one != "\n"] == []


def test_lines_are_not_forged_in_a_pipe_and_json_is_as_it_was(argv: list[str], tmp_path: Path) -> None:
    def said(words: str, **more: str) -> str:
        done = subprocess.run(run(argv, words, tmp_path), cwd=ROOT, capture_output=True, check=True,
                              env=os.environ | more)  # fmt: skip
        return done.stdout.decode()

    for more in ({}, {"PYTHONIOENCODING": "ascii"}):
        told = said("job show 1", **more)
        assert told.count("\n") == 1
        assert told.count(SHOWN) == 2
    assert json.loads(said("job show 1 --json")) == JOB


@pytest.mark.parametrize("network", ["fe80::1%eth0/128", f"fe80::1%{EVIL}/128", "fe80::%1/64"])
def test_a_network_has_no_zone(network: str) -> None:
    with pytest.raises(RuleError, match="is no network"):
        read_rule({"name": "zone", "network": network, "idle_quiet": "7m"})
    with pytest.raises(ValueError, match="zone"):
        parse_network(network)


def test_a_filter_has_no_zone() -> None:
    view = object.__new__(View)
    view._services = {}
    with pytest.raises(OperationError, match="zone"):
        view._asked(Wanted(network="fe80::1%eth0/128"))
