# SPDX-License-Identifier: Apache-2.0
"""Asking the daemon, over its Unix socket. By aiohttp, whose client takes a fifth of the processor time of httpx's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import aiohttp
from yarl import URL

CONNECTIONS: Final = 64
"""To the daemon, each for one request at a time: so many it has to do with at once, whatever is asked of the API."""

LIMITS: Final = aiohttp.ClientTimeout(total=None, connect=10)
"""In s; connect: until one of them is free."""

ANSWER_S: Final = 60.0
"""For an answer to begin, and for more of it to come."""

PART: Final = 64 * 1024

_KEPT: Final = ("Content-Type", "Content-Length", "Allow", "ETag")
"""Headers of the daemon's answer that are the asker's, too."""

_ERRORS: Final = (aiohttp.ClientError, TimeoutError)


class AwayError(Exception):
    """The daemon cannot be asked, or has ended: a sentence."""

    def __init__(self, error: Exception) -> None:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            what = f"the daemon has to do with {CONNECTIONS} requests, and none of them ended in time"
        elif isinstance(error, TimeoutError):
            what = "the daemon does not answer in time; what was asked for may still happen"
        else:
            what = "the daemon does not run, or is starting"
        super().__init__(what)


class Answer:
    """As it comes."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name: response.headers[name] for name in _KEPT if name in response.headers}

    async def parts(self) -> AsyncGenerator[bytes]:
        """The body, without its end where that is missing: then it raises AwayError."""
        try:
            while True:
                async with asyncio.timeout(ANSWER_S):
                    part = await self._response.content.readany()
                if not part:
                    return
                yield part
        except _ERRORS as error:
            raise AwayError(error) from None

    async def whole(self) -> bytes:
        """The body. Raises AwayError."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._response.read()
        except _ERRORS as error:
            raise AwayError(error) from None

    def close(self) -> None:
        """What has not come yet is not wanted."""
        self._response.close() if not self._response.content.at_eof() else self._response.release()


class Upstream:
    """The daemon that listens there; within the event loop."""

    def __init__(self, path: str) -> None:
        # uvicorn closes a connection that is idle for 5 s.
        connector = aiohttp.UnixConnector(path, limit=CONNECTIONS, keepalive_timeout=4)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=LIMITS, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        )  # fmt: skip
        self._left = set[asyncio.Future[aiohttp.ClientResponse]]()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:  # fmt: skip
        await self._session.close()

    async def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, ending: ExitStack) -> Answer:
        """The answer, whose body is still to come; it must be closed. target: path and query, as in a request. ending:
        what is to be done at the end of it; where the answer is not waited for (cancelled, or it takes too long), that
        is when the daemon has answered, whose thread works on. Raises AwayError."""
        url = URL(f"http://roost{target}", encoded=True)
        asking = asyncio.ensure_future(self._session.request(method, url, headers=headers, data=body or None,
                                                             allow_redirects=False))  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_S):
                return Answer(await asyncio.shield(asking))
        except BaseException as error:
            self._leave(asking, ending.pop_all())
            if isinstance(error, _ERRORS):
                raise AwayError(error) from None
            raise

    def _leave(self, asking: asyncio.Future[aiohttp.ClientResponse], ending: ExitStack) -> None:
        """Nothing more is wanted of it, once it is answered."""

        def over(_: object) -> None:
            self._left.discard(asking)
            ending.close()
            if not asking.cancelled() and asking.exception() is None:
                asking.result().close()

        self._left.add(asking)
        asking.add_done_callback(over)
