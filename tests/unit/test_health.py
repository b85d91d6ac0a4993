# SPDX-License-Identifier: Apache-2.0
"""Which servers are up: counting, checks of real sockets on loopback, and what the engine and people are told."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from errno import ECONNREFUSED
from typing import Final

import pytest

from appliance.box.checks import CheckFailed, check
from appliance.wire import Event, EventType, Key, ServerAddress, pack_address
from control.config import Config, ConfigError, parse
from control.daemon.health import Health, Tally
from control.policy.reload import reloaded
from control.policy.services import service_spec
from tests.unit.fake_engine import FakeEngine, event

A, B = ("127.0.0.1", 1), ("127.0.0.1", 2)
QUICK: Final = "[service.health]\ninterval = 0.1\ntimeout = 0.1\nrise = 2\nfall = 2\n"


def config(servers: list[ServerAddress], health: str = "", more: str = "") -> Config:
    texts = [f"[{a}]:{p}" if ":" in a else f"{a}:{p}" for a, p in servers]
    service = f'[[service]]\nname = "a"\nlisten = "192.0.2.1:5"\nservers = {texts}\n{more}\n'
    return parse(service.replace("'", '"') + health)


def watch(health: Health, found: Config) -> None:
    health.watch(dict(enumerate(found.service, 1)))


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@contextmanager
def listening(address: str = "127.0.0.1", port: int = 0) -> Iterator[ServerAddress]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family) as listener:
        yield listener.getsockname()[:2]


@pytest.mark.parametrize(
    ("heard", "states"),
    [
        ("---", "UUD"),
        ("--+---", "UUUUUD"),
        ("---+", "UUDD"),
        ("---+-++", "UUDDDDU"),
        ("---++---", "UUDDUUUD"),
    ],
)
def test_only_so_many_in_a_row_change_what_is_known(heard: str, states: str) -> None:
    tally = Tally(rise=2, fall=3)
    seen = []
    for one in heard:
        before = tally.up
        assert tally.heard(one == "+") == (tally.up != before)
        seen.append("U" if tally.up else "D")
    assert "".join(seen) == states


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_connection_is_enough_for_tcp(address: str) -> None:
    with listening(address) as server:
        asyncio.run(check(server, "tcp", "", 1))
    with pytest.raises(CheckFailed, match=r"^connection refused$"):
        asyncio.run(check(server, "tcp", "", 1))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.0 302 Found\r\n\r\n", ""),
        (b"HTTP/1.1 204\r\n\r\n", ""),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "GET /alive is answered 503"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "GET /alive is answered 100"),
        (b"SSH-2.0-OpenSSH\r\n", "no HTTP answer"),
        (b"HTTP/1.1 2", "no HTTP answer"),
        (b"", "no HTTP answer"),
        (b"x" * 5000, "no HTTP answer"),
        (None, "no answer within 0.1 s"),
    ],
)
def test_http_wants_a_good_answer(answer: bytes | None, complaint: str) -> None:
    asked = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        where = server.sockets[0].getsockname()
        try:
            await check(where, "http", "/alive", 0.1 if answer is None else 5)
        finally:
            server.close()
        assert asked.startswith(b"GET /alive HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % where[1])

    if complaint:
        with pytest.raises(CheckFailed) as caught:
            asyncio.run(run())
        assert str(caught.value) == complaint
    else:
        asyncio.run(run())


def in_a_loop(steps: Callable[[FakeEngine, Health], Awaitable[None]]) -> FakeEngine:
    """Run steps with an engine and what watches its servers."""
    engine = FakeEngine()
    health = Health(engine)

    async def run() -> None:
        try:
            await steps(engine, health)
        finally:
            health.close()

    asyncio.run(run())
    return engine


def test_a_server_goes_down_and_comes_up_again_and_people_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roost.health")
    with listening() as good, listening() as other:
        pass

    async def steps(engine: FakeEngine, health: Health) -> None:
        found = config([good, other], QUICK)
        engine.add_service(service_spec(found.service[0], 1, found))
        with listening(*good):
            watch(health, found)
            await until(lambda: (1, other, False) in engine.marks)
            rows = {row["server"]: row for row in health.rows(1)}
            assert rows[f"127.0.0.1:{good[1]}"]["state"] == "up"
            down = rows[f"127.0.0.1:{other[1]}"]
            assert (down["state"], down["reason"]) == ("down", "connection refused (2 checks in a row)")
        await until(lambda: (1, good, False) in engine.marks)
        with listening(*other):
            await until(lambda: engine.marks[-1] == (1, other, True))
        assert [row["reason"] for row in health.rows(1) if row["state"] == "up"] == [""]

    in_a_loop(steps)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == (f'server 127.0.0.1:{other[1]} of service "a" is down: connection refused (2 checks in a row)')
    assert 'service "a" has no server that is up' in said
    assert f'server 127.0.0.1:{other[1]} of service "a" is up again' in said


def link_failed(server: ServerAddress, count: int = 3) -> Event:
    key = Key(pack_address("192.0.2.9"), 4000, pack_address(server[0]), server[1])
    return event(EventType.SERVER_DOWN, key, 7, error=ECONNREFUSED, count=count)


def test_a_server_that_the_engine_took_down_gets_another_chance(caplog: pytest.LogCaptureFixture) -> None:
    async def steps(engine: FakeEngine, health: Health) -> None:
        health.link_failed(link_failed(A))  # before anything listens
        health.link_failed(link_failed(("10.0.0.9", 9)))  # no server's
        watch(health, config([A, B], '[service.health]\ncheck = "none"\nfail_timeout = 0.05\n'))
        assert engine.marks == [(1, A, True), (1, B, True), (1, A, False)]
        await until(lambda: engine.marks[-1] == (1, A, True))
        await asyncio.to_thread(health.link_failed, link_failed(B, 1))
        await until(lambda: engine.marks[-1] == (1, B, True))
        assert engine.marks[-2] == (1, B, False)

    in_a_loop(steps)
    assert 'server 127.0.0.1:2 of service "a" is down: connection refused (1 link in a row)' in caplog.text


def test_a_change_of_the_configuration_leaves_alone_what_it_does_not_name() -> None:
    async def steps(engine: FakeEngine, health: Health) -> None:
        watch(health, config([A, B], '[service.health]\ncheck = "none"\n'))
        health.link_failed(link_failed(A))
        await until(lambda: (1, A, False) in engine.marks)
        engine.marks.clear()
        third = ("127.0.0.1", 3)
        watch(health, config([A, third], '[service.health]\ncheck = "none"\n', more='balance = "source-hash"'))
        assert engine.marks == [(1, third, True)], "the new one alone: what is known of the others stays"
        watch(health, config([A, third], '[service.health]\ncheck = "none"\nfail_timeout = 3\n'))
        assert set(engine.marks) == {(1, A, True), (1, third, True)}, "watched in another way: all begin anew"

    in_a_loop(steps)


def test_a_single_server_is_not_watched_unless_a_key_says_so() -> None:
    base = '[[service]]\nname = "a"\nlisten = "192.0.2.1:5"\nserver = "192.0.2.2:6"\n'
    (plain,) = parse(base).service
    assert (plain.check, plain.max_fails, plain.every_server) == ("none", 0, ("192.0.2.2:6",))
    (checked,) = parse(base + '[service.health]\ncheck = "http"\nmax_fails = 1').service
    assert (checked.check, checked.max_fails) == ("http", 1)
    (several,) = config([A, B]).service
    assert (several.check, several.max_fails) == ("tcp", 3)


TRANSPARENT = '[network]\ninterfaces = ["w"]\n[router]\nlan = ["l"]\n[[service]]\nname = "a"\nlisten = "192.0.2.1:5"\n'
LIST = 'servers = ["192.0.2.2:6", "192.0.2.3:6"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{base}server = '192.0.2.9:1'\n{list}",
            "has both `server` and `servers`; `server` is short for a list of one",
        ),
        ("{base}servers = []", '[[service]] "a": the key `server` is missing'),
        ("{base}servers = ['192.0.2.2:6', '192.0.2.2:6']", "names a server twice in `servers`"),
        ("{base}servers = ['there']", '"there" is no server; write "192.0.2.1:80"'),
        ("{base}{list}balance = 'random'", "`balance` in [[service]] \"a\": Input should be 'least-connections'"),
        ("{base}{list}[service.health]\nrise = 0", '`rise` in [service.health] of [[service]] "a": Input should be'),
        ("{base}{list}[service.health]\nfal = 3", 'unknown key `fal` in [service.health] of [[service]] "a"; did you'),
        ("{base}{list}[service.health]\ncheck = 'icmp'", "`check` in [service.health] of"),
        ("{base}{list}[service.health]\npath = 'alive'", "`path` in [service.health] of"),
        (
            "{transparent}transparent = true\n{list}",
            "is transparent and has `servers`: each of its clients means its own",
        ),
        ("{transparent}transparent = true\nbalance = 'source-hash'", "is transparent and has `balance`"),
        ("{transparent}transparent = true\n[service.health]\nrise = 3", "is transparent and has `health`"),
        ("{transparent}source = 'client'\nservers = ['192.0.2.2:6', '[fd00::1]:6']", "are both IPv4 or both IPv6"),
    ],
)
def test_what_is_wrong_with_servers_is_said(text: str, message: str) -> None:
    base = '[[service]]\nname = "a"\nlisten = "192.0.2.1:5"\n'
    whole = text.format(base=base, list=LIST, transparent=TRANSPARENT).replace("'", '"')
    with pytest.raises(ConfigError) as caught:
        parse(whole)
    assert message in str(caught.value)


def test_servers_stay_where_their_service_cannot_be_changed_alive() -> None:
    (old,) = config([A, B]).service
    (new,) = config([A], more='balance = "source-hash"').service
    assert reloaded(old, new).every_server == ("127.0.0.1:1",)
    moved = new.model_copy(update={"listen": "192.0.2.1:7"})
    assert (reloaded(old, moved).every_server, reloaded(old, moved).listen) == (old.every_server, old.listen)
    assert reloaded(old, moved).balance == "source-hash"
