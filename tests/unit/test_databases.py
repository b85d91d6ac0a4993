# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL of the tests leaves nothing behind (tests/databases.py)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import ROOT
from tests.unit.test_store import until

MAKE = """
from tests.databases import Cluster
made = Cluster()
print(made.directory, (made.directory / "data/postmaster.pid").read_text().split()[0], flush=True)
{}
made.close()
"""


@pytest.mark.parametrize("end", ["", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], ids=["ends", "dies"])
def test_the_server_ends_with_the_process_that_started_it(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAKE.format(end)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == (-signal.SIGKILL if end else 0), done.stderr
    directory, server = done.stdout.split()
    until(lambda: not Path(directory).exists() and not Path(f"/proc/{server}").exists())
