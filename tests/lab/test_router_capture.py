# SPDX-License-Identifier: Apache-2.0
"""What each end sees of a session through the router is what it would see without it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance.lab import Lab
from appliance.wire import OnServerClose, Op
from control.core.states import State
from tests.lab.engine_lab import PORT, EngineLab, Pair, receive

ADDRESSES: Final = ("ip.src", "ipv6.src", "tcp.srcport", "ip.dst", "ipv6.dst", "tcp.dstport")
OPTIONS: Final = ("tcp.options.mss_val", "tcp.options.wscale.shift", "tcp.options.sack_perm")
FIELDS: Final = (*ADDRESSES, "tcp.flags.syn", "tcp.flags.fin", "tcp.flags.reset", *OPTIONS, "tcp.payload")
SIGNIFICANT: Final = "tcp.flags.syn == 1 || tcp.flags.fin == 1 || tcp.flags.reset == 1 || tcp.len > 0"
"""How many pure ACKs there are is the receiving kernel's choice from one moment to the next."""

Frame = tuple[str, ...]


@pytest.fixture(scope="module")
def exact_lab() -> Iterator[Lab]:
    with Lab(clients=50, nat=False, exact_frames=True) as lab:
        yield lab


def seen(capture: Path, client_port: int) -> list[Frame]:
    """What there is to a session, frame by frame; the client's port, another one each time, by name. Whether timestamps
    go along is the last field: their values are the kernels' own."""
    command = ["tshark", "-r", str(capture), "-Y", f"tcp.port == {client_port} && ({SIGNIFICANT})", "-T", "fields"]
    command += [word for field in (*FIELDS, "tcp.options.timestamp.tsval") for word in ("-e", field)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "HOME": "/nonexistent"}
    )
    frames = []
    for line in done.stdout.splitlines():
        *values, timestamp = line.split("\t")
        frames.append((*("client" if v == str(client_port) else v for v in values), str(bool(timestamp))))
    return frames


def session(client: socket.socket, server: socket.socket, between: Callable[[], None]) -> None:
    """Words and answers one after the other and an end from the client's side.

    The server ends when its last word has been read: an end that comes at the heels of a word may share its segment on
    the way through the appliance.
    """
    for number in range(3):
        client.sendall(b"question %d" % number)
        assert receive(server, 10) == b"question %d" % number
        server.sendall(b"answer %d" % number)
        assert receive(client, 8) == b"answer %d" % number
        between()
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""
    server.sendall(b"bye")
    assert receive(client, 3) == b"bye"
    server.close()
    assert client.recv(1) == b""
    client.close()


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("sleeps", [False, True], ids=["awake", "sleeping"])
def test_both_ends_see_what_they_would_see_without_it(
    exact_lab: Lab, tmp_path: Path, family: int, sleeps: bool
) -> None:
    """Asleep: both legs, so that either end's word finds the connection rebuilt on both sides of the appliance."""
    captures: dict[str, list[list[Frame]]] = {}
    service = {"on_server_close": OnServerClose.CLIENT, "persistent": sleeps}
    with EngineLab(exact_lab, router=True, service=service) as box:
        for how in ("routed", "managed"):
            if how == "routed":
                box.stop()
            else:
                box.start()
            paths = [tmp_path / f"{how}-{end}.pcap" for end in ("client", "server")]
            taken = [exact_lab.capture(space, "eth0", path, f"tcp port {PORT}")
                     for space, path in zip(("wan", "lan"), paths, strict=True)]  # fmt: skip
            client = box.dial(family)
            port = client.getsockname()[1]
            server = box.accept(family)

            def freeze(client: socket.socket = client, server: socket.socket = server, how: str = how) -> None:
                pair = Pair(client, server, box.key_of(client), 0)
                box.wait_for_quiet(pair)
                if how == "managed" and sleeps:
                    box.submit(Op.IDLE, pair)
                    box.wait(lambda: (found := box.engine.find(pair.key)) is not None and found.to_state == State.IDLE,
                             "both legs are frozen")  # fmt: skip

            session(client, server, freeze)
            time.sleep(0.3)
            for capture in taken:
                capture.terminate()
            captures[how] = [seen(path, port) for path in paths]
        if sleeps:
            assert box.stat("thawed") >= 3
    routed, managed = captures["routed"], captures["managed"]
    assert len(routed[0]) >= 11
    assert managed[0] == routed[0], "the client's side"
    assert managed[1] == routed[1], "the server's side"
