# SPDX-License-Identifier: Apache-2.0
"""A really booted machine as the appliance: Debian with Roost as systemd's service, installed, upgraded and removed.

Method. vagrant/rootfs.sh makes a root file system with this checkout's package (`--root`: one that it made before),
which is booted under qemu in the place of the lab's appliance (appliance.lab.machine), and `systemctl enable --now
roost` is all that is done in it. `connections` real clients connect through the lab's NAT, as many of a service whose
clients go on to SLEEP as of one whose clients stay in IDLE, and of one whose clients stay ACTIVE; each kernel sends
keep-alive probes all the time, until it has missed PROBES of them. All are asked to speak once. `bench reboot` does
other things to it; here the box is a router besides, with as many clients of a persistent service and of a transparent
one, and Roost is upgraded: apt installs the same files as a package of a higher version. Then it is removed and
installed again, and purged, and apt installs it where its configuration lies already.

After each, all clients speak. `lost_connections` are those that have no connection any more, or no answer; `resets` are
those that were told so by RST; `lost_bytes` are those that were said then and not answered. `..._s` is from the order
until the service is active again; meanwhile one client after the other speaks, and `pause_ms` is the longest time that
one waited for its answer.

    boot_s      from power on until ssh lets in
    start_s     `systemctl enable --now roost`, until it serves
    left_behind what `apt-get purge roost` leaves: files, pins, nftables, routing rules and routes, programs and maps,
                the user; other_version, not_served: whether the upgrade or the last installation came to nothing
    native_xdp  whether the machine's kernel runs Roost in the driver (virtio_net): 1, or 0 for generic XDP
    api_silent  how often `roost status --url` had no answer of the API's unit: once it is started, and upgraded
    old_certificate  whether it went on to show a certificate that had been renewed; its key is root's alone
    not_begun_again  how many of the two units did not run after `apt-get remove` and another installation
    exposure, api_exposure  of the units, as `systemd-analyze security` counts it: 0 to 10
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from appliance.lab import Lab, SwarmGroup, endpoint, wait_until
from appliance.lab.machine import Machine, missing
from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.upgrade import Speaking
from tests.certificates import make_certificate
from tests.mutants import ROOT

PORT: Final = 8000
SERVICES: Final = {"sleep": PORT, "idle": PORT + 1, "awake": PORT + 2}
"""Ports of the box for clients that are in SLEEP, in IDLE and ACTIVE when they are left alone."""

ROUTED: Final = {"both": PORT + 3, "routed": PORT}
"""Where the box is a router, too: a port for those whose servers' sides sleep with them, and the server's own."""

QUIET: Final = {"idle": {"idle_quiet": "1h"}, "awake": {"active_quiet": "never"}}
API: Final = "127.0.0.1:8443"
CERTIFICATE, KEY = "/etc/api.pem", "/etc/api.key"
REMOTE: Final = f"--url https://roost.test:8443 --ca {CERTIFICATE} --token-file /root/token"
ASK: Final = f"roost status {REMOTE} >/dev/null && echo answered"
SHOWN: Final = """python3 -c 'import ssl; print(ssl.get_server_certificate(("127.0.0.1", 8443)))'"""
EXPOSURE: Final = {"exposure": ("roost", Target(at_most=3.0)), "api_exposure": ("roost-api", Target(at_most=1.5))}
PROBE_S: Final = 5.0
PROBES: Final = 100
POLICY: Final = {"active_quiet": "2s", "standby_quiet": "2s", "idle_quiet": "2s"}
ASLEEP_S: Final = 120.0
SERVING_S: Final = 120.0
PROBED: Final = 2.5
"""So many intervals of probes pass before the clients speak again."""

ANSWER_S: Final = 60.0
PAUSE_S: Final = 300.0
AWAY_S: Final = 3.0
"""Until then a machine whose power is cut has none: a client that is awake at that moment would be lost."""

SAID_BYTES: Final = 16
LEFT: Final = """
    find /etc /run /sys/fs/bpf /usr /var/lib -path '*roost*'
    nft list tables | grep roost
    for family in -4 -6; do
        ip $family rule | grep 5200
        ip $family route show table all | grep 5200
    done
    for link in wan0 lan0; do
        ip link show $link | grep -o 'prog/xdp.*'
        tc filter show dev $link ingress
        tc filter show dev $link egress
    done
    getent passwd roost
    true
