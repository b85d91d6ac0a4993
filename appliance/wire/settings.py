# SPDX-License-Identifier: Apache-2.0
"""What the engine is set up with: its sizes and places, the services with their policy, and how servers stand.

The numbers are those of the C headers (tests/unit/test_wire.py holds them together).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from appliance.wire.addresses import ServerAddress

PROBE_RETRY_S: Final = 10
PROBE_COUNT: Final = 4
"""Where a configuration says nothing (ROOST_PROBE_RETRY_S, ROOST_PROBE_COUNT)."""

PROBE_COUNT_MAX: Final = 15
"""As far as a slot counts (ROOST_PROBE_COUNT_MAX)."""

SERVERS_MAX: Final = 32
"""ROOST_SERVERS_MAX: servers of one service."""

NEAR_ENDS: Final = 256
"""ROOST_NEAR_ENDS of ebpf/shared/steer.h."""

PLACES: Final = 64
"""ROOST_PLACES: servers of one service, and those that have left it but still have links."""

WAITING_MAX: Final = 1024
"""ROOST_WAITING_MAX: servers that wait for a client, each with a descriptor."""


class Balance(IntEnum):
    """Which server of a service a link goes to (enum roost_balance)."""

    LEAST_CONNECTIONS = 0
    SOURCE_HASH = 1


class SecondServer(IntEnum):
    """What becomes of a server that wants a client which is linked (enum roost_second_server)."""

    REFUSED = 0
    WAITS = 1
    TAKES_OVER = 2


class OnServerClose(IntEnum):
    """What follows a server's close (enum roost_on_server_close)."""

    STANDBY = 0
    CLIENT = 1
    IDLE = 2
    SLEEP = 3


class Priority(IntEnum):
    """Under pressure, connections of a lower one are frozen first (enum roost_priority of ebpf/shared/class.h)."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


class Born(IntEnum):
    """Whether clients may be born asleep (enum roost_born of ebpf/shared/birth.h)."""

    NEVER = 0
    STORM = 1
    ALWAYS = 2


def default_workers() -> int:
    """Threads that help the engine thread to freeze and thaw in bulk: it has one of the processors itself."""
    return len(os.sched_getaffinity(0)) - 1


@dataclass(slots=True)
class EngineOptions:
    """Sizes and places (struct roost_options)."""

    pin_dir: str
    bpf_dir: str
    ipv4_slots: int = 131072
    ipv6_slots: int = 16384
    idle_slots: int = 131072
    filter_slots: int = 0
    ring_bytes: int = 4 << 20
    max_awake: int = 8192
    workers: int = field(default_factory=default_workers)
    next_id: int = 1
    grow: bool = False
    name: str = ""


Limit = tuple[int, int]
"""Of an address, of a network: one in so many us; 0: no limit."""


@dataclass(slots=True)
class ServiceSpec:
    """A service and its policy (struct roost_service); times in the units of the names, 0 = never. No servers: a link
    of a transparent service goes to the one that the client connected to, any other waits until there is one."""

    index: int
    listen: str
    listen_port: int
    servers: tuple[ServerAddress, ...]
    standby_quiet_ms: int = 0
    idle_quiet_ms: int = 0
    sleep_quiet_ms: int = 0
    connect_timeout_ms: int = 10000
    probe_interval_s: int = 0
    most_probe_s: int = 0
    probe_retry_s: int = PROBE_RETRY_S
    probe_count: int = PROBE_COUNT
    awake_probe_s: int = 0
    attach_silence_s: int = 0
    write_timeout_s: int = 0
    priority: int = Priority.NORMAL
    least_quiet_ms: int = 0
    least_probe_s: int = 0
    on_server_close: int = OnServerClose.STANDBY
    transparent: bool = False
    persistent: bool = False
    unreachable: bool = False
    as_client: bool = False
    source: str = ""
    """The address that servers see, those of its family; empty: the one that the kernel chooses."""
    fail_closed: bool = False
    proxy_header: int = 0
    by_daemon: bool = False
    balance: int = Balance.LEAST_CONNECTIONS
    max_fails: int = 0
    ready_links: int = 0
    reuse_links: int = 0
    ready_ms: int = 20_000
    refuse_down: bool = False
    second_server: int = SecondServer.REFUSED
    second_server_ms: int = 10000
    in_band_clients: int = 0
    in_band_servers: int = 0
    in_band_forward: bool = False
    in_band_stay: bool = False
    born: int = Born.NEVER
    born_rate: int = 0
    born_silence_s: int = 0
    no_keepalives: bool = False
    refuses: bool = False
    limits: tuple[Limit, ...] = ((0, 0),) * 3
    """Of births, handshakes and wakes (Limited)."""
    connections: Limit = (0, 0)
    """How many an address, and a network, may have with this service; 0: as many as come."""


class Limited(IntEnum):
    """What is limited by source (enum roost_limited)."""

    BIRTHS = 0
    HANDSHAKES = 1
    WAKES = 2
    ATTACHES = 3
    AGENTS = 4
    CONNECTIONS = 5


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits by source that are of no service, and what is a source (struct roost_bounds). burst_us: what was not used
    of a limit for so long may be used at once. ipv4_bits, ipv6_bits: how many of an address count, of an address and
    of a network. limits: of attaches and of agents. connections: a service limits how many a source has."""

    burst_us: int
    ipv4_bits: tuple[int, int]
    ipv6_bits: tuple[int, int]
    limits: tuple[Limit, Limit]
    connections: bool = False


ANY_LOCAL: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """Of the clients of a service in this network these values are in force (struct roost_rule). service: its number.
    network: 16 bytes, IPv4-mapped for IPv4, host bits zero; bits: how many of the 128 count. policy: an index into the
    policies that are given with it. group: of the connections that it is for; 0: of those without one, and of groups
    that the service has no entries of. local: packed, of those that connect to this address alone; ANY_LOCAL: to one
    that the service has no entries of."""

    service: int
    network: bytes
    bits: int
    policy: int
    group: int = 0
    local: bytes = ANY_LOCAL


@dataclass(frozen=True, slots=True)
class Sought:
    """Which connections are to be listed (struct roost_sought). born: those, too, that were born asleep and have not
    spoken, of whom there may be millions. states: their numbers; (): all. service: 0: all. network: packed, and how
    many of its bits count. quiet_s: of SLEEP that is not known, and all are listed. after: where an earlier page
    ended. classes: of one of these, or with what is set in band in place of one; None: all. numbers: with one of these,
    which nothing in SLEEP has here; empty: all."""

    born: bool = False
    states: tuple[int, ...] = ()
    service: int = 0
    network: bytes = bytes(16)
    bits: int = 0
    quiet_s: int = 0
    silence_s: int = 0
    after: int = 0
    classes: frozenset[int] | None = None
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server of a service (struct roost_server_status); linked and failed count links since it is there, and ready
    those that no client has yet."""

    server: ServerAddress
    up: bool
    leaving: bool
    links: int
    linked: int
    failed: int
    ready: int = 0
