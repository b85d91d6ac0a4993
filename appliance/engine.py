# SPDX-License-Identifier: Apache-2.0
"""The engine as Python sees it: batches of commands in, batches of events out (cext/base/face.h, cext/base/types.h).

This is the only importer of the C extension, apart from unit tests. Every call releases the GIL. Addresses are IPv6
bytes everywhere, IPv4 ones IPv4-mapped, as in ebpf/shared/record.h.
"""

from __future__ import annotations

import ipaddress
import os
import struct
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from errno import ENOSPC
from typing import Any, Final, NamedTuple

from cext import _engine

ffi: Any = _engine.ffi
lib: Any = _engine.lib

ERR_LEN = 512
NO_REST: int = 0xFFFFFFFF


class EngineError(Exception):
    """The engine could not do it; the message says what happened, to which object, and what to do."""


class Op(IntEnum):
    """Commands (enum roost_op)."""

    STANDBY = lib.ROOST_OP_STANDBY
    IDLE = lib.ROOST_OP_IDLE
    SLEEP = lib.ROOST_OP_SLEEP
    WAKE = lib.ROOST_OP_WAKE
    CLOSE = lib.ROOST_OP_CLOSE
    ATTACH = lib.ROOST_OP_ATTACH
    RESTORE = lib.ROOST_OP_RESTORE
    INSERT = lib.ROOST_OP_INSERT
    PRESSURE = lib.ROOST_OP_PRESSURE
    ANSWER = lib.ROOST_OP_ANSWER
    TELL = lib.ROOST_OP_TELL
    OVERRIDE = lib.ROOST_OP_OVERRIDE
    PERHAPS = lib.ROOST_OP_PERHAPS


class EventType(IntEnum):
    """Events (enum roost_event_type)."""

    TRANSITION = lib.ROOST_EV_TRANSITION
    QUIET = lib.ROOST_EV_QUIET
    SLEEP_DUE = lib.ROOST_EV_SLEEP_DUE
    NEED_RECORD = lib.ROOST_EV_NEED_RECORD
    REFUSED = lib.ROOST_EV_REFUSED
    PRESSURE = lib.ROOST_EV_PRESSURE
    FATAL = lib.ROOST_EV_FATAL
    SERVER_DOWN = lib.ROOST_EV_SERVER_DOWN
    IN_BAND = lib.ROOST_EV_IN_BAND
    OVERRIDES = lib.ROOST_EV_OVERRIDES
    DONE = lib.ROOST_EV_DONE
    ROWS = lib.ROOST_EV_ROWS
    PERHAPS = lib.ROOST_EV_PERHAPS


class Verb(IntEnum):
    """What an end asks for in band, as far as it can be allowed or not (enum roost_inband_verb)."""

    PING = lib.ROOST_INBAND_PING
    DONE = lib.ROOST_INBAND_DONE
    QUIET = lib.ROOST_INBAND_QUIET
    KEEPALIVE = lib.ROOST_INBAND_KEEPALIVE
    ALWAYS_ACTIVE = lib.ROOST_INBAND_ALWAYS_ACTIVE
    NAME = lib.ROOST_INBAND_NAME
    SLEEP = lib.ROOST_INBAND_SLEEP
    STATUS = lib.ROOST_INBAND_STATUS


class Balance(IntEnum):
    """Which server of a service a link goes to (enum roost_balance)."""

    LEAST_CONNECTIONS = lib.ROOST_LEAST_CONNECTIONS
    SOURCE_HASH = lib.ROOST_SOURCE_HASH


class SecondServer(IntEnum):
    """What becomes of a server that wants a client which is linked (enum roost_second_server)."""

    REFUSED = lib.ROOST_SECOND_REFUSED
    WAITS = lib.ROOST_SECOND_WAITS
    TAKES_OVER = lib.ROOST_SECOND_TAKES_OVER


class Priority(IntEnum):
    """Under pressure, connections of a lower one are frozen first (enum roost_priority)."""

    LOW = lib.ROOST_PRIORITY_LOW
    NORMAL = lib.ROOST_PRIORITY_NORMAL
    HIGH = lib.ROOST_PRIORITY_HIGH


