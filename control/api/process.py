# SPDX-License-Identifier: Apache-2.0
"""The process: as root it takes what only root may, its addresses and its key, then it is an ordinary user's."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import pwd
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.box.owners import heard_by_clients
from control.api.app import make_app
from control.api.control import MESSAGE_BYTES
from control.api.database import Database
from control.api.protocol import Bounded, Listener, Socket, bind
from control.api.static import File, read_files
from control.api.stream import Stream
from control.api.tokens import Tokens
from control.api.upstream import Upstream
from control.config import Api, Config, parse_endpoint
from control.core.access import DATABASE, SOCKET
from control.core.signals import on_signal
from control.store.database import parse_url

log = logging.getLogger("roost.api")

LOOK_S: Final = 1.0

SWITCH_INTERVAL_S: Final = 0.0002
"""So long a thread that reads tokens or rows keeps the interpreter from requests; Python has 5 ms, which is all that an
answer may take."""

_PR_SET_PDEATHSIG: Final = 1
_PR_GET_PDEATHSIG: Final = 2
_PR_SET_NO_NEW_PRIVS: Final = 38


class ApiError(Exception):
    """It cannot begin; a sentence."""


def user_of(text: str) -> tuple[int, int]:
    """Its number and that of its group. Raises ApiError."""
    try:
        entry = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
    except (KeyError, OverflowError):
        raise ApiError(
            f'there is no user "{text}": make it (useradd --system {text}), or name another one in [api] user'
        ) from None
    if entry.pw_uid == 0:
        raise ApiError(f'[api] user "{text}" is root')
    return entry.pw_uid, entry.pw_gid


def at_clients(config: Config) -> str:
    """Why it must not listen where the configuration says, since clients are heard there; empty: it may."""
    if config.api.at_clients:
        return ""
    where = heard_by_clients(map(parse_endpoint, config.api.listen), config.network.interfaces)
    return f"[api] listens at {where}: name another address, or say that it may, at_clients = true" if where else ""


def become(user: tuple[int, int]) -> None:
    """This user for good, without any other group or privilege; whoever is it already stays it. Raises ApiError."""
    libc = ctypes.CDLL(None, use_errno=True)
    ends_with, parent = ctypes.c_int(), os.getppid()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(ends_with))
    if os.geteuid() == 0:
        if ends_with.value:  # the daemon has begun it gently: what it takes to begin delays no client that wakes
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, 0)
        try:
            if {*os.getgroups()} - {user[1]}:  # within systemd's user namespace (PrivateUsers=) none may be set
                os.setgroups([])
            os.setresgid(user[1], user[1], user[1])
            os.setresuid(user[0], user[0], user[0])
        except OSError as error:  # systemd knows but the unit's own user
            raise ApiError(f"it cannot be the user {user[0]} of [api] user: {error.strerror}") from None
    elif os.geteuid() != user[0]:
        raise ApiError(f"run it as root, or as the user {user[0]} of [api] user")
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if ends_with.value:  # the kernel forgets it when the user changes
        libc.prctl(_PR_SET_PDEATHSIG, ends_with.value)
        if os.getppid() != parent:
            raise ApiError("the daemon that started it has ended")


def tls_of(api: Api) -> ssl.SSLContext | None:
    """None: no TLS is spoken. Raises ApiError."""
    if not api.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(api.certificate, api.private_key)
        if api.client_ca:
            context.load_verify_locations(api.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        raise ApiError(f"[api] certificate, private_key or client_ca cannot be used: {error}") from None
    return context


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The event loop has them."""
        yield


def _settings(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app, loop="asyncio", http=Bounded, ws=Socket, lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=1, server_header=False, proxy_headers=False, ws_max_size=MESSAGE_BYTES,
        ws_ping_interval=None, ws_per_message_deflate=False,
    )  # fmt: skip


async def _nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Never served."""


def run(config: Config) -> None:
    """Serve until a signal, or until a file of [api] is another one. Raises ApiError."""
    api = config.api
    if not api.listen:
        raise ApiError("[api] listen is empty: say at which addresses and ports the API is to listen")
    if problem := at_clients(config):
        raise ApiError(problem)
    user, tls = user_of(api.user), tls_of(api)
    try:
        listeners = bind([parse_endpoint(text) for text in api.listen])
    except OSError as error:
        raise ApiError(str(error.strerror)) from None
    database = Database(parse_url(os.environ.get(DATABASE) or config.database_url))
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of each bad request
    _settings(_nothing).load()  # what it imports then may be where root alone may read
    files = read_files()  # they, too
    become(user)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    asyncio.run(_serve(config, listeners, tls, database, files))


async def _until_renewed(api: Api) -> None:
    """Its key may be root's alone, and this process is root's no more: it ends, to be begun again."""
    read = before = api.changed_at()
    while (now := api.changed_at()) == read or now != before:  # a certificate and its key are not written at once
        before = now
        await asyncio.sleep(LOOK_S)
    log.info("the certificate, its key or client_ca has changed: the API ends, to begin with what is there now")


async def _serve(config: Config, listeners: list[socket.socket], tls: ssl.SSLContext | None, database: Database,
                 files: Mapping[str, File]) -> None:  # fmt: skip
    api = config.api
    async with Upstream(os.environ.get(SOCKET) or config.control_socket) as upstream:
        app = make_app(Tokens(database.good_tokens), upstream, Stream(database), api.requests, files)
        server = _Server(_settings(app))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            on_signal(loop, number, setattr, server, "should_exit", True)
        serving = loop.create_task(server.serve(sockets=[]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        gc.freeze()  # what is there by now stays: walking it takes the collector of cycles 60 ms, and requests wait
        listener = Listener(server, tls, api.connections, api.connections_each, api.connections_rate)
        listening = [loop.create_task(one) for one in (*map(listener.run, listeners), listener.look())]
        if SOCKET not in os.environ:  # else the daemon that has begun it looks
            listening.append(loop.create_task(_until_renewed(api)))
        log.info("the API listens at %s%s", ", ".join(api.listen), "" if tls else ", without TLS")
        try:
            await asyncio.wait({serving, *listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in listening:
                task.cancel()
            server.should_exit = True
            await serving
            database.close_readers()
