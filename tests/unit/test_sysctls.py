# SPDX-License-Identifier: Apache-2.0
"""The kernel settings that the daemon asks for, in a directory that looks like /proc/sys/net/ipv4."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from appliance.box.sysctls import merge_ports, prepare


@pytest.fixture
def ipv4(tmp_path: Path) -> Path:
    (tmp_path / "ip_local_port_range").write_text("32768\t60999\n")
    (tmp_path / "ip_local_reserved_ports").write_text("\n")
    (tmp_path / "tcp_tw_reuse").write_text("2\n")
    (tmp_path / "tcp_ecn").write_text("2\n")
    return tmp_path


@pytest.mark.parametrize(
    ("present", "ports", "merged"),
    [
        ("", [], ""),
        ("\n", [3128], "3128"),
        ("3128\n", [3128], "3128"),
        ("7,8000-8003\n", [8001, 9000, 80, 9000], "7,8000-8003,80,9000"),
        ("8000", range(7998, 8004), "8000,7998-7999,8001-8003"),
    ],
)
def test_reserved_ports_are_added_to_those_of_others(present: str, ports: list[int], merged: str) -> None:
    assert merge_ports(present, ports) == merged


def test_only_ports_that_a_link_could_take_are_reserved(ipv4: Path) -> None:
    prepare([443, 40_000, 61_000], ipv4)
    assert (ipv4 / "ip_local_reserved_ports").read_text() == "40000"
    assert (ipv4 / "tcp_tw_reuse").read_text() == "1"
    assert (ipv4 / "tcp_ecn").read_text() == "0"


def test_what_is_in_order_already_is_neither_written_nor_mentioned(
    ipv4: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (ipv4 / "tcp_tw_reuse").write_text("1\n")
    (ipv4 / "tcp_ecn").write_text("0\n")
    with caplog.at_level(logging.INFO):
        prepare([443], ipv4)
    assert caplog.text == ""
    assert (ipv4 / "tcp_tw_reuse").read_text() == "1\n"


def test_a_setting_that_cannot_be_changed_is_named_with_the_command_that_changes_it(
    ipv4: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "write_text", refuse)
    prepare([40_000], ipv4)
    assert "sysctl -w net.ipv4.tcp_tw_reuse=1" in caplog.text
    assert "sysctl -w net.ipv4.ip_local_reserved_ports=40000" in caplog.text
