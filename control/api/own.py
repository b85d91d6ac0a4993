# SPDX-License-Identifier: Apache-2.0
"""What is answered here and not by the daemon: what happens, metrics, the console's files, and byte streams."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from appliance.bounds import AtOnce, Rates, source_of
from control.api.access import CONTROL, Access
from control.api.answers import Answered, Switch, Work, refusal_of, too_many, until_any
from control.api.control import Control
from control.api.gate import Gate
from control.api.metrics import Metrics
from control.api.relay import headers_of, target_of
from control.api.static import File
from control.api.stream import Stream, read_query
from control.api.upgrade import EXTENSION, Upgrading
from control.api.upstream import AwayError, Upstream
from control.core.access import Role
from control.store.database import StoreError
from control.store.tokens import TokenRow

log = logging.getLogger("roost.api")


ATTACHED_EACH: Final = 1000
"""Clients of one token, whose byte streams are here."""

FILES_PER_S: Final = 20.0
FILES: Final = 200.0
"""Of the console's files to one source, on average, and at once: the page has fewer than 20."""


def no_parameters(request: HTTPConnection) -> None:
    """Raises HTTPException: it has some."""
    for key in request.query_params:
        raise HTTPException(422, f"{key}: there is no such parameter; there are: none")


async def no_body(request: Request) -> None:
    """Raises HTTPException: it has one. What comes by the control connection comes without its length."""
    told = request.headers
    if (told.get("Content-Length", "0") != "0" or "Transfer-Encoding" in told
            or (await request.receive()).get("body")):  # fmt: skip
        raise HTTPException(422, "body: this request has none")


async def attach(upstream: Upstream, each: AtOnce, otherwise: Work, request: Request, access: Access, row: TokenRow,
                  ending: ExitStack) -> Answered:  # fmt: skip
    """A client, where the request wants to become the byte stream to it. each: of a token, at once."""
    connection: Upgrading | None = request.scope.get("extensions", {}).get(EXTENSION)
    if connection is None:
        return await otherwise(request, access, row, ending)
    try:
        target, headers = f"{target_of(request, access)}/ticket", headers_of(request, row)
        answer = await upstream.ask("POST", target, headers, b"", ending)
        ending.callback(answer.close)
        offered = await answer.whole()
    except AwayError as error:
        raise HTTPException(503, str(error)) from None
    if answer.status != 200:
        return Answered(answer.status, answer.headers, offered)
    if not each.begin(row.id):
        raise too_many(f'the token "{row.name}" has {ATTACHED_EACH} clients by the API at once', 0)
    attached_ending = ExitStack()
    attached_ending.callback(each.end, row.id)
    return Answered(101, {}, Switch(json.loads(offered), connection, attached_ending))


async def events(stream: Stream, request: Request, _access: Access, row: TokenRow, _ending: ExitStack) -> Answered:
    """What happens, for ever. Raises HTTPException."""
    await no_body(request)
    try:
        newest, known = await stream.last_row(), await stream.services()
    except (SQLAlchemyError, StoreError):
        raise HTTPException(503, "the database cannot be read") from None
    after, wanted = read_query(
        request.query_params,
        request.headers.get("Last-Event-ID"),
        newest,
        row.services or (() if row.role == Role.SERVER else None),
        known,
    )
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    return Answered(200, headers, stream.follow(after, newest, wanted))


async def metrics_page(metrics: Metrics, upstream: Upstream, request: Request, _access: Access, row: TokenRow,
                   ending: ExitStack) -> Answered:  # fmt: skip
    """What Prometheus is told. Raises HTTPException."""
    no_parameters(request)
    await no_body(request)

    async def read() -> bytes | None:
        try:
            answer = await upstream.ask("GET", "/v1/status", headers_of(request, row), b"", ending)
            try:
                return await answer.whole() if answer.status == HTTPStatus.OK else None
            finally:
                answer.close()
        except AwayError:
            return None

    kind, page = await metrics.page(request.headers.get("Accept", ""), read)
    return Answered(200, {"Content-Type": kind}, page)


def control(gate: Gate, app: Callable[[], Starlette]) -> Callable[[WebSocket], Awaitable[None]]:
    """The control connection. app: what answers its requests."""

    async def serve(socket: WebSocket) -> None:
        try:
            with ExitStack() as ending:
                asking = await gate.admit(socket, CONTROL, ending)
                no_parameters(socket)
        except HTTPException as error:
            await socket.send_denial_response(refusal_of(error.status_code, error.detail, error.headers))
            return
        await socket.accept()
        serving = asyncio.ensure_future(Control(app(), socket).run())
        await until_any(serving, gate.until_bad(asking))
        reason = (1008, "the token is not good any more")
        if not serving.cancelled():
            if (failed := serving.exception()) is None:
                return  # it has ended, or was closed
            log.error("the control connection of %s failed", asking.row.name, exc_info=failed)
            reason = (1011, "an error of the API's own; its log has more")
        with suppress(RuntimeError, WebSocketDisconnect):  # it has ended
            await socket.close(*reason)

    return serve


async def me(request: Request, _access: Access, row: TokenRow, _ending: ExitStack) -> Answered:
    """Whose the token is. Raises HTTPException."""
    no_parameters(request)
    await no_body(request)
    services = list(row.services) if row.services is not None else None
    told = {"name": row.name, "role": row.role, "services": services, "expires_at_ms": row.expires_at}
    return Answered(200, {"Content-Type": "application/json"}, json.dumps(told).encode())


async def file_of(rates: Rates, file: File, request: Request) -> Response:
    """One of the console's, or where it is. Raises HTTPException."""
    if request.client is None:
        raise HTTPException(400, "the connection is gone")
    source = source_of(request.client.host)
    if wait := rates.wait_s(source):
        raise too_many("the console's files were asked for too often from this address", wait)
    rates.take(source)
    await no_body(request)
    if "Location" in file.headers:
        return Response(file.body, 307, file.headers)
    if file.headers["ETag"] in request.headers.get("If-None-Match", ""):
        return Response(None, 304, file.headers)
    return Response(file.body, 200, file.headers)
