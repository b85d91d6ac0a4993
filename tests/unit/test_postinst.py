# SPDX-License-Identifier: Apache-2.0
"""What the package's script does to the configuration that is there. Every program that it runs is a stub."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from appliance.paths import checkout

ROOT = checkout()
assert ROOT is not None
POSTINST = ROOT / "vagrant" / "debian" / "postinst"


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o640), (0o600, 0o600)])
def test_a_configuration_is_not_for_all_to_read_once_the_package_is_set_up(
    before: int, after: int, tmp_path: Path
) -> None:
    """It may hold the password of a database."""
    config, stubs = tmp_path / "roost.toml", tmp_path / "bin"
    config.touch()
    config.chmod(before)
    stubs.mkdir()
    for name in ("systemd-sysusers", "systemctl", "chgrp", "roost"):
        (stubs / name).write_text("#!/bin/sh\n")
        (stubs / name).chmod(0o755)
    script = POSTINST.read_text().replace("/etc/roost/roost.toml", str(config))
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", script, "postinst", "configure", "0.1.0"], env=environment, check=True)
    assert stat.S_IMODE(config.stat().st_mode) == after
