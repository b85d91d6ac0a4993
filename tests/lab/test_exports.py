# SPDX-License-Identifier: Apache-2.0
"""[export]: the daemon exports its record by `roost export`, again and again."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from appliance.lab import DaemonHandle, Lab, wait_until
from control.export.export import Export
from control.export.files import ExportError


def exported(directory: Path) -> int:
    """Transitions there; 0: there is no export yet."""
    export = Export(directory)
    with suppress(ExportError):
        export.check()
    return export.rows["history"]


def test_the_daemon_exports_what_is_new_to_where_the_configuration_says_now() -> None:
    with Lab(clients=5, nat=False) as lab:
        first, second = lab.workspace / "first", lab.workspace / "second"
        lab.server()
        daemon = lab.daemon({**lab.config(), "export": {"directory": str(first), "every": "1s"}})
        swarm = lab.swarm()
        connect(lab, swarm)
        wait_until(lambda: exported(first) == 5, 30, "five connections are exported")
        connect(lab, swarm)
        wait_until(lambda: exported(first) == 10, 30, "what came later, too")

        second.write_text("a file is in the way")
        daemon.config.write_text(daemon.config.read_text().replace(str(first), str(second)))
        daemon.process.popen.send_signal(signal.SIGHUP)
        wait_until(lambda: said(daemon) != "", 30, "that is said")
        assert said(daemon) == f"{second} is no directory"
        second.unlink()
        wait_until(lambda: exported(second) == 10, 30, "all are exported to the other directory")
        wait_until(lambda: said(daemon) == "", 30, "nothing is amiss any more")
        daemon.terminate()
        assert Export(first).check() == []
        assert Export(second).check() == []


def connect(lab: Lab, swarm: Any) -> None:
    assert swarm.connect(5, (lab.address("box", "wan0"), 8000)).connected == 5


def said(daemon: DaemonHandle) -> str:
    """What the status asks an operator to look at."""
    return next((str(one["what"]) for one in daemon.status()["attention"] if one["name"] == "export"), "")
