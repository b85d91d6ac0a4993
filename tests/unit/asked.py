# SPDX-License-Identifier: Apache-2.0
"""The local API without a socket, asked by tests that have no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import httpx

from control.channel.api import make_app
from control.channel.operations import Operations
from control.store.appended import Audit


def transport(operations: Operations, record: Callable[[Audit], None] = lambda _: None) -> httpx.ASGITransport:
    """Errors that the API does not answer for are answers of status 500. record: takes the changes asked for."""
    operations = replace(operations, record=record)
    return httpx.ASGITransport(make_app(operations, cast(Any, None)), raise_app_exceptions=False)


def asked(transport: httpx.ASGITransport, method: str, path: str, **request: Any) -> httpx.Response:
    """request: as httpx has it."""

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://daemon") as client:
            return await client.request(method, path, **request)

    return asyncio.run(ask())


def pages_of_connections(transport: httpx.ASGITransport, **query: Any) -> Iterator[list[int]]:
    """The numbers on each page, from the first to the last."""
    after = "first"
    while after:
        answer = asked(transport, "GET", "/v1/connections", params={"after": after, **query})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        yield [row["id"] for row in page["connections"]]
        after = page["next"]
