# SPDX-License-Identifier: Apache-2.0
"""A booted machine in the place of the lab's appliance: a Debian of its own, under qemu, with the units of systemd.

    nat outside ── wan0 ── bridge ── tap ── wan0 of the machine
    lan eth0    ── lan0 ── bridge ── tap ── lan0 of the machine

In the namespace "box" a bridge joins the end of each link with a tap device of the machine's; the machine has the
addresses and the MAC address that the end had, so that its neighbours notice no difference. It is steered by ssh, from
the lab's server. Its disk outlives it: it can be rebooted, or lose its power and be booted again.

Hardware runs it where /dev/kvm is Intel's or AMD's own; elsewhere qemu emulates it, some ten times slower. It has the
processor that its programs are for: an arm64 Debian is always emulated.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.lab.daemon import toml
from appliance.lab.lab import Lab
from appliance.lab.processes import Process
from appliance.lab.topology import take_ends

NEEDS: Final = ("mkfs.ext4", "ssh", "ssh-keygen", "debootstrap")
DISK_BYTES: Final = 4 << 30  # at most; the file is sparse
MEMORY_MB: Final = 1536
PROCESSORS: Final = 2
QUEUES: Final = 2 * PROCESSORS  # XDP on virtio_net wants a queue of its own for each processor, beside the stack's
NO_MERGING: Final = "guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"  # no native XDP with it
BOOT_S: Final = 300.0
SSH_ITSELF: Final = 255  # its exit code, where it is not the command's
LINES_SHOWN: Final = 20


class _Kind(NamedTuple):
    """Of a machine, by its processor."""

    name: str  # of qemu and uname
    package: str  # Debian's, of its qemu
    board: Sequence[str]
    tty: str


_KINDS: Final = {
    0x3E: _Kind("x86_64", "qemu-system-x86", ("-cpu", "max"), "ttyS0"),
    0xB7: _Kind("aarch64", "qemu-system-arm", ("-M", "virt", "-cpu", "neoverse-n1"), "ttyAMA0"),
}
"""By e_machine of their ELF files."""
_E_MACHINE: Final = slice(18, 20)

_NETWORK: Final = """[Network]
IPv6AcceptRA=no
LinkLocalAddressing=ipv6
{addresses}
{routes}
"""


class MachineError(Exception):
    """It did not boot, or a command in it failed."""


def missing() -> list[str]:
    """Programs that a machine of this one's processor needs and that are not here."""
    return [name for name in (f"qemu-system-{platform.machine()}", *NEEDS) if shutil.which(name) is None]


