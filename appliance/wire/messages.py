# SPDX-License-Identifier: Apache-2.0
"""What goes between the control plane and the engine: commands in, events out (cext/base/types.h).

The numbers are those of the C headers (tests/unit/test_wire.py holds them together).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.wire.addresses import endpoint_text, unpack_address
from appliance.wire.record import KA, REST, Key, Record

ROW: Final = struct.Struct("=QQ36sHBBB7xQQQ24s")
"""A transition that is of interest to the history alone (struct roost_row): id, at_ms, key, service, from, to, cause,
rx, tx, gap, ends."""

ENDS: Final = struct.Struct("=16sHBBI")
"""struct roost_ends: server, its port, error, probes, silence_s."""

NO_ENDS: Final = bytes(ENDS.size)

OVERRIDES: Final = struct.Struct("=3IIBBBB")
"""struct roost_overrides: quiet_ms of ACTIVE, STANDBY and IDLE, probe_interval_s, given, always_active, by_command,
group."""

GIVEN_GROUP: Final = 16
"""Of a command GIVE, in `count`: the connection is in this group (ROOST_GIVEN_GROUP)."""

OVERRIDES_BYTES: Final = OVERRIDES.size

TOKEN_COUNTED: Final = 1 << 62
"""ROOST_TOKEN_COUNTED, a bit of a command's token: outcomes with it are counted, and none of them waited for."""

SERVED: Final = struct.Struct("=16sHHI")
"""struct roost_served behind its key: server, server_port, service, first_ms."""

NO_FIRST_BYTE: Final = 2**32 - 1

CANDIDATE: Final = 0x80
"""ROOST_CANDIDATE, of Engine.states: the connection may be asleep without a slot."""


class Op(IntEnum):
    """Commands (enum roost_op)."""

    STANDBY = 1
    IDLE = 2
    SLEEP = 3
    WAKE = 4
    CLOSE = 5
    ATTACH = 6
    RESTORE = 7
    INSERT = 9
    PRESSURE = 10
    ANSWER = 11
    TELL = 12
    OVERRIDE = 13
    CANDIDATE = 14
    DESCEND = 15
    GIVE = 16
    ADOPT = 17


class EventType(IntEnum):
    """Events (enum roost_event_type)."""

    TRANSITION = 1
    QUIET = 2
    SLEEP_DUE = 3
    NEED_RECORD = 4
    REFUSED = 5
    PRESSURE = 6
    FATAL = 7
    SERVER_DOWN = 8
    IN_BAND = 9
    OVERRIDES = 10
    DONE = 11
    ROWS = 12
    CANDIDATE = 13
    ILLEGAL = 14
    NOT_GROWN = 15
    LINK = 16
    SERVED = 17
    WANTED = 18
    RELEASED = 19
    PUT_BACK = 20


class Verb(IntEnum):
    """What an end asks for in band, as far as it can be allowed or not (enum roost_inband_verb)."""

    PING = 2
    DONE = 3
    QUIET = 4
    KEEPALIVE = 5
    ALWAYS_ACTIVE = 6
    NAME = 7
    SLEEP = 8
    STATUS = 9
    RELEASE = 10


