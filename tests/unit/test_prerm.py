# SPDX-License-Identifier: Apache-2.0
"""What the package's script does before it is removed. Every program that it runs is a stub."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from control.config import load
from tests.mutants import ROOT

PRERM = ROOT / "vagrant" / "debian" / "prerm"
STUB = """#!/bin/sh
[ "$1" = unpin ] || exit 1
for config; do :; done # the last argument
echo "$config" >>asked
grep -q broken "$config" && exit 1
cp "$config" read
"""


@pytest.mark.parametrize("broken", [False, True])
def test_what_is_pinned_goes_also_where_the_configuration_cannot_be_read(broken: bool, tmp_path: Path) -> None:
    """Without the package no client would wake, and XDP would answer for them all the same."""
    config, pins, stubs = tmp_path / "roost.toml", tmp_path / "bpf" / "roost", tmp_path / "bin"
    config.write_text("broken =" if broken else "# as it should be")
    pins.mkdir(parents=True)
    stubs.mkdir()
    (stubs / "roost").write_text(STUB)
    (stubs / "roost").chmod(0o755)
    (stubs / "systemctl").symlink_to("/bin/true")
    script = PRERM.read_text().replace("/etc/roost/roost.toml", str(config)).replace("/sys/fs/bpf/roost", str(pins))
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", script, "prerm", "remove"], env=environment, check=True, cwd=tmp_path)
    asked = (tmp_path / "asked").read_text().split()
    assert (asked[0], len(asked)) == (str(config), 1 + broken)
    if broken:
        assert load(tmp_path / "read").instance == load(ROOT / "vagrant" / "scene.toml").instance
        assert not Path(asked[1]).exists()
    assert not pins.exists()
