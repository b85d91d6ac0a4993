# SPDX-License-Identifier: Apache-2.0
"""A whole sleep and wake as an independent dissector sees it (Done when 7)."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from appliance.lab import Lab
from control.core.states import State
from tests.lab.engine_lab import PORT, EngineLab, receive

CHECKED: Final = ("-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
                  "-o", "tcp.analyze_sequence_numbers:TRUE",
                  "-d", "tcp.port==1-65535,data")  # fmt: skip
WRONG: Final = {
    "RST": "tcp.flags.reset == 1",
    # One of 65,536 checksums is 0, for which the kernel writes 0xffff (skb_checksum_help): the same to a receiver.
    "bad checksum": '(tcp.checksum.status == "Bad" && tcp.checksum != 0xffff) || ip.checksum.status == "Bad"',
    "retransmission": "tcp.analysis.retransmission || tcp.analysis.fast_retransmission || "
                      "tcp.analysis.spurious_retransmission",
    "ACK of unseen data": "tcp.analysis.ack_lost_segment",
    "lost segment": "tcp.analysis.lost_segment",
    "out of order": "tcp.analysis.out_of_order",
    "duplicate ACK": "tcp.analysis.duplicate_ack",
    "malformed": "_ws.malformed",
}  # fmt: skip


@pytest.fixture(scope="module")
def exact_lab() -> Iterator[Lab]:
    with Lab(clients=50, nat=False, exact_frames=True) as lab:
        yield lab


def frames(capture: Path, display_filter: str) -> list[str]:
    """One line for each frame that the filter names."""
    done = subprocess.run(["tshark", "-r", str(capture), *CHECKED, "-Y", display_filter], capture_output=True,
                          text=True, check=True, env={**os.environ, "HOME": "/nonexistent"})  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.alone("frames that were held while a client woke are overtaken by others while the engine waits")
@pytest.mark.parametrize("options", ["timestamps, SACK, scaling", "none"])
def test_a_dissector_finds_nothing_wrong_with_sleeping_and_waking(exact_lab: Lab, tmp_path: Path, options: str) -> None:
    """Both families: IDLE and SLEEP, keep-alives of the client and probes of the appliance, wakes by a word, by 100 KB
    at once and by a server, and an end."""
    lab, path = exact_lab, tmp_path / "sleep.pcap"
    sysctls = ("tcp_timestamps", "tcp_sack", "tcp_window_scaling")
    with EngineLab(lab, service={"probe_interval_s": 2, "probe_retry_s": 1}) as box:
        capture = lab.capture("nat", "outside", path, f"tcp port {PORT}")
        try:
            for name in sysctls:
                lab.sysctl("wan", f"net.ipv4.{name}", int(options != "none"))
            for family in (4, 6):
                talk(box, family)
        finally:
            for name in sysctls:
                lab.sysctl("wan", f"net.ipv4.{name}", 1)
        time.sleep(0.3)
        capture.terminate()
    assert len(frames(path, "tcp")) > 300
    assert len(frames(path, "tcp.analysis.keep_alive")) >= 4, "the capture holds keep-alives"
    assert len(frames(path, "tcp.analysis.keep_alive_ack")) >= 4, "and their answers"
    assert len(frames(path, "tcp.options.timestamp.tsval")) > 300 or options == "none"
    assert not frames(path, "tcp.options.timestamp.tsval") or options != "none"
    assert {what: found for what, display_filter in WRONG.items() if (found := frames(path, display_filter))} == {}


def talk(box: EngineLab, family: int) -> None:
    pair = box.connect(family, before=lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20),
                       keepalives=True)  # fmt: skip
    box.exchange(pair, 100_000)
    for state in (State.IDLE, State.SLEEP):
        box.to(pair, state)
        time.sleep(2.5)
        box.wake_and_answer(pair)
        box.to(pair, state)
        data = os.urandom(100_000)
        pair.client.sendall(data)
        pair.server = box.accept(family)
        assert receive(pair.server, len(data)) == data
        pair.server.sendall(data)
        assert receive(pair.client, len(data)) == data
        box.to(pair, state)
        pair.server = box.attach(pair)
        pair.server.sendall(data)
        assert receive(pair.client, len(data)) == data
        box.exchange(pair)
    pair.client.close()
    assert pair.server.recv(1) == b""
    pair.server.close()
    box.wait_state(pair, State.CLOSED)


def test_bytes_are_no_protocol_for_the_port_that_a_client_happens_to_have(tmp_path: Path) -> None:
    """Random ones are malformed X11 on port 6000."""
    path = tmp_path / "x11.pcap"
    wrpcap(str(path), Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="10.10.0.2", dst="198.18.0.1")
           / TCP(sport=6000, dport=PORT, flags="PA") / bytes(1400))  # fmt: skip
    assert frames(path, "tcp")
    assert not frames(path, "x11")


def test_the_dissector_would_tell_a_reset_and_a_wrong_checksum(exact_lab: Lab, tmp_path: Path) -> None:
    """The check above can fail: a reset connection and a spoiled frame are found in a capture made the same way."""
    from tests.lab.wire import Sleeper, Wire

    lab, path = exact_lab, tmp_path / "wrong.pcap"
    with EngineLab(lab) as box:
        capture = lab.capture("nat", "outside", path, f"tcp port {PORT}")
        pair = box.connect()
        box.to_idle(pair)
        sleeper = Sleeper(pair, box.record(pair))
        with Wire(box) as wire:
            wire.send(sleeper.ip() / sleeper.tcp(seq=-1, chksum=1))
        box.close(pair)
        time.sleep(0.3)
        capture.terminate()
    assert len(frames(path, WRONG["RST"])) == 1
    assert len(frames(path, WRONG["bad checksum"])) == 1
