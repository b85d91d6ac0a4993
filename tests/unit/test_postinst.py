# SPDX-License-Identifier: Apache-2.0
"""What the package's script does once its files are there. Every program that it runs is a stub."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants import ROOT

POSTINST = ROOT / "vagrant" / "debian" / "postinst"
STUB = """#!/bin/sh
case $1 in
    -q) exec [ -n "$ACTIVE" ] ;;
    up) exec [ -n "$GOOD" ] ;;
esac
echo "$@" >>"$CALLS"
[ -z "$FAILS" ] || [ "$1" = daemon-reload ]
"""
SAY = "Say in {config} what Roost is to serve, then: systemctl enable --now roost"


@dataclass
class Machine:
    """removed: what prerm leaves."""

    directory: Path

    def __post_init__(self) -> None:
        self.config, self.removed = self.directory / "roost.toml", self.directory / "removed"
        self._calls, self._stubs = self.directory / "calls", self.directory / "bin"
        self.config.touch()
        self._stubs.mkdir()
        for name in ("systemd-sysusers", "chgrp"):
            (self._stubs / name).symlink_to("/bin/true")
        for name in ("systemctl", "roost"):
            (self._stubs / name).write_text(STUB)
            (self._stubs / name).chmod(0o755)

    def configure(self, before: str, good: bool = True, active: bool = True,
                  fails: bool = False) -> tuple[Sequence[str], str]:  # fmt: skip
        """What systemctl was asked for, and what was said. before: the version before. good: the configuration.
        active: the daemon. fails: systemctl does."""
        script = POSTINST.read_text().replace("/etc/roost/roost.toml", str(self.config))
        script = script.replace("/var/lib/roost/removed", str(self.removed)).replace("/run/systemd/system", "/")
        environment = {"PATH": f"{self._stubs}:{os.environ['PATH']}", "CALLS": str(self._calls),
                       "GOOD": "1" * good, "ACTIVE": "1" * active, "FAILS": "1" * fails}  # fmt: skip
        self._calls.write_text("")
        done = subprocess.run(["sh", "-c", script, "postinst", "configure", before], env=environment, check=True,
                              capture_output=True, text=True)  # fmt: skip
        reload, *asked = self._calls.read_text().splitlines()
        assert reload == "daemon-reload"
        return asked, (done.stdout + done.stderr).strip().replace(str(self.config), "{config}")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o640), (0o600, 0o600)])
def test_a_configuration_is_not_for_all_to_read_once_the_package_is_set_up(
    before: int, after: int, machine: Machine
) -> None:
    """It may hold the password of a database."""
    machine.config.chmod(before)
    machine.configure("0.1.0")
    assert stat.S_IMODE(machine.config.stat().st_mode) == after


def test_the_first_installation_serves_what_a_good_configuration_says(machine: Machine) -> None:
    assert machine.configure("", active=False) == (["enable --now roost"], "")
    assert machine.configure("", good=False, active=False) == ([], SAY)


def test_an_upgrade_restarts_what_runs(machine: Machine) -> None:
    assert machine.configure("0.1.0") == (["try-restart roost roost-api"], "")
    assert machine.configure("0.1.0", good=False, active=False) == (["try-restart roost roost-api"], "")


def test_an_upgrade_that_refuses_the_configuration_leaves_what_runs(machine: Machine) -> None:
    """A daemon that ended for it would wake nobody."""
    asked, said = machine.configure("0.1.0", good=False)
    assert asked == []
    assert said.startswith("This version refuses {config}; what runs goes on")
    assert "systemctl restart roost roost-api" in said


def test_what_ran_before_it_was_removed_is_begun_when_it_is_installed_again(machine: Machine) -> None:
    machine.removed.write_text("roost\nroost-api\n")
    assert machine.configure("0.1.0", active=False) == (["enable --now roost roost-api"], "")
    assert not machine.removed.exists(), "the next one is an upgrade"
    machine.removed.write_text("")
    assert machine.configure("0.1.0", active=False) == ([], SAY), "nothing ran"


def test_a_package_is_set_up_though_its_configuration_is_gone_or_the_daemon_does_not_start(machine: Machine) -> None:
    """dpkg takes a script that fails for a package that is broken."""
    assert machine.configure("0.1.0", fails=True)[1] == "see: journalctl -u roost -u roost-api"
    assert machine.configure("", fails=True)[1] == "see: journalctl -u roost -u roost-api"
    machine.config.unlink()
    assert machine.configure("", good=False) == ([], SAY)
