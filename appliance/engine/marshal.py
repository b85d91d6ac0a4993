# SPDX-License-Identifier: Apache-2.0
"""C structs of cext/base/types.h from and to the types of appliance/wire."""

from __future__ import annotations

import struct
from typing import Any, Final

from appliance.engine.library import EngineError, ffi
from appliance.wire import (
    KA,
    KEY,
    OVERRIDES,
    REST,
    ROW,
    SERVERS_MAX,
    Event,
    Record,
    ServerAddress,
    ServiceSpec,
    pack_address,
)


def _check_sizes() -> None:
    after_ka = 4  # the index of the service
    for form, name, more in (
        (KEY, "roost_key", 0),
        (KA, "roost_ka", after_ka),
        (REST, "roost_rest", 0),
        (ROW, "roost_row", 0),
        (OVERRIDES, "roost_overrides", 0),
    ):
        size = ffi.sizeof(f"struct {name}") + more
        if form.size != size:
            raise EngineError(f"struct {name} is {size} bytes, expected {form.size}: rebuild the extension")


_check_sizes()


def fill_record(place: Any, record: Record) -> None:
    """Fills a struct roost_record."""
    ffi.memmove(ffi.addressof(place, "key"), record.key_raw, 36)
    ffi.memmove(ffi.addressof(place, "ka"), record.ka, 36)
    ffi.memmove(ffi.addressof(place, "rest"), record.rest, REST.size)


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
    text = f"=BBBBBxxxiIQQQQQQ{record - 64}x36s{parts[1] - 36}x36s{parts[2] - parts[1] - 36}x{REST.size}s"
    text += f"{total - record - parts[2] - REST.size}x"
    return struct.Struct(text)


_EVENT = _event_struct()


def events_of(raw: Any, count: int) -> list[Event]:
    """The first `count` of an array of struct roost_event."""
    view = ffi.buffer(raw, count * _EVENT.size)
    new = tuple.__new__  # past the arguments by name
    return [new(Event, (*row[:13], Record(row[13], row[14], row[15]), b"")) for row in _EVENT.iter_unpack(view)]


POLICY: Final = (
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

QUIETS: Final = ("active_quiet_ms", "standby_quiet_ms", "idle_quiet_ms")
"""The names of roost_class.quiet_ms."""


def c_service(spec: ServiceSpec) -> Any:
    """A struct roost_service."""
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
    for value in POLICY:
        setattr(raw.policy, value, int(getattr(spec, value)))
    ffi.memmove(raw.listen, pack_address(spec.listen), 16)
    raw.servers = len(spec.servers)
    for place, server in zip(raw.server, spec.servers[:SERVERS_MAX], strict=False):
        put_server(place, server)
    return raw


def put_server(raw: Any, server: ServerAddress) -> None:
    """Fills a struct roost_server."""
    ffi.memmove(raw.address, pack_address(server[0]), 16)
    raw.port = server[1]
