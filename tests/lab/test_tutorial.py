# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md, from its first block to its last, and the whole of what each prints: in `roost lab up`, as it says
that a reader without a hypervisor does it, and as a soak around a booted box.

The booted box has this checkout's package instead of what install.sh would build there, and the Vagrantfile's scripts
make the scene: appliance.sh in the box, those of the other machines in namespaces around it. Not run are `vagrant` and
`sudo -i`; tests/lab/test_vagrant.py has the Vagrantfile.
"""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from appliance.lab import Lab
from appliance.lab.machine import Machine
from appliance.lab.processes import ROOT, Process, python_environment, start_bound
from appliance.lab.programs import Dialogue, ProgramError
from tests.bench.boot import root_file_system
from tests.bench.figures import Report
from tests.lab.documents import Block, blocks
from tests.lab.standing_lab import NAME, ROOST, StandingLab
from tests.lab.test_vagrant import Machine as Role
from tests.lab.test_vagrant import command_of

TERMINALS: Final = {"box": "box", "client": "wan", "server": "lan"}
"""What the tutorial calls them, and the lab."""

SHORTER: Final = [f"--set=policy.{key}=100ms" for key in ("active_quiet", "standby_quiet", "idle_quiet")]
"""In the lab, what no block of the tutorial sets."""

WRITTEN: Final = """
ip -o address | sed 's/ *valid_lft.*//'; ip -4 route; ip -6 route | sed 's/ expires [0-9]*sec//'
sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding
find /etc/roost /etc/sysctl.d /etc/systemd/system /usr/local -type f -newer /vagrant | sort | xargs sha256sum
"""
"""What appliance.sh makes of a machine."""

NOT_RUN: Final = ("host", "lab")
BLOCK_S: Final = 120.0
DONE: Final = "the block is done"
VARYING: Final = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\+00:00", "TIME"),
    (r"(?<=pid )\d+", "PID"),
    (r"\b\d+\.\d s\b", "SECONDS"),
    (r"(?<=keepalive,)[\d.minsec]+", "SECONDS"),
    (r"(?<=198\.19\.0\.1:)\d+|(?<=10\.10\.0\.2:)\d+|(?<=10\.3\.0\.2:)\d{4,5}(?=\s+connect\b)", "PORT"),
    (r"^ *\d+(?=  (?:[A-Z]+|…)  )|\b\d+(?= +198\.19\.0\.1:)", "NUMBER"),
)
"""What the tutorial says is another each time, and a word for each."""


def without_what_varies(text: str) -> str:
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text, flags=re.M)
    return text


def is_as_written(written: str, printed: str) -> bool:
    """Whether a screen shows that, spaces and ends of lines aside; … is any text."""
    words = without_what_varies(written).split()
    pattern = r"\s+".join(".*?".join(map(re.escape, word.split("…"))) for word in words)
    return re.fullmatch(rf"\s*{pattern}\s*", without_what_varies(printed), re.S) is not None


def steps() -> list[tuple[Block, str]]:
    """The blocks that are typed on a machine of the scene, each with what it prints."""
    found: list[tuple[Block, str]] = []
    for block in blocks("tutorial.md"):
        if block.kind == "text":
            before, _ = found.pop()
            found.append((before, block.text))
        elif block.tags[0] not in NOT_RUN:
            found.append((block, ""))
    return found


def follow(type_on: dict[str, Callable[[str], str]]) -> None:
    """The tutorial, on these machines: each runs a script and says what it printed."""
    for block, written in steps():
        printed = type_on[block.tags[0]](block.text)
        assert is_as_written(written, printed), f"{block.text}\nis to print\n{written}\nand prints\n{printed}"


def typed_on(terminal: Dialogue, script: str) -> str:
    """What a shell that stays open prints."""
    try:
        return terminal.ask(f"{script}\necho {DONE}", f"{DONE}\n", BLOCK_S).removesuffix(f"{DONE}\n")
    except ProgramError as error:
        raise ProgramError(f"{script}\n{error}") from None


class Terminal(Dialogue):
    """A shell; what it leaves running ends with the lab."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        popen = start_bound([*argv, "bash", "-e"], os.getpid(), env=environment, cwd=ROOT, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)  # fmt: skip
        self.process = Process(popen, " ".join(argv))
        self._unread = b""


