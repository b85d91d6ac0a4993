# SPDX-License-Identifier: Apache-2.0
"""A daemon between programs that know nothing of it: where they meet, and what the history says of their connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from appliance.lab import DaemonError, DaemonHandle, Lab, endpoint, wait_until
from appliance.lab.programs import Endpoint

QUICK: Final = {"active_quiet": "200ms", "standby_quiet": "400ms", "idle_quiet": "600ms"}
"""Quiet connections sleep by themselves; a program that thinks for that long, on a busy machine, sleeps in between."""
_BY_COMMAND: Final = dict.fromkeys(QUICK, "1h")
PROXY_PORT: Final = 3128
Way = Literal["address", "router", "host"]


class ProgramLab:
    """A lab with a daemon that has one service, whose connections sleep when they are told to.

    `way` is where clients connect to, and where the server is:
      address   an address of the appliance; the server is on the LAN
      router    the server's own address, on the LAN
      host      an address of the appliance; the server is on its loopback
    """

    def __init__(self, lab: Lab, way: Way, family: int, port: int, policy: dict[str, str] = _BY_COMMAND,
                 router: dict[str, Any] | None = None, attach: dict[str, Any] | None = None,
                 **service: Any) -> None:  # fmt: skip
        self.lab = lab
        self.server_space = "box" if way == "host" else "lan"
        loopback = "::1" if family == 6 else "127.0.0.1"
        self.server: Endpoint = (loopback if way == "host" else lab.address("lan", "eth0", family), port)
        """Where the server listens."""
        self.door: Endpoint = self.server if way == "router" else (lab.address("box", "wan0", family), port)
        """Where clients connect to."""
        where: dict[str, Any] = {"listen": endpoint(*self.door)}
        where |= {"transparent": True} if way == "router" else {"server": endpoint(*self.server)}
        self.daemon: DaemonHandle = lab.daemon({
            "policy": policy,
            "service": [{"name": "programs", **where, **service}],
            "router": {"lan": ["lan0"], **(router or {})} if way == "router" else {},
            "attach": {"listen": [endpoint(self.proxy, PROXY_PORT)], **(attach or {})},
        })  # fmt: skip

    @property
    def proxy(self) -> str:
        """The address at which servers ask for clients, at PROXY_PORT."""
        return self.lab.address("box", "lan0")

    def quick_keepalives(self) -> None:
        """From now on programs that switch keep-alives on, and set no interval themselves, send one every second."""
        for space in ("wan", "lan", "box"):
            for key, value in (("time", 1), ("intvl", 1)):
                self.lab.sysctl(space, f"net.ipv4.tcp_keepalive_{key}", value)

    # The connections

    def connections(self) -> list[dict[str, Any]]:
        return self.daemon.connections()

    def the_connection(self) -> int:
        """The number of the only connection there is."""
        wait_until(lambda: len(self.connections()) == 1, 10, "there is one connection")
        return int(self.connections()[0]["id"])

    def path(self, connection: int) -> list[str]:
        """The states that it went through."""
        rows = self.daemon.get("/v1/history", limit=100_000)
        return [str(row["to"]) for row in rows if row["id"] == connection]

    def causes(self, connection: int) -> list[str]:
        rows = self.daemon.get("/v1/history", limit=100_000)
        return [str(row["cause"]) for row in rows if row["id"] == connection]

    def wait_path(self, connection: int, *states: str) -> None:
        """Until the history says that it went through exactly these."""
        self._wait_for(connection, lambda path: path == list(states), f"went through {states}")

    def wait_last(self, connection: int, *states: str) -> None:
        """Until the history says that these were the last it went through."""
        self._wait_for(connection, lambda path: path[-len(states) :] == list(states), f"went through {states} last")

    def _wait_for(self, connection: int, right: Callable[[list[str]], bool], what: str) -> None:
        try:
            wait_until(lambda: right(self.path(connection)), 15, f"connection {connection} {what}")
        except TimeoutError as late:
            raise TimeoutError(f"{late}; it went through {self.path(connection)}") from None

    def to(self, connection: int, *actions: str) -> None:
        """Commands to it: standby, idle, sleep. What is refused while bytes are on their way is asked for again."""
        refusals: list[str] = []
        for action in actions:
            try:
                wait_until(partial(self._acted, connection, action, refusals), 10, f"{action} is done")
            except TimeoutError as late:
                raise TimeoutError(f"{late}; {refusals[-1]}; it went through {self.path(connection)}") from None

    def _acted(self, connection: int, action: str, refusals: list[str]) -> bool:
        try:
            self.daemon.act(connection, action)
        except DaemonError as refusal:
            refusals.append(str(refusal))
            return False
        return True

    def counter(self, name: str) -> int:
        return int(self.daemon.status()["counters"].get(name, 0))

    def established(self, space: str) -> int:
        """How many connections of the service's the kernel of a namespace knows."""
        port, found = f":{self.server[1]:04X}", 0
        with self.lab.enter(space):
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/thread-self/net/{table}").read_text().splitlines()[1:]:
                    _, local, remote, state, *_ = line.split()
                    found += state == "01" and (local.endswith(port) or remote.endswith(port))
        return found
