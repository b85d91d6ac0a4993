# SPDX-License-Identifier: Apache-2.0
"""Links to servers that are made before a client needs them: figures 4, 5 (508) and 8."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import time
from typing import Any

import pytest

from appliance.lab import Lab, endpoint, wait_until
from appliance.wire import Command, Op, ServerAddress
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.several_servers import Servers, servers_of

BOTH = pytest.mark.parametrize("family", [4, 6])
Link = tuple[ServerAddress, socket.socket]


def ready(servers: Servers) -> dict[ServerAddress, int]:
    return {server: status.ready for server, status in servers.status().items()}


def accepted(servers: Servers, count: int) -> list[Link]:
    """That many links, once the appliance knows that they are made."""
    links = [servers.accept() for _ in range(count)]
    servers.box.wait(lambda: sum(ready(servers).values()) == count, f"{count} links are ready")
    return links


def is_silent(link: socket.socket, for_s: float = 0.2) -> bool:
    link.settimeout(for_s)
    try:
        return bool(link.recv(1)) and False
    except TimeoutError:
        return True
    finally:
        link.settimeout(5)


def speaks_on(servers: Servers, links: list[Link], said: bytes) -> socket.socket:
    """Which of these links a client's bytes come by."""
    found: list[socket.socket] = []

    def arrived() -> bool:
        for _, link in links:
            link.setblocking(False)
            try:
                if link.recv(len(said), socket.MSG_PEEK) == said:
                    found.append(link)
            except BlockingIOError:
                pass
            link.settimeout(5)
        return bool(found)

    servers.box.wait(arrived, f"{said!r} comes by a link that was ready")
    return found[0]


def to_idle(box: EngineLab, client: socket.socket) -> None:
    key = box.key_of(client)
    for op, state in ((Op.STANDBY, State.STANDBY), (Op.IDLE, State.IDLE)):
        time.sleep(0.06)  # a delayed ACK of the client: nothing may be in flight
        box.engine.submit([Command(op, cause=Cause.COMMAND, key=key)])
        box.wait(lambda state=state: (found := box.engine.find(key)) and found.to_state == state, state.name)  # type: ignore[misc]


@BOTH
def test_figure_5_a_client_has_a_server_that_is_connected_already(box: EngineLab, family: int) -> None:
    with servers_of(box, family, ready_links=2) as servers:
        links = accepted(servers, 4)
        assert ready(servers) == dict.fromkeys(servers.all, 2)
        client = servers.dial()
        client.sendall(b"question")
        link = speaks_on(servers, links, b"question")
        link.sendall(b"answer")
        assert receive(link, 8) == b"question"
        assert receive(client, 6) == b"answer"
        assert sum(servers.links().values()) == 1, "those that are ready are no links of clients"
        server, _ = servers.accept()
        assert servers.links()[server] == 1, "the link that a client has now is replaced"
        box.wait(lambda: ready(servers) == dict.fromkeys(servers.all, 2), "all are ready again")


@BOTH
def test_figure_8_a_client_that_wakes_is_linked_without_a_handshake(box: EngineLab, family: int) -> None:
    with servers_of(box, family, count=1, ready_links=1) as servers:
        links = accepted(servers, 1)
        client = servers.dial()
        client.sendall(b"hello")
        link = speaks_on(servers, links, b"hello")
        assert receive(link, 5) == b"hello"
        links = accepted(servers, 1)
        link.sendall(b"hello")
        assert receive(client, 5) == b"hello"
        to_idle(box, client)
        client.sendall(b"again")
        woken = speaks_on(servers, links, b"again")
        woken.sendall(b"welcome")
        assert receive(client, 7) == b"welcome"
        assert box.stat("thawed") == 1


