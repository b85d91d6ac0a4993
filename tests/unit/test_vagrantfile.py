# SPDX-License-Identifier: Apache-2.0
"""The Vagrantfile, as Vagrant reads it, and the appliance's configuration in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from appliance.lab import standing
from appliance.lab.topology import ADDRESSES
from tests.mutants import ROOT


def vagrant(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a directory that has the Vagrantfile alone: it writes beside it."""
    shutil.copy(ROOT / "Vagrantfile", home)
    own = {**os.environ, "HOME": str(home), "VAGRANT_CHECKPOINT_DISABLE": "1", **environment}
    return subprocess.run(["vagrant", *arguments], cwd=home, env=own, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("debian", "taken"), [("12", True), ("13", True), ("11", False)])
def test_vagrant_takes_the_file_and_the_debians_that_roost_runs_on(tmp_path: Path, debian: str, taken: bool) -> None:
    """Providers are ignored: neither libvirt nor VirtualBox need be there."""
    done = vagrant(tmp_path, "validate", "--ignore-provider", ROOST_DEBIAN=debian, ROOST_CLIENTS="2")
    assert (done.returncode == 0) == taken, done.stdout + done.stderr
    assert ("client1: " in done.stdout) == taken
    assert "client2: " not in done.stdout


def test_addresses_and_services_are_those_of_the_lab() -> None:
    text = (ROOT / "Vagrantfile").read_text()
    mine = set(ADDRESSES.values()) - {"10.10.0.2", "fd00:10::2"}
    assert all(f" {address}" in text for address in mine), "those of the first client are counted from 2"
    told = tomllib.loads((ROOT / "vagrant" / "scene.toml").read_text())
    assert told["policy"] == standing.POLICY
    assert told["attach"]["listen"] == [f"10.3.0.1:{standing.ATTACH_PORT}"]
    of_agents = {"agents": standing.AGENTS_PORT, "check-in": standing.CHECK_IN_PORT}
    ports = {"line": standing.LINE_PORT, "session": standing.SESSION_PORT, "web": standing.WEB_PORT}
    for service in told["service"]:
        if service["name"] in ports:
            port = ports.pop(service["name"])
            assert (service["listen"], service["servers"]) == (f"198.18.0.1:{port}", [f"10.3.0.2:{port}"])
        if service["name"] in of_agents:
            assert service["listen"] == f"198.18.0.1:{of_agents.pop(service['name'])}"
    assert ports == of_agents == {}
