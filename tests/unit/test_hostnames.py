# SPDX-License-Identifier: Apache-2.0
"""Servers that are configured by name: the addresses that a resolver gives, and what the engine is told of them."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.wire import ServiceSpec
from control.config import Config, ConfigError, Service, parse
from control.daemon import hostnames as hostnames_module
from control.daemon.hostnames import Hostnames
from control.daemon.services import Services
from control.daemon.serving import told
from control.daemon.waiting import Waiting

SERVICE = '[[service]]\nname = "a"\nlisten = "192.0.2.1:5"\nserver = "db.example:6"\n'


class Resolver:
    """Stands in for getaddrinfo: `answers` by name, an OSError, or an Event that it waits for first."""

    def __init__(self) -> None:
        self.answers: dict[str, list[str] | OSError | threading.Event] = {}
        self.asked: list[str] = []

    def __call__(self, name: str, port: None, **more: Any) -> list[tuple[Any, ...]]:
        self.asked.append(name)
        answer = self.answers.get(name, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        if isinstance(answer, threading.Event):
            answer.wait(10)
            answer = ["192.0.2.99"]
        if isinstance(answer, OSError):
            raise answer
        return [(0, 0, 0, "", (address, 0)) for address in answer]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    found = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    return found


def asking(*names: str) -> tuple[Hostnames, Waiting]:
    waiting = Waiting()
    return Hostnames(waiting, names), waiting


def test_a_name_has_all_its_addresses_in_order_whatever_the_order_of_the_answer(resolver: Resolver) -> None:
    hostnames, waiting = asking("db.example")
    for answer in (["192.0.2.9", "2001:db8::1", "192.0.2.8", "fe80::1%2"], ["192.0.2.8", "192.0.2.9", "2001:db8::1"]):
        resolver.answers["db.example"] = answer
        asyncio.run(hostnames.ask())
        assert hostnames.known == {"db.example": ("192.0.2.8", "192.0.2.9", "2001:db8::1")}
    assert waiting.told == []


def test_a_name_that_was_never_resolved_is_waited_for_and_told(resolver: Resolver) -> None:
    hostnames, waiting = asking("db.example")
    asyncio.run(hostnames.ask())
    assert waiting.told == ["the name db.example: Name or service not known"]
    resolver.answers["db.example"] = ["192.0.2.9"]
    asyncio.run(hostnames.ask())
    assert waiting.told == []


def test_a_name_that_fails_keeps_its_addresses_and_is_logged_once(
    resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    hostnames, waiting = asking("db.example")
    resolver.answers["db.example"] = ["192.0.2.9"]
    asyncio.run(hostnames.ask())
    resolver.answers.clear()
    for _ in range(3):
        asyncio.run(hostnames.ask())
    assert hostnames.known == {"db.example": ("192.0.2.9",)}
    assert waiting.told == []
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert said == ["the name db.example keeps its addresses, 192.0.2.9: Name or service not known"]


def test_a_resolver_that_hangs_holds_up_no_other_name_and_is_not_asked_twice(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostnames_module, "ANSWER_S", 0.2)
    hangs = threading.Event()
    resolver.answers |= {"slow.example": hangs, "db.example": ["192.0.2.9"]}
    hostnames, waiting = asking("db.example", "slow.example")

    async def ask() -> None:
        await hostnames.ask()
        await hostnames.ask()
        assert hostnames.known == {"db.example": ("192.0.2.9",)}
        assert waiting.told == ["the name slow.example: no answer within 0.2 s"]
        hangs.set()
        monkeypatch.setattr(hostnames_module, "ANSWER_S", 10)
        await hostnames.ask()

    asyncio.run(ask())
    assert hostnames.known["slow.example"] == ("192.0.2.99",)
    assert resolver.asked.count("slow.example") == 1


class Told:
    """The engine, as far as services change."""

    def __init__(self) -> None:
        self.specs: list[ServiceSpec] = []

    def bound(self, config: Config) -> None: ...

    def update(self, service: Service, spec: ServiceSpec) -> None:
        self.specs.append(spec)

    def take_in(self, number: int, spec: Callable[[], tuple[Service, ServiceSpec]]) -> None: ...

    def take_out(self, number: int, name: str) -> None: ...


def reload(services: Services, engine: Told) -> None:
    services.take_over(services.read(), {}, engine)


def test_an_address_that_comes_or_goes_is_told_as_a_sighup_tells_it(tmp_path: Path) -> None:
    path = tmp_path / "roost.toml"
    path.write_text(SERVICE)
    known: dict[str, tuple[str, ...]] = {}
    services, engine = Services(str(path), parse(SERVICE), {"a": 1}, known), Told()
    assert services.hostnames() == {"db.example"}
    assert services.spec(1)[1].servers == ()
    assert not services.readdress(engine)
    for addresses in (("192.0.2.8", "192.0.2.9"), ("192.0.2.9",)):
        known["db.example"] = addresses
        assert services.readdress(engine)
        assert engine.specs[-1].servers == tuple((address, 6) for address in addresses)
        assert not services.readdress(engine)
    path.write_text(SERVICE + "active_quiet = 7\n")
    reload(services, engine)
    assert (engine.specs[-1].servers, engine.specs[-1].standby_quiet_ms) == ((("192.0.2.9", 6),), 7000)
    path.write_text(SERVICE.replace("db.example", "other.example"))
    reload(services, engine)
    assert (engine.specs[-1].servers, services.hostnames()) == ((), {"other.example"})


@pytest.mark.parametrize(
    ("more", "servers"),
    [
        ("", ("192.0.2.9:6", "[2001:db8::1]:6")),
        ('source = "client"\n', ("192.0.2.9:6",)),
    ],
)
def test_all_addresses_become_servers_of_the_family_that_can_be_used(more: str, servers: tuple[str, ...]) -> None:
    service = parse('[router]\nlan = ["lan0"]\n' + SERVICE + more).service[0]
    resolved = service.with_addresses({"db.example": ("192.0.2.9", "2001:db8::1")})
    assert resolved.every_server == servers
    assert resolved.check == ("tcp" if len(servers) > 1 else "none")


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("db.example", '"db.example" is no server; write "192.0.2.1:80", "[2001:db8::1]:80" or "name.example:80"'),
        ("db.example:0", "is no server"),
        ("-db.example:6", "is no server"),
        ("192.0.2.300:6", "is no server"),
        ("a..b:6", "is no server"),
        ("db.example.:6", ""),
        ("localhost:6", ""),
        ("_x.db-1:6", ""),
    ],
)
def test_a_server_is_an_address_or_a_name_with_a_port(server: str, problem: str) -> None:
    text = SERVICE.replace("db.example:6", server)
    if not problem:
        assert parse(text).service[0].hostnames == (server.removesuffix(":6"),)
        return
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert problem in str(caught.value)


def test_a_transparent_service_has_no_name_for_its_server() -> None:
    with pytest.raises(ConfigError, match=r'is transparent: its `server` is an address, not the name "db\.example"'):
        parse('[router]\nlan = ["lan0"]\n' + SERVICE + "transparent = true\n")


def test_a_service_whose_server_has_no_address_yet_is_not_told_of_as_one_without_servers() -> None:
    service = parse(SERVICE).service[0].with_addresses({})
    assert told(service) == "a 192.0.2.1:5 -> no server yet"
