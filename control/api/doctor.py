# SPDX-License-Identifier: Apache-2.0
"""What [api] needs of this machine: what its process would find missing, before it begins."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance.box import network
from appliance.box.doctor import Need, Outcome, outcome
from appliance.box.taken import WAY_OUT, is_taken
from appliance.wire import endpoint_text
from control.api.process import ApiError, at_clients, tls_of, user_of
from control.config import Config, parse_endpoint


def examine(config: Config) -> Iterator[Outcome]:
    """Nothing, where there is no API. Nothing is changed."""
    api, net = config.api, network.read(())
    if not api.listen:
        return

    def look(name: str, problem: Callable[[], object], fix: str, found: str) -> Outcome:
        try:
            said = problem()
        except ApiError as error:
            said = str(error)
        return outcome("api", name, Need.REQUIRED, said if isinstance(said, str) and said else None, fix, found)

    yield look(f"user {api.user}", lambda: user_of(api.user), "useradd --system NAME, and [api] user", "is there")
    yield look("certificate", lambda: tls_of(api), "PEM files that belong together", api.certificate or "no TLS")
    yield look("away from clients", lambda: at_clients(config), "[api] listen, or at_clients", "no client reaches it")
    for listen in map(parse_endpoint, api.listen):
        where, address = endpoint_text(listen), ipaddress.ip_address(listen[0])
        owner = "every interface" if address.is_unspecified else net.owner(listen[0])
        absent = None if owner else "no interface has this address"
        yield outcome("api", where, Need.REQUIRED, absent, f"ip address add {listen[0]} dev DEVICE", f"on {owner}")
        taken = is_taken(listen, False, Path(config.control_socket))
        yield outcome("api", f"port {where}", Need.REQUIRED, "another program has it" if taken else None, WAY_OUT,
                      "free, or ours")  # fmt: skip
