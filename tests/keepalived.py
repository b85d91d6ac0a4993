# SPDX-License-Identifier: Apache-2.0
"""keepalived in the lab: which of two appliances has the addresses, as vagrant/keepalived.conf says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from appliance.lab import DaemonHandle, Lab, wait_until
from appliance.lab.processes import Process

CONF: Final = Path(__file__).parents[1] / "vagrant" / "keepalived.conf"


def keepalived(lab: Lab, space: str, daemon: DaemonHandle) -> Process:
    """It judges the daemon by its process: there is no systemd here. It has begun when the machine has no addresses,
    which it takes away until there is a daemon."""
    alive = f'script "/usr/bin/pgrep -f {daemon.config}"'
    text, count = re.subn(r'script "[^"]*"', alive, CONF.read_text(encoding="utf-8"))
    assert count == 1
    conf, log = (lab.workspace / f"keepalived-{space}.{kind}" for kind in ("conf", "log"))
    conf.write_text(text, encoding="utf-8")
    files = [word for option in "prc" for word in (f"-{option}", str(lab.workspace / f"keepalived-{space}.{option}"))]
    with log.open("wb") as out:
        process = lab.run_tree(space, ["keepalived", "-n", "-l", "-f", str(conf), *files], stdout=out, stderr=out)
    wait_until(lambda: not has_address(lab, space), 10, f"keepalived takes the addresses of {space} away")
    return process


def has_address(lab: Lab, space: str) -> bool:
    with lab.enter(space):
        shown = subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True, check=True).stdout
    return f" {lab.address('box', 'wan0')}/" in shown