"""
FIRST: Final = "apt-get install -q -y --no-install-recommends -o Dpkg::Options::=--force-confold"
HIGHER: Final = "+higher"
MAKE_HIGHER: Final = f"""
    set -e
    dpkg-deb -R /root/roost_*.deb /root/higher
    sed -i '/^Version: /s/$/{HIGHER}/' /root/higher/DEBIAN/control
    dpkg-deb -b -Znone /root/higher /root/higher.deb
    rm -r /root/higher
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


def serving(machine: Machine) -> bool:
    return machine.run("systemctl", "show", "-P", "ActiveState", "roost").strip() == "active"


class Fleet:
    """The clients of a booted machine, and what became of them."""

    def __init__(self, lab: Lab, machine: Machine, report: Report, doors: Mapping[str, tuple[str, int]], each: int,
                 probe_s: float) -> None:  # fmt: skip
        self._machine = machine
        self._report = report
        self._each = each
        self._doors = len(doors)
        self._probe_s = probe_s
        self.groups = {name: lab.swarm() for name in doors}
        self._lost, self._resets = list[int](), list[int]()
        self._pauses, self._seconds = list[float](), list[float]()
        for name, clients in self.groups.items():
            joined = clients.connect(each, doors[name], keepidle_s=probe_s, keepintvl_s=probe_s, keepcnt=PROBES)
            if joined.connected != each:
                raise RuntimeError(f"connected: {joined}")

    def settle(self) -> None:
        """Until each group is where it goes when it is left alone. The awake may be asleep since a reboot."""
        groups = len(self.groups)
        asleep = len(self.groups.keys() - QUIET.keys())

        def are_there() -> bool:
            found = states(self._machine)
            all_are = sum(found.values()) == groups * self._each and not found["STANDBY"]
            return all_are and found["SLEEP"] >= asleep * self._each

        wait_until(are_there, ASLEEP_S, "all clients sleep that are to", 2.0)

    def speak(self) -> int:
        """How many have no answer."""
        return sum(self._each - one.say(self._each, timeout_s=ANSWER_S).answered for one in self.groups.values())

    def suffer(self, how: str, act: Callable[[Machine], object], forgotten: Sequence[str] = (),
               speaks: str = "sleep", after_s: float = AWAY_S) -> bool:  # fmt: skip
        """Do that to the machine; clients of `speaks` speak one after the other meanwhile, but for the first seconds.
        forgotten: groups of which it knows nothing afterwards, which count apart. False: others are lost, too."""
        self.settle()
        speaking = Speaking(self.groups[speaks], 1, after_s, concurrency=1, timeout_s=PAUSE_S)
        began = time.monotonic()
        speaking.start()
        act(self._machine)
        wait_until(lambda: serving(self._machine), SERVING_S, "the service is active", 0.5)
        took = time.monotonic() - began
        speaking.end()
        self._pauses.append(speaking.longest_ms(began))
        self._seconds.append(took)
        self._report.add(f"{how}_s", took, "s")
        time.sleep(PROBED * self._probe_s)
        if forgotten:
            gone = sum(self._afterwards(self.groups.pop(name), counts=False)[0] for name in forgotten)
            self._report.add(f"{how}_forgotten", gone, "clients")
        of_each = [self._afterwards(one) for one in self.groups.values()]
        self._lost.append(sum(gone for gone, _ in of_each) + speaking.failed)
        self._resets.append(sum(reset for _, reset in of_each))
        say(f"{how}: serves again after {took:.0f} s, {self._lost[-1]} lost, {self._resets[-1]} by RST; "
            f"a client waited {self._pauses[-1] / 1000:.1f} s")  # fmt: skip
        return not self._lost[-1]

    def _afterwards(self, clients: SwarmGroup, counts: bool = True) -> tuple[int, int]:
        """All of these speak; how many are lost, and of these, how many by an RST."""
        dead = clients.stats().dead
        alive = clients.stats().open
        said = clients.say(alive, timeout_s=ANSWER_S)
        for why, number in (said.failed + dead).items() if counts else ():
            self._report.problems.append(f"{number} clients: {why}")
        return sum(dead.values()) + alive - said.answered, dead["ECONNRESET"] + said.failed["ECONNRESET"]

    def told(self) -> None:
        """The figures of all that it has suffered."""
        report = self._report
        report.add("connections", self._doors * self._each, "clients")
        report.add_zero("lost_connections", self._lost, "clients")
        report.add_zero("lost_bytes", [lost * SAID_BYTES for lost in self._lost], "bytes")
        report.add_zero("resets", self._resets, "clients")
        report.add("pause_ms", self._pauses, "ms")
        report.add("seconds", self._seconds, "s")
        if any(self._lost):
            say(self._machine.run("journalctl", "-u", "roost", "--no-pager", "-n", "60"))


