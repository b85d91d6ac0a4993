# SPDX-License-Identifier: Apache-2.0
"""Routes that refuse what FastAPI would not look at: parameters that they do not have, one that comes twice, and a body
where none is expected. A misspelled `limit=` must not pass for none."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BeforeValidator, ConfigDict

from control.core.errors import OperationError

BODY: Final = ConfigDict(extra="forbid", strict=True)
"""Of the model of a request's body: no other keys, and no number for which a text would have to be read."""


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE: Final = BeforeValidator(_whole)
"""Of an int in a body: JSON has one kind of number, and 3.0 is 3 (RFC 8259 6)."""


class StrictRoute(APIRoute):
    """Of an application or a router: its `route_class`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI has it; the handler raises OperationError, 422."""
        handle = super().get_route_handler()
        known = [one.alias for one in self.dependant.query_params]  # no dependency has any
        has_body = self.body_field is not None

        async def strict(request: Request) -> Response:
            if request.scope["query_string"]:
                _look_at_query(request, known)
            if not has_body and _comes_with_body(request):
                raise OperationError(422, "body: this request has none")
            return await handle(request)

        return strict


def _look_at_query(request: Request, known: list[str]) -> None:
    seen: set[str] = set()
    for key, _ in request.query_params.multi_items():
        if key not in known:
            raise OperationError(422, f"{key}: there is no such parameter; there are: {', '.join(known) or 'none'}")
        if key in seen:
            raise OperationError(422, f"{key}: once")
        seen.add(key)


def _comes_with_body(request: Request) -> bool:
    return request.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in request.headers
