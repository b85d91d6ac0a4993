# SPDX-License-Identifier: Apache-2.0
"""A really booted machine as the appliance: Debian with Roost as systemd's service; rebooted, and without power.

Method. vagrant/rootfs.sh makes a root file system with this checkout's package (`--root`: one that it made before),
which is booted under qemu in the place of the lab's appliance (appliance.lab.machine), and `systemctl enable --now
roost` is all that is done in it. `connections` real clients connect through the lab's NAT, as many of a service whose
clients go on to SLEEP as of one whose clients stay in IDLE; each kernel sends a keep-alive probe every PROBE_S seconds
from then on, whatever happens, until it has missed PROBES of them. All are asked to speak once. Then Roost is

    upgraded    by the same package once more
    rebooted    with its machine, in order, by `systemctl reboot`
    cut         off its power, and booted again
    behind      the same, and the machine's clock is an hour late from then on
    ahead       the same once more, and it is an hour early

and each time when all are asleep again; after each, all clients speak. `lost_connections` are those that have no
connection any more, or no answer; `resets` are those that were told so by RST; of power cuts only those in SLEEP
count, and `cut_lost_idle` are those that the first one found in IDLE, which have no row. `..._s` is from the order or
the cut until the service is active again.

    boot_s      from power on until ssh lets in
    start_s     `systemctl enable --now roost`, until it serves
    left_behind what `dpkg --purge roost` leaves in the end: files, pins, nftables, routing rules, programs, the user
    native_xdp  whether the machine's kernel runs Roost in the driver (virtio_net): 1, or 0 for generic XDP
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from appliance.lab import Lab, SwarmGroup, endpoint, wait_until
from appliance.lab.machine import Machine, missing
from tests.bench.direct import say
from tests.bench.figures import Report
from tests.mutants import ROOT

PORT: Final = 8000
IDLE_PORT: Final = 8001
PROBE_S: Final = 5
PROBES: Final = 100
POLICY: Final = {"active_quiet": "2s", "standby_quiet": "2s", "idle_quiet": "2s"}
ASLEEP_S: Final = 120.0
SERVING_S: Final = 120.0
AFTERWARDS_S: Final = 2.5 * PROBE_S  # so long the clients' probes are answered before they speak
ANSWER_S: Final = 60.0
LEFT: Final = """
    find /etc /run /sys/fs/bpf /usr /var/lib -path '*roost*'
    nft list tables | grep roost
    ip rule | grep 5200
    ip link show wan0 | grep -o 'prog/xdp.*'
    tc filter show dev wan0 ingress
    tc filter show dev wan0 egress
    getent passwd roost
    true
"""
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


def all_asleep(machine: Machine, each: int, groups: int) -> None:
    """Those of the first group in SLEEP, the others in IDLE, or in SLEEP, too."""

    def are_asleep() -> bool:
        found = states(machine)
        return found["SLEEP"] >= each and found["IDLE"] + found["SLEEP"] == groups * each

    wait_until(are_asleep, ASLEEP_S, "all clients sleep", 2.0)


def serving(machine: Machine) -> bool:
    return machine.run("systemctl", "show", "-P", "ActiveState", "roost").strip() == "active"


def afterwards(clients: SwarmGroup, report: Report, counts: bool = True) -> tuple[int, int]:
    """All of these speak; how many are lost, and of these, how many by an RST."""
    dead = clients.stats().dead
    alive = clients.stats().open
    said = clients.say(alive, timeout_s=ANSWER_S)
    for why, number in (said.failed + dead).items() if counts else ():
        report.problems.append(f"{number} clients: {why}")
    return sum(dead.values()) + alive - said.answered, dead["ECONNRESET"] + said.failed["ECONNRESET"]


def upgrade(machine: Machine) -> None:
    machine.run("dpkg -i /root/roost_*.deb")


def cut(machine: Machine, ahead_s: int = 0) -> None:
    machine.cut_power()
    machine.power_on(ahead_s)


ACTS: Final[dict[str, Callable[[Machine], object]]] = {
    "upgrade": upgrade,
    "reboot": Machine.reboot,
    "cut": cut,
    "behind": partial(cut, ahead_s=-3600),
    "ahead": partial(cut, ahead_s=3600),
}


def run(connections: int = 200, root: str | None = None) -> Report:
    """Boot, serve, upgrade, reboot, lose power, and go away."""
    report = Report("boot", f"{connections:,} clients, kept alive every {PROBE_S} s")
    if absent := missing():
        raise RuntimeError(f"missing on this machine: {', '.join(absent)}")
    with root_file_system(root, report) as tree, Lab(clients=connections) as lab:
        lab.server(PORT)
        config = lab.config(PORT, policy=POLICY)
        listen, server = endpoint(lab.address("box", "wan0"), IDLE_PORT), endpoint(lab.address("lan", "eth0"), PORT)
        config["service"].append({"name": "idle", "listen": listen, "server": server, "idle_quiet": "1h"})
        machine = Machine(lab, tree, config)
        report.add("boot_s", machine.power_on(), "s")
        say(f"booted: {machine.run('uname', '-r').strip()}, after {report.figures['boot_s'].median:.0f} s")
        began = time.monotonic()
        machine.run("systemctl", "enable", "--now", "roost")
        report.add("start_s", time.monotonic() - began, "s")
        link = json.loads(machine.run("ip", "-j", "link", "show", "wan0"))[0]
        report.add("native_xdp", int(link.get("xdp", {}).get("mode") == NATIVE), "")
        say(f"serves after {report.figures['start_s'].median:.1f} s; XDP: {link.get('xdp')}")
        each = connections // 2
        groups = [lab.swarm(), lab.swarm()]
        for clients, port in zip(groups, (PORT, IDLE_PORT), strict=True):
            joined = clients.connect(each, (lab.address("box", "wan0"), port),
                                     keepidle_s=PROBE_S, keepintvl_s=PROBE_S, keepcnt=PROBES)  # fmt: skip
            if joined.connected != each:
                raise RuntimeError(f"connected: {joined}")
        all_asleep(machine, each, len(groups))
        report.add_zero("not_woken", 2 * each - sum(one.say(each, timeout_s=ANSWER_S).answered for one in groups),
                        "clients")  # fmt: skip
        lost, resets = list[int](), list[int]()
        for how, act in ACTS.items():
            all_asleep(machine, each, len(groups))
            began = time.monotonic()
            act(machine)
            wait_until(lambda: serving(machine), SERVING_S, "the service is active", 0.5)
            took = time.monotonic() - began
            report.add(f"{how}_s", took, "s")
            time.sleep(AFTERWARDS_S)
            if how == "cut":
                report.add("cut_lost_idle", afterwards(groups.pop(), report, counts=False)[0], "clients")
            of_each = [afterwards(one, report) for one in groups]
            lost.append(sum(gone for gone, _ in of_each))
            resets.append(sum(reset for _, reset in of_each))
            say(f"{how}: serves again after {took:.0f} s, {lost[-1]} lost, {resets[-1]} by RST")
            if lost[-1]:
                break
        machine.run("dpkg", "--purge", "roost")
        left = machine.run(LEFT).splitlines()
        report.problems += [f"left behind: {line}" for line in left]
        report.add_zero("left_behind", len(left), "")
        report.add_zero("lost_connections", lost, "clients")
        report.add_zero("resets", resets, "clients")
        if any(lost):
            say(machine.run("journalctl", "-u", "roost", "--no-pager", "-n", "60"))
    return report