@BOTH
@pytest.mark.engine(service={"proxy_header": 2})
def test_whose_link_it_is_the_server_learns_when_it_is_used(box: EngineLab, family: int) -> None:
    with servers_of(box, family, count=1, ready_links=1) as servers:
        ((_, link),) = accepted(servers, 1)
        assert is_silent(link)
        client = servers.dial()
        client.sendall(b"question")
        size = {4: 12, 6: 36}[family]
        header = receive(link, 16 + size)
        assert header[:12] == b"\r\n\r\n\0\r\nQUIT\n"
        assert ipaddress.ip_address(header[16 : 16 + (size - 4) // 2]) == ipaddress.ip_address(client.getsockname()[0])
        assert receive(link, 8) == b"question"


def test_what_a_server_said_before_there_was_a_client_is_the_first_that_one_hears(box: EngineLab) -> None:
    with servers_of(box, 4, count=1, ready_links=1) as servers:
        ((_, link),) = accepted(servers, 1)
        link.sendall(b"220 ready\r\n")
        time.sleep(0.1)
        client = servers.dial()
        client.settimeout(5)
        assert receive(client, 11) == b"220 ready\r\n"
        client.sendall(b"HELO")
        assert receive(link, 4) == b"HELO"


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("last_words", [b"", b"421 timeout"], ids=["silent", "with a word"])
def test_a_link_that_its_server_has_ended_is_no_clients(box: EngineLab, reset: bool, last_words: bytes) -> None:
    with servers_of(box, 4, count=1, ready_links=1) as servers:
        ((_, link),) = accepted(servers, 1)
        link.sendall(last_words)
        if reset:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        link.close()
        client = servers.dial()
        client.sendall(b"question")
        _, link = servers.accept()
        try:
            assert receive(link, 8) == b"question"
        except (AssertionError, TimeoutError):  # the one that was made again came first
            _, link = servers.accept()
            assert receive(link, 8) == b"question"
        link.sendall(b"answer")
        assert receive(client, 6) == b"answer"


def test_a_server_that_ends_them_at_once_is_asked_less_and_less_often(box: EngineLab) -> None:
    with servers_of(box, 4, count=1, ready_links=1) as servers:
        until, ended = time.monotonic() + 2.0, 0
        while (left := until - time.monotonic()) > 0:
            try:
                servers.accept(left)[1].close()
            except AssertionError:
                break
            ended += 1
        assert 2 <= ended <= 4, "at 0, 0.2, 0.6 and 1.4 s"


def test_one_that_nobody_needed_is_made_anew_before_its_server_ends_it(box: EngineLab) -> None:
    began = time.monotonic()
    with servers_of(box, 4, count=1, ready_links=1, ready_ms=1000) as servers:
        _, link = servers.accept()
        assert link.recv(1) == b""
        assert time.monotonic() - began > 0.9
        servers.use(servers.all, ready_links=1, ready_ms=3_600_000)
        ((_, link),) = accepted(servers, 1)
        client = servers.dial()
        client.sendall(b"question")
        assert receive(link, 8) == b"question"


def test_a_server_that_is_down_or_has_left_has_none(box: EngineLab) -> None:
    with servers_of(box, 4, ready_links=1) as servers:
        links = dict(accepted(servers, 2))
        first, second = servers.all
        box.engine.mark_server(box.spec(4).index, first, up=False)
        assert links[first].recv(1) == b""
        box.engine.mark_server(box.spec(4).index, first, up=True)
        assert servers.accept()[0] == first
        servers.use([first], ready_links=1)
        assert links[second].recv(1) == b""
        box.wait(lambda: ready(servers) == {first: 1}, "the other one's stays")
        servers.use([first])
        box.wait(lambda: ready(servers) == {first: 0}, "none is wanted any more")


def test_when_more_wake_than_are_ready_the_others_are_linked_as_ever(box: EngineLab) -> None:
    with servers_of(box, 4, count=1, ready_links=2) as servers:
        accepted(servers, 2)
        clients = [servers.dial() for _ in range(20)]
        for number, client in enumerate(clients):
            client.sendall(b"%02d" % number)
        box.wait(lambda: sum(servers.links().values()) == 20, "each has a link")
        box.wait(lambda: box.stat("bytes_from_clients") == 40, "what each says goes to its server")


@pytest.mark.engine(max_awake=64)
def test_clients_that_find_no_room_to_wake_leave_no_link_behind(box: EngineLab) -> None:
    with servers_of(box, 4, count=1) as servers:
        sleepers = [servers.dial() for _ in range(12)]
        for sleeper in sleepers:
            sleeper.sendall(b"hello")
            assert receive(servers.accept()[1], 5) == b"hello"
        for sleeper in sleepers:
            to_idle(box, sleeper)
        others = [servers.dial() for _ in range(56)]  # pressure begins with one more
        for _ in others:
            servers.accept()
        servers.use(servers.all, ready_links=12)
        accepted(servers, 12)
        for sleeper in sleepers:
            sleeper.sendall(b"again")
        box.wait(lambda: box.stat("wakes_refused") > 0, "there is no room for all")
        box.wait(lambda: box.stat("awake") == 64, "those who found no room sleep on")
        assert sum(servers.links().values()) == 64
        box.wait(lambda: sum(ready(servers).values()) == 0, "where sockets are short there are none")


@pytest.mark.own_engine("it is stopped")
def test_none_is_left_when_the_engine_ends(box: EngineLab) -> None:
    with servers_of(box, 4, count=1, ready_links=3) as servers:
        links = accepted(servers, 3)
        box.stop()
        assert [link.recv(1) for _, link in links] == [b""] * 3


def test_a_service_with_ready_links_tells_how_many_there_are_and_takes_another_number_over() -> None:
    with Lab() as lab:
        server = lab.server(9000)
        address, port = lab.address("box", "wan0"), 8000
        config: dict[str, Any] = {
            **lab.config(),
            "service": [{"name": "s", "listen": endpoint(address, port), "ready_links": 2, "ready_for": "1h",
                         "server": endpoint(lab.address("lan", "eth0"), 9000)}],
        }  # fmt: skip
        daemon = lab.daemon(config)

        def told() -> int:
            return int(daemon.status()["services"][0]["servers"][0]["ready"])

        wait_until(lambda: told() == 2, 10, "two are ready")
        swarm = lab.swarm()
        assert swarm.connect(5, (address, port), rate=100).failed == {}
        assert swarm.say(5, concurrency=1).answered == 5
        text = daemon.config.read_text()
        daemon.config.write_text(text.replace("ready_links = 2", "ready_links = 4"))
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: told() == 4, 10, "four are ready")
        assert daemon.terminate() == 0
        server.close()


# -- links that one client leaves to the next -------------------------------------------------------------------------


def answered(servers: Servers, client: socket.socket, link: socket.socket, number: int = 0) -> None:
    """The client asks, and is answered by this link."""
    question, answer = b"question %d" % number, b"answer %d" % number
    client.sendall(question)
    assert receive(link, len(question)) == question
    link.sendall(answer)
    assert receive(client, len(answer)) == answer


def to_standby(servers: Servers, client: socket.socket) -> None:
    box = servers.box
    key = box.key_of(client)
    time.sleep(0.06)  # a delayed ACK: nothing may be in flight
    box.engine.submit([Command(Op.STANDBY, cause=Cause.COMMAND, key=key)])
    box.wait(lambda: (found := box.engine.find(key)) and found.to_state == State.STANDBY, "STANDBY")


@BOTH
def test_a_client_that_falls_quiet_leaves_its_link_to_the_next_one(box: EngineLab, family: int) -> None:
    with servers_of(box, family, count=1, reuse_links=1) as servers:
        clients = [servers.dial() for _ in range(3)]
        links = [servers.accept()[1] for _ in clients]
        for number, client in enumerate(clients):
            client.sendall(b"which?%d" % number)
        mine = {client: speaks_on(servers, [(servers.all[0], link) for link in links], b"which?%d" % number)
                for number, client in enumerate(clients)}  # fmt: skip
        for client, link in mine.items():
            assert receive(link, 7).startswith(b"which?")
            link.sendall(b"yes")
            assert receive(client, 3) == b"yes"
        first, second, third = clients
        to_standby(servers, first)
        assert box.stat("links_left") == 1
        assert is_silent(mine[first]), "its server hears of no end"
        to_standby(servers, second)  # there is no place for another link
        assert mine[second].recv(1) == b""
        for number in range(4):  # one after the other, by one link
            asking = (second, first)[number % 2]
            answered(servers, asking, mine[first], number)
            to_standby(servers, asking)
        assert box.stat("links_left") == 5
        answered(servers, third, mine[third])
        to_idle(box, first)
        answered(servers, first, mine[first], 9)
        assert servers.links() == {servers.all[0]: 2}


def test_a_command_that_goes_on_behind_the_link_is_answered_when_it_is_done(box: EngineLab) -> None:
    with servers_of(box, 4, count=1, reuse_links=1) as servers:
        client, (_, link) = servers.dial(), servers.accept()
        answered(servers, client, link)
        time.sleep(0.06)
        box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, key=box.key_of(client), token=77)])
        box.wait(lambda: any(event.token == 77 for event in box.events), "the command is answered")
        (told,) = (event for event in box.events if event.token == 77)
        assert (told.from_state, told.to_state) == (State.STANDBY, State.IDLE)
        assert box.stat("links_left") == 1


