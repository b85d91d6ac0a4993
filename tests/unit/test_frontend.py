# SPDX-License-Identifier: Apache-2.0
"""The attach addresses: a socket's way to the engine, in each protocol, and the bounds of those that get nowhere."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from errno import EBUSY, ENOENT, ENOTCONN, ETIMEDOUT
from ipaddress import ip_network
from itertools import count
from typing import Any

import pytest

from appliance.frontends import connect, frontend, socks5
from appliance.frontends.frontend import Frontend, Settings, bind
from appliance.frontends.passwords import PasswordHash, Users
from appliance.frontends.target import Address, Name, Target
from tests.descriptors import no_collection, open_descriptors

CONNECT = b"CONNECT 192.0.2.7:40123 HTTP/1.1\r\nHost: 192.0.2.7:40123\r\n\r\n"
GREETING = b"\x05\x01\x00"
SOCKS = b"\x05\x01\x00\x01\xc0\x00\x02\x07\x9c\xbb"
CLIENT = Address("192.0.2.7", 40123)

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


def cheap(password: bytes) -> PasswordHash:
    """A hash that costs nothing; `PasswordHash.parse` would refuse it."""
    import hashlib

    return PasswordHash(2, 1, 1, b"saltsalt", hashlib.scrypt(password, salt=b"saltsalt", n=4, r=1, p=1, dklen=32))


class FakeAttacher:
    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.calls: list[tuple[Target, bytes, bytes]] = []
        self.protocols: list[str] = []
        self.server: socket.socket | None = None

    async def attach(self, target: Target, sock: socket.socket, preamble: bytes, early: bytes, timeout_s: float,
                     protocol: str) -> int:  # fmt: skip
        self.calls.append((target, preamble, early))
        self.protocols.append(protocol)
        await asyncio.sleep(0)
        if not self.error:
            self.server = sock.dup()
        return self.error


class Rig:
    """A front end on a port of its own."""

    def __init__(self, attacher: FakeAttacher, settings: Settings) -> None:
        self.frontend = Frontend(attacher, settings)

    async def __aenter__(self) -> Rig:
        self.where = self.frontend.serve(bind("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.frontend.close()

    async def open(self, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.where, local_addr=(source, 0))

    async def ask(self, *pieces: bytes, source: str = "127.0.0.1") -> bytes:
        """What comes back until the front end closes, when these pieces are written one by one."""
        reader, writer = await self.open(source)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)
        try:
            return await asyncio.wait_for(reader.read(), 5)
        finally:
            writer.close()


def run(attacher: FakeAttacher, work: Callable[[Rig], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        async with Rig(attacher, replace(Settings(1.0, handshake_s=5.0), **settings)) as rig:
            return await asyncio.wait_for(work(rig), 10)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "before", "preamble"),
    [(CONNECT, b"", connect.PREAMBLE), (GREETING + SOCKS, b"\x05\x00", socks5.PREAMBLE)],
    ids=["connect", "socks5"],
)
def test_the_socket_goes_to_the_engine_and_stays_open(sent: bytes, before: bytes, preamble: bytes) -> None:
    attacher = FakeAttacher()

    async def work(rig: Rig) -> None:
        reader, writer = await rig.open()
        writer.write(sent + b"hello client")
        while attacher.server is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # the front end closes its copy meanwhile; the connection must live on
        attacher.server.setblocking(True)
        attacher.server.sendall(b"from the engine")
        writer.write(b"later")
        await writer.drain()
        assert await reader.readexactly(len(before) + 15) == before + b"from the engine"
        assert await asyncio.to_thread(attacher.server.recv, 5) == b"later"
        writer.close()
        attacher.server.close()
        assert rig.frontend.counts == {"attached": 1, "refused": 0, "dropped": 0, "released": 0}

    run(attacher, work)
    assert attacher.calls == [(CLIENT, preamble, b"hello client")]
    assert attacher.protocols == ["connect" if preamble.startswith(b"HTTP") else "socks5"]


def test_a_name_goes_to_the_engine_as_a_name() -> None:
    attacher = FakeAttacher(ENOENT)
    run(attacher, lambda rig: rig.ask(b"CONNECT Thermo.roost:80 HTTP/1.1\r\nHost: x\r\n\r\n"))
    run(attacher, lambda rig: rig.ask(GREETING, b"\x05\x01\x00\x03\x0cthermo.roost\x00\x50"))
    assert [call[0] for call in attacher.calls] == [Name("thermo.roost")] * 2


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ENOENT, b"404 Not Found", 4),
        (EBUSY, b"409 Conflict", 5),
        (ETIMEDOUT, b"504 Gateway Timeout", 6),
        (ENOTCONN, b"502 Bad Gateway", 5),
    ],
)
def test_a_refused_attach_is_answered_in_the_protocol_of_who_asked(error: int, status: bytes, code: int) -> None:
    answer = run(FakeAttacher(error), lambda rig: rig.ask(CONNECT))
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert b"Connection: close" in answer
    answer = run(FakeAttacher(error), lambda rig: rig.ask(GREETING, SOCKS))
    assert answer == b"\x05\x00" + bytes([5, code, 0, 1, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("protocols", "sent", "answer"),
    [
        (("connect",), GREETING, b"\x05\xff"),
        (("socks5",), CONNECT, b"HTTP/1.1 501 Not Implemented\r\n"),
        (("connect",), CONNECT, b"HTTP/1.1 404 "),
        (("socks5",), GREETING + SOCKS, b"\x05\x00\x05\x04"),
        (("connect", "socks5"), b"\x04\x01", b"HTTP/1.1 400 "),
    ],
)
def test_what_is_not_served_is_refused_in_its_own_words(protocols: tuple[str, ...], sent: bytes, answer: bytes) -> None:
    said = run(FakeAttacher(ENOENT), lambda rig: rig.ask(sent + b"\r\n\r\n"), protocols=protocols)
    assert said.startswith(answer)


# -- users ------------------------------------------------------------------------------------------------------------


def basic(text: bytes) -> bytes:
    field = b"Proxy-Authorization: Basic " + base64.b64encode(text) + b"\r\n\r\n"
    return CONNECT.removesuffix(b"\r\n") + field


def rfc1929(user: bytes, password: bytes) -> bytes:
    return b"\x01" + bytes([len(user)]) + user + bytes([len(password)]) + password


def test_only_a_user_with_its_password_reaches_the_table_of_clients() -> None:
    attacher = FakeAttacher(ENOENT)

    async def work(rig: Rig) -> None:
        each = (f"127.0.1.{n}" for n in count(1))  # of which none waits for what another one has guessed
        for wrong in (CONNECT, basic(b"bob:no"), basic(b"eve:right"), basic(b":"), basic(b"bob:right ")):
            said = await rig.ask(wrong, source=next(each))
            assert said.startswith(b"HTTP/1.1 407 Proxy Authentication Required\r\n")
        assert await rig.ask(GREETING, SOCKS) == b"\x05\xff"
        for user, password in ((b"bob", b"no"), (b"eve", b"right"), (b"", b"")):
            asked = b"\x05\x01\x02", rfc1929(user, password), SOCKS
            assert await rig.ask(*asked, source=next(each)) == b"\x05\x02\x01\x01"
        assert attacher.calls == []
        for _ in range(2):  # worked out, and then known again
            assert (await rig.ask(basic(b"bob:right"))).startswith(b"HTTP/1.1 404 ")
            said = await rig.ask(b"\x05\x02\x00\x02", rfc1929(b"bob", b"right"), SOCKS)
            assert said.startswith(b"\x05\x02\x01\x00\x05\x04")
        assert len(attacher.calls) == 4
        assert (await rig.ask(basic(b"bob:no"))).startswith(b"HTTP/1.1 407 ")

    run(attacher, work, users=Users({"bob": cheap(b"right")}))


def test_a_wrong_password_is_refused_in_the_same_words_whether_or_not_the_client_exists() -> None:
    said = {run(FakeAttacher(error), lambda rig: rig.ask(basic(b"bob:no")), users=Users({"bob": cheap(b"x")}))
            for error in (0, ENOENT)}  # fmt: skip
    assert len(said) == 1


class Slow(PasswordHash):
    """Takes a twentieth of a second, and counts."""

    ever = 0

    def matches(self, password: bytes) -> bool:
        Slow.ever += 1
        time.sleep(0.05)
        return password == b"right"


@pytest.mark.parametrize("protocol", ["connect", "socks5"])
def test_who_guesses_passwords_keeps_no_other_source_from_logging_in(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    Slow.ever = 0

    async def work(rig: Rig) -> None:
        guesses = [asyncio.create_task(guess(rig, b"wrong %d" % n, "127.0.0.1")) for n in range(200)]
        await asyncio.sleep(0.3)
        for said in await asyncio.gather(*(guess(rig, b"right", "127.0.0.2") for _ in range(3))):
            assert said.startswith(b"HTTP/1.1 404 " if protocol == "connect" else b"\x05\x02\x01\x00\x05\x04")
        refused = [guess.result() for guess in guesses if guess.done()]
        assert len(refused) >= 180, "as many as may wait do so, the others are told at once"
        if protocol == "connect":
            assert sum(said.startswith(b"HTTP/1.1 429 Too Many Requests\r\n") for said in refused) >= 180
        else:
            assert set(refused) == {b"\x05\x02\x01\x01"}
        assert rig.frontend.counts["refused"] >= len(refused) + 3
        assert Slow.ever < 12, "after a wrong password the next one of its source waits"
        for waiting in guesses:
            waiting.cancel()

    async def guess(rig: Rig, password: bytes, source: str) -> bytes:
        if protocol == "connect":
            return await rig.ask(basic(b"bob:" + password), source=source)
        return await rig.ask(b"\x05\x01\x02", rfc1929(b"bob", password), SOCKS, source=source)

    run(FakeAttacher(ENOENT), work, users=Users({"bob": Slow(2, 1, 1, b"", b"")}), handshake_s=4.0)


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drip", "answer"),
    [
        (CONNECT, b"HTTP/1.1 408 "),
        (GREETING + b"\x05\x01\x00\x03\xff" + b"x" * 255, b"\x05\x00\x05\x01"),
        (b"\x05\xff" + b"\x01" * 300, b"\x05\xff"),
        (b"", b""),
    ],
    ids=["connect", "socks5 request", "socks5 methods", "nothing"],
)
def test_one_byte_at_a_time_does_not_outlast_the_time_for_the_whole(drip: bytes, answer: bytes) -> None:
    async def work(rig: Rig) -> tuple[bytes, float]:
        reader, writer = await rig.open()
        began = time.monotonic()
        reading = asyncio.create_task(reader.read())
        for byte in drip:
            if reading.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        said = await reading
        writer.close()
        return said, time.monotonic() - began

    said, took = run(FakeAttacher(), work, handshake_s=0.2)
    assert said.startswith(answer)
    assert bool(said) == bool(answer)
    assert 0.15 < took < 2.0


def test_a_password_that_is_being_checked_counts_towards_the_time() -> None:
    class Sleepy(Users):
        async def check(self, credentials: object, source: str) -> bool:
            await asyncio.sleep(60)
            return True

    said = run(FakeAttacher(), lambda rig: rig.ask(basic(b"a:b")), users=Sleepy({"a": cheap(b"b")}), handshake_s=0.1)
    assert said.startswith(b"HTTP/1.1 408 ")


def test_more_handshakes_than_allowed_are_refused_in_their_protocol_and_then_not_at_all() -> None:
    attacher = FakeAttacher(ENOENT)

    async def work(rig: Rig) -> None:
        held = [await rig.open() for _ in range(3)]
        await asyncio.sleep(0.05)
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert await rig.ask(GREETING, SOCKS) == b"\x05\x00\x05\x01\x00\x01\0\0\0\0\0\0"
        waiting = [await rig.open() for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await rig.ask() == b""
        assert rig.frontend.counts == {"attached": 0, "refused": 2, "dropped": 1, "released": 0}
        held[0][1].close()
        await asyncio.sleep(0.05)
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 404 ")
        for _, writer in held + waiting:
            writer.close()

    run(attacher, work, max_handshakes=3, max_turned_away=2)
    assert len(attacher.calls) == 1


def test_an_overloaded_front_end_works_out_no_hash() -> None:
    class Never(Users):
        async def check(self, credentials: object, source: str) -> bool:
            raise AssertionError("it was asked")

    async def work(rig: Rig) -> None:
        assert (await rig.ask(basic(b"a:b"))).startswith(b"HTTP/1.1 503 ")
        assert await rig.ask(b"\x05\x01\x02", rfc1929(b"a", b"b")) == b"\x05\x02\x01\x01"

    run(FakeAttacher(), work, users=Never({"a": cheap(b"b")}), max_handshakes=0)


def test_a_source_that_asks_for_nothing_keeps_no_other_out() -> None:
    """Of its connections so many wait for their requests; what comes then is refused, from elsewhere it is served."""

    async def work(rig: Rig) -> None:
        idle = [await rig.open() for _ in range(6)]
        await asyncio.sleep(0.05)
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 429 ")
        assert (await rig.ask(CONNECT, source="127.0.0.2")).startswith(b"HTTP/1.1 404 ")
        for _, writer in idle:
            writer.close()
        await asyncio.sleep(0.05)
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 404 "), "their places are free again"

    run(FakeAttacher(ENOENT), work, max_handshakes=5, max_of_source=4)


def test_a_source_that_has_asked_may_wait_for_as_many_clients_as_others() -> None:
    class Slow(FakeAttacher):
        async def attach(self, *_: object) -> int:
            await asyncio.sleep(0.2)
            return ENOENT

    async def work(rig: Rig) -> None:
        said = await asyncio.gather(*(rig.ask(CONNECT) for _ in range(8)))
        assert {answer[:12] for answer in said} == {b"HTTP/1.1 404"}

    run(Slow(), work, max_of_source=8, max_handshakes=8)


def test_a_source_whose_clients_do_not_come_keeps_no_other_out() -> None:
    """Until all that it asked for is answered, it has a quarter of the places; one kept all 1,024 for a minute."""
    come = asyncio.Event()

    class Slow(FakeAttacher):
        waiting = 0

        async def attach(self, *_: object) -> int:
            self.waiting += 1
            await come.wait()
            return ENOENT

    attacher = Slow()

    async def work(rig: Rig) -> None:
        asked = [asyncio.create_task(rig.ask(CONNECT)) for _ in range(2)]
        while attacher.waiting < 2:
            await asyncio.sleep(0.005)
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 429 ")
        asked.append(asyncio.create_task(rig.ask(CONNECT, source="127.0.0.2")))
        while attacher.waiting < 3:
            await asyncio.sleep(0.005)
        come.set()
        assert {answer[:12] for answer in await asyncio.gather(*asked)} == {b"HTTP/1.1 404"}
        while rig.frontend._handshakes:
            await asyncio.sleep(0.005)
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 404 "), "its places are free again"

    run(attacher, work, max_places_of_source=2)


def test_where_all_are_one_source_those_that_ask_for_nothing_make_room_the_oldest_first() -> None:
    come = asyncio.Event()

    class Slow(FakeAttacher):
        waiting = 0

        async def attach(self, *_: object) -> int:
            self.waiting += 1
            await come.wait()
            return ENOENT

    attacher = Slow()

    async def work(rig: Rig) -> None:
        asked = [asyncio.create_task(rig.ask(CONNECT))]
        while not attacher.waiting:
            await asyncio.sleep(0.005)
        idle = []
        for n in range(2, 4):
            idle.append(await rig.open())
            while len(rig.frontend._handshakes) < n:
                await asyncio.sleep(0.005)
        asked.append(asyncio.create_task(rig.ask(CONNECT)))
        assert await idle[0][0].read() == b"", "it goes"
        while attacher.waiting < 2:
            await asyncio.sleep(0.005)
        idle.append(await rig.open())
        assert await idle[1][0].read() == b""
        idle[2][1].write(CONNECT)
        while attacher.waiting < 3:
            await asyncio.sleep(0.005)
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 503 "), "those that wait for a client stay"
        come.set()
        assert {answer[:12] for answer in await asyncio.gather(*asked)} == {b"HTTP/1.1 404"}
        assert rig.frontend.counts["dropped"] == 2
        for _, writer in idle:
            writer.close()

    run(attacher, work, max_handshakes=3, makes_room=True)


def test_a_source_beyond_its_limit_is_refused_in_its_protocol() -> None:
    async def work(rig: Rig) -> None:
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 429 ")
        assert await rig.ask(GREETING, SOCKS) == b"\x05\x00\x05\x01" + bytes(8)[:1] + b"\x01" + bytes(6)
        assert (await rig.ask(CONNECT, source="127.0.0.2")).startswith(b"HTTP/1.1 404 ")
        assert rig.frontend.counts["refused"] == 3

    run(FakeAttacher(ENOENT), work, may_attach=lambda address: address != "127.0.0.1")


def test_servers_of_other_networks_than_those_that_are_listed_are_refused_in_their_protocol(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(rig: Rig) -> None:
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 403 ")
        assert (await rig.ask(GREETING, SOCKS))[:4] == b"\x05\x00\x05\x02"
        assert (await rig.ask(CONNECT, source="127.0.0.2")).startswith(b"HTTP/1.1 404 ")

    def may_attach(address: str) -> bool:
        """Those of other networks take nothing from a limit, and are told of none."""
        assert address == "127.0.0.2"
        return True

    networks = [ip_network("127.0.0.2/31"), ip_network("fd00::/8")]
    run(FakeAttacher(ENOENT), work, networks=networks, may_attach=may_attach)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["attach: 127.0.0.1 is refused: its address is in none of [attach] networks"] * 2, "no 404"


def test_who_is_refused_and_does_not_leave_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "LINGER_S", 0.1)

    async def work(rig: Rig) -> None:
        reader, writer = await rig.open()
        writer.write(CONNECT)
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
        assert len(rig.frontend._handshakes) == 1
        await asyncio.sleep(0.3)
        assert len(rig.frontend._handshakes) == 0
        writer.close()

    run(FakeAttacher(ENOENT), work)


def test_a_refusal_is_not_overtaken_by_what_was_not_read() -> None:
    said = run(FakeAttacher(), lambda rig: rig.ask(b"CONNECT 192.0.2.7 HTTP/1.1\r\nHost: a\r\n\r\n" + b"x" * 50_000))
    assert said.startswith(b"HTTP/1.1 400 ")


def test_a_server_that_leaves_early_harms_nobody() -> None:
    attacher = FakeAttacher()

    async def work(rig: Rig) -> bytes:
        reader, writer = await rig.open()
        writer.write(CONNECT[:10])
        writer.write_eof()
        said = await reader.read()
        writer.close()
        return said

    assert run(attacher, work).startswith(b"HTTP/1.1 400 ")
    assert not attacher.calls


def test_an_address_in_use_is_named() -> None:
    async def work(rig: Rig) -> None:
        address, port = rig.where
        with pytest.raises(OSError, match=f"cannot listen on {address} port {port} for attach"):
            bind(address, port)

    run(FakeAttacher(), work)


def test_a_defect_is_answered_and_the_frontend_lives() -> None:
    class Broken(FakeAttacher):
        async def attach(self, *_: object) -> int:
            raise RuntimeError("defect")

    async def work(rig: Rig) -> None:
        assert (await rig.ask(CONNECT)).startswith(b"HTTP/1.1 500 ")
        assert await rig.ask(GREETING, SOCKS) == b"\x05\x00\x05\x01\x00\x01\0\0\0\0\0\0"

    run(Broken(), work)


def test_no_descriptor_is_left_behind() -> None:
    async def work(rig: Rig) -> None:
        before = open_descriptors()
        for pieces in ((CONNECT,), (GREETING, SOCKS), (b"\x05\x01\x07",), (CONNECT[:9],)):
            reader, writer = await rig.open()
            for piece in pieces:
                writer.write(piece)
            writer.write_eof()
            await reader.read()
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.05)
        assert open_descriptors() == before

    with no_collection():
        run(FakeAttacher(EBUSY), work)


# -- servers that have released their clients -------------------------------------------------------------------------


async def taken(attacher: FakeAttacher) -> socket.socket:
    """The socket that the engine has."""
    while attacher.server is None:
        await asyncio.sleep(0.01)
    server, attacher.server = attacher.server, None
    return server


def test_a_server_that_has_released_its_client_may_ask_for_another_one() -> None:
    attacher = FakeAttacher()

    async def work(rig: Rig) -> None:
        reader, writer = await rig.open()
        writer.write(CONNECT)
        for sent in (GREETING + SOCKS, CONNECT, CONNECT + b"early"):
            fd = (await taken(attacher)).detach()
            await asyncio.to_thread(rig.frontend.take_back, fd)
            await asyncio.sleep(0.05)
            writer.write(sent)
        (await taken(attacher)).close()
        assert await reader.read() == b"\x05\x00"
        writer.close()
        assert attacher.protocols == ["connect", "socks5", "connect", "connect"]
        assert attacher.calls[-1] == (CLIENT, connect.PREAMBLE, b"early")
        assert rig.frontend.counts == {"attached": 4, "refused": 0, "dropped": 0, "released": 3}

    run(attacher, work)


def test_who_asks_for_no_other_client_is_closed_in_time_and_no_more_than_so_many_are_kept() -> None:
    attacher = FakeAttacher()

    async def work(rig: Rig) -> None:
        readers = []
        for _ in range(3):
            reader, writer = await rig.open()
            writer.write(CONNECT)
            rig.frontend.take_back((await taken(attacher)).detach())
            readers.append((reader, writer))
        began = time.monotonic()
        assert await readers[2][0].read() == b"", "two are kept"
        assert time.monotonic() - began < 0.3
        readers[1][1].close()
        assert await readers[0][0].read() == b""
        assert time.monotonic() - began > 0.4
        assert rig.frontend.counts["dropped"] == 1
        for _, writer in readers:
            writer.close()

    run(attacher, work, released_s=0.5, max_released=2)


def test_the_end_takes_servers_along_that_have_released_their_clients() -> None:
    attacher = FakeAttacher()

    async def main() -> None:
        async with Rig(attacher, Settings(1.0)) as rig:
            reader, writer = await rig.open()
            writer.write(CONNECT)
            rig.frontend.take_back((await taken(attacher)).detach())
            await asyncio.sleep(0.05)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    asyncio.run(main())


def test_one_that_leaves_has_asked_for_nobody() -> None:
    attacher = FakeAttacher()

    async def work(rig: Rig) -> None:
        _, writer = await rig.open()
        writer.write(CONNECT)
        fd = (await taken(attacher)).detach()
        rig.frontend.take_back(fd)
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.1)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
        assert rig.frontend.counts == {"attached": 1, "refused": 0, "dropped": 0, "released": 1}

    run(attacher, work)


def test_a_socket_that_comes_when_the_loop_has_ended_is_closed() -> None:
    attacher = FakeAttacher()

    async def main() -> Frontend:
        async with Rig(attacher, Settings(1.0)) as rig:
            return rig.frontend

    ended = asyncio.run(main())
    ours, theirs = socket.socketpair()
    ended.take_back(ours.detach())
    assert theirs.recv(1) == b""
    theirs.close()
