# SPDX-License-Identifier: Apache-2.0
"""SIGHUP takes services in and out, and whoever is connected notices nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from appliance.lab import Lab, endpoint, wait_until
from appliance.lab.daemon import toml
from appliance.wire import Born
from tests.lab.echo import Echo
from tests.lab.engine_lab import SERVICE, EngineLab, receive

BOTH = pytest.mark.parametrize("family", [4, 6])
PORTS = {"a": 8000, "b": 8001, "anew": 8000}
QUIET = {"active_quiet": "200ms", "standby_quiet": "200ms", "idle_quiet": "200ms"}


class Box:
    """A daemon whose services a test takes in and out. Each has an echo server, at a port of its own."""

    def __init__(self, lab: Lab, stack: ExitStack, family: int = 4, transparent: bool = False, **config: Any) -> None:
        self.lab, self.stack, self.transparent = lab, stack, transparent
        self.server = lab.address("lan", "eth0", family)
        self.listen = self.server if transparent else lab.address("box", "wan0", family)
        self.echoes = {port: stack.enter_context(Echo(lab.space("lan"), self.server, port))
                       for port in set(PORTS.values())}  # fmt: skip
        settings = {**lab.config(policy=QUIET), **config, "service": [self.service("a")]}
        self.daemon = lab.daemon(settings)
        stack.callback(self.daemon.close)
        self.database = tomllib.loads(self.daemon.config.read_text())["paths"]["database"]
        self._others = re.sub(r"\[\[service]].*?(?=\n\[(?!\[service)|\Z)", "", self.daemon.config.read_text(),
                              flags=re.DOTALL)  # fmt: skip

    def service(self, name: str, **more: Any) -> dict[str, Any]:
        port = PORTS[name]
        ends = {"transparent": True} if self.transparent else {"server": endpoint(self.server, port)}
        return {"name": name, "listen": endpoint(self.listen, port), **ends, **more}

    def reload(self, *services: dict[str, Any]) -> str:
        """What the daemon says of it."""
        before = len(self.daemon.log.read_text())
        self.daemon.config.write_text(self._others + "\n" + toml({"service": list(services)}))
        os.kill(self.daemon.pid, signal.SIGHUP)
        wait_until(lambda: "SIGHUP: policy taken over" in self.said(before), 10, "it is taken over")
        return self.said(before)

    def said(self, since: int = 0) -> str:
        return self.daemon.log.read_text()[since:]

    def dial(self, name: str) -> socket.socket:
        with self.lab.enter("wan"):
            client = socket.create_connection((self.listen, PORTS[name]), 5)
        return self.stack.enter_context(client)

    def refuses(self, name: str) -> bool:
        try:
            return self.dial(name).recv(1) == b"impossible"
        except (ConnectionRefusedError, ConnectionResetError):
            return True
        except TimeoutError:
            return False

    def states(self, count: int, state: str = "SLEEP") -> None:
        wait_until(lambda: self.daemon.counts().get(state) == count, 10, f"{count} are in {state}")

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.daemon.status()["services"]}

    def services_of(self) -> list[str]:
        """Of the connections."""
        return sorted(one["service"] for one in self.daemon.connections())


def answers(client: socket.socket, word: bytes = b"hello") -> bool:
    client.sendall(word)
    return receive(client, len(word)) == word


@pytest.fixture
def opened(nat_free_lab: Lab) -> Iterator[Callable[..., Box]]:
    with ExitStack() as stack:
        yield lambda **more: Box(nat_free_lab, stack, **more)


@BOTH
def test_a_service_that_is_taken_in_serves_and_keeps_its_clients(opened: Callable[..., Box], family: int) -> None:
    box = opened(family=family)
    old = box.dial("a")
    assert answers(old)
    assert box.refuses("b")
    said = box.reload(box.service("a"), box.service("b"))
    assert 'service "b" is taken in' in said
    assert "restart" not in said
    new = box.dial("b")
    assert answers(new)
    box.states(2)
    assert box.services_of() == ["a", "b"]
    assert answers(old)
    assert answers(new)
    assert [row["servers"][0]["state"] for row in box.rows().values()] == ["up", "up"]
    box.states(2)
    box.daemon.restart()  # it has its number from the database
    assert answers(new)
    assert box.services_of() == ["a", "b"]


@BOTH
@pytest.mark.parametrize("born", ["never", "always"])
def test_one_that_is_taken_out_serves_those_it_has_and_none_that_come(
    opened: Callable[..., Box], family: int, born: str
) -> None:
    box = opened(family=family)
    out = box.service("b", born=born)
    box.reload(box.service("a"), out)
    asleep, awake, unheard = box.dial("b"), box.dial("b"), box.dial("b")
    assert answers(asleep)
    box.states(3 if born == "never" else 1)
    box.reload(box.service("a"), {**out, "active_quiet": "2s"})
    assert answers(awake)
    said = box.reload(box.service("a"))
    assert 'service "b" takes no new clients any more' in said
    assert "restart" not in said
    assert box.refuses("b")
    assert box.rows()["b"]["leaving"]
    assert not box.rows()["a"]["leaving"]
    for client in (asleep, awake, unheard):
        assert answers(client)
        assert answers(client, b"once more")
    box.states(3)  # by the policy that it had last
    assert answers(asleep)

    box.reload(box.service("a"), out)
    assert not box.rows()["b"]["leaving"]
    assert answers(box.dial("b"))
    assert answers(asleep)
    assert box.services_of() == ["b"] * 4


@BOTH
@pytest.mark.parametrize("transparent", [False, True], ids=["proxy", "router"])
def test_a_persistent_service_comes_and_goes_likewise(
    opened: Callable[..., Box], family: int, transparent: bool
) -> None:
    """With the servers' legs of its connections asleep, too."""
    box = opened(family=family, transparent=transparent, **({"router": {"lan": ["lan0"]}} if transparent else {}))
    lasting = box.service("b", interface="persistent")
    assert "restart" not in box.reload(box.service("a"), lasting)
    client = box.dial("b")
    assert answers(client)
    box.states(1)
    box.reload(box.service("a"))
    assert answers(client)
    assert box.echoes[PORTS["b"]].accepted == 1, "its server has had one connection all the time"
    box.states(1)
    assert box.services_of() == ["b"]


