# SPDX-License-Identifier: Apache-2.0
"""Limits by source and lists of networks as the configuration and rules say them, at a whole daemon."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from appliance.lab import DaemonHandle, Lab, endpoint

BOTH = pytest.mark.parametrize("family", [4, 6])
PREFIX: Final = {4: "10.64.", 6: "fd00:64::"}
GAP: Final = {4: ".", 6: ":"}
LIMITED, OWN = 8000, 8001
"""Ports of services: one has [limits], the other its own ones."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(clients=10, nat=False) as lab:
        for port in (LIMITED, OWN):
            lab.server(port)
        yield lab


class Sources:
    """Clients of three addresses: 7 1 and 7 2 are of one network, 8 1 is of another."""

    def __init__(self, lab: Lab, family: int) -> None:
        self._lab, self._family = lab, family
        self._open: list[socket.socket] = []

    def served(self, network: int, address: int, port: int = LIMITED, within_s: float = 5.0) -> bool:
        """Whether a server answers a new client; those that are, stay."""
        with self._lab.enter("wan"):
            kind = socket.AF_INET if self._family == 4 else socket.AF_INET6
            client = socket.socket(kind, socket.SOCK_STREAM)
        client.settimeout(within_s)
        try:
            client.bind((f"{PREFIX[self._family]}{network}{GAP[self._family]}{address}", 0))
            client.connect((self._lab.address("box", "wan0", self._family), port))
            client.sendall(b"ECHO x\n")
            if client.recv(16) != b"ECHO x\n":
                raise ConnectionResetError
        except (TimeoutError, ConnectionError):
            client.close()
            return False
        self._open.append(client)
        return True

    def close(self) -> None:
        for client in self._open:
            client.close()


def daemon_of(lab: Lab, family: int, own: dict[str, Any] | None = None, limits: dict[str, Any] | None = None,
              **service: Any) -> DaemonHandle:  # fmt: skip
    config: dict[str, Any] = lab.config()
    listen, server = lab.address("box", "wan0", family), lab.address("lan", "eth0", family)
    config["service"] = [
        {"name": name, "listen": endpoint(listen, port), "server": endpoint(server, port), **service, **more}
        for name, port, more in (("limited", LIMITED, {}), ("own", OWN, own or {}))
    ]
    config["limits"] = {**config["limits"], "ipv6": [128, 112], "burst": 4, **(limits or {})}
    return lab.daemon(config)


@pytest.mark.parametrize(("level", "family"), [("address", 4), ("network", 6)])
@pytest.mark.parametrize(("what", "rate"), [("handshakes", 1), ("births", 1), ("connections", 4)])
def test_an_address_and_a_network_have_a_limit_of_their_own_and_a_service_may_have_others(
    lab: Lab, level: str, family: int, what: str, rate: int
) -> None:
    of_network = level == "network"
    limits, none = {what: [0, rate] if of_network else [rate, 0]}, {"limits": {what: [0, 0]}}
    born = "always" if what == "births" else "never"
    with closing(daemon_of(lab, family, none, limits, born=born)) as daemon, closing(Sources(lab, family)) as clients:
        began, count = time.monotonic(), 0
        while clients.served(7, 1 + of_network * (count % 2), within_s=0.9):  # before its SYN comes again
            count += 1
            assert count <= 4 + (what != "connections") * (1 + rate * (time.monotonic() - began))
        assert count >= 4
        assert daemon.status()["counters"][f"{what}_limited"] > 0
        assert clients.served(8, 1), "of another network"
        if not of_network:
            assert clients.served(7, 2), "another address"
        assert all(clients.served(7, 1 + of_network * (i % 2), OWN) for i in range(7)), "this service has no such limit"


@BOTH
@pytest.mark.parametrize("born", ["never", "always"])
def test_a_service_and_a_rule_say_which_networks_may_connect(lab: Lab, family: int, born: str) -> None:
    network = {4: "10.64.7.0/24", 6: "fd00:64::7:0/112"}[family]
    with closing(daemon_of(lab, family, {"new_clients": "refuse"}, born=born)) as daemon, \
            closing(Sources(lab, family)) as clients:  # fmt: skip
        assert not clients.served(7, 1, OWN)
        assert clients.served(7, 1)
        for service, new_clients in (("own", "serve"), ("limited", "refuse")):
            rule = {"network": network, "service": service, "new_clients": new_clients}
            put = daemon.http("PUT", f"/v1/policy/rules/{service}", json={"rule": rule, "who": "test"})
            assert put.status_code == 200, put.text
        assert clients.served(7, 1, OWN)
        assert not clients.served(8, 1, OWN)
        assert not clients.served(7, 1)
        assert clients.served(8, 1)
        assert daemon.status()["counters"]["clients_denied"] >= 3
