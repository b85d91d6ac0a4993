# SPDX-License-Identifier: Apache-2.0
"""Decisions: what becomes of a connection that falls quiet, and of many when resources run short.

Pure functions of the configuration and of one event; the timers run in the engine, which asks when they are due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from appliance.engine import Balance, Born, Op, Priority, SecondServer, ServiceSpec, Verb
from control.config import Config, Service, parse_endpoint
from control.states import State

_WHEN_QUIET: Mapping[tuple[int, bool], Op] = {
    # One step down at a time: the engine asks again when the next timer is due.
    (State.ACTIVE, False): Op.STANDBY,
    (State.ACTIVE, True): Op.IDLE,  # with its server's leg
    (State.STANDBY, False): Op.IDLE,
    (State.STANDBY, True): Op.IDLE,
}


def when_quiet(state: int, persistent: bool) -> Op | None:
    """What to do with a connection that has been quiet in `state` as long as its service allows; None: nothing.
    persistent: its service keeps the server's side of the connection."""
    return _WHEN_QUIET.get((state, persistent))


def under_pressure(awake: int, max_awake: int) -> bool:
    """Whether more than 7/8 of the allowed connections are awake."""
    return 0 < max_awake - max_awake // 8 < awake


def relief(awake: int, max_awake: int) -> int:
    """How many connections to freeze under pressure, so that 3/4 of the allowed ones stay awake."""
    return max(awake - max_awake * 3 // 4, 1) if max_awake else 0


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
_FIXED: Final = ("listen", "kind", "transparent", "source", "interface")
_SERVERS: Final = ("server", "servers")


def _fixed(service: Service) -> dict[str, Any]:
    """What of a service cannot be changed while the daemon runs: of a persistent one its servers neither, for they are
    heard on the interfaces that were found at start."""
    keys = _FIXED + (_SERVERS if service.interface == "persistent" else ())
    return {key: getattr(service, key) for key in keys}


def _verbs(requests: Sequence[str]) -> int:
    """Bits of roost_service.in_band_clients; whoever may ask for anything may `ping`."""
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


def reloaded(old: Service, new: Service) -> Service:
    """What is taken over of a service's new configuration while the daemon runs. Where a key that is fixed has changed
    the servers stay, too: they belong together."""
    kept = _fixed(old)
    if _fixed(new) != kept:
        kept |= {key: getattr(old, key) for key in _SERVERS}
    return new.model_copy(update=kept)


def needs_restart(old: Config, new: Config) -> list[str]:
    """The changed keys that wait for a restart: a running daemon takes over the policy and the servers alone."""
    changed = [
        section
        for section in (
            "instance",
            "paths",
            "network",
            "router",
            "table",
            "attach",
            "absent",
            "agents",
            "agent",
            "history",
        )
        if getattr(old, section) != getattr(new, section)
    ]
    before, after = ({s.name: _fixed(s) for s in c.service} for c in (old, new))
    return changed + [f'[[service]] "{name}"' for name in sorted(before | after) if before.get(name) != after.get(name)]