SERVERS_MAX: int = lib.ROOST_SERVERS_MAX
"""Servers of one service."""

WAITING_MAX: int = lib.ROOST_WAITING_MAX
"""Servers that wait for a client, each with a descriptor."""

PLACES: int = lib.ROOST_PLACES
"""Servers of one service, and those that have left it but still have links."""

Server = tuple[str, int]
"""Address and port of a server."""


def pack_address(text: str) -> bytes:
    """16 bytes of an IP address, IPv4-mapped for IPv4. ValueError when it is none."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return bytes(10) + b"\xff\xff" + address.packed
    return address.packed


def _text(address: bytes, port: int) -> str:
    return endpoint_text((unpack_address(address), port))


def endpoint_text(server: Server) -> str:
    """ "192.0.2.1:80" or "[2001:db8::1]:80" """
    return f"[{server[0]}]:{server[1]}" if ":" in server[0] else f"{server[0]}:{server[1]}"


def unpack_address(packed: bytes) -> str:
    """The text of an IP address of 16 bytes."""
    ip = ipaddress.IPv6Address(packed)
    return str(ip.ipv4_mapped or ip)


_KEY = struct.Struct("=16s16s2s2s")
KA = struct.Struct("=IIIIIIHHIHH")
"""struct roost_ka and, behind it, the index of the service: ctl, snd_nxt, rcv_nxt, ts_offset, ts_recent, heard, window,
class, rest, service, reserved."""
_HEARD_SHIFT: int = lib.ROOST_HEARD_SHIFT
_HEARD_WRAP_S: int = lib.ROOST_HEARD_WRAP_S
REST = struct.Struct("=QQIIIHHII")
REST_SIZE: int = REST.size
ROW: Final = struct.Struct("=QQ36sHBBB7xQQQ")
"""A transition that is of interest to the history alone (struct roost_row): id, at_ms, key, service, from, to, cause,
rx, tx, gap."""

PERHAPS: Final[int] = lib.ROOST_PERHAPS
"""Of Engine.states."""

OVERRIDES_BYTES: int = ffi.sizeof("struct roost_overrides")

PROBE_RETRY_S: Final[int] = lib.ROOST_PROBE_RETRY_S
PROBE_COUNT: Final[int] = lib.ROOST_PROBE_COUNT


@dataclass(frozen=True, slots=True)
class Key:
    """A 4-tuple; addresses are 16 bytes, ports in host order."""

    client: bytes
    client_port: int
    local: bytes
    local_port: int

    @classmethod
    def of(cls, client_ip: str, client_port: int, local_ip: str, local_port: int) -> Key:
        """From texts; ValueError when an address is none."""
        return cls(pack_address(client_ip), client_port, pack_address(local_ip), local_port)

    @classmethod
    def unpack(cls, raw: bytes) -> Key:
        """From the 36 bytes of struct roost_key."""
        client, local, client_port, local_port = _KEY.unpack(raw)
        return cls(client, int.from_bytes(client_port, "big"), local, int.from_bytes(local_port, "big"))

    def pack(self) -> bytes:
        """The 36 bytes of struct roost_key."""
        return _KEY.pack(
            self.client, self.local, self.client_port.to_bytes(2, "big"), self.local_port.to_bytes(2, "big")
        )

    @property
    def client_text(self) -> str:
        """As text: `192.0.2.7:40123` or `[2001:db8::1]:443`."""
        return _text(self.client, self.client_port)

    @property
    def local_text(self) -> str:
        """The appliance's side, written like client_text."""
        return _text(self.local, self.local_port)


