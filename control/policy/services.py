# SPDX-License-Identifier: Apache-2.0
"""A service of the configuration, and the policy in force for it, in the engine's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args, get_origin

from appliance.wire import Bounds, Limit, ServiceSpec, Verb
from control.config import Config, Limits, Policy, Service, parse_endpoint
from control.config.sections import Section
from control.config.values import ToEngine


def _number(mark: ToEngine, kind: object, value: Any) -> int:
    if isinstance(value, tuple):
        return _verbs(value)
    words = get_args(kind) if get_origin(kind) is Literal else ()
    return words.index(value) if words else round(value * 1000 if mark.field.endswith("_ms") else value)


def _marked(*sections: Section) -> dict[str, Any]:
    """The fields of ServiceSpec that keys of these sections are marked with; of the same key the last section's."""
    return {
        mark.field: _number(mark, field.annotation, getattr(section, key))
        for section in sections
        for key, field in type(section).model_fields.items()
        for mark in field.metadata
        if isinstance(mark, ToEngine)
    }


def _verbs(requests: Sequence[str]) -> int:
    """Bits of roost_class.in_band_clients; an end that may ask for anything may `ping`."""
    allowed = {Verb[request.upper().replace("-", "_")] for request in requests}
    return sum(1 << verb for verb in allowed | {Verb.PING}) if allowed else 0


HELD_LINGER_S: Final = 5.0


def policy_of(service: Service, config: Config) -> Policy:
    """The policy in force for a service: that of its keys, as far as its kind can have it."""
    policy = service.policy(config.policy)
    if service.kind != "server":
        policy = policy.model_copy(update={"on_server_close": "standby", "on_second_server": "refuse"})
        if service.kind == "held" and policy.active_quiet:
            # A client that has spoken is reset after connect_timeout; until then its bytes wait in the link.
            least = policy.connect_timeout + HELD_LINGER_S
            policy = policy.model_copy(update={"active_quiet": max(policy.active_quiet, least)})
    return policy


def _gap_us(rates: tuple[int, int]) -> Limit:
    return tuple(round(1e6 / rate) if rate else 0 for rate in rates)  # type: ignore[return-value]


def bounds_of(config: Config) -> Bounds:
    """The engine's form of `[limits]`, but for what is by service."""
    limits = config.limits
    daemon = (_gap_us(limits.attaches), _gap_us(limits.agents))
    counting = any(any(service.limits.connections or limits.connections) for service in config.service)
    return Bounds(round(limits.burst * 1e6), limits.ipv4, limits.ipv6, daemon, counting)


def _limits_of(service: Service, limits: Limits) -> tuple[Limit, ...]:
    own = service.limits
    rates = (own.births or limits.births, own.handshakes or limits.handshakes, own.wakes or limits.wakes)
    return tuple(map(_gap_us, rates))


def service_spec(service: Service, index: int, config: Config) -> ServiceSpec:
    """The engine's form of a service and of the policy in force for it."""
    policy = policy_of(service, config)
    listen, listen_port = parse_endpoint(service.listen)
    values = _marked(service, service.in_band, policy)
    return ServiceSpec(
        index=index,
        listen=listen,
        listen_port=listen_port,
        servers=tuple(map(parse_endpoint, service.every_server)),
        by_daemon=service.kind != "server",
        as_client=service.shows_client,
        source=service.own_source,
        unreachable=service.kind == "agents",
        fail_closed=config.router.fail == "closed",
        max_fails=service.max_fails,
        limits=_limits_of(service, config.limits),
        connections=service.limits.connections or config.limits.connections,
        **values,
    )