def test_another_service_at_the_same_address_gets_those_that_come(opened: Callable[..., Box]) -> None:
    box = opened()
    old = box.dial("a")
    assert answers(old)
    box.states(1)
    box.reload({**box.service("anew"), "server": endpoint(box.server, PORTS["b"])})
    new = box.dial("anew")
    assert answers(new)
    assert answers(old)
    assert box.services_of() == ["a", "anew"]
    assert sorted((port, echo.accepted) for port, echo in box.echoes.items()) == [(8000, 2), (8001, 1)]


def test_clients_whose_turn_has_not_come_are_taken_in_first(empty_lab: Lab) -> None:
    """They have connected, and none has accepted them yet."""
    with EngineLab(empty_lab) as box:
        box.stop()
        box.make()
        clients = [box.dial() for _ in range(20)]
        with box.lab.enter("box"):  # where they are linked
            assert box.engine.close_service(SERVICE[4])
        box.begin()
        for client in clients:
            client.sendall(b"hello")
        assert [receive(box.accept(), 5) for _ in clients] == [b"hello"] * len(clients)
        with pytest.raises(ConnectionRefusedError):
            box.dial()


def test_a_service_is_not_closed_while_there_is_no_room_for_its_last_clients(empty_lab: Lab) -> None:
    with EngineLab(empty_lab, max_awake=64) as box:
        box.stop()
        box.make()
        clients = [box.dial() for _ in range(80)]
        with box.lab.enter("box"):
            assert not box.engine.close_service(SERVICE[4])
        box.begin()
        for number, client in enumerate(clients):
            client.sendall(b"%5d" % number)
        for server in [box.accept() for _ in range(40)]:
            clients[int(receive(server, 5))].close()
            server.close()
        with box.lab.enter("box"):
            box.wait(lambda: box.engine.close_service(SERVICE[4]), "there is room")
        assert len({receive(box.accept(), 5) for _ in range(40)}) == 40


def test_those_born_at_an_address_are_of_the_service_that_has_it_now(empty_lab: Lab) -> None:
    """The one that had it before is told that its servers are down, and refuses none for it."""
    before = {"born": Born.ALWAYS, "refuse_down": True}
    with EngineLab(empty_lab, service=before) as box:
        assert box.engine.close_service(SERVICE[4])
        now = box.spec(4, index=SERVICE[4] + 8)
        with box.lab.enter("box"):
            box.engine.add_service(now)
        (server,) = now.servers
        box.engine.mark_server(SERVICE[4], server, up=False)
        kept = []

        def born() -> bool:
            kept.append(box.dial())
            return box.engine.stats()["born"] > 0

        wait_until(born, 10, "a client is born")


