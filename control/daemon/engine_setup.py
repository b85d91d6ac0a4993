# SPDX-License-Identifier: Apache-2.0
"""What the engine is told before it runs: its sizes, the interfaces, the router, the services."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from appliance.box.reachability import UnreachableError, interface_towards
from appliance.box.router import RouterError, close_routes, open_routes
from appliance.engine import Engine, EngineError
from appliance.paths import bpf_objects
from appliance.wire import EngineOptions, ServiceSpec, default_workers
from control.config import Config, Service, parse_endpoint, parse_ports
from control.daemon.error import DaemonError, port_trouble

log = logging.getLogger("roost.daemon")


def options(config: Config, max_awake: int, next_id: int) -> EngineOptions:
    """next_id: the first number that is not given to a connection yet."""
    return EngineOptions(
        pin_dir=config.pin_dir,
        bpf_dir=config.paths.bpf_dir or str(bpf_objects()),
        ipv4_slots=config.table.ipv4,
        ipv6_slots=config.table.ipv6,
        idle_slots=config.table.idle,
        filter_slots=config.table.filter,
        ring_bytes=config.table.ring_kb * 1024,
        max_awake=max_awake,
        workers=default_workers() if config.table.workers is None else config.table.workers,
        next_id=next_id,
        grow=config.table.grow,
        name=config.instance,
    )


def set_up(
    engine: Engine, config: Config, services: list[tuple[Service, ServiceSpec]], undo: ExitStack
) -> dict[str, str]:
    """Everything, in the order in which one thing needs the other; the mode of XDP on each interface. Raises
    DaemonError or EngineError. undo: is given what a start that fails must take back, but for what the engine does when
    it is closed before it was started."""
    interfaces = _attach(engine, config)
    engine.link_ports(*parse_ports(config.network.link_ports))
    if not interfaces:
        log.warning("no [network] interfaces: connections cannot be kept asleep")
    router = config.router
    if router.lan:
        try:
            if open_routes():
                undo.callback(close_routes)
        except RouterError as error:
            raise DaemonError(f"[router] {error}") from None
        engine.open_router(router.attach_ports, round(router.wait * 1000))
    for service, spec in services:
        _add(engine, service, spec)
    if router.lan:
        for name in router.lan:
            engine.steer(name, servers=True)
        for name in config.network.interfaces:
            engine.steer(name, servers=False)
    return interfaces


def _attach(engine: Engine, config: Config) -> dict[str, str]:
    interfaces: dict[str, str] = {}
    for name in config.network.interfaces:
        interfaces[name] = engine.attach(name, config.network.xdp_mode)
        if interfaces[name] == "generic" and config.network.xdp_mode == "auto":
            log.warning("%s: the driver has no native XDP; generic XDP is used, which is slower", name)
    for name in _server_interfaces(config):
        interfaces.setdefault(name, engine.attach(name, config.network.xdp_mode, servers=True))
    return interfaces


def _server_interfaces(config: Config) -> list[str]:
    """Where the servers' legs of persistent services are heard, without those that clients are heard on."""
    persistent = [service for service in config.service if service.interface == "persistent"]
    names = list(config.network.server_interfaces)
    if persistent and not names:
        names += config.router.lan
        for service in persistent:
            for server in service.every_server:
                try:
                    names.append(interface_towards(parse_endpoint(server)[0]))
                except UnreachableError as error:
                    raise DaemonError(f'service "{service.name}": {error}; add the route, or name the interface in '
                                      "[network] server_interfaces") from None  # fmt: skip
    return [name for name in dict.fromkeys(names) if name not in config.network.interfaces]


def _add(engine: Engine, service: Service, spec: ServiceSpec) -> None:
    try:
        engine.add_service(spec)
    except EngineError as error:
        raise DaemonError(port_trouble(f'service "{service.name}": {error}', error.number)) from None
