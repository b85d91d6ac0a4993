# SPDX-License-Identifier: Apache-2.0
"""After a reboot, no RST for connections that are rows and not yet in the table.

The kernel knows nothing of them, and would answer whatever their clients and servers send by a reset. An nftables
table of this machine's own drops, for the ports of the configuration, the resets that a kernel sends without a socket:
they have no ACK, or the sequence number 0 (RFC 9293 3.10.7.1); those of a socket have both, and go out. What is new
connects meanwhile as ever. Of transparent services nothing is routed: their server would answer by a reset, too.

It begins before there is a network, by `roost up --quarantine` (vagrant/systemd/roost-quarantine.service), or at the
latest when a daemon finds rows from before the reboot; it ends when all rows are in the table.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from typing import Final

from control.config import Config
from control.config.values import parse_endpoint, parse_server
from control.daemon.error import DaemonError
from control.daemon.lock import InstanceLock

log = logging.getLogger("roost.daemon")

PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NFT_S: Final = 30.0
WITHOUT_A_SOCKET: Final = ("tcp flags & (rst | ack) == rst", "tcp flags & rst == rst tcp sequence 0")
EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})


def table_of(instance: str) -> str:
    return f"inet roost-quarantine-{instance}"


def rules(config: Config) -> str:
    """For `nft -f`; whatever was there of this instance is replaced."""
    table = table_of(config.instance)
    told = [f"add table {table}", f"delete table {table}", f"add table {table}"]
    ports = {"sport": set[int](), "dport": set[int]()}
    routed: list[str] = []
    for service in config.service:
        host, port = parse_endpoint(service.listen)
        ports["sport"].add(port)
        ports["dport"].update(port for _, port in map(parse_server, service.every_server))
        if service.transparent:
            ports["dport"].add(port)
            lan = "{ " + ", ".join(f'"{name}"' for name in config.router.lan) + " }"
            family = "ip6" if ":" in host else "ip"
            for interface, address, side in (("oifname", "daddr", "dport"), ("iifname", "saddr", "sport")):
                whose = "" if host in EVERYWHERE else f"{family} {address} {host} "
                routed.append(f"{interface} {lan} {whose}tcp {side} {port}")
    told.append(f"add chain {table} output {{ type filter hook output priority filter; }}")
    for side, each in ports.items():
        if each:
            one_of = f"tcp {side} {{ {', '.join(map(str, sorted(each)))} }}"
            told += (f"add rule {table} output {one_of} {reset} counter drop" for reset in WITHOUT_A_SOCKET)
    told.append(f"add chain {table} forward {{ type filter hook forward priority filter; }}")
    told += (f"add rule {table} forward {one} counter drop" for one in routed)
    return "\n".join(told) + "\n"


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
    done = subprocess.run([nft, "-f", "-"], input=script, text=True, capture_output=True, check=False, timeout=NFT_S)
    if done.returncode:
        raise DaemonError(f"quarantine: nft: {done.stderr.strip()}")