def test_a_port_that_is_in_use_is_waited_for(opened: Callable[..., Box]) -> None:
    box = opened()
    with box.lab.enter("box"):
        holder = socket.create_server((box.listen, PORTS["b"]))
    said = box.reload(box.service("a"), box.service("b"))
    assert re.search(r'service "b" waits: .*port 8001', said)
    assert any('service "b"' in sentence for sentence in box.daemon.status()["waiting"])
    assert answers(box.dial("a"))
    holder.close()
    wait_until(lambda: box.daemon.status()["waiting"] == [], 10, "it is there")
    assert answers(box.dial("b"))


def test_one_that_waits_and_is_taken_out_is_not_waited_for(opened: Callable[..., Box]) -> None:
    box = opened()
    box.reload(box.service("a"), {**box.service("b"), "listen": "192.0.2.77:8001"})
    assert any('service "b"' in sentence for sentence in box.daemon.status()["waiting"])
    box.reload(box.service("a"))
    assert box.daemon.status()["waiting"] == []
    box.reload(box.service("a"), {**box.service("b"), "listen": "192.0.2.77:8001"})
    assert any('service "b"' in sentence for sentence in box.daemon.status()["waiting"])


def test_what_a_running_daemon_cannot_take_in_is_told(opened: Callable[..., Box]) -> None:
    box = opened()
    held = {"name": "b", "listen": endpoint(box.listen, 8001), "kind": "held"}
    assert 'wait for a restart: [[service]] "b" (is new, and kind = "held")' in box.reload(box.service("a"), held)
    assert box.refuses("b")
    moved = {**box.service("a"), "listen": endpoint(box.listen, 8001)}
    assert '[[service]] "a" (listen)' in box.reload(moved)
    assert answers(box.dial("a")), "where it was"


def test_without_the_database_a_new_service_has_no_number_and_that_is_told(opened: Callable[..., Box]) -> None:
    box = opened()
    with closing(sqlite3.connect(box.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # for longer than it is waited for
        said = box.reload(box.service("a"), box.service("b"))
        assert 'not taken in, since the database gives no number now: service "b"; reload again' in said
        assert answers(box.dial("a"))
        other.execute("ROLLBACK")
    wait_until(lambda: box.daemon.status()["store"]["state"] == "ok", 20, "the database is back")
    assert 'service "b" is taken in' in box.reload(box.service("a"), box.service("b"))
    assert answers(box.dial("b"))


@pytest.mark.parametrize("fail", ["open", "closed"])
def test_a_router_routes_the_clients_of_a_service_that_is_taken_out(opened: Callable[..., Box], fail: str) -> None:
    """To their server, as if there were no appliance; those that it has stay with it."""
    box = opened(router={"lan": ["lan0"], "fail": fail}, transparent=True)
    old = box.dial("a")
    assert answers(old)
    box.states(1)
    box.reload(box.service("b"))
    routed = box.dial("a")
    assert answers(routed)
    assert answers(old)
    assert box.services_of() == ["a"]
    new = box.dial("b")
    assert answers(new)
    assert box.services_of() == ["a", "b"]
    box.reload(box.service("a"), box.service("b"))
    if fail == "open":
        assert answers(routed), "it is the server's own"
    else:
        with pytest.raises(ConnectionResetError):
            answers(routed)
    assert answers(box.dial("a"))
    assert box.services_of() == ["a", "a", "b"]


@BOTH
def test_a_client_is_one_where_two_services_have_listened(opened: Callable[..., Box], family: int) -> None:
    """The one that was taken out is looked at, too, for the clients that it still has."""
    box = opened(family=family)
    client = box.dial("a")
    assert answers(client)
    box.states(1)
    every = "0.0.0.0" if family == 4 else "::"
    box.reload({**box.service("a"), "name": "again", "listen": endpoint(every, PORTS["a"])})
    assert box.daemon.get(f"/v1/connections/{endpoint(*client.getsockname()[:2])}")["service"] == "a"
    assert answers(client)
