# SPDX-License-Identifier: Apache-2.0
"""The local API of a machine that stands by: it says so, whatever it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from control.channel.api import make_server

LOOK_S: Final = 0.05


async def serve_only(listener: socket.socket, tell: Callable[[], str], stop: threading.Event) -> None:
    """Answer every request by 503 and a sentence until `stop`; closes the socket."""

    async def answer(_request: Request) -> JSONResponse:
        return JSONResponse({"error": tell()}, status_code=503)

    every = [Route("/{path:path}", answer, methods=["GET", "POST", "PUT", "DELETE", "PATCH"])]
    server = make_server(Starlette(routes=every))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not stop.is_set() and not serving.done():
        await asyncio.sleep(LOOK_S)
    server.should_exit = server.force_exit = True
    with contextlib.suppress(asyncio.CancelledError):
        await serving
