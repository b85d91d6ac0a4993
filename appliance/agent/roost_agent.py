#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""roost-agent: lets servers reach clients that keep no connection to the appliance themselves (docs/agents.md).

One file, Python 3.9 or later, the standard library alone: copy it to the client, or to a machine on the client's side
of the firewall. It keeps one control connection to the appliance, on which nothing is sent until a server asks for
one of its clients:

    --accepting camera=127.0.0.1:80           opens a data connection to the appliance and one to this port, joins them
    --initiating meter@telemetry=run:COMMAND  makes the client connect to the appliance's service `telemetry` by itself
                                =unix:PATH    the same: writes a line to a Unix socket
                                =signal:USR1:PIDFILE    the same: sends a signal

What a client must say first, when it connects, is passed on as ROOST_SAY to COMMAND, and as the line's third word.

The appliance's daemon imports the protocol's codec from here, so that there is one definition of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import os
import random
import secrets
import shlex
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Union

log = logging.getLogger("roost-agent")

VERSION = 1
MAX_LINE = 16 * 1024
"""Bytes of the longest line, its LF included."""

MAX_CLIENTS = 64
"""Clients of one agent."""

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 60.0
CONNECT_S = 15.0
LINGER_S = 10.0
MAX_SESSIONS = 256
CHUNK = 64 * 1024


class ProtocolError(Exception):
    """The other side does not keep to the protocol."""


# -- the codec: lines of JSON -----------------------------------------------------------------------------------------


def encode(message: dict[str, Any]) -> bytes:
    """A message as its line. ProtocolError when that is longer than MAX_LINE."""
    line = json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
    if len(line) > MAX_LINE:
        raise ProtocolError(f"a line of {len(line)} bytes; at most {MAX_LINE}")
    return line


class Lines:
    """Bytes in, messages out; keeps one unfinished line of at most MAX_LINE bytes."""

    def __init__(self) -> None:
        self._waiting = b""

    @property
    def unfinished(self) -> bytes:
        """The bytes of the line that has no end yet."""
        return self._waiting

    def feed(self, data: bytes) -> None:
        self._waiting += data

    def next_message(self) -> dict[str, Any] | None:
        """The next whole message, None: more bytes are needed. Raises ProtocolError when it is none."""
        line, lf, rest = self._waiting.partition(b"\n")
        if len(line) >= MAX_LINE:
            raise ProtocolError(f"a line longer than {MAX_LINE} bytes")
        if not lf:
            return None
        self._waiting = rest
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            raise ProtocolError("a line that is no JSON") from None
        if not isinstance(message, dict):
            raise ProtocolError("a line that is no JSON object")
        return message


def backoff_s(failures: int, chance: Callable[[], float] = random.random) -> float:
    """How long to wait before the next attempt after so many failures in a row: exponential, with full jitter, so that
    the agents of an appliance that comes back do not come all at once."""
    return chance() * min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(failures, 16))


def token_digest(token: str) -> str:
    """What the appliance's configuration knows of a token."""
    return hashlib.sha256(token.encode("utf-8")).hexdigest()


# -- clients ----------------------------------------------------------------------------------------------------------


class ClientError(Exception):
    """The client cannot be reached; the server that asked is told so."""