class Machine:
    """What vagrant/rootfs.sh made, booted in the place of the lab's "box". `root` is copied onto its disk."""

    def __init__(self, lab: Lab, root: Path, config: Mapping[str, Any]) -> None:
        self._lab = lab
        self._address = lab.address("box", "lan0")
        self._disk = lab.workspace / "machine.img"
        self._key = lab.workspace / "machine.key"
        self._kernel, self._initrd = root / "vmlinuz", root / "initrd.img"
        self._kind = _KINDS[int.from_bytes((root / "usr/bin/true").read_bytes()[_E_MACHINE], "little")]
        if shutil.which(f"qemu-system-{self._kind.name}") is None:
            raise MachineError(f"{root} is of {self._kind.name}, which this machine cannot emulate: "
                               f"apt-get install {self._kind.package}")  # fmt: skip
        self.console = lab.workspace / "machine.log"
        self._process: Process | None = None
        self._ends = take_ends(lab.space("box"))
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._key], check=True)
        with_it = lab.workspace / "machine"
        for path, text, mode in self._files(config):
            to = with_it / path
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(text)
            to.chmod(mode)
        self._make_disk(root, with_it)

    def _files(self, config: Mapping[str, Any]) -> list[tuple[str, str, int]]:
        """What it has of its own: path, content, mode."""
        network = {"interfaces": ["wan0"], **config.get("network", {})}
        files = [
            ("root/.ssh/authorized_keys", self._key.with_suffix(".key.pub").read_text(), 0o600),
            ("etc/roost/roost.toml", toml({**config, "instance": "main", "network": network}), 0o644),
            ("etc/hostname", "roost\n", 0o644),
        ]
        for end in self._ends:
            match = f"[Match]\nMACAddress={end.mac}\nType=ether\n\n"
            files.append((f"etc/systemd/network/10-{end.name}.link", f"{match}[Link]\nName={end.name}\n", 0o644))
            text = _NETWORK.format(
                addresses="\n".join(f"Address={each}" for each in end.addresses),
                routes="\n".join(f"[Route]\nDestination={to}\nGateway={via}\n" for to, via in end.routes),
            )
            files.append((f"etc/systemd/network/10-{end.name}.network", match + text, 0o644))
        return files

    def _make_disk(self, root: Path, with_it: Path) -> None:
        """A file system of both."""
        tree = self._lab.workspace / "tree"
        subprocess.run(["cp", "-a", "--reflink=auto", root, tree], check=True)
        subprocess.run(["cp", "-a", f"{with_it}/.", tree], check=True)
        with self._disk.open("wb") as disk:
            disk.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-d", tree, self._disk], check=True)
        shutil.rmtree(tree)

    # Power

    def power_on(self, ahead_s: int = 0) -> float:
        """Seconds until it lets ssh in. ahead_s: of the battery clock, ahead of the right time."""
        began = time.monotonic()
        kind = self._kind
        hardware = kind.name == "x86_64" and any(Path("/sys/module", one).exists() for one in ("kvm_intel", "kvm_amd"))
        cards = []
        for number, end in enumerate(self._ends):
            tap = f"tap,id=n{number},ifname={end.tap},queues={QUEUES},script=no,downscript=no"
            card = f"virtio-net-pci,netdev=n{number},mac={end.mac},mq=on,vectors={2 * QUEUES + 2},{NO_MERGING}"
            cards += ["-netdev", tap, "-device", card]
        with self.console.open("ab") as console:
            self._process = self._lab.run("box", [
                f"qemu-system-{kind.name}", "-nodefaults", "-nographic", "-serial", "stdio", "-smp", str(PROCESSORS),
                "-m", str(MEMORY_MB), "-kernel", str(self._kernel), "-initrd", str(self._initrd),
                *(["-accel", "kvm", "-cpu", "host"] if hardware else ["-accel", "tcg,thread=multi", *kind.board]),
                "-rtc", f"base={datetime.fromtimestamp(time.time() + ahead_s, UTC):%Y-%m-%dT%H:%M:%S}",
                "-append", f"root=/dev/vda rw console={kind.tty} panic=5 systemd.mask=serial-getty@{kind.tty}.service",
                "-drive", f"file={self._disk},if=virtio,format=raw,cache=unsafe", *cards,
            ], stdin=subprocess.DEVNULL, stdout=console, stderr=console)  # fmt: skip
        self.wait_up()
        return time.monotonic() - began

    def cut_power(self) -> None:
        """What was not synced is in the image all the same, for the host's kernel has it: as with a battery-backed
        disk."""
        if self._process is not None:
            self._process.kill()

    def wait_up(self, before: str = "") -> str:
        """Until it lets ssh in, in a boot that is not `before`; its boot's id."""
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline:
            if self._process is None or not self._process.running:
                raise MachineError(f"qemu ended: {self._last_lines()}")
            told = self._ssh(["cat", "/proc/sys/kernel/random/boot_id"])
            if told.returncode == 0 and told.stdout.strip() != before:
                return told.stdout.strip()
            time.sleep(0.5)
        raise MachineError(f"it does not let ssh in within {BOOT_S:.0f} s: {self._last_lines()}")

    def reboot(self) -> float:
        """In order, as an operator does it; seconds until it lets ssh in again."""
        before = self.run("cat", "/proc/sys/kernel/random/boot_id").strip()
        began = time.monotonic()
        self._ssh(["systemctl", "reboot"])
        self.wait_up(before)
        return time.monotonic() - began

    # What runs in it

    def run(self, *argv: str) -> str:
        """What a command in it prints."""
        told = self._ssh(argv)
        if told.returncode != 0:
            console = f"\nits console: {self._last_lines()}" if told.returncode == SSH_ITSELF else ""
            raise MachineError(f"{' '.join(argv)}: {told.returncode}: {told.stdout}{told.stderr}{console}")
        return told.stdout

    def _ssh(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=5",
                   "BatchMode=yes", "ServerAliveInterval=5", "ServerAliveCountMax=12"]  # fmt: skip
        with self._lab.enter("lan"):
            return subprocess.run(["ssh", "-i", self._key, *(word for each in options for word in ("-o", each)),
                                   f"root@{self._address}", *argv],
                                  capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)  # fmt: skip

    def _last_lines(self) -> str:
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-LINES_SHOWN:])
