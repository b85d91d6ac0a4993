# SPDX-License-Identifier: Apache-2.0
"""The addresses of this network namespace, out of /proc."""

from __future__ import annotations

from pathlib import Path

from control.clients.local_addresses import local_addresses


def test_the_addresses_of_the_box_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.77.0.1\n"
        "        /32 host LOCAL\n     |-- 10.77.0.255\n        /32 link BROADCAST\n",
        encoding="ascii",
    )
    assert local_addresses(tmp_path) == ["10.77.0.1"]
    (tmp_path / "if_inet6").write_text("fd000018000000000000000000000001 02 40 00 80     wan0\n", encoding="ascii")
    assert local_addresses(tmp_path) == ["10.77.0.1", "fd00:18::1"]
    assert "127.0.0.1" in local_addresses()
