# SPDX-License-Identifier: Apache-2.0
"""Every change that is asked for leaves a row in the store: who, from where, what, and what came of it; also where the
API's process has refused it, and where it was by a signal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control.channel.asker import Asker, plain
from control.core.access import FROM, REFUSED, WHO
from control.store.appended import Audit

METHOD_LENGTH: Final = 15
PATH_LENGTH: Final = 500
BODY_LENGTH: Final = 1000
ERROR_LENGTH: Final = 500

BROKEN: Final = "it broke off; the daemon's log may say why"

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TRIES: Final = frozenset({"/v1/policy/try"})
"""Requests with a body that change nothing: kept where they are refused, or fail."""


def of_signal(name: str, about: str, error: str = "") -> Audit:
    """Of a change that a signal asks for. about: what it is of. error: why it was refused."""
    asker = Asker.of("", "")
    return Audit(time.time_ns() // 1_000_000, asker.who, asker.origin, name, plain(about, PATH_LENGTH), "",
                 422 if error else 200, plain(error, ERROR_LENGTH))  # fmt: skip


class Audited:
    """The application, and a row for each request that may change something, before its answer has ended. record:
    never blocks."""

    def __init__(self, app: ASGIApp, record: Callable[[Audit], None]) -> None:
        self._app = app
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        refused = Headers(scope=scope).get(REFUSED) if scope["type"] == "http" else None
        if scope["type"] != "http" or (scope["method"] in _READS and not refused):
            await self._app(scope, receive, send)
            return
        at, body, cut = time.time_ns() // 1_000_000, bytearray(), False
        status, noted = 0, False

        async def hear() -> Message:
            nonlocal cut
            message = await receive()
            room = BODY_LENGTH - len(body)
            part = message.get("body", b"")
            body.extend(part[:room])
            cut |= len(part) > room
            return message

        async def tell(message: Message) -> None:
            """The status comes with the first message, and what is wrong with the second."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not noted:
                note(message.get("body", b""))
            await send(message)

        def note(answer: bytes) -> None:
            nonlocal noted
            noted = True
            if status < 400 and scope["path"] in _TRIES:
                return
            headers = Headers(scope=scope)
            asker = Asker.of(headers.get(WHO, ""), headers.get(FROM, ""))
            told = body.decode(errors="replace") + ("…" if cut else "")
            method, path = plain(scope["method"], METHOD_LENGTH), plain(scope["path"], PATH_LENGTH)
            error = plain(_error(answer), ERROR_LENGTH) if status >= 400 else ""
            row = Audit(at, asker.who, asker.origin, method, path, plain(told, BODY_LENGTH + 1), status, error)
            self._record(row)

        try:
            await (_refused(refused) if refused else self._app)(scope, hear, tell)
        except BaseException:  # of a daemon that ends, too: what was asked for may still happen
            if not noted:
                status = status if status >= 400 else 500
                note(json.dumps({"error": BROKEN}).encode())
            raise


def _refused(told: str) -> ASGIApp:
    """What answers as somebody else has answered already."""
    status, _, sentence = told.partition(" ")
    known = status if status in ("401", "403") else "403"
    return Response(json.dumps({"error": unquote(sentence)}), int(known), media_type="application/json")


def _error(answer: bytes) -> str:
    try:
        told = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return told if isinstance(told, str) else ""