class Accepting:
    """A client that accepts connections at an address."""

    service = ""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name, self.host, self.port = name, host, port

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises ClientError."""
        try:
            return await asyncio.wait_for(asyncio.open_connection(self.host, self.port), CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:  # noqa: UP041  (another class before Python 3.11)
            raise ClientError(f"{self.host} port {self.port}: {error or 'no answer'}") from None


class Initiating:
    """A client that connects to a service of the appliance by itself when it is told to."""

    def __init__(self, name: str, service: str, action: str) -> None:
        self.name, self.service = name, service
        self.kind, _, self.what = action.partition(":")
        if self.kind == "signal":
            number, _, self.pid_file = self.what.partition(":")
            self.signal = signal.Signals["SIG" + number.upper().replace("SIG", "", 1)]
        if not self.what or self.kind not in ("run", "unix", "signal"):
            raise ValueError(f"an action is run:COMMAND, unix:PATH or signal:NAME:PIDFILE, not {action!r}")

    async def tell(self, word: str, say: str = "") -> None:
        """Let the client know: `connect` now, or `stay` connected from now on. say: the line that it is to say first
        on its connection; empty: none. Raises ClientError."""
        if say and self.kind == "signal":
            raise ClientError("signal: it tells no client what to say first: its service needs trust_address = true")
        try:
            if self.kind == "run":
                await self._run(word, say)
            elif self.kind == "unix":
                _, writer = await asyncio.wait_for(asyncio.open_unix_connection(self.what), CONNECT_S)
                writer.write((f"{word} {self.name} {say}".rstrip() + "\n").encode())
                await writer.drain()
                writer.close()
            elif word == "connect":  # a signal has one meaning
                os.kill(int(Path(self.pid_file).read_text(encoding="ascii")), self.signal)
        except (OSError, ValueError, asyncio.TimeoutError) as error:  # noqa: UP041
            raise ClientError(f"{self.kind}: {error or 'no answer'}") from None

    async def _run(self, word: str, say: str) -> None:
        environment = {**os.environ, "ROOST_CLIENT": self.name, "ROOST_DO": word, "ROOST_SAY": say}
        process = await asyncio.create_subprocess_exec(
            *shlex.split(self.what), env=environment, stdin=asyncio.subprocess.DEVNULL
        )
        if code := await process.wait():
            raise ClientError(f"run: exit status {code}")


Client = Union[Accepting, Initiating]  # noqa: UP007  (evaluated, and Python 3.9 has no | for types)


def parse_accepting(text: str) -> Accepting:
    """NAME=PORT or NAME=HOST:PORT."""
    name, equals, where = text.partition("=")
    host, _, port = where.rpartition(":")
    if not (name and equals and port.isdigit()):
        raise ValueError(f"--accepting takes NAME=PORT or NAME=HOST:PORT, not {text!r}")
    return Accepting(name, host.strip("[]") or "127.0.0.1", int(port))


def parse_initiating(text: str) -> Initiating:
    """NAME@SERVICE=ACTION."""
    who, equals, action = text.partition("=")
    name, at, service = who.partition("@")
    if not (name and at and service and equals):
        raise ValueError("--initiating takes NAME@SERVICE=run:COMMAND, =unix:PATH or =signal:NAME:PIDFILE")
    return Initiating(name, service, action)


# -- a session of an accepting client ---------------------------------------------------------------------------------

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Session:
    """A data connection to the appliance and one to the client, joined.

    The appliance keeps the data connection when the server ends, since it keeps every client's connection then; so it
    says on the control connection how many bytes the server sent, and both are closed once that many went through."""

    def __init__(self, data: Stream, local: Stream) -> None:
        self._data, self._local = data, local
        self._received = 0
        self._bound: int | None = None
        self._down: asyncio.Task[None] | None = None

    def end(self, size: int) -> None:
        """The server has ended, and had sent so many bytes."""
        self._bound = size
        if self._received >= size and self._down is not None:
            self._down.cancel()

    async def run(self) -> None:
        """Until one of the two ends."""
        self._down = asyncio.ensure_future(self._to_client())
        up = asyncio.ensure_future(self._to_appliance())
        try:
            await asyncio.wait({self._down})  # after the client's end the server may still speak
            with contextlib.suppress(OSError):
                self._local[1].write_eof()
            if self._bound is None:
                await asyncio.wait({up}, timeout=LINGER_S)
        finally:
            for task in (self._down, up):
                task.cancel()
            await asyncio.gather(self._down, up, return_exceptions=True)
            for _, writer in (self._local, self._data):
                writer.close()

    async def _to_client(self) -> None:
        reader, writer = self._data[0], self._local[1]
        while self._bound is None or self._received < self._bound:
            data = await reader.read(CHUNK)
            if not data:
                return
            self._received += len(data)
            writer.write(data)
            await writer.drain()

    async def _to_appliance(self) -> None:
        reader, writer = self._local[0], self._data[1]
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


# -- the agent --------------------------------------------------------------------------------------------------------


class Agent:
    """One control connection after another, and what is asked for by it."""

    def __init__(self, host: str, port: int, token: str, clients: Iterable[Client],
                 tls: ssl.SSLContext | None = None, server_name: str = "",
                 keepalive_s: int = 60) -> None:  # fmt: skip
        self._where = (host, port)
        self._token = token
        self._clients = {client.name: client for client in clients}
        self._tls: dict[str, Any] = {"ssl": tls, "server_hostname": server_name or host} if tls else {}
        self._keepalive_s = keepalive_s
        self._sessions: dict[str, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._control: asyncio.StreamWriter | None = None
        hello = {name: {"service": client.service} if client.service else {} for name, client in self._clients.items()}
        self._hello = encode({"roost-agent": VERSION, "token": token, "clients": hello})

    async def run(self) -> None:
        """For ever."""
        failures = 0
        while True:
            try:
                await self._connected()
                failures = 0
            except (OSError, EOFError, ProtocolError, asyncio.TimeoutError) as error:  # noqa: UP041
                log.warning("%s port %d: %s", *self._where, error or "no answer in time")
                failures += 1
            await asyncio.sleep(backoff_s(failures))

    async def _connected(self) -> None:
        """One control connection: returns when it ends after the welcome, raises when it does not come so far."""
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*self._where, **self._tls), CONNECT_S)
        lines = Lines()
        try:
            self._keep_alive(writer)
            writer.write(self._hello)
            message = await asyncio.wait_for(self._next(reader, lines), CONNECT_S)
            if message.get("welcome") != VERSION:
                raise ProtocolError("no welcome; is the token right?")
            log.info("connected, for %s", ", ".join(self._clients))
            self._control = writer
            self._stay(message)
            with contextlib.suppress(OSError, EOFError):
                while True:
                    self._obey(await self._next(reader, lines))
            log.info("the control connection ended")
        finally:
            self._control = None
            writer.close()

    def _keep_alive(self, writer: asyncio.StreamWriter) -> None:
        """By TCP alone: it keeps the ways through firewalls open, finds out that the appliance is gone, and wakes
        no one there."""
        sock: socket.socket = writer.get_extra_info("socket")
        if not self._keepalive_s:
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", self._keepalive_s), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @staticmethod
    async def _next(reader: asyncio.StreamReader, lines: Lines) -> dict[str, Any]:
        while (message := lines.next_message()) is None:
            data = await reader.read(CHUNK)
            if not data:
                raise EOFError("the appliance ended the connection")
            lines.feed(data)
        return message

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stay(self, message: dict[str, Any]) -> None:
        for name in message.get("stay", ()):
            client = self._clients.get(name)
            log.info("%s is to stay connected", name)
            if isinstance(client, Initiating):
                self._begin(self._tell_to_stay(client))

    async def _tell_to_stay(self, client: Initiating) -> None:
        try:
            await client.tell("stay")
        except ClientError as error:
            log.warning("%s cannot be told to stay connected: %s", client.name, error)

    def _obey(self, message: dict[str, Any]) -> None:
        """A message of a kind that this version does not know means nothing."""
        if "attach" in message and isinstance(message.get("nonce"), str):
            say = message.get("say")
            client = self._clients.get(message["attach"])
            self._begin(self._attach(client, message["nonce"], say if isinstance(say, str) else ""))
        elif "end" in message and isinstance(message.get("bytes"), int):
            session = self._sessions.get(message["end"])
            if session is not None:
                session.end(message["bytes"])

    async def _attach(self, client: Client | None, nonce: str, say: str) -> None:
        try:
            if client is None:
                raise ClientError("no such client")
            if len(self._tasks) > MAX_SESSIONS:
                raise ClientError("the agent is busy")
            log.info("%s: a server asks for it", client.name)
            if isinstance(client, Initiating):
                await client.tell("connect", say)
            else:
                await self._serve(client, nonce)
        except ClientError as error:
            log.warning("%s: %s", client.name if client else "?", error)
            if self._control is not None:
                self._control.write(encode({"nonce": nonce, "error": str(error)[:200]}))

    async def _serve(self, client: Accepting, nonce: str) -> None:
        local = await client.open()  # first: a client that is not there is told without a data connection
        try:
            data = await asyncio.wait_for(asyncio.open_connection(*self._where), CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:  # noqa: UP041
            local[1].close()
            raise ClientError(f"no data connection: {error}") from None
        self._keep_alive(data[1])
        data[1].write(encode({"roost-agent": VERSION, "nonce": nonce}))
        session = self._sessions[nonce] = Session(data, local)
        try:
            await session.run()
        finally:
            del self._sessions[nonce]
            log.info("%s: the session is over", client.name)


# -- the command line -------------------------------------------------------------------------------------------------


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="roost-agent", description="Lets servers reach clients through Roost.")
    parser.add_argument("--appliance", metavar="HOST:PORT", help='a service of the appliance with kind = "agents"')
    parser.add_argument("--token-file", metavar="FILE", help="its first line is the token (or set ROOST_AGENT_TOKEN)")
    parser.add_argument("--accepting", action="append", default=[], metavar="NAME=[HOST:]PORT",
                        help="a client that accepts connections")  # fmt: skip
    parser.add_argument("--initiating", action="append", default=[], metavar="NAME@SERVICE=ACTION",
                        help="a client that connects to SERVICE of the appliance by itself: run:COMMAND, unix:PATH, "
                        "signal:NAME:PIDFILE")  # fmt: skip
    parser.add_argument("--tls", action="store_true", help="TLS, with verification of the appliance's certificate")
    parser.add_argument("--ca", metavar="FILE", help="whose certificates are trusted, instead of the system's")
    parser.add_argument("--server-name", default="", help="the name in the certificate; default: the host")
    parser.add_argument("--keepalive", type=int, default=60, metavar="SECONDS", help="TCP keep-alive, 0: none")
    parser.add_argument("--new-token", action="store_true", help="print a new token and its digest, and end")
    return parser.parse_args(argv)


def _agent(options: argparse.Namespace) -> Agent:
    """Raises ValueError or OSError with a sentence."""
    host, colon, port = (options.appliance or "").rpartition(":")
    if not (host and colon and port.isdigit()):
        raise ValueError("--appliance HOST:PORT is needed")
    token = os.environ.get("ROOST_AGENT_TOKEN", "")
    if options.token_file:
        token = Path(options.token_file).read_text(encoding="utf-8").partition("\n")[0].strip()
    if not token:
        raise ValueError("a token is needed: --token-file FILE")
    clients: list[Client] = [*map(parse_accepting, options.accepting), *map(parse_initiating, options.initiating)]
    if not 1 <= len({client.name for client in clients}) == len(clients) <= MAX_CLIENTS:
        raise ValueError(f"1 to {MAX_CLIENTS} clients are needed, each with a name of its own")
    tls = ssl.create_default_context(cafile=options.ca) if options.tls or options.ca else None
    return Agent(host.strip("[]"), int(port), token, clients, tls, options.server_name, options.keepalive)


def main(argv: list[str] | None = None) -> int:
    """0, or 2: the arguments are wrong."""
    options = _arguments(argv)
    zoned = "%Y-%m-%d %H:%M:%S%z"
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt=zoned, stream=sys.stderr)
    if options.new_token:
        token = secrets.token_urlsafe(32)
        print(f"token:  {token}\nsha256: {token_digest(token)}")
        return 0
    try:
        agent = _agent(options)
    except (ValueError, KeyError, OSError) as error:
        print(f"roost-agent: {error}", file=sys.stderr)
        return 2
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        asyncio.run(agent.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
