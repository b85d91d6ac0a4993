# SPDX-License-Identifier: Apache-2.0
"""`roost trace`, but for the kernel: what is missing is said, layouts are read, and what is seen gets its names."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from appliance.box import tracepoints
from appliance.box.tracepoints import Seen, fields_of, offset_of, problem
from control.cli import trace
from control.cli.trace import Known, Row, Trace, wanted_by

FORMAT = """name: tcp_send_reset
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:const void * skaddr;\toffset:16;\tsize:8;\tsigned:0;
\tfield:enum sk_rst_reason reason;\toffset:28;\tsize:4;\tsigned:0;
\tfield:__u8 saddr[28];\toffset:32;\tsize:28;\tsigned:0;

print fmt: "skbaddr=%p"
"""
BTF = """[1] STRUCT 'net' size=64 vlen=2
\t'ns_common_not' type_id=3 bits_offset=64
\t'ns' type_id=2 bits_offset=128
[2] STRUCT 'ns_common' size=24 vlen=2
\t'ops' type_id=4 bits_offset=0
\t'inum' type_id=9 bits_offset=64
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One where nothing is missing."""
    for name, constant in (("packages", "PACKAGES"), ("include", "HEADERS"), ("tracing/events", "EVENTS"),
                           ("btf", "BTF"), ("lockdown", "LOCKDOWN")):  # fmt: skip
        monkeypatch.setattr(tracepoints, constant, tmp_path / name)
    for path in (
        "packages/bcc",
        "include/linux",
        *(f"tracing/events/{each}" for each in tracepoints.TRACEPOINTS.values()),
    ):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "include/linux/bpf_common.h").touch()
    (tmp_path / "btf").touch()
    (tmp_path / "lockdown").write_text("none [integrity] confidentiality\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_nothing_is_missing(machine: Path) -> None:
    assert problem() is None


@pytest.mark.parametrize(
    ("gone", "what", "fix"),
    [
        ("packages/bcc", "bcc is not installed", "apt-get install python3-bpfcc"),
        ("include/linux", "no headers", "apt-get install linux-libc-dev"),
        ("tracing/events", "no tracefs at", "mount -t tracefs tracefs"),
        ("tracing/events/tcp/tcp_receive_reset", "no tracepoint tcp/tcp_receive_reset", "CONFIG_BPF_EVENTS"),
        ("btf", "no ", "CONFIG_DEBUG_INFO_BTF"),
    ],
)
def test_what_is_missing_is_said_with_the_fix(machine: Path, gone: str, what: str, fix: str) -> None:
    (machine / gone).rename(machine / "away")
    found = problem()
    assert found is not None
    assert (what in found[0], fix in found[1]) == (True, True), found


def test_a_kernel_that_is_locked_down_and_a_user_are_refused(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "lockdown").write_text("none integrity [confidentiality]\n")
    assert "locked down" in str(problem())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not root" in str(problem())


def test_the_command_says_it_in_a_sentence(machine: Path) -> None:
    (machine / "packages/bcc").rmdir()
    done = CliRunner().invoke(trace.command, [])
    assert done.output == "Error: bcc is not installed\napt-get install python3-bpfcc\n"


def test_layouts_are_read() -> None:
    assert fields_of(FORMAT) == {"common_type": (0, 2), "skaddr": (16, 8), "reason": (28, 4), "saddr": (32, 28)}
    assert (offset_of(BTF, "net", "ns"), offset_of(BTF, "ns_common", "inum")) == (16, 8)
    with pytest.raises(tracepoints.TracingError, match="struct net has no inum"):
        offset_of(BTF, "net", "inum")


def test_an_address_with_its_port() -> None:
    port = (8000).to_bytes(2, "big")
    assert tracepoints._sockaddr(struct.pack("=H", 2) + port + bytes([192, 0, 2, 7]) + bytes(20)) == (
        bytes(10) + b"\xff\xff\xc0\x00\x02\x07", 8000,
    )  # fmt: skip
    six = bytes(range(16))
    assert tracepoints._sockaddr(struct.pack("=H", 10) + port + bytes(4) + six + bytes(4)) == (six, 8000)


LOCAL, CLIENT = "198.51.100.1:7000", "192.0.2.7:40123"
ROW = {"id": 17, "client": CLIENT, "local": LOCAL, "service": "telemetry", "name": "camera-1"}


class Daemon:
    """rows: by 4-tuple, as the API writes it."""

    def __init__(self, *rows: Row) -> None:
        self.rows = {f"{row['client']},{row['local']}": row for row in rows}
        self.asked: list[list[str]] = []

    def lines(self, _path: str, keys: str) -> Iterator[Row]:
        self.asked.append(keys.split(";"))
        return (self.rows[one] for one in keys.split(";") if one in self.rows)


class Box:
    def __init__(self, daemon: Daemon, fits: Callable[[Row], bool] = lambda _: True, others: bool = False) -> None:
        self.shown: list[tuple[str, int | None]] = []
        self.trace = Trace(Known(daemon), fits, others, self._show)  # type: ignore[arg-type]

    def _show(self, seen: Seen, row: Row | None) -> None:
        self.shown.append((seen.event, row["id"] if row else None))

    def hear(self, event: str = "retransmit", client: str = CLIENT, **more: Any) -> None:
        self.trace.hear(Seen(0, event, LOCAL, client, more.get("old", ""), more.get("new", "")))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [1000.0]
    monkeypatch.setattr("control.cli.trace.time.monotonic", lambda: at[0])
    return at


def test_what_the_daemon_learns_of_a_moment_later_is_shown_in_its_order(clock: list[float]) -> None:
    daemon = Daemon()
    box = Box(daemon)
    box.hear("state")
    box.hear("retransmit")
    box.trace.turn()
    assert box.shown == []
    daemon.rows[f"{CLIENT},{LOCAL}"] = ROW
    box.trace.turn()
    assert box.shown == [("state", 17), ("retransmit", 17)]
    box.hear("reset-received")
    del daemon.rows[f"{CLIENT},{LOCAL}"]
    clock[0] += trace.FRESH_S
    box.trace.turn()
    assert box.shown[2:] == [("reset-received", 17)], "its connection has ended"
    assert len(daemon.asked) == 3
    box.hear("state", old="SYN_RECV", new="ESTABLISHED")
    box.trace.turn()
    clock[0] += trace.PATIENCE_S
    box.trace.turn()
    assert (len(box.shown), box.trace.not_shown) == (3, 1), "another one has the 4-tuple"


def test_the_daemon_is_asked_once_for_many(clock: list[float]) -> None:
    daemon = Daemon(ROW)
    box = Box(daemon, others=True)
    for port in range(trace.PAGE + 50):
        box.hear(client=f"192.0.2.8:{port + 1}")
        box.hear(client=f"192.0.2.8:{port + 1}")
    box.hear(client="0.0.0.0:0")
    box.trace.turn()
    assert sorted(map(len, daemon.asked)) == [50, trace.PAGE]
    clock[0] += trace.PATIENCE_S
    box.hear()
    box.trace.turn()
    assert box.shown == [("retransmit", None)] * (2 * trace.PAGE + 101) + [("retransmit", 17)]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (("", "", "", ""), True),
        (("17", "camera-*", "telemetry", "192.0.2.0/24"), True),
        (("18", "", "", ""), False),
        (("", "meter-*", "", ""), False),
        (("", "", "other", ""), False),
        (("", "", "", "198.51.100.0/24"), False),
        (("", "", "", "2001:db8::/32"), False),
    ],
)
def test_filters(wanted: tuple[str, str, str, str], fits: bool) -> None:
    assert wanted_by(*wanted)(ROW) is fits
    box = Box(Daemon(ROW), wanted_by(*wanted))
    box.hear()
    box.trace.turn()
    assert bool(box.shown) is fits
    assert box.trace.not_shown == 0


def test_a_network_of_ipv6_and_one_that_is_none() -> None:
    assert wanted_by("", "", "", "2001:db8::/32")({**ROW, "client": "[2001:db8::1]:443"})
    with pytest.raises(ValueError, match="does not appear"):
        wanted_by("", "", "", "home")
    done = CliRunner().invoke(trace.command, ["--all", "--name", "a"])
    assert "it goes with no filter" in done.output


def test_bcc_comes_from_the_system_and_leaves_the_path_as_it_was(machine: Path) -> None:
    (machine / "packages/bcc/__init__.py").write_text("FOUND = True\n")
    before = list(sys.path)
    sys.modules.pop("bcc", None)
    try:
        assert tracepoints._bcc().FOUND
    finally:
        sys.modules.pop("bcc", None)
    assert sys.path == before
