# SPDX-License-Identifier: Apache-2.0
"""Attach by HTTP CONNECT: a server asks for ``CONNECT target`` and gets the client's connection.

    server                               appliance                          client (asleep)
      | CONNECT 192.0.2.7:40123 HTTP/1.1 ->|                                   |
      |                                    | find the 4-tuple, wake it, link   |
      |<- HTTP/1.1 200 Connection established                                  |
      |<============================ bytes, both ways ========================>|

RFC 9110 section 9.3.6; h11 does the parsing. That takes it 100 us where a server waits 500 us in all for a client that
is awake, so a request like those of most clients is recognised as a whole; h11 would read it the same way, as
tests/unit/test_connect.py shows. Users come by Proxy-Authorization, Basic (RFC 9110 11.7, RFC 7617).
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import cached_property
from http import HTTPStatus
from typing import Final

import h11

from appliance.frontends.handshake import ENDED, UNAUTHENTICATED, Credentials, Event, Refusal, Reply, Request
from appliance.frontends.target import parse_authority

HEAD_LIMIT: Final = 16 * 1024
"""Bytes of request line and header fields; more is answered with 431."""

PREAMBLE: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"

_PLAIN: Final = re.compile(
    rb"CONNECT ([A-Za-z0-9.:_\[\]-]{1,270}) HTTP/1\.1\r\n"
    rb"Host: [A-Za-z0-9.:_\[\]-]{1,270}\r\n"
    rb"(?:(?:User-Agent|Proxy-Connection|Accept): [!-~]{1,200}\r\n){0,3}\r\n"
)
"""A whole request without anything that could matter to us but its target."""

_MORE_FIELDS: Final = {
    405: "Allow: CONNECT\r\n",
    407: 'Proxy-Authenticate: Basic realm="roost", charset="UTF-8"\r\n',
}


class ConnectHandshake:
    """The server's request, from its first byte to its last (handshake.Handshake)."""

    preamble = PREAMBLE

    def __init__(self, password: bool = False) -> None:
        self._head: h11.Request | None = None
        self._request: h11.Request | None = None
        self._plain: tuple[bytes, bytes] | None = None  # target, and what came behind the request
        self._verdict: bool | None = None if password else True
        self._may_be_plain = not password

    @cached_property
    def _http(self) -> h11.Connection:
        return h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)

    def receive(self, data: bytes) -> None:
        if self._may_be_plain and (plain := _PLAIN.match(data)) is not None:
            self._plain = plain[1], data[plain.end() :]
        else:
            self._http.receive_data(data)
        self._may_be_plain = False

    def next_event(self) -> Event | None:
        if self._plain is not None:
            return _wanted(*self._plain)
        if self._request is None:
            try:
                read = self._read()
            except h11.RemoteProtocolError as error:
                return _bad(error.error_status_hint, str(error))
            if not isinstance(read, h11.Request):
                return read
            self._request = read
            if self._verdict is None:
                return _credentials(read)
        return _wanted(self._request.target, self._http.trailing_data[0]) if self._verdict else UNAUTHENTICATED

    def authenticated(self, verdict: bool) -> None:
        self._verdict = verdict

    def refusal(self, refusal: Refusal) -> bytes:
        return response(refusal.status, refusal.reason)

    def _read(self) -> h11.Request | Refusal | None:
        """The request, once it is whole; None: more bytes are needed."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Request):
                if (refusal := _fault_of(event)) is not None:
                    return refusal
                self._head = event
            elif isinstance(event, h11.ConnectionClosed):
                return ENDED
            elif event is h11.PAUSED or isinstance(event, h11.EndOfMessage):
                return self._head
            else:
                return _bad(400, "CONNECT takes no content")


def _wanted(target: bytes, early: bytes) -> Request | Refusal:
    try:
        return Request(parse_authority(target.decode("ascii")), bytes(early))
    except ValueError as error:
        return _bad(400, str(error))


def _fault_of(request: h11.Request) -> Refusal | None:
    if request.method != b"CONNECT":
        return _bad(405, "only CONNECT is served here: to client-address:client-port, or to a client's name")
    for name, value in request.headers:
        # RFC 9110 9.3.6: content of a CONNECT has no meaning. Read as a body, it would not reach the client.
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            return _bad(400, "CONNECT takes no content")
    return None


def _credentials(request: h11.Request) -> Credentials | Refusal:
    """Those of the one Proxy-Authorization field there may be (RFC 7617 section 2)."""
    given = [value for name, value in request.headers if name == b"proxy-authorization"]
    if len(given) != 1:
        return UNAUTHENTICATED
    scheme, _, token = given[0].partition(b" ")
    if scheme.lower() != b"basic":
        return UNAUTHENTICATED
    try:
        user, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
    except binascii.Error:
        return UNAUTHENTICATED
    return Credentials(user.decode(errors="replace"), password) if colon else UNAUTHENTICATED


def _bad(status: int, reason: str) -> Refusal:
    return Refusal(status, Reply.GENERAL_FAILURE, reason)


def response(status: int, reason: str) -> bytes:
    """A whole response that ends the connection."""
    body = f"{reason}\n".encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{_MORE_FIELDS.get(status, '')}"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