def in_the_lab(script: str) -> str:
    """What the tutorial's table says that is to be typed in the lab; and the lab has the tests' own name."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", text, flags=re.M)
    assert len(rows) == 4
    for said, instead in reversed(rows):  # the longest first
        script = re.sub(rf"(?<![\w./-]){re.escape(said)}(?![\w.-])", instead, script)
    return script


def of_the_tests(script: str) -> str:
    script = script.replace("roost lab restart", f"roost lab restart --name {NAME}")
    script = re.sub(r"/roost-(lab|box|wan|lan)\b", rf"/{NAME}-\1", script)
    return script.replace("./roost ", f"{' '.join(ROOST)} ")  # without its set-up


def test_the_tutorial_holds_in_the_lab(tmp_path: Path) -> None:
    up, down = (block.text for block in blocks("tutorial.md") if block.tags == ("lab",))
    begun, box, client, server, setting = up.splitlines()
    assert (begun, down) == ("./roost lab up", "./roost lab down\n")
    with ExitStack() as stack:
        lab = stack.enter_context(StandingLab())
        assert lab.run("up", *SHORTER).returncode == 0
        environment = {**python_environment(), "COLUMNS": "80"}
        type_on: dict[str, Callable[[str], str]] = {}
        for name, line in (("box", box), ("client", client), ("server", server)):
            enter = of_the_tests(line.partition("#")[0]).replace("/tmp", str(tmp_path)).split()
            terminal = Terminal(enter, environment)
            stack.callback(terminal.close)
            type_on[name] = partial(typed_on, terminal)
        typed = type_on["box"]
        typed(of_the_tests(setting))
        typed(of_the_tests("until ./roost connections --state SLEEP | grep thermostat; do sleep 0.2; done"))
        type_on["box"] = lambda script: typed(of_the_tests(in_the_lab(script))).replace(
            of_the_tests("/run/roost-lab/roost.toml"), "/etc/roost/roost.toml"
        )
        follow(type_on)


def scripts() -> str:
    """A shell's line that puts the scripts of vagrant/ where they are in Vagrant's machines; what install.sh would
    build is there by the package."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name in ("appliance.sh", "network.sh", "scene.sh", "scene.toml"):
            tar.add(ROOT / "vagrant" / name, f"vagrant/{name}")
        installed = b"#!/bin/sh\nchgrp roost /etc/roost/roost.toml\n"
        entry = tarfile.TarInfo("vagrant/install.sh")
        entry.size, entry.mode = len(installed), 0o755
        tar.addfile(entry, io.BytesIO(installed))
    text = base64.b64encode(archive.getvalue()).decode()
    return f"mkdir -p /vagrant; echo {text} | base64 -d | tar -xz -C /vagrant"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_tutorial_holds_around_a_booted_box(tmp_path: Path) -> None:
    """ROOST_ROOT: a root file system that vagrant/rootfs.sh made before; it is not written to."""
    report = Report("tutorial", "a booted box")
    with root_file_system(os.environ.get("ROOST_ROOT"), report) as tree, Lab(clients=1) as lab:
        machine = Machine(lab, tree, {})
        machine.power_on()
        roles = {role: Role(lab, role) for role in ("server", "nat", "client")}
        for role in roles.values():
            role.set_up()
        machine.run(scripts())
        machine.run("rm /etc/roost/roost.toml")  # appliance.sh brings the scene's
        asleep = "roost connections --state SLEEP --name thermostat | grep thermostat"
        seen = list[str]()
        for _ in range(2):  # the second time changes nothing, and the client does not notice
            told = machine.run(f"{command_of('appliance').replace(str(ROOT), '/vagrant')} 2>&1")
            assert "no client has come" not in told, told
            number = machine.run(f"for i in $(seq 60); do {asleep} && exit; sleep 1; done; exit 1").split()[0]
            seen.append(number + machine.run(WRITTEN))
        assert seen[0] == seen[1]
        type_on: dict[str, Callable[[str], str]] = {"box": lambda script: machine.run(f"set -e; exec 2>&1\n{script}")}
        for name in ("client", "server"):
            terminal = roles[name].terminal
            terminal.ask(f"cd {tmp_path}; echo {DONE}", DONE)
            type_on[name] = partial(typed_on, terminal)
        follow(type_on)


def test_what_is_not_run_is_vagrants_or_the_labs() -> None:
    for block in blocks("tutorial.md"):
        if block.kind == "sh" and block.tags == ("host",):
            assert all(line.startswith(("vagrant ", "sudo -i")) for line in block.text.splitlines())
        elif block.kind == "sh":
            assert block.tags[0] in {*TERMINALS, "lab"}


@pytest.mark.parametrize(
    ("written", "printed", "same"),
    [
        ("a …\nb", "a x y\n  b\n", True),
        ("a b", "a b c", False),
        ("0", "1", False),
        ("pid 17, up 1.0 s", "pid 4, up 99.9 s", True),
        ("198.19.0.1:40592", "198.19.0.1:7", True),
        ("10.3.0.2:7000", "10.3.0.2:7001", False),
        ("timer:(keepalive,3.9sec,0)", "timer:(keepalive,352ms,1)", False),
    ],
)
def test_a_screen_is_compared_but_for_what_varies(written: str, printed: str, same: bool) -> None:
    assert is_as_written(written, printed) == same
