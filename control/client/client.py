# SPDX-License-Identifier: Apache-2.0
"""The client that waits for what it asks."""

from __future__ import annotations

import json
import socket as sockets
import ssl
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

import httpcore
import httpx

from . import events, http
from .calls import ENDED, Call, Filter, Waiting, login, path_of
from .errors import RoostError

if TYPE_CHECKING:
    from .answers import Connection, Job

T = TypeVar("T")

PART: Final = 64 * 1024


class Client(Waiting):
    """The API at a URL, or without one that of the daemon on this machine. From any thread; within a `with`, or until
    `close`.

    url: such as https://box:8443. token: without one nothing is answered by the network. socket: path of the daemon's.
    ca: file of certificates to believe instead of the system's. certificate: this client's and its key, files. who:
    asks, for the record. timeout: s that each step of an answer may take. retries: of what changes nothing, when the
    API is away, or has too much to do. transport: httpx's, in place of one that is made.

    Raises ValueError: the URL is none, or would let others read the token; OSError: a file of certificates cannot be
    used.
    """

    def __init__(self, url: str = "", *, token: str = "", socket: str = http.SOCKET, ca: str | None = None,
                 certificate: tuple[str, str] | None = None, who: str = "", timeout: float = 60.0,
                 retries: int = http.RETRIES, transport: httpx.BaseTransport | None = None) -> None:  # fmt: skip
        self._where = http.Where(url, token, socket, ca, certificate, timeout)
        self._retries = retries
        self.who = who or login()
        made = transport or httpx.HTTPTransport(**self._where.transport())
        direct = {} if url or transport else {http.LOOPBACK: httpx.HTTPTransport(verify=False)}
        self._http = httpx.Client(transport=made, mounts=direct, base_url=self._where.base_url(), trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Its connections; streams to clients end, too."""
        self._http.close()

    @contextmanager
    def _begun(self, call: Call[Any], timeout: float = 0.0) -> Iterator[httpx.Response]:
        """The head of an answer that is none of an error; the rest can be read within the `with`."""
        timeout = timeout or self._where.timeout
        with http.answered(self._where, timeout):
            request = self._http.build_request(**self._where.request(call, self.who), timeout=timeout)
            response = self._http.send(request, stream=True)
            try:
                if response.is_error:
                    response.read()
                    raise http.refusal(response)
                yield response
            finally:
                response.close()

    def ask(self, call: Call[T]) -> T:
        """What is answered, of whatever call. Raises RoostError."""
        attempt = 0
        while True:
            try:
                with self._begun(call) as response:
                    response.read()
                    answer: T = http.data_of(response)
                    return answer
            except RoostError as error:
                time.sleep(http.retry_s(call, error, attempt, self._retries))
            attempt += 1

    def connections(self, limit: int | None = None, **wanted: Unpack[Filter]) -> Iterator[Connection]:
        """Connections, as they come."""
        return self.lines(Call("GET", path_of("connections"), {**wanted, "limit": limit}))

    def lines(self, call: Call[Any]) -> Iterator[Any]:
        """What is answered in lines of JSON, of whatever call, as it comes."""
        with self._begun(call) as response:
            for line in response.iter_lines():
                yield json.loads(line)

    def events(self, after: int | str | None = None, last: int | None = None, service: Sequence[str] = (),
               to: Sequence[str] = (), client: str = "", network: str = "",
               retries: int = events.RETRIES) -> Events:  # fmt: skip
        """What happens, for ever: behind the event `after`, or with the last so many, or from now on. service, to (a
        state): any of these. retries: attempts to resume, in a row.

        By the network each is told once, whatever ends meanwhile. The local socket cannot resume.
        """
        return Events(self, events.Reading(after, last, service, to, client, network, retries))

    def wait_for_job(self, number: int, every_s: float = 0.3) -> Job:
        """A job, when it has ended."""
        while (job := self.job(number))["state"] not in ENDED:
            time.sleep(every_s)
        return job

    def attach(self, client: str | int) -> Stream:
        """The bytes to and from a client, which is woken. Raises RoostError."""
        if self._where.url:
            asked = self._where.request(http.upgrade(client), self.who)
        else:
            asked = http.connect(self.ticket(client))
        with http.answered(self._where, self._where.timeout):
            response = self._http.send(self._http.build_request(**asked, timeout=self._where.timeout), stream=True)
            if http.has_switched(response):
                return Stream(response)
            try:
                response.read()
                raise http.refusal(response)
            finally:
                response.close()


class Events:
    """Iterable, for as long as it is wanted. last_id: of the last event that was told, which `after` takes; empty: it
    is not known yet. Raises RoostError: it cannot be resumed, or was tried in vain too often."""

    def __init__(self, client: Client, reading: events.Reading) -> None:
        self._client = client
        self._reading = reading

    @property
    def last_id(self) -> str:
        return self._reading.last_id

    def __iter__(self) -> Generator[events.Event]:
        while True:
            try:
                with self._client._begun(self._reading.call(), events.SILENCE_S) as response:
                    for line in response.iter_lines():
                        if (event := self._reading.take(line)) is not None:
                            yield event
                raise self._reading.ended()
            except RoostError as error:
                time.sleep(self._reading.wait_s(error))


class Stream:
    """The bytes to and from a client, as of a connected socket that blocks: a context manager, for select() with
    `pending`. Raises OSError."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        network = response.extensions["network_stream"]
        try:
            self._early: bytes = network.read(PART, timeout=0)  # what came with the head of the answer
        except (httpcore.NetworkError, httpcore.TimeoutException):
            self._early = b""
        self._socket: sockets.socket = network.get_extra_info("socket")
        self._socket.settimeout(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    def sendall(self, data: bytes) -> None:
        """To the client."""
        self._socket.sendall(data)

    def send(self, data: bytes) -> int:
        """So much of it as goes now; the number of bytes."""
        return self._socket.send(data)

    def recv(self, most: int = PART) -> bytes:
        """What the client has said, when there is some; empty: it has ended."""
        if self._early:
            data, self._early = self._early[:most], self._early[most:]
            return data
        return self._socket.recv(most)

    def send_eof(self) -> bool:
        """Let the client go, when it has what was sent to it; `recv` goes on to the end. False: this cannot be said on
        the way, since TLS is spoken, and `close` is all there is."""
        if isinstance(self._socket, ssl.SSLSocket):
            return False
        self._socket.shutdown(sockets.SHUT_WR)
        return True

    def settimeout(self, seconds: float | None) -> None:
        """As of a socket."""
        self._socket.settimeout(seconds)

    def fileno(self) -> int:
        """For select(), which does not see what is `pending`."""
        return self._socket.fileno()

    def pending(self) -> int:
        """Bytes that `recv` has without waiting, and which select() does not see."""
        return len(self._early) or (self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0)

    def close(self) -> None:
        """Both ways."""
        self._response.close()
