# SPDX-License-Identifier: Apache-2.0
"""keepalived in the lab: which of two appliances has the addresses, as vagrant/keepalived.conf says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from appliance.lab import DaemonHandle, Lab
from appliance.lab.processes import Process

CONF: Final = Path(__file__).parents[1] / "vagrant" / "keepalived.conf"


def keepalived(lab: Lab, space: str, daemon: DaemonHandle) -> Process:
    """It judges the daemon by its process: there is no systemd here."""
    alive = f'script "/usr/bin/pgrep -f {daemon.config}"'
    text, count = re.subn(r'script "[^"]*"', alive, CONF.read_text(encoding="utf-8"))
    assert count == 1
    conf, log = (lab.workspace / f"keepalived-{space}.{kind}" for kind in ("conf", "log"))
    conf.write_text(text, encoding="utf-8")
    files = [word for option in "prc" for word in (f"-{option}", str(lab.workspace / f"keepalived-{space}.{option}"))]
    with log.open("wb") as out:
        return lab.run_tree(space, ["keepalived", "-n", "-l", "-f", str(conf), *files], stdout=out, stderr=out)
