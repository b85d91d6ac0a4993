# SPDX-License-Identifier: Apache-2.0
"""A really booted machine as the appliance: Debian with Roost as systemd's service; rebooted, and without power.

Method. vagrant/rootfs.sh makes a root file system of this checkout (`--root`: one that it made before), which is booted
under qemu in the place of the lab's appliance (appliance.lab.machine), and `systemctl enable --now roost` is all that
is done in it. `connections` real clients connect through the lab's NAT; each kernel sends a keep-alive probe every
PROBE_S seconds from then on, whatever happens, until it has missed PROBES of them. They fall asleep; all are asked
to speak, and fall asleep again. Then the machine is

    rebooted    in order, by `systemctl reboot`
    cut         off its power, and booted again

and after each, all clients speak. `lost_connections` are those that have no connection any more, or no answer;
`resets` are those that were told so by RST. `..._s` is from the order or the cut until the service is active again.

    boot_s      from power on until ssh lets in
    start_s     `systemctl enable --now roost`, until it serves
    native_xdp  whether the machine's kernel runs Roost in the driver (virtio_net): 1, or 0 for generic XDP
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from appliance.lab import Lab, SwarmGroup, wait_until
from appliance.lab.machine import Machine, missing
from tests.bench.direct import say
from tests.bench.figures import Report
from tests.mutants import ROOT

PORT: Final = 8000
PROBE_S: Final = 5
PROBES: Final = 100
POLICY: Final = {"active_quiet": "2s", "standby_quiet": "2s", "idle_quiet": "2s"}
ASLEEP_S: Final = 120.0
SERVING_S: Final = 120.0
AFTERWARDS_S: Final = 2.5 * PROBE_S  # so long the clients' probes are answered before they speak
ANSWER_S: Final = 60.0
NATIVE: Final = 1  # XDP_ATTACHED_DRV


@contextmanager
def root_file_system(given: str | None, report: Report) -> Iterator[Path]:
    if given:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="roost-boot.") as directory:
        root = Path(directory, "root")
        began = time.monotonic()
        made = subprocess.run([ROOT / "vagrant" / "rootfs.sh", root], capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"vagrant/rootfs.sh: {made.stderr[-2000:]}")
        report.add("build_s", time.monotonic() - began, "s")
        say(f"a root file system after {time.monotonic() - began:.0f} s")
        yield root


def states(machine: Machine) -> dict[str, int]:
    told = json.loads(machine.run("roost", "status", "--json"))
    return {name: int(number) for name, number in told["connections"].items()}


def all_asleep(machine: Machine, connections: int) -> None:
    wait_until(lambda: states(machine).get("SLEEP") == connections, ASLEEP_S, "all clients sleep", 2.0)


def serving(machine: Machine) -> bool:
    return machine.run("systemctl", "show", "-P", "ActiveState", "roost").strip() == "active"


def afterwards(machine: Machine, clients: SwarmGroup, connections: int, report: Report) -> tuple[int, int]:
    """All speak; how many are lost, and of these, how many by an RST."""
    wait_until(lambda: serving(machine), SERVING_S, "the service is active", 0.5)
    time.sleep(AFTERWARDS_S)
    dead = clients.stats().dead
    said = clients.say(connections, timeout_s=ANSWER_S)
    dead = clients.stats().dead
    for why, number in (said.failed + dead).items():
        report.problems.append(f"{number} clients: {why}")
    return connections - said.answered, dead["ECONNRESET"]


def run(connections: int = 200, root: str | None = None) -> Report:
    """Boot, serve, reboot, lose power."""
    report = Report("boot", f"{connections:,} clients, kept alive every {PROBE_S} s")
    if absent := missing():
        raise RuntimeError(f"missing on this machine: {', '.join(absent)}")
    with root_file_system(root, report) as tree, Lab(clients=connections) as lab:
        lab.server(PORT)
        machine = Machine(lab, tree, lab.config(PORT, policy=POLICY))
        report.add("boot_s", machine.power_on(), "s")
        say(f"booted: {machine.run('uname', '-r').strip()}, after {report.figures['boot_s'].median:.0f} s")
        began = time.monotonic()
        machine.run("systemctl", "enable", "--now", "roost")
        report.add("start_s", time.monotonic() - began, "s")
        link = json.loads(machine.run("ip", "-j", "link", "show", "wan0"))[0]
        report.add("native_xdp", int(link.get("xdp", {}).get("mode") == NATIVE), "")
        say(f"serves after {report.figures['start_s'].median:.1f} s; XDP: {link.get('xdp')}")
        clients = lab.swarm()
        joined = clients.connect(connections, (lab.address("box", "wan0"), PORT),
                                 keepidle_s=PROBE_S, keepintvl_s=PROBE_S, keepcnt=PROBES)  # fmt: skip
        if joined.connected != connections:
            raise RuntimeError(f"connected: {joined}")
        all_asleep(machine, connections)
        said = clients.say(connections, timeout_s=ANSWER_S)
        report.add_zero("not_woken", connections - said.answered, "clients")
        lost, resets = list[int](), list[int]()
        for how in ("reboot", "cut"):
            all_asleep(machine, connections - sum(lost))
            began = time.monotonic()
            if how == "reboot":
                machine.reboot()
            else:
                machine.cut_power()
                machine.power_on()
            wait_until(lambda: serving(machine), SERVING_S, "the service is active", 0.5)
            report.add(f"{how}_s", time.monotonic() - began, "s")
            gone, reset = afterwards(machine, clients, connections - sum(lost), report)
            lost.append(gone)
            resets.append(reset - sum(resets))
            took = report.figures[f"{how}_s"].median
            say(f"{how}: serves again after {took:.0f} s, {gone} lost, {resets[-1]} by RST")
        report.add_zero("lost_connections", lost, "clients")
        report.add_zero("resets", resets, "clients")
        if report.broken():
            say(machine.run("journalctl", "-u", "roost", "--no-pager", "-n", "60"))
    return report
