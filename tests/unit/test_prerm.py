# SPDX-License-Identifier: Apache-2.0
"""What the package's script does before it is removed. Every program that it runs is a stub."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from control.config import load
from tests.mutants import ROOT

PRERM = ROOT / "vagrant" / "debian" / "prerm"
STUB = """#!/bin/sh
for config; do :; done # the last argument
[ "$1" = up ] && { grep -q broken "$config" && exit 1; exit 0; }
echo "$config" >>asked
grep -q "broken\\|held" "$config" && exit 1
cp "$config" read
"""
SYSTEMCTL = """#!/bin/sh
[ "$1" != is-active ] || case $2 in roost) echo activating ;; *) echo inactive && exit 3 ;; esac
"""


@pytest.mark.parametrize(("text", "asked_for"), [("# good", 1), ("broken =", 2), ("# held by another", 1)])
def test_what_is_pinned_goes_also_where_the_configuration_cannot_be_read(
    text: str, asked_for: int, tmp_path: Path
) -> None:
    """Without the package no client would wake, and XDP would answer for them all the same. Where it can be read, no
    other instance than that one goes."""
    config, pins, stubs = tmp_path / "roost.toml", tmp_path / "bpf" / "roost", tmp_path / "bin"
    config.write_text(text)
    pins.mkdir(parents=True)
    stubs.mkdir()
    (stubs / "roost").write_text(STUB)
    (stubs / "roost").chmod(0o755)
    (stubs / "systemctl").write_text(SYSTEMCTL)
    (stubs / "systemctl").chmod(0o755)
    script = PRERM.read_text().replace("/etc/roost", str(tmp_path)).replace("/sys/fs/bpf/roost", str(pins))
    script = script.replace("/var/lib/roost", str(tmp_path)).replace("/run/systemd/system", "/")
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", script, "prerm", "remove"], env=environment, check=True, cwd=tmp_path)
    asked = (tmp_path / "asked").read_text().split()
    assert (asked[0], len(asked)) == (str(config), asked_for)
    if asked_for == 2:
        scene = tomllib.loads((ROOT / "vagrant" / "scene.toml").read_text())
        assert load(tmp_path / "read").instance == scene["instance"]
        assert not Path(asked[1]).exists()
    assert not pins.exists(), "it is empty"
    assert (tmp_path / "removed").read_text() == "roost\n", "one of the two units runs"