@contextmanager
def booted(report: Report, connections: int, root: str | None, probe_s: float,
           routed: bool = False) -> Iterator[tuple[Machine, Fleet]]:  # fmt: skip
    """A machine that serves, and its clients, who have spoken once. routed: it is a router, and has those of ROUTED."""
    if absent := missing():
        raise RuntimeError(f"missing on this machine: {', '.join(absent)}")
    with root_file_system(root, report) as tree, Lab(clients=connections) as lab:
        lab.server(PORT)
        config = lab.config(PORT, policy=POLICY)
        server, box = lab.address("lan", "eth0"), lab.address("box", "wan0")
        doors = {name: (box, port) for name, port in SERVICES.items()}
        more: dict[str, dict[str, Any]] = dict(QUIET)
        if routed:
            doors |= {"both": (box, ROUTED["both"]), "routed": (server, ROUTED["routed"])}
            more |= {"both": {"interface": "persistent"}, "routed": {"transparent": True}}
            api = {"listen": [API], "certificate": CERTIFICATE, "private_key": KEY}
            config |= {"router": {"lan": ["lan0"]}, "api": api}
        for name, values in more.items():
            to = {} if name == "routed" else {"server": endpoint(server, PORT)}
            config["service"].append({"name": name, "listen": endpoint(*doors[name]), **to, **values})
        machine = Machine(lab, tree, config)
        report.add("boot_s", machine.power_on(), "s")
        say(f"booted: {machine.run('uname', '-r').strip()}, after {report.figures['boot_s'].median:.0f} s")
        if routed:
            machine.run("sysctl", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        began = time.monotonic()
        machine.run("systemctl", "enable", "--now", "roost")
        report.add("start_s", time.monotonic() - began, "s")
        link = json.loads(machine.run("ip", "-j", "link", "show", "wan0"))[0]
        report.add("native_xdp", int(link.get("xdp", {}).get("mode") == NATIVE), "")
        say(f"serves after {report.figures['start_s'].median:.1f} s; XDP: {link.get('xdp')}")
        fleet = Fleet(lab, machine, report, doors, connections // len(doors), probe_s)
        fleet.settle()
        report.add_zero("not_woken", fleet.speak(), "clients")
        yield machine, fleet
        fleet.told()


def run(connections: int = 150, root: str | None = None) -> Report:
    """Boot, serve, upgrade, go away, and come again."""
    report = Report("boot", f"{connections:,} clients, kept alive every {PROBE_S:g} s; upgraded")
    with booted(report, connections, root, PROBE_S, routed=True) as (machine, fleet):
        machine.run("echo 127.0.0.1 roost.test >>/etc/hosts; roost token create bench --role viewer >/root/token")
        certify(machine)
        machine.run("systemctl", "enable", "--now", "roost-api")
        silent = is_silent(machine)
        renewed = certify(machine)
        report.add_zero("old_certificate", int(not shows(machine, renewed)), "")
        for figure, (unit, target) in EXPOSURE.items():
            told = machine.run("systemd-analyze", "security", "--no-pager", unit)
            report.add(figure, float(told.rpartition("service: ")[2].split()[0]), "", target)
        before = numbers(machine)
        machine.run(MAKE_HIGHER)
        if fleet.suffer("upgrade", upgrade, speaks="awake", after_s=0):
            report.add_zero("other_numbers", len(before - numbers(machine)), "connections")
        report.add_zero("api_silent", silent + is_silent(machine), "")
        version = machine.run("dpkg-query", "-W", "-f", "'${Version}'", "roost")
        report.add_zero("other_version", int(not version.endswith(HIGHER)), "")
        machine.run("apt-get", "remove", "-q", "-y", "roost")
        machine.run(f"{FIRST} /root/higher.deb")
        report.add_zero("not_begun_again", int(not serving(machine)) + is_silent(machine), "units")
        machine.run("cp", "-p", "/etc/roost/roost.toml", "/root/kept.toml")
        ours = loaded(machine, ours=True)
        if not {"prog", "map"} <= {each.split()[0] for each in ours}:
            report.problems.append(f"a box that serves has programs and maps; bpftool finds {sorted(ours)}")
        machine.run("apt-get", "purge", "-q", "-y", "roost")
        left = machine.run(LEFT).splitlines() + sorted(loaded(machine) & ours)
        report.problems += [f"left behind: {line}" for line in left]
        report.add_zero("left_behind", len(left), "")
        machine.run("mkdir /etc/roost; mv /root/kept.toml /etc/roost/roost.toml")
        machine.run(f"{FIRST} /root/roost_*.deb")
        report.add_zero("not_served", int(not serving(machine)), "")
    return report


def is_silent(machine: Machine) -> bool:
    """The API's unit gives no answer for a while."""
    try:
        wait_until(lambda: "answered" in machine.run(f"{ASK} || true"), SERVING_S, "the API answers", 1.0)
    except TimeoutError:
        say(machine.run("journalctl", "-u", "roost-api", "--no-pager", "-n", "20"))
        return True
    return False


def certify(machine: Machine) -> str:
    """Give its API another certificate, whose key is root's alone."""
    with tempfile.TemporaryDirectory() as directory:
        certificate, key = (path.read_text() for path in make_certificate(Path(directory)))
    machine.run(f"umask 077; printf %s {shlex.quote(key)} >{KEY}; printf %s {shlex.quote(certificate)} >{CERTIFICATE}; "
                f"chmod 644 {CERTIFICATE}")  # fmt: skip
    return certificate


def shows(machine: Machine, certificate: str) -> bool:
    """The API's unit shows this one soon."""

    def shown() -> bool:
        return machine.run(f"{SHOWN} || true").strip() == certificate.strip()

    try:
        wait_until(shown, SERVING_S, "it is shown", 1.0)
    except TimeoutError:
        say(machine.run("journalctl", "-u", "roost-api", "--no-pager", "-n", "20"))
        return False
    return True


def upgrade(machine: Machine) -> None:
    machine.run("apt-get", "install", "-q", "-y", "/root/higher.deb")


def loaded(machine: Machine, ours: bool = False) -> set[str]:
    """Names of the programs and maps in its kernel. ours: of Roost's programs, and of the maps that those use."""
    programs, maps = (json.loads(machine.run("bpftool", "-j", kind, "list")) for kind in ("prog", "map"))
    if ours:
        programs = [each for each in programs if each.get("name", "").startswith("roost_")]
        used = {number for each in programs for number in each.get("map_ids", ())}
        maps = [each for each in maps if each["id"] in used]
    return {f"{kind} {each.get('name')}" for kind, found in (("prog", programs), ("map", maps)) for each in found}


def numbers(machine: Machine) -> set[int]:
    """Of the connections that are awake."""
    told = machine.run("roost", "connections", "--state", "ACTIVE", "--json")
    return {int(json.loads(line)["id"]) for line in told.splitlines()}