class Obstacle(IntFlag):
    """Why an awake connection cannot be frozen just now (enum roost_obstacle)."""

    MOVING = 1 << 0
    GRACE = 1 << 1
    CONNECTING = 1 << 2
    SERVER_SPEAKS = 1 << 3
    ENDED = 1 << 4
    CLIENT_BLOCKED = 1 << 5
    SERVER_BLOCKED = 1 << 6
    SERVER_WAITS = 1 << 7
    IN_BAND = 1 << 8
    LINK_LOCAL = 1 << 9


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What keeps an awake connection from being frozen (struct roost_obstacles): what the engine sees now, the errno of
    the last freeze that was refused (0: none was), and bytes in the kernel's queues, not read by the engine or not
    acknowledged by the peer."""

    now: Obstacle
    refused: int
    client_unread: int
    client_unacknowledged: int
    server_unread: int
    server_unacknowledged: int


class Own(NamedTuple):
    """What one connection alone has (struct roost_overrides), by in-band requests and by commands: intervals by their
    names there (0: never), and `always_active`; and the number of its group, 0: it is in none."""

    in_band: Mapping[str, int] = MappingProxyType({})
    by_command: Mapping[str, int] = MappingProxyType({})
    group: int = 0


class Ends(NamedTuple):
    """What is known of a transition's ends (struct roost_ends); None: there is nothing to say."""

    server: str | None
    """The server that an ACTIVE connection was linked to, or was to be: address:port."""
    error: int | None
    """errno of the end whose fault the cause tells."""
    probes: int | None
    """Of a client that was not awake: of ours, in a row, that it did not answer."""
    silence_s: int | None
    """Likewise: since it was heard; and of an awake one that answers no more."""

    @classmethod
    def unpack(cls, raw: bytes) -> Ends:
        address, port, error, probes, silence_s = ENDS.unpack(raw)
        server = endpoint_text((unpack_address(address), port)) if port else None
        return cls(server, error or None, probes or None, silence_s or None)


class Served(NamedTuple):
    """A server that wanted a client (struct roost_served): its packed address and port, where it came through a door,
    and how long after it had asked, in ms, the client's first byte came; None: there was none."""

    server: bytes
    port: int
    service: int
    first_ms: int | None


@dataclass(slots=True)
class Command:
    """One command (struct roost_command)."""

    op: Op
    cause: int = 0
    id: int = 0
    key: Key | bytes | None = None
    record: Record | None = None
    fd: int = -1
    error: int = 0
    count: int = 0
    token: int = 0
    preamble: bytes = b""
    early: bytes = b""
    overrides: bytes = b""


class Event(NamedTuple):
    """One event (struct roost_event). A tuple, since there may be many of them: it is made in half the time."""

    type: int
    from_state: int
    to_state: int
    cause: int
    op: int
    error: int
    count: int  # type: ignore[assignment]  # and not the method of a tuple
    id: int
    token: int
    at_ms: int
    rx_bytes: int
    tx_bytes: int
    gap_ms: int
    record: Record
    rows: bytes = b""
    """Of ROWS: `count` transitions, packed (ROW)."""
    ends: bytes = NO_ENDS
    """Of TRANSITION: struct roost_ends as it is."""

    @property
    def service(self) -> int:
        """Index of the service the connection came in by."""
        return self.record.service

    @property
    def number(self) -> int:
        """Of a connection; 0: the engine does not know it, since it sleeps, or was born asleep."""
        return self.id or self.record.id

    @property
    def reference(self) -> int:
        """Of a connection: what is known of its number (Record.reference)."""
        return self.id or self.record.reference

    @property
    def candidate(self) -> bool:
        """Of what `find` and `find_client` return: it may be asleep without a slot, and its row alone can tell."""
        return self.count == 1

    @property
    def name(self) -> str:
        """Of IN_BAND: the name that an end asks for, "" with another verb."""
        return (self.record.ka + self.record.rest).split(b"\0", 1)[0].decode("ascii")

    @property
    def served(self) -> Served:
        """Of SERVED, and of WANTED."""
        server, port, service, first_ms = SERVED.unpack_from(self.record.ka)
        return Served(server, port, service, None if first_ms == NO_FIRST_BYTE else first_ms)

    @property
    def overrides(self) -> bytes:
        """Of OVERRIDES: struct roost_overrides as it is."""
        return self.record.ka[:OVERRIDES_BYTES]


def transitions(rows: bytes) -> Iterator[Event]:
    """The transitions of an event of type ROWS, each as the event it stands for."""
    for number, at_ms, key, service, source, target, cause, rx_bytes, tx_bytes, gap_ms, ends in ROW.iter_unpack(rows):
        ka = KA.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, service, 0)
        record = Record(key, ka, REST.pack(number, 0, 0, 0, 0, 0, 0, 0, 0))
        counts = rx_bytes, tx_bytes, gap_ms
        yield Event(EventType.TRANSITION, source, target, cause, 0, 0, 0, number, 0, at_ms, *counts, record, ends=ends)
