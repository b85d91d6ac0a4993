# SPDX-License-Identifier: Apache-2.0
"""`roost trace`: what the kernel does with clients' sockets, each with its connection's number and name."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.box import tracepoints
from appliance.lab import Lab, wait_until
from appliance.lab.processes import python_environment
from tests.lab.api_lab import ApiLab

missing = tracepoints.problem()
pytestmark = pytest.mark.skipif(missing is not None, reason=f"roost trace cannot work here: {missing}")


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    with ApiLab(nat_free_lab, listen=[]) as box:
        yield box


class Traced:
    """What it printed by now: rows, and on standard error."""

    def __init__(self, directory: Path) -> None:
        self.out, self.err = directory / "out", directory / "err"

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def of(self, number: int) -> list[tuple[str, str | None, str | None]]:
        return [(row["event"], row["from"], row["to"]) for row in self.rows() if row["id"] == number]

    def wait(self, number: int, event: str, old: str | None = None, new: str | None = None) -> None:
        def is_seen() -> bool:
            return any(kind == event and (old, new) in ((None, None), (before, after))
                       for kind, before, after in self.of(number))  # fmt: skip

        wait_until(is_seen, 10, f"connection {number} has {event} {old} -> {new}")


@contextmanager
def traced(box: ApiLab, directory: Path, *options: str) -> Iterator[Traced]:
    """`roost trace`, until the end of the block, and then ^C."""
    seen = Traced(directory)
    argv = [sys.executable, "-m", "control.cli.main", "trace", "--json", *options, "--socket",
            str(box.daemon.control_socket)]  # fmt: skip
    with seen.out.open("wb") as out, seen.err.open("wb") as err:
        process = subprocess.Popen(argv, stdout=out, stderr=err, env={**python_environment(), "PYTHONUNBUFFERED": "1"})
    try:
        wait_until(lambda: "^C ends it" in seen.err.read_text() or process.poll() is not None, 20, "it traces")
        yield seen
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0, seen.err.read_text()
    finally:
        process.kill()
        process.wait()


def named(box: ApiLab, name: str) -> tuple[socket.socket, str, int]:
    client, address = box.client()
    assert box.daemon.http("PUT", f"/v1/connections/{address}/name", json={"name": name}).status_code == 200
    return client, address, box.daemon.get(f"/v1/connections/{address}")["id"]


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_a_client_that_loses_sleeps_wakes_and_resets(box: ApiLab, tmp_path: Path) -> None:
    client, address, number = named(box, "camera-1")
    gone, _, first = named(box, "camera-2")
    other, _, ended = named(box, "meter-1")
    with traced(box, tmp_path, "--name", "camera-*") as seen, closing(client):
        reset(gone)
        seen.wait(first, "reset-received")
        box.daemon.act(address, "idle")
        seen.wait(number, "state", "ESTABLISHED", "CLOSE")
        port = address.rpartition(":")[2]
        box.lab.nft("wan", f"table inet lost {{ chain in {{ type filter hook input priority 0; "
                    f"tcp dport {port} tcp flags & psh == psh drop; }}; }}")  # fmt: skip
        try:
            client.sendall(b"hello")
            with box.accepted() as server:
                assert server.recv(5) == b"hello"
                seen.wait(number, "state", "SYN_SENT", "ESTABLISHED")
                server.sendall(b"there")
                seen.wait(number, "retransmit")
        finally:
            box.lab.nft("wan", "delete table inet lost")
        reset(client)
        seen.wait(number, "reset-received")
        box.daemon.act(ended, "close")
        other.settimeout(10)
        with pytest.raises(ConnectionResetError):
            other.recv(1)
    rows = seen.rows()
    assert {(row["id"], row["name"], row["service"]) for row in rows} == {
        (number, "camera-1", "lab4"), (first, "camera-2", "lab4"),
    }  # fmt: skip
    assert "retransmit, " in seen.err.read_text().splitlines()[-1]


def test_who_connects_while_it_runs_is_known_by_its_number(box: ApiLab, tmp_path: Path) -> None:
    with traced(box, tmp_path, "--all") as seen:
        client, address = box.client(6)
        number = box.daemon.get(f"/v1/connections/{address}")["id"]
        seen.wait(number, "state", "SYN_RECV", "ESTABLISHED")
        box.daemon.act(address, "close")
        seen.wait(number, "reset-sent")
        client.close()
    ids, locals_ = ({row[key] for row in seen.rows()} for key in ("id", "local"))
    assert {number, None} <= ids, "the link is no client's"
    assert address not in locals_, "the client's own socket is in another network namespace"


def test_what_is_too_much_is_counted(box: ApiLab, tmp_path: Path) -> None:
    with traced(box, tmp_path, "--all", "--rate", "3") as seen:
        client, _ = box.client()
        wait_until(lambda: "events not shown: more than --rate" in seen.err.read_text(), 10, "it is said")
        client.close()
    assert len(seen.rows()) >= 3
    assert " not shown" in seen.err.read_text().splitlines()[-1]
