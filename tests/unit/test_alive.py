# SPDX-License-Identifier: Apache-2.0
"""Whether a machine of two keeps the addresses, as keepalived is told (vagrant/alive.sh). systemctl is a stub."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.mutants import ROOT

STUB = """#!/bin/sh
case "$*" in
    "show --value -p ActiveState roost") echo "$STATE" ;;
    "show --value -p NRestarts roost") echo "$RESTARTS" ;;
    *) echo "systemctl $*: what is that?"; exit 2 ;;
esac
"""


@pytest.mark.parametrize(("state", "restarts", "keeps"), [
    ("active", 0, True),
    ("active", 7, True),
    ("reloading", 7, True),
    ("deactivating", 0, True),
    ("activating", 0, True),
    ("activating", 2, True),
    ("activating", 3, False),
    ("inactive", 0, False),
    ("failed", 0, False),
])  # fmt: skip
def test_a_daemon_that_ends_again_and_again_loses_the_addresses(
    state: str, restarts: int, keeps: bool, tmp_path: Path
) -> None:
    """While systemd begins it again, it is "activating"; so it is in a restart, which keeps its connections."""
    (tmp_path / "systemctl").write_text(STUB)
    (tmp_path / "systemctl").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STATE": state, "RESTARTS": str(restarts)}
    done = subprocess.run(["sh", ROOT / "vagrant" / "alive.sh"], env=environment, check=False, capture_output=True)
    assert (done.returncode == 0, done.stdout, done.stderr) == (keeps, b"", b"")


def test_keepalived_asks_what_is_installed() -> None:
    (script,) = re.findall(r'script "([^"]*)"', (ROOT / "vagrant" / "keepalived.conf").read_text())
    assert f'"$root{script}"' in (ROOT / "vagrant" / "install.sh").read_text()
