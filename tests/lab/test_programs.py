# SPDX-License-Identifier: Apache-2.0
"""Servers of Debian in the lab end with it, workers and sessions and all, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.processes import python_environment
from appliance.lab.programs import Nginx, OpenSsh, Postgres, ProgramError, Redis
from tests.lab.test_lab import namespaces_in_use

SPACES = ("wan", "nat", "box", "lan")
OWNER = """if True:
    import time
    from appliance.lab import Lab
    from appliance.lab.programs import Nginx, OpenSsh, Postgres
    with Lab(clients=10, nat=False) as lab:
        here = lab.address("lan", "eth0")
        shell = OpenSsh(lab, "lan", [(here, 22)]).session("wan", (here, 22))
        sql = Postgres(lab, "lan", [(here, 5432)]).session("wan", (here, 5432))
        sql.ask("SELECT 42;", "42")
        Nginx(lab, "lan", [(here, 80)])
        print(*(lab.space(name).inode for name in ("wan", "nat", "box", "lan")), flush=True)
        time.sleep(1000)
"""


def test_programs_of_a_lab_whose_owner_is_killed_end_with_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=python_environment())
    assert owner.stdout is not None
    with owner.stdout:
        inodes = {int(word) for word in owner.stdout.readline().split()}
    assert len(inodes) == len(SPACES)
    assert inodes <= namespaces_in_use()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: not inodes & namespaces_in_use(), 5, "all processes of the killed lab end")


@pytest.mark.alone("a namespace's number may be given to another lab's at once")
def test_programs_have_ended_when_their_lab_has() -> None:
    with Lab(clients=10, nat=False) as lab:
        here = lab.address("lan", "eth0")
        inodes = {lab.space(name).inode for name in SPACES}
        OpenSsh(lab, "lan", [(here, 22)]).session("wan", (here, 22))
        postgres = Postgres(lab, "lan", [(here, 5432)])
        postgres.session("wan", (here, 5432)).ask("SELECT 42;", "42")
        nginx = Nginx(lab, "lan", [(here, 80)])
    assert not inodes & namespaces_in_use()
    assert not any(server.process.running for server in (postgres, nginx))


def test_a_server_that_cannot_start_says_why() -> None:
    with Lab(clients=10, nat=False) as lab:
        with pytest.raises(ProgramError, match=r"192\.0\.2\.1"):
            Redis(lab, "lan", [("192.0.2.1", 6379)])
