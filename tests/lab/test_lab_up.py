# SPDX-License-Identifier: Apache-2.0
"""`roost lab up` and `roost lab down`: ordinary programs inside, and nothing of it afterwards, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.lab import wait_until
from appliance.lab.names import NETNS, names
from appliance.lab.standing import MODES, PAGE
from tests.lab.standing_lab import NAME, ROOST, StandingLab
from tests.lab.traces import leftovers_of, started_by


@pytest.fixture
def lab() -> Iterator[StandingLab]:
    with StandingLab() as lab:
        yield lab


@pytest.mark.parametrize("mode", MODES)
def test_every_command_that_a_lab_names_does_what_it_says_and_nothing_stays(lab: StandingLab, mode: str) -> None:
    told = lab.up(mode)
    assert "for each" not in lab.shell("./roost status"), "a table's size over one client says nothing"
    printed = [lab.shell(line) for _, line in told["try"] if "--follow" not in line]
    assert "thermostat" in told["client"]
    assert " line " in printed[0]
    assert printed[1] == PAGE
    assert printed[2] == "ECHO one\nECHO two\n"
    assert set(printed[3:]) == {"TELL c000000 temperature\n"}
    history = lab.shell(f"./roost events -c {told['config']} -n 100")
    assert "SLEEP -> ACTIVE  client-data" in history
    assert "-> ACTIVE  server-attach" in history
    assert lab.run("down").returncode == 0
    assert lab.traces(told["pid"]) == []


def test_a_second_lab_of_the_same_name_is_told_what_is_up_and_how_to_end_it(lab: StandingLab) -> None:
    told = lab.up("host")
    again = lab.run("up")
    assert again.returncode == 1
    assert f"mode host, held by process {told['pid']}" in again.stderr
    assert f"./roost lab down --name {NAME}" in again.stderr
    assert lab.shell(f"ip netns exec {NAME}-wan curl -s http://198.18.0.1:8080/") == PAGE, "the first lab is untouched"


def test_a_setting_that_the_appliance_does_not_take_is_said_and_nothing_stays(lab: StandingLab) -> None:
    for setting, words in (
        ("service.wbe.listen=1", "no service 'wbe' here"),
        ("policy.quiet=1s", "unknown key `quiet`"),
    ):
        done = lab.run("up", "--set", setting)
        assert done.returncode == 1
        assert words in done.stderr
        assert lab.traces() == []


def test_a_restart_takes_the_configuration_as_it_is_or_says_why_not(lab: StandingLab) -> None:
    assert "no lab with the name" in lab.run("restart").stderr
    told = lab.up()
    config = Path(told["config"])
    right = config.read_text()
    config.write_text(f"{right}\nnonsense = 1\n")
    failed = lab.run("restart")
    assert failed.returncode == 1
    assert "unknown key `nonsense` in [network]" in failed.stderr
    config.write_text(right.replace('name = "web"', 'name = "pages"'))
    assert lab.run("restart").returncode == 0
    assert "service pages: " in lab.shell("./roost status")
    assert "thermostat" in lab.shell("./roost connections"), "its client is still there"


def test_down_without_a_lab_says_so(lab: StandingLab) -> None:
    done = lab.run("down")
    assert (done.returncode, done.stdout) == (0, f"No lab with the name {NAME} is up.\n")


@pytest.mark.parametrize("then", ["down", "up"])
def test_what_a_killed_lab_left_is_taken_away(lab: StandingLab, then: str) -> None:
    killed = lab.up()
    os.kill(killed["pid"], signal.SIGKILL)
    wait_until(lambda: started_by(lab.mark) == [], 10, "the lab's processes end with it")
    assert len(lab.traces(killed["pid"])) > 4, "nobody was left to remove its names and files"
    if then == "up":
        assert lab.up()["pid"] != killed["pid"]
        assert lab.shell(f"ip netns exec {NAME}-wan curl -s http://198.18.0.1:8080/") == PAGE
        assert leftovers_of(killed["pid"]) == []
    assert lab.run("down").stdout == f"The lab {NAME} is gone.\n"
    assert lab.traces(killed["pid"]) == []


@pytest.mark.parametrize("killed", [False, True])
def test_down_ends_the_programs_inside(lab: StandingLab, killed: bool) -> None:
    told = lab.up()
    stubborn = subprocess.Popen(["ip", "netns", "exec", f"{NAME}-lan", "bash", "-c", "trap '' TERM; sleep 1000 & wait"])
    willing = subprocess.Popen(["ip", "netns", "exec", f"{NAME}-wan", "sleep", "1000"])
    if killed:
        os.kill(told["pid"], signal.SIGKILL)
    assert lab.run("down").returncode == 0
    assert willing.wait(5) == -signal.SIGTERM
    assert stubborn.wait(5) == -signal.SIGKILL
    assert lab.traces(told["pid"]) == []


@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGINT, "lab"), (signal.SIGINT, "names"), (signal.SIGKILL, "names")]
)
def test_an_interrupted_up_leaves_nothing(lab: StandingLab, number: signal.Signals, when: str) -> None:
    """As the terminal does: the whole foreground group gets it. `when`: what is there already; after the names come the
    servers and the daemon."""
    up = subprocess.Popen([*ROOST, "lab", "up", "--name", NAME], env=lab.environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, process_group=0)  # fmt: skip

    def begun() -> bool:
        if when == "names":
            return (NETNS / names(NAME)["lan"]).exists()
        return any(leftovers_of(pid) for pid in started_by(lab.mark))

    wait_until(begun, 20, f"the lab has begun: {when}", every_s=0.002)
    os.killpg(up.pid, number)
    _, errors = up.communicate(timeout=60)
    if number == signal.SIGINT:
        assert (up.returncode, errors) == (130, "Ended early; nothing is left behind.\n")
    wait_until(lambda: lab.traces() == [], 20 if number == signal.SIGKILL else 0, "nothing is left")


def test_a_name_that_is_another_programs_is_not_taken(lab: StandingLab) -> None:
    subprocess.run(["ip", "netns", "add", f"{NAME}-box"], check=True)
    try:
        done = lab.run("up")
        assert done.returncode == 1
        assert f"network namespaces of these names already (ip netns): {NAME}-box" in done.stderr
        assert (NETNS / f"{NAME}-box").exists()
    finally:
        subprocess.run(["ip", "netns", "delete", f"{NAME}-box"], check=False)
    assert lab.traces() == []