def test_a_link_on_which_an_answer_may_follow_is_left_to_nobody(box: EngineLab) -> None:
    with servers_of(box, 4, count=1, reuse_links=1) as servers:
        client, (_, link) = servers.dial(), servers.accept()
        client.sendall(b"question")
        assert receive(link, 8) == b"question"
        to_standby(servers, client)
        assert link.recv(1) == b""
        assert box.stat("links_left") == 0


@pytest.mark.parametrize("last", [b"too late", b""], ids=["a word", "its end"])
def test_what_a_server_says_to_nobody_is_no_clients(box: EngineLab, last: bytes) -> None:
    with servers_of(box, 4, count=1, reuse_links=1) as servers:
        client, (_, link) = servers.dial(), servers.accept()
        answered(servers, client, link)
        to_standby(servers, client)
        assert box.stat("links_left") == 1
        if last:
            link.sendall(last)
        else:
            link.close()
        client.sendall(b"again")
        _, link = servers.accept()
        assert receive(link, 5) == b"again"
        link.sendall(b"yes")
        assert receive(client, 3) == b"yes"


def test_a_link_that_was_left_ends_by_time_with_its_server_or_with_the_configuration(box: EngineLab) -> None:
    with servers_of(box, 4, reuse_links=2, ready_ms=1000) as servers:
        clients = {servers.dial(): servers.accept() for _ in range(2)}
        for client, (_, link) in clients.items():
            answered(servers, client, link)
            to_standby(servers, client)
        began = time.monotonic()
        assert [link.recv(1) for _, link in clients.values()] == [b"", b""]
        assert 0.4 < time.monotonic() - began < 3
        servers.use(servers.all, reuse_links=2, ready_ms=3_600_000)
        again = {}
        for client in clients:
            client.sendall(b"again")
            again[client] = servers.accept()
        for client, (_, link) in again.items():
            assert receive(link, 5) == b"again"
            link.sendall(b"yes")
            assert receive(client, 3) == b"yes"
            to_standby(servers, client)
        servers.use(servers.all, reuse_links=1, ready_ms=3_600_000)
        links = dict(again.values())
        assert len(links) == 2, "one of each server stays"
        assert all(is_silent(link) for link in links.values())
        first, second = servers.all
        box.engine.mark_server(box.spec(4).index, first, up=False)
        assert links[first].recv(1) == b""
        servers.use(servers.all)
        assert links[second].recv(1) == b""
