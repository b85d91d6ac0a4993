# SPDX-License-Identifier: Apache-2.0
"""What the engine is told before it runs: its sizes, the interfaces, the router, the services."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import EADDRNOTAVAIL, ENODEV
from functools import partial
from math import inf
from typing import Final

from appliance.box import sysctls
from appliance.box.network import forwards
from appliance.box.reachability import UnreachableError, interface_towards
from appliance.box.router import RouterError, close_routes, open_routes
from appliance.engine import Engine, EngineError
from appliance.paths import bpf_objects
from appliance.wire import EngineOptions, ServiceSpec, default_workers
from control.config import Config, Service, parse_endpoint, parse_ports
from control.core.logs import about
from control.daemon.error import DaemonError, port_trouble
from control.daemon.local_connect import LocalConnect
from control.daemon.vlans import Vlans
from control.daemon.waiting import NotYetError, Waiting
from control.policy.services import bounds_of

log = logging.getLogger("roost.daemon")

FILL_PERCENT: Final = 92
"""Of the records of IDLE connections, when room for more of them is made (GROW_PERCENT in cext/life/growth.c)."""


ROUTES_S: Final = 5.0
"""How often it is looked whether the router's rule and routes are there, and where those to servers lead."""

REST: Final = 20
"""Such a look is followed by a rest at least so many times as long: one at 1,000 servers takes 0.8 s."""

DIAL_SPARE_S: Final = 1.0
"""How long a router waits for the outcome of dialling a client, beyond the time that it may take."""


def engine_options(config: Config, max_awake: int, next_id: int) -> EngineOptions:
    """next_id: the first number that is not given to a connection yet."""
    return EngineOptions(
        pin_dir=config.pin_dir,
        bpf_dir=config.paths.bpf_dir or str(bpf_objects()),
        ipv4_slots=config.table.ipv4,
        ipv6_slots=config.table.ipv6,
        idle_slots=config.table.idle * 100 // FILL_PERCENT + 1,
        filter_slots=config.table.filter,
        ring_bytes=config.table.ring_kb * 1024,
        max_awake=max_awake,
        workers=default_workers() if config.table.workers is None else config.table.workers,
        next_id=next_id,
        grow=config.table.grow,
        name=config.instance,
    )


def _keep_routes() -> None:
    """systemd-networkd, `netplan apply` and `ip rule flush` take rules away that are not theirs."""
    try:
        if open_routes(forwards=False):
            log.warning("the rule by which connections come to this machine, or its routes, had gone: made again")
    except RouterError as error:
        log.error("connections do not come to this machine: %s", error)


