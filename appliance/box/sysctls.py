# SPDX-License-Identifier: Apache-2.0
"""Settings of the kernel, in the daemon's network namespace, that its sleeping clients and short links need.

``net.ipv4.tcp_tw_reuse = 1``
    Each link to a server is closed by us first and leaves a port in TIME-WAIT for 60 s, all to the same address and
    port. Some hundred links a second use up the default range; long before, connect() searches for a free port: with
    32,000 in TIME-WAIT it took 13 ms (measured), on the engine's thread. Reuse after one second is safe where both
    ends use timestamps (RFC 6191), and the kernel does it only there. IPv6 has the same setting.

``net.ipv4.tcp_ecn = 0``
    TCP_REPAIR has no way to say that ECN (RFC 3168) was negotiated: a client that agreed on it would find, after its
    first sleep, that its congestion marks are not echoed any more. So we do not agree. IPv6 has the same setting.

``net.ipv4.ip_local_reserved_ports``
    Local ports of links that may sleep: while one does, the kernel would give its port to another connection to the
    same server. And ports that we listen on may lie in the range that connect() takes its ports from. While the daemon
    is away, a link of its predecessor in TIME-WAIT would keep the listener from coming back ("Address already in use").

They stay when the daemon ends: the next one needs them before it begins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

log = logging.getLogger("roost.sysctls")

IPV4: Final = Path("/proc/sys/net/ipv4")


def merge_ports(text: str, ports: Iterable[int]) -> str:
    """The kernel's list of ports and ranges, "7,8000-8003", with `ports` added; `text` itself when it has them all."""
    present: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            present.update(range(int(first), int(last or first) + 1))
    missing = sorted(set(ports) - present)
    runs: list[list[int]] = []
    for port in missing:
        if runs and runs[-1][1] == port - 1:
            runs[-1][1] = port
        else:
            runs.append([port, port])
    added = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ",".join([*filter(None, [text.strip()]), *added])


def prepare(ports: Iterable[int], ipv4: Path = IPV4) -> None:
    """Bring them about, for this thread's network namespace; what cannot be set is logged, with what to do."""
    reserved = ipv4 / "ip_local_reserved_ports"
    low, high = map(int, (ipv4 / "ip_local_port_range").read_text(encoding="ascii").split())
    endangered = [port for port in ports if low <= port <= high]
    _set(reserved, merge_ports(reserved.read_text(encoding="ascii"), endangered))
    _set(ipv4 / "tcp_tw_reuse", "1")
    _set(ipv4 / "tcp_ecn", "0")


def _set(path: Path, value: str) -> None:
    before = path.read_text(encoding="ascii").strip()
    if before == value:
        return
    name = f"net.ipv4.{path.name}"
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        log.warning("%s is %s and cannot be changed (%s); set it yourself: sysctl -w %s=%s",
                    name, before or "empty", error.strerror, name, value)  # fmt: skip
    else:
        log.info("%s: %s, was %s", name, value, before or "empty")