@dataclass(slots=True)
class Record:
    """A connection's record: key, and the raw bytes of KA (36) and of struct roost_rest (40)."""

    key_raw: bytes
    ka: bytes
    rest: bytes
    peer: Record | None = None
    """Of a pair, where it is known: its server's leg."""

    @property
    def paired(self) -> bool:
        """Whether it sleeps with its server's leg."""
        return bool(KA.unpack(self.ka)[0] >> 16 & lib.ROOST_F_PAIRED)

    @property
    def key(self) -> Key:
        """The 4-tuple."""
        return Key.unpack(self.key_raw)

    @property
    def snd_nxt(self) -> int:
        """Our next sequence number."""
        return int(KA.unpack(self.ka)[1])

    @property
    def rcv_nxt(self) -> int:
        """The sequence number expected from the client."""
        return int(KA.unpack(self.ka)[2])

    @property
    def ts_offset(self) -> int:
        """TSval minus CLOCK_MONOTONIC in ms, modulo 2^32."""
        return int(KA.unpack(self.ka)[3])

    @property
    def heard_s(self) -> int:
        """CLOCK_MONOTONIC seconds when the client was last heard, modulo 2^20."""
        return int(KA.unpack(self.ka)[5]) >> _HEARD_SHIFT

    @property
    def silence_s(self) -> int:
        """Seconds since the client was last heard; six days stand for more."""
        return min((time.monotonic_ns() // 10**9 - self.heard_s) % _HEARD_WRAP_S, _HEARD_WRAP_S // 2)

    @property
    def probes_unanswered(self) -> int:
        """Probes that the appliance has sent since it heard the client."""
        return int(KA.unpack(self.ka)[5]) & 0xF

    @property
    def service(self) -> int:
        """Index of the service."""
        return int(KA.unpack(self.ka)[9])

    @property
    def id(self) -> int:
        """The connection's number; 0 when the record has none at hand (SLEEP)."""
        return int(REST.unpack(self.rest)[0])

    @property
    def active_ms(self) -> int:
        """CLOCK_MONOTONIC ms of the last payload byte."""
        return int(REST.unpack(self.rest)[1])

    def shifted(self, ms: int) -> Record:
        """The same record on a CLOCK_MONOTONIC that is ms ahead of the one it was made on (after a reboot: the clock
        of the new boot minus what the old one would show now, mostly negative)."""
        ka = list(KA.unpack(self.ka))
        ka[3] = (ka[3] - ms) % 2**32
        when, rest_of_heard = divmod(ka[5], 1 << _HEARD_SHIFT)
        ka[5] = (when + ms // 1000) % _HEARD_WRAP_S << _HEARD_SHIFT | rest_of_heard
        rest = list(REST.unpack(self.rest))
        rest[1] = max(0, rest[1] + ms)
        return Record(self.key_raw, KA.pack(*ka), REST.pack(*rest), self.peer and self.peer.shifted(ms))


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

    @property
    def service(self) -> int:
        """Index of the service the connection came in by."""
        return self.record.service

    @property
    def perhaps(self) -> bool:
        """Of what `find` and `find_client` return: it may be asleep without a slot, and its row alone can tell."""
        return self.count == 1

    @property
    def name(self) -> str:
        """Of IN_BAND: the name that an end asks for, "" with another verb."""
        return (self.record.ka + self.record.rest).split(b"\0", 1)[0].decode("ascii")

    @property
    def overrides(self) -> bytes:
        """Of OVERRIDES: struct roost_overrides as it is."""
        return self.record.ka[:OVERRIDES_BYTES]


def transitions(rows: bytes) -> Iterator[Event]:
    """The transitions of an event of type ROWS, each as the event it stands for."""
    for number, at_ms, key, service, source, target, cause, rx_bytes, tx_bytes, gap_ms in ROW.iter_unpack(rows):
        ka = KA.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, service, 0)
        record = Record(key, ka, REST.pack(number, 0, 0, 0, 0, 0, 0, 0, 0))
        yield Event(
            EventType.TRANSITION, source, target, cause, 0, 0, 0, number, 0, at_ms, rx_bytes, tx_bytes, gap_ms, record
        )


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


class Born(IntEnum):
    """Whether clients may be born asleep."""

    NEVER = lib.ROOST_BORN_NEVER
    STORM = lib.ROOST_BORN_STORM
    ALWAYS = lib.ROOST_BORN_ALWAYS


@dataclass(slots=True)
class ServiceSpec:
    """A service and its policy (struct roost_service); times in the units of the names, 0 = never. No servers: a link
    goes to the one that the client connected to."""

    index: int
    listen: str
    listen_port: int
    servers: tuple[Server, ...]
    standby_quiet_ms: int = 0
    idle_quiet_ms: int = 0
    sleep_quiet_ms: int = 0
    connect_timeout_ms: int = 10000
    probe_interval_s: int = 0
    probe_retry_s: int = PROBE_RETRY_S
    probe_count: int = PROBE_COUNT
    priority: int = Priority.NORMAL
    least_quiet_ms: int = 0
    least_probe_s: int = 0
    close_with_server: bool = False
    transparent: bool = False
    persistent: bool = False
    unreachable: bool = False
    as_client: bool = False
    fail_closed: bool = False
    proxy_header: int = 0
    balance: int = Balance.LEAST_CONNECTIONS
    max_fails: int = 0
    second_server: int = SecondServer.REFUSED
    second_server_ms: int = 10000
    in_band_clients: int = 0
    in_band_servers: int = 0
    in_band_forward: bool = False
    in_band_stay: bool = False
    born: int = Born.NEVER
    born_rate: int = 0
    no_keepalives: bool = False


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server of a service (struct roost_server_status); linked and failed count links since it is there."""

    server: Server
    up: bool
    leaving: bool
    links: int
    linked: int
    failed: int


def _check_layout() -> None:
    sizes = {
        "struct roost_key": (_KEY.size, ffi.sizeof("struct roost_key")),
        "struct roost_ka with its service": (KA.size, ffi.sizeof("struct roost_ka") + 4),
        "struct roost_rest": (REST.size, ffi.sizeof("struct roost_rest")),
        "struct roost_row": (ROW.size, ffi.sizeof("struct roost_row")),
    }
    for name, (expected, size) in sizes.items():
        if size != expected:
            raise EngineError(f"{name} is {size} bytes, expected {expected}: rebuild the extension")


_check_layout()


def _fill(place: Any, record: Record) -> None:
    """A struct roost_record."""
    ffi.memmove(ffi.addressof(place, "key"), record.key_raw, 36)
    ffi.memmove(ffi.addressof(place, "ka"), record.ka, 36)
    ffi.memmove(ffi.addressof(place, "rest"), record.rest, REST_SIZE)


def _event_struct() -> struct.Struct:
    """The struct of struct roost_event, with the padding its compiler chose."""
    offset = {
        name: ffi.offsetof("struct roost_event", name) for name in ("type", "error", "count", "id", "gap_ms", "record")
    }
    if (offset["error"], offset["count"], offset["id"], offset["gap_ms"]) != (8, 12, 16, 56):
        raise EngineError("struct roost_event has an unknown layout: rebuild the extension")
    # The union: the name and the overrides begin where the keep-alive's part of a record does.
    after_key = {ffi.offsetof("struct roost_asked", "name"), ffi.offsetof("struct roost_overridden", "overrides")}
    if after_key != {ffi.offsetof("struct roost_record", "ka")}:
        raise EngineError("struct roost_event has an unknown union: rebuild the extension")
    record = offset["record"]
    parts = [ffi.offsetof("struct roost_record", name) for name in ("key", "ka", "rest")]
    total = ffi.sizeof("struct roost_event")
    text = f"=BBBBBxxxiIQQQQQQ{record - 64}x36s{parts[1] - 36}x36s{parts[2] - parts[1] - 36}x{REST_SIZE}s"
    text += f"{total - record - parts[2] - REST_SIZE}x"
    return struct.Struct(text)


_EVENT = _event_struct()

_POLICY: Final = (
    "probe_interval_s",
    "probe_retry_s",
    "probe_count",
    "no_keepalives",
    "priority",
    "close_with_server",
    "least_quiet_ms",
    "least_probe_s",
)
"""What of ServiceSpec is a value of struct roost_class, by the same name."""
_QUIETS: Final = ("active_quiet_ms", "standby_quiet_ms", "idle_quiet_ms")


@dataclass(slots=True)
class _Buffers:
    events: Any = None
    capacity: int = 0
    err: Any = field(default_factory=lambda: ffi.new("char[]", ERR_LEN))


class Engine:
    """One engine: opens or adopts the pinned objects when made.

    submit, find, list, stats and wake may be called from any thread; events from one.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._buffers = _Buffers()
        pin_dir = ffi.new("char[]", options.pin_dir.encode())
        bpf_dir = ffi.new("char[]", options.bpf_dir.encode())
        raw = ffi.new("struct roost_options *")
        name = ffi.new("char[]", options.name.encode())
        raw.pin_dir, raw.bpf_dir, raw.name = pin_dir, bpf_dir, name
        sizes = ("ipv4_slots", "ipv6_slots", "idle_slots", "filter_slots", "ring_bytes")
        for size in (*sizes, "max_awake", "workers", "next_id", "grow"):
            setattr(raw, size, getattr(options, size))
        self._raw = lib.roost_open(raw, self._buffers.err, ERR_LEN)
        if not self._raw:
            raise EngineError(self._message())

    def _message(self) -> str:
        return str(ffi.string(self._buffers.err).decode(errors="replace"))

    def _check(self, result: int) -> int:
        if result < 0:
            raise EngineError(self._message() or os.strerror(-result))
        return result

    def attach(self, ifname: str, mode: str = "auto", servers: bool = False) -> str:
        """Hears inactive connections on an interface; "native", "generic" or "loopback". servers: the servers' legs of
        persistent services are heard there, not clients."""
        name, how = ifname.encode(), mode.encode()
        self._buffers.err[0] = b"\0"
        result = self._check(lib.roost_attach(self._raw, name, how, int(servers), self._buffers.err, ERR_LEN))
        return {1: "native", 2: "generic", 3: "loopback"}[result]

    @staticmethod
    def _service(spec: ServiceSpec) -> Any:
        raw = ffi.new("struct roost_service *")
        for name in (
            "index",
            "listen_port",
            "connect_timeout_ms",
            "proxy_header",
            "balance",
            "max_fails",
            "second_server",
            "second_server_ms",
            "in_band_clients",
            "in_band_servers",
            "born",
            "born_rate",
        ):
            setattr(raw, name, getattr(spec, name))
        for flag in (
            "transparent",
            "as_client",
            "persistent",
            "unreachable",
            "fail_closed",
            "in_band_forward",
            "in_band_stay",
        ):
            setattr(raw, flag, int(getattr(spec, flag)))
        raw.policy.quiet_ms = [spec.standby_quiet_ms, spec.idle_quiet_ms, spec.sleep_quiet_ms]
        for value in _POLICY:
            setattr(raw.policy, value, int(getattr(spec, value)))
        ffi.memmove(raw.listen, pack_address(spec.listen), 16)
        raw.servers = len(spec.servers)
        for place, server in zip(raw.server, spec.servers[:SERVERS_MAX], strict=False):
            Engine._put_server(place, server)
        return raw

    @staticmethod
    def _put_server(raw: Any, server: Server) -> None:
        ffi.memmove(raw.address, pack_address(server[0]), 16)
        raw.port = server[1]

    def add_service(self, spec: ServiceSpec) -> None:
        """Listens for a service."""
        self._buffers.err[0] = b"\0"
        try:
            self._check(lib.roost_service_add(self._raw, self._service(spec), self._buffers.err, ERR_LEN))
        except EngineError as error:
            raise EngineError(f"service at {spec.listen}: {error}") from None

    def update_service(self, spec: ServiceSpec) -> None:
        """Changes the servers and the policy of a service that is there."""
        result = lib.roost_service_update(self._raw, self._service(spec))
        if result == -ENOSPC:
            raise EngineError(
                f"the service at {spec.listen} port {spec.listen_port} keeps its servers and policy: too many servers "
                "that left it still have links; try again when those have ended"
            )
        if result < 0:
            raise EngineError(f"there is no service with index {spec.index}")

    def mark_server(self, service: int, server: Server, up: bool) -> None:
        """Lets links go to a server, or not; one that has left the service meanwhile is ignored."""
        raw = ffi.new("struct roost_server *")
        self._put_server(raw, server)
        lib.roost_server_mark(self._raw, service, raw, int(up))

    def servers(self, service: int) -> list[ServerStatus]:
        """The servers of a service, those that leave included."""
        raw = ffi.new("struct roost_server_status[]", PLACES)
        count = lib.roost_servers_read(self._raw, service, raw, PLACES)
        return [
            ServerStatus(
                (unpack_address(bytes(one.server.address)), one.server.port),
                bool(one.up),
                bool(one.leaving),
                one.links,
                one.linked,
                one.failed,
            )
            for one in raw[0 : max(count, 0)]
        ]

    def open_router(self, attach_ports: Sequence[int] = (), wait_ms: int = 0) -> None:
        """Makes this machine answer for others: call it before transparent services are added. attach_ports: where
        servers reach clients by address alone. wait_ms: how long they wait for one that is not there."""
        self._buffers.err[0] = b"\0"
        self._check(lib.roost_router_open(self._raw, wait_ms, self._buffers.err, ERR_LEN))
        for port in attach_ports:
            self._check(lib.roost_router_attach_port(self._raw, port))

    def steer(self, ifname: str, servers: bool) -> None:
        """Steers what arrives on an interface. servers: those who may want clients are behind it."""
        self._buffers.err[0] = b"\0"
        self._check(lib.roost_router_attach(self._raw, ifname.encode(), int(servers), self._buffers.err, ERR_LEN))

    def link_ports(self, first: int, last: int) -> None:
        """Where links to the servers of persistent services take their local ports from; before start."""
        if lib.roost_link_ports(self._raw, first, last) < 0:
            raise EngineError(f"{first}-{last} is no range of ports")

    def reserve_link_port(self, port: int) -> None:
        """Keep a port from new links, until unreserve_link_ports; before start."""
        if lib.roost_link_port_reserve(self._raw, port) < 0:
            raise EngineError("out of memory")

    def unreserve_link_ports(self) -> None:
        """New links may have every port of the range again that is not asleep."""
        lib.roost_link_ports_unreserve(self._raw)

    def start(self) -> None:
        """Starts the engine thread."""
        self._buffers.err[0] = b"\0"
        self._check(lib.roost_start(self._raw, self._buffers.err, ERR_LEN))

    def stop_listening(self) -> None:
        """Takes no new clients from now on."""
        lib.roost_stop_listening(self._raw)

    def submit(self, commands: Sequence[Command]) -> None:
        """Puts a batch of commands in; they are carried out in order. The answers are events."""
        if not commands:
            return
        raw = ffi.new("struct roost_command[]", len(commands))
        keep = []
        for place, command in zip(raw, commands, strict=True):
            place.op, place.cause, place.fd, place.error = int(command.op), command.cause, command.fd, command.error
            place.count, place.id, place.token = command.count, command.id, command.token
            if command.record is not None:
                _fill(place.record, command.record)
                if command.record.peer is not None:
                    _fill(place.peer, command.record.peer)
            if command.key is not None:
                packed = command.key if isinstance(command.key, bytes) else command.key.pack()
                ffi.memmove(ffi.addressof(place.record, "key"), packed, 36)
            if command.preamble:
                if len(command.preamble) > 64:
                    raise EngineError(f"a preamble of {len(command.preamble)} bytes: at most 64")
                ffi.memmove(place.preamble, command.preamble, len(command.preamble))
                place.preamble_len = len(command.preamble)
            if command.overrides:
                ffi.memmove(ffi.addressof(place, "overrides"), command.overrides, OVERRIDES_BYTES)
            if command.early:
                early = ffi.from_buffer("uint8_t[]", command.early)
                keep.append(early)
                place.early, place.early_len = early, len(command.early)
        result = lib.roost_submit(self._raw, raw, len(commands))
        if result < 0:
            raise EngineError(f"the engine did not take {len(commands)} commands: {os.strerror(-result)}")

    def submit_many(
        self, op: Op, cause: int, ids: Sequence[int] | None = None, keys: Sequence[bytes] | None = None
    ) -> None:
        """The same command for many connections, by number or by packed key, without an object for each."""
        if (ids is None) == (keys is None):
            raise ValueError("either numbers or keys")
        count = len(ids if ids is not None else keys or ())
        raw_ids = ffi.from_buffer("uint64_t[]", array("Q", ids)) if ids is not None else ffi.NULL
        raw_keys = ffi.from_buffer("struct roost_key[]", b"".join(keys)) if keys is not None else ffi.NULL
        result = lib.roost_submit_many(self._raw, int(op), cause, raw_ids, raw_keys, count)
        if result < 0:
            raise EngineError(f"the engine did not take {count} commands: {os.strerror(-result)}")

    @staticmethod
    def _unpack(raw: Any, count: int) -> list[Event]:
        view = ffi.buffer(raw, count * _EVENT.size)
        new = tuple.__new__  # past the arguments by name
        return [new(Event, (*row[:13], Record(row[13], row[14], row[15]), b"")) for row in _EVENT.iter_unpack(view)]

    def batch(self, max_events: int = 4096, timeout_ms: int = 200, patience_ms: int = 0) -> list[Event]:
        """Waits up to timeout_ms for events, or until wake(); takes at most max_events. Once there is one it waits up
        to patience_ms for more, unless somebody waits for what it says (a command's token, a needed record).
        Transitions that are of interest to the history alone come packed, as ROWS."""
        if self._buffers.capacity < max_events:
            self._buffers.events = ffi.new("struct roost_event[]", max_events)
            self._buffers.capacity = max_events
        count = lib.roost_events(self._raw, self._buffers.events, max_events, timeout_ms, patience_ms)
        if not count:
            return []
        events = self._unpack(self._buffers.events, count)
        standing = [at for at, event in enumerate(events) if event.type == EventType.ROWS]
        if standing:
            self._take_rows(events, standing)
        return events

    def _take_rows(self, events: list[Event], standing: list[int]) -> None:
        """Gives those events the transitions that they stand for."""
        count = sum(events[at].count for at in standing)
        raw = ffi.new("struct roost_row[]", count)
        taken = lib.roost_rows(self._raw, raw, count)
        if taken != count:
            raise EngineError(f"of {count} transitions the engine gave {taken}")
        rows = bytes(ffi.buffer(raw))
        begin = 0
        for at in standing:
            end = begin + events[at].count * ROW.size
            events[at] = events[at]._replace(rows=rows[begin:end])
            begin = end

    def events(self, max_events: int = 4096, timeout_ms: int = 200, patience_ms: int = 0) -> list[Event]:
        """As `batch`, with an event for every transition: more than max_events of them, then."""
        found: list[Event] = []
        for event in self.batch(max_events, timeout_ms, patience_ms):
            if event.type == EventType.ROWS:
                found.extend(transitions(event.rows))
            else:
                found.append(event)
        return found

    def wake(self) -> None:
        """Makes a waiting events() return."""
        lib.roost_wake_events(self._raw)

    def list(self, born: bool = False, sleeping: bool = True) -> Iterator[Event]:
        """Everything that exists, in any order; to_state is the state, id 0 for SLEEP (the store knows it). Who is
        there from the first to the last comes once, unless a table grows meanwhile or a million others moved. born:
        those, too, that were born asleep and have not spoken; their id is 0, and there may be millions. sleeping: those
        in SLEEP."""
        which = (lib.ROOST_LIST_BORN if born else 0) | (0 if sleeping else lib.ROOST_LIST_NOBODY_IN_SLEEP)
        raw = ffi.new("struct roost_event[]", 4096)
        listing = lib.roost_list_begin(self._raw, which)
        if not listing:
            raise EngineError("out of memory")
        try:
            while self._raw and not lib.roost_list_done(listing):
                count = lib.roost_list(self._raw, listing, raw, 4096)
                yield from self._unpack(raw, count)
        finally:
            if self._raw:  # otherwise it ended with the engine
                lib.roost_list_end(self._raw, listing)

    def slots_in_sleep(self) -> int:
        """How many clients in SLEEP have a slot. Looks at every slot: for when nothing moves yet."""
        return int(lib.roost_slots_in_sleep(self._raw))

    def find_peer(self, key: bytes) -> Record | None:
        """The server's leg of an IDLE pair, by its client's packed key."""
        raw_key, raw = ffi.new("struct roost_key *"), ffi.new("struct roost_record *")
        ffi.memmove(raw_key, key, 36)
        if not lib.roost_find_peer(self._raw, raw_key, raw):
            return None
        parts = (("key", _KEY.size), ("ka", KA.size), ("rest", REST_SIZE))
        key, ka, rest = (bytes(ffi.buffer(ffi.addressof(raw, part), size)) for part, size in parts)
        return Record(key, ka, rest)

    def find_overrides(self, key: bytes, number: int) -> dict[str, int]:
        """What the connection with this packed key and number set in band, as far as it did: intervals (0: never), and
        whether it is always active."""
        raw_key, raw = ffi.new("struct roost_key *"), ffi.new("struct roost_overrides *")
        ffi.memmove(raw_key, key, 36)
        if not lib.roost_find_overrides(self._raw, raw_key, number, raw):
            return {}
        intervals = zip(_QUIETS, raw.quiet_ms, strict=True)
        values = [*intervals, ("probe_interval_s", raw.probe_interval_s)]
        found = {name: int(value) for bit, (name, value) in enumerate(values) if raw.given & 1 << bit}
        return found | ({"always_active": 1} if raw.always_active else {})

    def find_class(self, key: bytes) -> dict[str, int]:
        """The policy in force for the connection with this packed key: values of struct roost_class."""
        raw_key, raw = ffi.new("struct roost_key *"), ffi.new("struct roost_class *")
        ffi.memmove(raw_key, key, 36)
        lib.roost_find_class(self._raw, raw_key, raw)
        return dict(zip(_QUIETS, raw.quiet_ms, strict=True)) | {name: int(getattr(raw, name)) for name in _POLICY}

    def find(self, key: Key) -> Event | None:
        """The connection of a 4-tuple, or None; to_state is its state."""
        raw_key, raw = ffi.new("struct roost_key *"), ffi.new("struct roost_event *")
        ffi.memmove(raw_key, key.pack(), 36)
        return self._unpack(raw, 1)[0] if lib.roost_find(self._raw, raw_key, raw) else None

    def states(self, keys: bytes) -> bytes:
        """The states of the connections with these packed keys, one after the other, a byte each: 0 where there is
        none, PERHAPS added where it may be asleep without a slot."""
        raw = ffi.new("uint8_t[]", len(keys) // _KEY.size)
        lib.roost_states(self._raw, ffi.from_buffer("struct roost_key[]", keys), len(raw), raw)
        return bytes(ffi.buffer(raw))

    def find_client(self, address: bytes, port: int, local: bytes) -> Sequence[Event]:
        """The connection of a client's packed address and port, whichever service it came in by; where none is known,
        every one that may be asleep without a slot (`perhaps`). local: packed addresses of this machine, one after the
        other, for services that listen on all of them."""
        room = 16
        while True:
            raw = ffi.new("struct roost_event[]", room)
            found = lib.roost_find_client(self._raw, address, port, local, len(local) // 16, raw, room)
            if found < room:
                return self._unpack(raw, found)
            room *= 4

    def stats(self) -> dict[str, int]:
        """Counters and gauges by name."""
        raw = ffi.new("struct roost_stats *")
        lib.roost_stats_read(self._raw, raw)
        result: dict[str, int] = {}
        index = 0
        while name := lib.roost_stat_name(index):
            result[ffi.string(name).decode()] = raw.value[index]
            index += 1
        return result

    def memory(self) -> int:
        """Bytes of kernel memory in our maps and programs, as the kernel accounts them."""
        return int(lib.roost_memory(self._raw))

    def stop(self) -> None:
        """Stops the engine thread; sockets stay until close()."""
        lib.roost_stop(self._raw)

    def close(self) -> None:
        """Frees the engine. Awake connections are closed; sleeping ones stay in the pinned table."""
        if self._raw:
            raw, self._raw = self._raw, None
            lib.roost_close(raw)


def router_mark() -> tuple[int, int]:
    """(mark, mask) of packets that are to be delivered to this machine, whatever address they carry."""
    mask = ffi.new("uint32_t *")
    mark = lib.roost_router_mark(mask)
    return mark, mask[0]


def unpin(pin_dir: str) -> None:
    """Detaches and removes everything pinned below pin_dir: the sleeping connections there are let go."""
    err = ffi.new("char[]", ERR_LEN)
    result = lib.roost_unpin(pin_dir.encode(), err, ERR_LEN)
    if result < 0:
        raise EngineError(ffi.string(err).decode(errors="replace") or os.strerror(-result))