class EngineSetup:
    """Tells the engine of interfaces, the router and the services, in the order in which one thing needs the other, and
    of what is not there yet as soon as it is (waiting)."""

    def __init__(self, engine: Engine, config: Config, waiting: Waiting,
                 lost: Callable[[str], None] = lambda what: None,
                 found: Callable[[str], None] = lambda what: None) -> None:  # fmt: skip
        """lost, found: called with the interface or service that is waited for at the start, or with the interface that
        is not heard any more; and when it is there."""
        self._tell_lost, self._tell_found = lost, found
        self._lost: set[str] = set()
        self._engine = engine
        self._config = config
        self._waiting = waiting
        self._added: dict[int, ServiceSpec] = {}
        self._closed: set[int] = set()
        """Of those added: they take no new clients."""
        self._local = LocalConnect(engine) if config.attach.local_connect else None
        self._vlans = Vlans(engine)
        self._steering = False
        self._steered: set[str] = set()
        self._indexes: dict[str, int] = {}
        """Of the interfaces that were attached to. One that is made anew under its name has another."""
        named = config.network.server_interfaces
        self._by_route = not named
        """Whether the servers of persistent services are heard on a router's own side, and where the routing table
        says."""
        self._by_way: set[str] = set()
        """Where they are heard."""

        self._ways: set[str] = set()
        """The interfaces that the routing table said at the last look."""

        self._routes_due = inf

        self._server_interfaces = (*named, *(("lo",) if self._local else ()))
        self.interfaces: dict[str, str] = {}
        """The mode of XDP on each interface that is heard."""
        waiting.before_each(self._look)

    def begin(
        self, numbers: Iterable[int], spec: Callable[[int], tuple[Service, ServiceSpec]], undo: ExitStack
    ) -> None:
        """Before the engine is started. Raises DaemonError or EngineError. spec: a service, and what the engine is to
        be told of it now. undo: is given what a start that fails must take back, but for what the engine does when it
        is closed before it was started."""
        network, router = self._config.network, self._config.router
        self._vlans.look()
        names = list(dict.fromkeys((*network.interfaces, *self._server_interfaces, *router.lan)))
        for name in names:
            self._waiting.attempt(f"interface {name}", partial(self._interface, name))
        self.bound(self._config)
        self._engine.link_ports(*parse_ports(network.link_ports))
        if not network.interfaces:
            log.warning("no [network] interfaces: connections cannot be kept asleep")
        if router.lan or self._local:
            try:
                if open_routes(forwards=bool(router.lan)):
                    undo.callback(close_routes)
            except RouterError as error:
                raise DaemonError(f"[{'router' if router.lan else 'attach'}] {error}") from None
        self._routes_due = time.monotonic() + ROUTES_S
        if router.lan:
            absent = self._config.absent
            dial_s = absent.dial_timeout + DIAL_SPARE_S if "dial" in absent.steps else 0
            self._engine.open_router(router.attach_ports, round(router.wait * 1000), round(dial_s * 1000))
        if self._local:
            self._local.open()
        for number in numbers:
            name = spec(number)[0].name
            self._waiting.attempt(_waits(name), lambda number=number: self._add(*spec(number)))  # type: ignore[misc]
        self._steering = bool(router.lan)
        for name in names:
            self._waiting.attempt(f"interface {name}", partial(self._interface, name))
        self._look()
        for what in self._waiting.steps:
            self._is_lost(what)

    def _is_lost(self, what: str) -> None:
        if what not in self._lost:
            self._lost.add(what)
            self._tell_lost(what)

    def _is_there(self, what: str) -> None:
        if what in self._lost:
            self._lost.discard(what)
            self._tell_found(what)

    def _interface(self, name: str) -> None:
        """Hear it, and steer what arrives there, as far as that is to be and was not done yet."""
        clients = name in self._config.network.interfaces
        if clients or name in self._server_interfaces or name in self._by_way:
            self._hear(name)
        if self._steering and name not in self._steered and (clients or name in self._config.router.lan):
            self._note(name)
            with _not_yet(ENODEV):
                self._engine.steer(name, servers=not clients)
            self._steered.add(name)
        self._is_there(f"interface {name}")

    def _hear(self, name: str) -> None:
        if name in self.interfaces:
            return
        mode, clients = self._config.network.xdp_mode, name in self._config.network.interfaces
        self._note(name)
        with _not_yet(ENODEV):
            self.interfaces[name] = self._engine.attach(name, mode, servers=not clients)
        if self.interfaces[name] == "generic" and mode == "auto" and clients:
            log.warning("%s: the driver has no native XDP; generic XDP is used, which is slower", name)

    def _note(self, name: str) -> None:
        """Before it is attached to: were it made anew meanwhile, `_look` would find another index."""
        if index := _index(name):
            self._indexes.setdefault(name, index)

    def _look(self) -> None:
        """What is attached to an interface goes with it. One that has gone, or was made anew, is waited for."""
        self._vlans.look()
        if time.monotonic() >= self._routes_due:
            self._routes_due = inf
            persistent = [spec for spec in self._added.values() if spec.persistent and self._by_route]
            servers = {address for spec in persistent for address, _ in spec.servers}
            threading.Thread(target=self._look_at_routes, args=(servers,), name="roost-routes", daemon=True).start()
        for name in self._ways - self._by_way:
            self._by_way.add(name)
            self._waiting.begin_again(f"interface {name}", partial(self._interface, name),
                                      "servers are behind it now, and are heard there in a moment")  # fmt: skip
        if self._local:
            self._local.look(self._added.values())
        for name, index in list(self._indexes.items()):
            if _index(name) == index:
                continue
            del self._indexes[name]
            self.interfaces.pop(name, None)
            self._steered.discard(name)
            self._is_lost(f"interface {name}")
            lost = "it has gone, or was made anew, and nothing is heard there; `ip link` lists those there are"
            self._waiting.begin_again(f"interface {name}", partial(self._interface, name), lost)

    def _look_at_routes(self, servers: Iterable[str]) -> None:
        """In a thread of its own, as pyroute2 has a loop of its own."""
        began, ways = time.monotonic(), set[str]()
        try:
            if self._config.router.lan or self._local:
                _keep_routes()
            for address in servers:
                with suppress(UnreachableError):
                    ways.add(interface_towards(address))
            self._ways = ways
        except OSError as error:
            log.error("routes could not be looked at, and are again in a moment: %s", error)
        finally:
            now = time.monotonic()
            self._routes_due = now + max(ROUTES_S, REST * (now - began))

    def _hear_servers(self, service: Service, spec: ServiceSpec) -> None:
        """The interfaces on which the servers' legs of a persistent service are heard."""
        if not spec.persistent:
            return
        self._hear_all((*self._server_interfaces, *(self._config.router.lan if self._by_route else ())))
        for address, _ in spec.servers if self._by_route else ():
            try:
                self._hear_all([interface_towards(address)])
            except UnreachableError as error:
                raise NotYetError(
                    f"{error}; add the route, or name the interface in [network] server_interfaces"
                ) from None

    def _hear_all(self, names: Iterable[str]) -> None:
        self._by_way.update(names)
        for name in names:
            self._hear(name)

    def _add(self, service: Service, spec: ServiceSpec) -> None:
        self._hear_servers(service, spec)
        try:
            self._engine.add_service(spec)
        except EngineError as error:
            if error.number == EADDRNOTAVAIL:
                raise NotYetError(port_trouble(str(error), error.number)) from None
            raise DaemonError(port_trouble(f'service "{service.name}": {error}', error.number)) from None
        self._added[spec.index] = spec
        self._closed.discard(spec.index)
        self._is_there(_waits(service.name))
        self._tell_of_births(service)

    def _tell_of_births(self, service: Service) -> None:
        """XDP is told the way to a client only where the kernel forwards (ebpf/xdp/way.h)."""
        version = ipaddress.ip_address(parse_endpoint(service.listen)[0]).version
        for name in self._config.network.interfaces if service.born != "never" else ():
            if not forwards(name, version):
                log.warning('service "%s": no client that comes by %s is born asleep, each takes a socket first: '
                            "net.ipv%d.conf.%s.forwarding is 0", service.name, name, version, name,
                            extra=about(service=service.name))  # fmt: skip

    def take_in(self, number: int, spec: Callable[[], tuple[Service, ServiceSpec]]) -> None:
        """A service that has come into the configuration of a running daemon, as soon as that can be."""

        def begin() -> None:
            if number in self._added and number not in self._closed:  # it was to be taken out
                self.update(*spec())
            else:
                self._add(*spec())
                log.info('service "%s" is taken in', service.name, extra=about(service=service.name))

        service = spec()[0]
        what = _waits(service.name)
        self._waiting.drop(_closes(service.name))
        try:
            sysctls.prepare(ports_of(service, self._config.network.link_ports))
            self._waiting.attempt(what, begin)
        except (DaemonError, EngineError, OSError) as error:
            self._waiting.begin_again(what, begin, str(error))

    def take_out(self, number: int, name: str) -> None:
        """No new clients for this service; those that it has go on."""
        self._waiting.drop(_waits(name))
        self._is_there(_waits(name))
        if number in self._added:
            self._waiting.attempt(_closes(name), partial(self._close, number, name))

    def _close(self, number: int, name: str) -> None:
        if not self._engine.close_service(number):
            raise NotYetError("it is to be taken out, and they find no room yet: `roost status` says what is short")
        self._closed.add(number)
        log.info('service "%s" takes no new clients any more', name, extra=about(service=name))

    def bound(self, config: Config) -> None:
        """Limits by source from now on; those of services come with them."""
        self._engine.set_limits(bounds_of(config))

    def update(self, service: Service, spec: ServiceSpec) -> None:
        """The policy and the servers of a service; raises EngineError or NotYetError. One that waits for something is
        told later what is in force then."""
        if spec.index in self._added:
            self._hear_servers(service, spec)
            self._engine.update_service(spec)


def _closes(service: str) -> str:
    """The same of one that is taken out."""
    return f'room for the last clients of service "{service}"'


def ports_of(service: Service, link_ports: str) -> list[int]:
    """Those that the kernel is to give to no connection of another's. link_ports: as in the configuration."""
    first, last = parse_ports(link_ports)
    links = range(first, last + 1) if service.interface == "persistent" else ()
    return [parse_endpoint(service.listen)[1], *links]


def _waits(service: str) -> str:
    """How a service is called that waits for something."""
    return f'service "{service}"'


def _index(name: str) -> int:
    """The index of an interface; 0: there is none. Raises OSError where that cannot be known."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        socket.socket().close()  # which it needs, too: without a descriptor it says the same
        return 0


@contextmanager
def _not_yet(*numbers: int) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        if error.number in numbers:
            raise NotYetError(str(error)) from None
        raise
