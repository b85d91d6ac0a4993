# SPDX-License-Identifier: Apache-2.0
"""What the appliance takes of memory, as the kernel accounts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from appliance.lab import DaemonHandle, Lab

_SOCKET_SLABS = ("TCP", "sock_inode_cache", "filp", "dentry")
_TIME_WAIT_SLAB = "tw_sock_TCP"


@dataclass(frozen=True, slots=True)
class Memory:
    """What the appliance takes at one moment; bytes."""

    rss: int
    mapped_maps: int
    maps: int
    sockets: int
    time_waits: int
    slab: int

    @property
    def daemon(self) -> int:
        """The daemon's own resident memory."""
        return self.rss - self.mapped_maps


def object_sizes(slabinfo: str) -> dict[str, int]:
    """Bytes of one object of each of the kernel's slab caches (/proc/slabinfo)."""
    rows = (line.split() for line in slabinfo.splitlines() if not line.startswith(("slabinfo", "#")))
    return {row[0]: int(row[3]) for row in rows}


def socket_bytes(sizes: dict[str, int]) -> int:
    """What an idle kernel socket takes, with all that a file descriptor needs."""
    return sum(sizes[name] for name in _SOCKET_SLABS)


def idle_socket_bytes() -> int:
    """socket_bytes() of this machine's kernel."""
    return socket_bytes(object_sizes(Path("/proc/slabinfo").read_text()))


def sockets_growth(before: Memory, now: Memory) -> int:
    """Bytes of the kernel sockets that came in between, those in TIME-WAIT included."""
    sizes = object_sizes(Path("/proc/slabinfo").read_text())
    open_ = (now.sockets - before.sockets) * socket_bytes(sizes)
    return open_ + (now.time_waits - before.time_waits) * sizes[_TIME_WAIT_SLAB]


def mapped_map_bytes(smaps: str) -> int:
    """Resident bytes of BPF maps among a process's mappings (/proc/PID/smaps)."""
    total, inside = 0, False
    for line in smaps.splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            inside = bool(rest) and rest[-1].endswith("bpf-map")
        elif inside and name == "Rss:":
            total += int(rest[0]) * 1024
    return total


def tcp_counts(sockstat: str) -> tuple[int, int]:
    """(sockets in use, sockets in TIME-WAIT) of a namespace (/proc/net/sockstat)."""
    for line in sockstat.splitlines():
        if line.startswith("TCP:"):
            words = line.split()
            values = dict(zip(words[1::2], map(int, words[2::2]), strict=True))
            return values["inuse"], values["tw"]
    raise ValueError("no line for TCP in sockstat")


def _slab_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Slab:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no line Slab: in /proc/meminfo")


def memory(lab: Lab, daemon: DaemonHandle) -> Memory:
    taken = daemon.status()["memory"]
    with lab.enter("box"):
        sockets, time_waits = tcp_counts(Path("/proc/thread-self/net/sockstat").read_text())
    mapped = mapped_map_bytes(Path(f"/proc/{daemon.pid}/smaps").read_text())
    rss, maps = int(taken["daemon_rss_bytes"]), int(taken["maps_bytes"])
    return Memory(rss, mapped, maps, sockets, time_waits, _slab_bytes())
