# SPDX-License-Identifier: Apache-2.0
"""After a reboot, no RST for connections that are rows and not yet in the table.

The kernel knows nothing of them, and would answer whatever their clients and servers send by a reset. An nftables
table of this machine's own drops, for the ports of the configuration, the resets that a kernel sends without a socket:
they have no ACK, or the sequence number 0 (RFC 9293 3.10.7.1). Those of a socket mostly have both, and go out; what
is sent to one that was closed is answered as if there were none, and that is dropped, too. New clients connect
meanwhile as ever. Where servers see the clients' addresses nothing of their ports is routed: the other end would
answer by a reset of its own.

It begins before there is a network, by `roost up --quarantine` (vagrant/systemd/roost-quarantine.service), or at the
latest when a daemon finds rows from before the reboot; it ends when all rows are in the table, and where no daemon
comes by itself, after MOST_S. Likewise while an interface is not heard that was: what was attached to it has gone with
it, and one that is made anew under its name passes frames before anything is attached to it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable
from typing import Final

from control.config import Config
from control.config.values import is_name, parse_endpoint, parse_server
from control.daemon.error import DaemonError
from control.daemon.lock import InstanceLock

log = logging.getLogger("roost.daemon")

MOST_S: Final = 3600
"""Ten million rows take half of it."""

PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NFT_S: Final = 30.0
WITHOUT_A_SOCKET: Final = ("tcp flags & (rst | ack) == rst", "tcp flags & rst == rst tcp sequence 0")
EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})


def table_of(instance: str) -> str:
    return f"inet roost-quarantine-{instance}"


def rules(config: Config) -> str:
    """For `nft -f`; whatever was there of this instance is replaced."""
    ours = {port for _, port in map(parse_endpoint, config.attach.listen)}
    theirs, routed = set[int](), dict[str, None]()
    lan = ", ".join(f'"{name}"' for name in config.router.lan)
    for service in config.service:
        listen, servers = parse_endpoint(service.listen), list(map(parse_server, service.every_server))
        ours.add(listen[1])
        theirs.update(port for _, port in servers)
        if service.transparent:
            theirs.add(listen[1])
            servers.append(listen)
        if service.transparent or service.source == "client":
            routed.update((rule, None) for host, port in servers for rule in _routed(host, port, lan))
    table = table_of(config.instance)
    return "\n".join([
        f"add table {table}",
        f"delete table {table}",
        f"add table {table}",
        *_set(table, "ours", ours),
        *_set(table, "theirs", theirs),
        f"add chain {table} output {{ type filter hook output priority filter; }}",
        *(f"add rule {table} output tcp {side} {reset} counter drop"
          for side in ("sport @ours", "dport @theirs") for reset in WITHOUT_A_SOCKET),
        f"add chain {table} forward {{ type filter hook forward priority filter; }}",
        *(f"add rule {table} forward {rule} counter drop" for rule in routed),
        "",
    ])  # fmt: skip


def _set(table: str, name: str, ports: Iterable[int]) -> list[str]:
    """Of ports, which are in it for MOST_S."""
    elements = ", ".join(f"{port} timeout {MOST_S}s" for port in sorted(ports))
    made = f"add set {table} {name} {{ type inet_service; flags timeout; }}"
    return [made, f"add element {table} {name} {{ {elements} }}"] if elements else [made]


def _routed(host: str, port: int, lan: str) -> Iterable[str]:
    """To a server, and from it, while its port is in the set. A server by name: whatever its address."""
    family, of_family = ("ip6", "ipv6") if ":" in host else ("ip", "ipv4")
    for interface, address, side in (("oifname", "daddr", "dport"), ("iifname", "saddr", "sport")):
        if is_name(host):
            whose = ""
        elif host in EVERYWHERE:
            whose = f"meta nfproto {of_family} "
        else:
            whose = f"{family} {address} {host} "
        yield f"{interface} {{ {lan} }} {whose}tcp {side} {port} tcp {side} @theirs"


class Quarantine:
    """A daemon's: there is one while there is a reason for it. config: what is in force. For any thread."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._reasons: set[str] = set()

    def begin(self, reason: str) -> None:
        """Where there is none yet, as far as that can be done."""
        with self._lock:
            if not self._reasons:
                begin(self._config())
            self._reasons.add(reason)

    def end(self, reason: str) -> None:
        """Unless there is another reason; also one that was begun before this daemon was there."""
        with self._lock:
            self._reasons.discard(reason)
            if not self._reasons:
                end(self._config().instance)


def begin(config: Config) -> None:
    """Where there is none yet, as far as that can be done."""
    try:
        _nft(rules(config))
    except DaemonError as error:
        log.warning("%s: sleeping clients that speak before they are in the table are reset", error)


def begin_alone(config: Config) -> int:
    """Begin, unless a daemon runs: it would not end it. The exit status. Raises DaemonError."""
    try:
        lock = InstanceLock(config)
    except DaemonError as error:
        log.info("no quarantine is needed: %s", error)
        return 0
    try:
        _nft(rules(config))
    finally:
        lock.release()
    return 0


def end(instance: str) -> None:
    """Whether or not it has begun."""
    table = table_of(instance)
    try:
        _nft(f"add table {table}\ndelete table {table}\n")
    except DaemonError as error:
        if _program() is not None:
            log.error("%s: resets that this machine's kernel sends without a socket may still be dropped: "
                      "nft delete table %s", error, table)  # fmt: skip


def _program() -> str | None:
    return shutil.which("nft", path=PATH)


def _nft(script: str) -> None:
    nft = _program()
    if nft is None:
        raise DaemonError("quarantine: nft is not installed: apt-get install nftables")
    try:
        done = subprocess.run([nft, "-f", "-"], input=script, text=True, capture_output=True, check=False,
                              timeout=NFT_S)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DaemonError(f"quarantine: {error}") from None
    if done.returncode:
        raise DaemonError(f"quarantine: nft: {done.stderr.strip()}")
