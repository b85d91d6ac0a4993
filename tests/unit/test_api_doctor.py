# SPDX-License-Identifier: Apache-2.0
"""roost doctor -c: what the API's process would find missing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from control.api.doctor import examine
from control.config import parse
from tests.certificates import make_certificate


def problems(tmp_path: Path, **api: Any) -> dict[str, str]:
    """What is missing, by its name, with what is said of it."""
    lines = [f"{key} = {value!r}".replace("True", "true") for key, value in api.items()]
    service = '[[service]]\nname = "a"\nlisten = "192.0.2.1:7000"\nserver = "192.0.2.2:7000"\n'
    paths = f'[paths]\ncontrol_socket = "{tmp_path}/none.sock"\n'
    config = parse("\n".join(["[api]", *lines, paths, service]))
    return {one.name: one.detail for one in examine(config) if not one.present}


def test_what_is_there_is_well(tmp_path: Path) -> None:
    certificate, key = map(str, make_certificate(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert (
        problems(tmp_path, listen=[f"127.0.0.1:{port}"], user="nobody", certificate=certificate, private_key=key) == {}
    )
    assert problems(tmp_path, listen=[]) == {}


def test_each_thing_that_is_missing_is_named(tmp_path: Path) -> None:
    certificate, _ = map(str, make_certificate(tmp_path))
    other = tmp_path / "other.key"
    other.write_text("no key")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = problems(tmp_path, listen=[f"127.0.0.1:{port}", "192.0.2.77:8443"], user="nobody-at-all",
                         certificate=certificate, private_key=str(other))  # fmt: skip
    assert set(found) == {"user nobody-at-all", "certificate", f"port 127.0.0.1:{port}", "192.0.2.77:8443"}
    assert "useradd --system nobody-at-all" in found["user nobody-at-all"]
    assert "cannot be used" in found["certificate"]
