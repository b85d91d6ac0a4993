# SPDX-License-Identifier: Apache-2.0
"""Attach by SOCKS5 (RFC 1928), with user and password (RFC 1929) where the policy wants them.

server                                        appliance
  | 05 nmethods methods                        ->|
  |<- 05 method                                  |   FF: none of them will do
  | 01 ulen user plen password                 ->|   method 02 alone
  |<- 01 status                                  |   other than 0: refused
  | 05 cmd 00 atyp address port                ->|   CONNECT alone; address: IPv4, IPv6, or a name
  |<- 05 reply 00 01 0.0.0.0 0                   |   0: what follows is the client's connection
"""

from __future__ import annotations

import ipaddress
from enum import Enum, auto
from errno import ENOENT
from typing import Final

from appliance.frontends.handshake import (
    ENDED,
    UNAUTHENTICATED,
    Answer,
    Credentials,
    Event,
    Refusal,
    Reply,
    Request,
    refusal_for,
)
from appliance.frontends.target import address, host_target

VERSION: Final = 5
NO_AUTHENTICATION, USER_AND_PASSWORD, NONE_ACCEPTABLE = 0, 2, 0xFF
_SUBNEGOTIATION: Final = 1  # its own version, RFC 1929
_CONNECT: Final = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}


class _Phase(Enum):
    METHODS = auto()
    USER = auto()
    VERDICT = auto()
    REQUEST = auto()


def reply(code: Reply) -> bytes:
    """A reply. The address it names is that of a socket which the server never sees; zeros are what proxies send."""
    return bytes([VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0])


PREAMBLE: Final = reply(Reply.SUCCEEDED)


class Socks5Handshake:
    """The server's side of it, from the version to the request (handshake.Handshake). No more than one message is
    kept: 513 bytes, apart from what came behind it in the last bytes received."""

    preamble = PREAMBLE

    def __init__(self, password: bool = False) -> None:
        self._method = USER_AND_PASSWORD if password else NO_AUTHENTICATION
        self._phase = _Phase.METHODS
        self._buffer = bytearray()
        self._ended = False
        self._verdict = False

    def receive(self, data: bytes) -> None:
        self._buffer += data
        self._ended = self._ended or not data

    def next_event(self) -> Event | None:
        match self._phase:
            case _Phase.METHODS:
                event = self._read_methods()
            case _Phase.USER:
                event = self._read_user()
            case _Phase.VERDICT:
                event = self._tell_verdict()
            case _Phase.REQUEST:
                event = self._read_request()
        return ENDED if event is None and self._ended else event

    def authenticated(self, verdict: bool) -> None:
        self._verdict = verdict

    def refusal(self, refusal: Refusal) -> bytes:
        if self._phase is _Phase.METHODS:
            return bytes([VERSION, NONE_ACCEPTABLE])
        if self._phase in (_Phase.USER, _Phase.VERDICT):
            return bytes([_SUBNEGOTIATION, Reply.GENERAL_FAILURE])
        return reply(refusal.reply)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _read_methods(self) -> Event | None:
        buffer = self._buffer
        if buffer and buffer[0] != VERSION:
            return _failure(f"version {buffer[0]} of SOCKS is not served, only 5")
        if len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
            return None
        if self._method not in self._take(2 + buffer[1])[2:]:
            return UNAUTHENTICATED if self._method else _failure("no method but that without authentication is served")
        self._phase = _Phase.USER if self._method else _Phase.REQUEST
        return Answer(bytes([VERSION, self._method]))

    def _read_user(self) -> Event | None:
        buffer = self._buffer
        if buffer and buffer[0] != _SUBNEGOTIATION:
            return _failure(f"version {buffer[0]} of the sub-negotiation is not served, only 1")
        if len(buffer) < 2 or len(buffer) < 3 + buffer[1]:
            return None
        user_end = 2 + buffer[1]
        if len(buffer) < user_end + 1 + buffer[user_end]:
            return None
        message = self._take(user_end + 1 + buffer[user_end])
        self._phase = _Phase.VERDICT
        return Credentials(message[2:user_end].decode(errors="replace"), message[user_end + 1 :])

    def _tell_verdict(self) -> Event:
        if not self._verdict:
            return UNAUTHENTICATED
        self._phase = _Phase.REQUEST
        return Answer(bytes([_SUBNEGOTIATION, 0]))

    def _read_request(self) -> Event | None:
        buffer = self._buffer
        if buffer and buffer[0] != VERSION:
            return _failure(f"a request of version {buffer[0]}, behind a greeting of version 5")
        if len(buffer) < 4:
            return None
        if buffer[1] != _CONNECT:
            return Refusal(405, Reply.COMMAND_NOT_SUPPORTED, "only CONNECT is served here")
        kind = buffer[3]
        if kind not in (_IPV4, _NAME, _IPV6):
            return Refusal(400, Reply.ADDRESS_TYPE_NOT_SUPPORTED, f"addresses of type {kind} are not served")
        start = 5 if kind == _NAME else 4
        if len(buffer) < start:
            return None
        end = start + (buffer[4] if kind == _NAME else _ADDRESS_BYTES[kind])
        if len(buffer) < end + 2:
            return None
        message = self._take(end + 2)
        host, port = message[start:end], int.from_bytes(message[end:], "big")
        if kind != _NAME:
            return Request(address(ipaddress.ip_address(host), port), self._take(len(buffer)))
        try:
            return Request(host_target(host.decode("ascii"), port), self._take(len(buffer)))
        except ValueError:
            return refusal_for(ENOENT)


def _failure(reason: str) -> Refusal:
    return Refusal(400, Reply.GENERAL_FAILURE, reason)
