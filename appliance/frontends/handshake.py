# SPDX-License-Identifier: Apache-2.0
"""What the protocols of attach have in common: the events of a handshake, and what a server is told when it fails.

Each protocol is sans-I/O: bytes go in by `receive`, events come out of `next_event` until it says None (more bytes are
needed). The events, in the order in which they can come:

    Answer        to be written to the server; the handshake goes on
    Credentials   to be checked; `authenticated` takes the verdict, then the handshake goes on
    Request       the end: this target is wanted; the engine writes `preamble` once the client is linked
    Refusal       the end: `refusal` makes the bytes out of it

Nothing here knows whether a client exists, and credentials come before the target: one that cannot name a user learns
nothing about clients.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from appliance.frontends.target import Target


class Reply(IntEnum):
    """REP of a SOCKS5 reply (RFC 1928 section 6)."""

    SUCCEEDED = 0
    GENERAL_FAILURE = 1
    NOT_ALLOWED = 2
    NETWORK_UNREACHABLE = 3
    HOST_UNREACHABLE = 4
    CONNECTION_REFUSED = 5
    TTL_EXPIRED = 6
    COMMAND_NOT_SUPPORTED = 7
    ADDRESS_TYPE_NOT_SUPPORTED = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes for the server."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Credentials:
    """The user that the server names."""

    user: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """The client that the server wants, and the bytes for it that came along already."""

    target: Target
    early: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, as HTTP says it (a status), as SOCKS5 says it (a reply), and for people."""

    status: int
    reply: Reply
    reason: str


Event = Answer | Credentials | Request | Refusal


class Handshake(Protocol):
    """One server's handshake, in one protocol."""

    @property
    def preamble(self) -> bytes:
        """What the server is told when it is linked to the client."""

    def receive(self, data: bytes) -> None:
        """Bytes from the server; none of them: it closed its side."""

    def next_event(self) -> Event | None:
        """None: more bytes are needed."""

    def authenticated(self, verdict: bool) -> None:
        """Whether the Credentials are those of a user."""

    def refusal(self, refusal: Refusal) -> bytes:
        """The bytes that end a handshake which has come as far as this one; there may be none."""


ENDED: Final = Refusal(400, Reply.GENERAL_FAILURE, "the connection ended before the request")
LATE: Final = Refusal(408, Reply.GENERAL_FAILURE, "the request did not come in time")
OVERLOADED: Final = Refusal(503, Reply.GENERAL_FAILURE, "too many requests at once")
BEYOND: Final = Refusal(429, Reply.GENERAL_FAILURE, "its source does more than [limits] attaches allows")
UNLISTED: Final = Refusal(403, Reply.NOT_ALLOWED, "its address is in none of [attach] networks")
MANY: Final = Refusal(429, Reply.GENERAL_FAILURE, "too many from this address at once have not said what they want")
MANY_WAIT: Final = Refusal(429, Reply.GENERAL_FAILURE, "too many from this address at once wait for their clients")
CROWDED: Final = Refusal(429, Reply.GENERAL_FAILURE, "too many passwords from this address are being checked")
UNAUTHENTICATED: Final = Refusal(407, Reply.NOT_ALLOWED, "a user and its password are needed")
BY_SOURCE: Final = (OVERLOADED, BEYOND, UNLISTED, MANY, MANY_WAIT, CROWDED)
"""What is refused for where it comes from, or since too many have come."""
FAILED: Final = Refusal(500, Reply.GENERAL_FAILURE, "the appliance failed; its log says how")

_LOST: Final = (502, Reply.CONNECTION_REFUSED, "the client's connection ended while it was being woken")
_DESCRIPTORS: Final = (503, Reply.GENERAL_FAILURE, "the appliance is out of descriptors")

ANSWERS: Final[dict[int, tuple[int, Reply, str]]] = {
    errno.ENOENT: (404, Reply.HOST_UNREACHABLE, "no such client connection"),
    errno.ENOTCONN: (502, Reply.CONNECTION_REFUSED, "the client of this name is not connected"),
    errno.ELOOP: (403, Reply.NOT_ALLOWED, "the target is the appliance itself, not a client"),
    errno.EBUSY: (409, Reply.CONNECTION_REFUSED, "the client is linked to another server"),
    errno.ETIMEDOUT: (504, Reply.TTL_EXPIRED, "the client did not come in time"),
    errno.ECONNRESET: _LOST,
    errno.ECONNABORTED: _LOST,
    errno.ECONNREFUSED: (502, Reply.CONNECTION_REFUSED, "the client, or its agent, refuses the connection"),
    errno.EPIPE: _LOST,
    errno.EHOSTUNREACH: (502, Reply.HOST_UNREACHABLE, "the client is unreachable"),
    errno.ENETUNREACH: (502, Reply.NETWORK_UNREACHABLE, "the client's network is unreachable"),
    errno.EIO: (503, Reply.GENERAL_FAILURE, "the store could not be read"),
    errno.ENOMEM: (503, Reply.GENERAL_FAILURE, "the appliance is out of memory"),
    errno.ENOSPC: (503, Reply.GENERAL_FAILURE, "a table of the appliance is full"),
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
    errno.ESHUTDOWN: (503, Reply.GENERAL_FAILURE, "the appliance is shutting down, or has lost its lease"),
}
"""errno of a refused attach -> what the server is told. SOCKS5 has no word for "late"; TTL expired comes nearest."""


def refusal_for(error: int) -> Refusal:
    """What an errno means to the server; one that is not in ANSWERS has the system's word for it."""
    return Refusal(*ANSWERS.get(error, (502, Reply.GENERAL_FAILURE, os.strerror(error))))
