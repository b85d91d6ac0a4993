# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio: each thing as client.py has it, but that it is awaited."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import httpcore
import httpx

from . import events, http
from .calls import ENDED, Awaited, Call, Filter, login, path_of
from .client import PART
from .errors import RoostError

if TYPE_CHECKING:
    from .answers import Connection, Job

T = TypeVar("T")


class AsyncClient(Awaited):
    """As Client, within one event loop; transport: one of httpx's for it."""

    def __init__(self, url: str = "", *, token: str = "", socket: str = http.SOCKET, ca: str | None = None,
                 certificate: tuple[str, str] | None = None, who: str = "", timeout: float = 60.0,
                 retries: int = http.RETRIES, transport: httpx.AsyncBaseTransport | None = None) -> None:  # fmt: skip
        self._where = http.Where(url, token, socket, ca, certificate, timeout)
        self._retries = retries
        self.who = who or login()
        made = transport or httpx.AsyncHTTPTransport(**self._where.transport())
        direct = {} if url or transport else {http.LOOPBACK: httpx.AsyncHTTPTransport(verify=False)}
        self._http = httpx.AsyncClient(transport=made, mounts=direct, base_url=self._where.base_url(), trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:  # fmt: skip
        await self.aclose()

    async def aclose(self) -> None:
        """Its connections; streams to clients end, too."""
        await self._http.aclose()

    @asynccontextmanager
    async def _begun(self, call: Call[Any], timeout: float = 0.0) -> AsyncIterator[httpx.Response]:
        timeout = timeout or self._where.timeout
        with http.answered(self._where, timeout):
            request = self._http.build_request(**self._where.request(call, self.who), timeout=timeout)
            response = await self._http.send(request, stream=True)
            try:
                if response.is_error:
                    await response.aread()
                    raise http.refusal(response)
                yield response
            finally:
                await response.aclose()

    async def ask(self, call: Call[T]) -> T:
        """What is answered, of whatever call. Raises RoostError."""
        attempt = 0
        while True:
            try:
                async with self._begun(call) as response:
                    await response.aread()
                    answer: T = http.data_of(response)
                    return answer
            except RoostError as error:
                await asyncio.sleep(http.retry_s(call, error, attempt, self._retries))
            attempt += 1

    def connections(self, limit: int | None = None, **wanted: Unpack[Filter]) -> AsyncIterator[Connection]:
        """Connections, as they come."""
        return self.lines(Call("GET", path_of("connections"), {**wanted, "limit": limit}))

    async def lines(self, call: Call[Any]) -> AsyncIterator[Any]:
        """What is answered in lines of JSON, of whatever call, as it comes."""
        async with self._begun(call) as response:
            async for line in response.aiter_lines():
                yield json.loads(line)

    def events(self, after: int | str | None = None, last: int | None = None, service: Sequence[str] = (),
               to: Sequence[str] = (), client: str = "", network: str = "",
               retries: int = events.RETRIES) -> AsyncEvents:  # fmt: skip
        """As Client.events."""
        return AsyncEvents(self, events.Reading(after, last, service, to, client, network, retries))

    async def wait_for_job(self, number: int, every_s: float = 0.3) -> Job:
        """A job, when it has ended."""
        while (job := await self.job(number))["state"] not in ENDED:
            await asyncio.sleep(every_s)
        return job

    @asynccontextmanager
    async def attach(self, client: str | int) -> AsyncIterator[AsyncStream]:
        """The bytes to and from a client, which is woken, within a `with`. Raises RoostError."""
        if self._where.url:
            asked = self._where.request(http.upgrade(client), self.who)
        else:
            asked = http.connect(await self.ticket(client))
        with http.answered(self._where, self._where.timeout):
            response = await self._http.send(
                self._http.build_request(**asked, timeout=self._where.timeout), stream=True
            )
        try:
            if not http.has_switched(response):
                with http.answered(self._where, self._where.timeout):
                    await response.aread()
                raise http.refusal(response)
            yield AsyncStream(response)
        finally:
            await response.aclose()


class AsyncEvents:
    """As Events, for `async for`."""

    def __init__(self, client: AsyncClient, reading: events.Reading) -> None:
        self._client = client
        self._reading = reading

    @property
    def last_id(self) -> str:
        return self._reading.last_id

    async def __aiter__(self) -> AsyncGenerator[events.Event]:
        while True:
            try:
                async with self._client._begun(self._reading.call(), events.SILENCE_S) as response:
                    async for line in response.aiter_lines():
                        if (event := self._reading.take(line)) is not None:
                            yield event
                raise self._reading.ended()
            except RoostError as error:
                await asyncio.sleep(self._reading.wait_s(error))


class AsyncStream:
    """The bytes to and from a client, as Stream. Raises OSError."""

    def __init__(self, response: httpx.Response) -> None:
        self._network = response.extensions["network_stream"]

    async def sendall(self, data: bytes) -> None:
        """To the client; the kernel has all of it afterwards."""
        with _broken():
            await self._network.write(data)

    async def recv(self, most: int = PART) -> bytes:
        """What the client has said, when there is some; empty: it has ended."""
        with _broken():
            data: bytes = await self._network.read(most)
            return data

    def send_eof(self) -> bool:
        """As of Stream."""
        if self._network.get_extra_info("ssl_object") is not None:
            return False
        self._network.get_extra_info("socket").shutdown(sockets.SHUT_WR)
        return True


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except httpcore.NetworkError as error:
        raise (http.os_error(error) or ConnectionError(str(error))) from None
