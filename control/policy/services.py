# SPDX-License-Identifier: Apache-2.0
"""A service of the configuration, and the policy in force for it, in the engine's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.wire import Balance, Born, Priority, SecondServer, ServiceSpec, Verb
from control.config import Config, Service, parse_endpoint


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


PROXY_HEADER: Final = {"none": 0, "v1": 1, "v2": 2}
BALANCE: Final = {"least-connections": Balance.LEAST_CONNECTIONS, "source-hash": Balance.SOURCE_HASH}
SECOND_SERVER: Final = {
    "refuse": SecondServer.REFUSED,
    "wait": SecondServer.WAITS,
    "take-over": SecondServer.TAKES_OVER,
}
PRIORITY: Final = {"low": Priority.LOW, "normal": Priority.NORMAL, "high": Priority.HIGH}
BORN: Final = {"never": Born.NEVER, "storm": Born.STORM, "always": Born.ALWAYS}


def _verbs(requests: Sequence[str]) -> int:
    """Bits of roost_service.in_band_clients; an end that may ask for anything may `ping`."""
    allowed = {Verb[request.upper().replace("-", "_")] for request in requests}
    return sum(1 << verb for verb in allowed | {Verb.PING}) if allowed else 0


HELD_LINGER_S: Final = 5.0


def service_spec(
    service: Service, index: int, config: Config, endpoint: tuple[str, int] = ("127.0.0.1", 0)
) -> ServiceSpec:
    """The engine's form of a service and of the policy in force for it. endpoint: where the daemon itself is the
    server, for services of agents and of held clients; it learns the client's 4-tuple by the PROXY protocol."""
    policy = service.policy(config.policy)
    if service.kind != "server":
        policy = policy.model_copy(update={"on_server_close": "standby", "on_second_server": "refuse"})
        if service.kind == "held" and policy.active_quiet:
            # A client that has spoken is reset after connect_timeout; until then its bytes wait in the link.
            least = policy.connect_timeout + HELD_LINGER_S
            policy = policy.model_copy(update={"active_quiet": max(policy.active_quiet, least)})
    listen, listen_port = parse_endpoint(service.listen)
    return ServiceSpec(
        index=index,
        listen=listen,
        listen_port=listen_port,
        servers=tuple(map(parse_endpoint, service.every_server)) if service.kind == "server" else (endpoint,),
        standby_quiet_ms=_ms(policy.active_quiet),
        idle_quiet_ms=_ms(policy.standby_quiet),
        sleep_quiet_ms=_ms(policy.idle_quiet),
        connect_timeout_ms=_ms(policy.connect_timeout),
        probe_interval_s=round(policy.probe_interval),
        probe_retry_s=round(policy.probe_retry),
        probe_count=policy.probe_count,
        close_with_server=policy.on_server_close == "close",
        transparent=service.transparent,
        as_client=(service.source or ("client" if service.transparent else "appliance")) == "client",
        proxy_header=PROXY_HEADER["v1" if service.kind != "server" else service.proxy_protocol],
        persistent=service.interface == "persistent",
        unreachable=service.kind == "agents",
        fail_closed=config.router.fail == "closed",
        balance=BALANCE[service.balance],
        max_fails=service.max_fails,
        second_server=SECOND_SERVER[policy.on_second_server],
        second_server_ms=_ms(policy.second_server_wait),
        in_band_clients=_verbs(service.in_band.clients),
        in_band_servers=_verbs(service.in_band.servers),
        in_band_forward=service.in_band.forward,
        in_band_stay=service.in_band.stay,
        born=BORN[service.born],
        born_rate=service.born_rate,
        no_keepalives=policy.sleep_keepalive == "none",
        priority=PRIORITY[policy.priority],
        least_quiet_ms=_ms(service.in_band.least_quiet),
        least_probe_s=round(service.in_band.least_probe_interval),
    )
