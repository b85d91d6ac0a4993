# SPDX-License-Identifier: Apache-2.0
"""C structs of cext/base/types.h from and to the types of appliance/wire."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from appliance.engine.library import EngineError, ffi
from appliance.wire import (
    ENDS,
    KA,
    KEY,
    OVERRIDES,
    REST,
    ROW,
    SERVED,
    SERVERS_MAX,
    Bounds,
    Event,
    Record,
    RuleEntry,
    ServerAddress,
    ServiceSpec,
    Sought,
    pack_address,
)


def _check_sizes() -> None:
    after_ka = 4  # the index of the service
    for form, name, more in (
        (KEY, "roost_key", 0),
        (KA, "roost_ka", after_ka),
        (REST, "roost_rest", 0),
        (ROW, "roost_row", 0),
        (ENDS, "roost_ends", 0),
        (OVERRIDES, "roost_overrides", 0),
        (SERVED, "roost_served", -KEY.size),
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
        name: ffi.offsetof("struct roost_event", name)
        for name in ("type", "error", "count", "id", "gap_ms", "ends", "record")
    }
    if [offset[name] for name in ("error", "count", "id", "gap_ms", "ends")] != [8, 12, 16, 56, 64]:
        raise EngineError("struct roost_event has an unknown layout: rebuild the extension")
    # The union: what is behind a key begins where the keep-alive's part of a record does.
    firsts = {"asked": "name", "overridden": "overrides", "served": "server"}
    after_key = {ffi.offsetof(f"struct roost_{name}", first) for name, first in firsts.items()}
    if after_key != {ffi.offsetof("struct roost_record", "ka")}:
        raise EngineError("struct roost_event has an unknown union: rebuild the extension")
    record = offset["record"]
    parts = [ffi.offsetof("struct roost_record", name) for name in ("key", "ka", "rest")]
    total = ffi.sizeof("struct roost_event")
    text = f"=BBBBBxxxiIQQQQQQ{ENDS.size}s{record - 64 - ENDS.size}x"
    text += f"36s{parts[1] - 36}x36s{parts[2] - parts[1] - 36}x{REST.size}s"
    text += f"{total - record - parts[2] - REST.size}x"
    return struct.Struct(text)


_EVENT = _event_struct()


def events_of(raw: Any, count: int) -> list[Event]:
    """The first `count` of an array of struct roost_event."""
    view = ffi.buffer(raw, count * _EVENT.size)
    new = tuple.__new__  # past the arguments by name
    return [
        new(Event, (*row[:13], Record(row[14], row[15], row[16]), b"", row[13])) for row in _EVENT.iter_unpack(view)
    ]


def numbers_of(struct_name: str, *others: str) -> list[str]:
    """The fields of a C struct that are plain numbers, without these others."""
    fields = ffi.typeof(f"struct {struct_name}").fields
    return [name for name, field in fields if field.type.kind == "primitive" and name not in others]


_SERVICE: Final = numbers_of("roost_service", "servers")
POLICY: Final = numbers_of("roost_class", "always_active", "service", "base", "unused")
"""What of ServiceSpec is a number of struct roost_service and of its class, by the same name."""

QUIETS: Final = ("active_quiet_ms", "standby_quiet_ms", "idle_quiet_ms")
"""The names of roost_class.quiet_ms."""


def c_service(spec: ServiceSpec) -> Any:
    """A struct roost_service."""
    raw = ffi.new("struct roost_service *")
    for name in _SERVICE:
        setattr(raw, name, int(getattr(spec, name)))
    _fill_class(raw.policy, spec)
    ffi.memmove(raw.listen, pack_address(spec.listen), 16)
    if spec.source:
        ffi.memmove(raw.source, pack_address(spec.source), 16)
    raw.limit_us = [list(limit) for limit in spec.limits]
    raw.connections = list(spec.connections)
    raw.servers = len(spec.servers)
    for place, server in zip(raw.server, spec.servers[:SERVERS_MAX], strict=False):
        put_server(place, server)
    return raw


def c_bounds(bounds: Bounds) -> Any:
    """A struct roost_bounds."""
    raw = ffi.new("struct roost_bounds *")
    raw.burst_us = bounds.burst_us
    raw.connections = bounds.connections
    raw.bits = [list(bounds.ipv4_bits), list(bounds.ipv6_bits)]
    raw.limit_us = [list(limit) for limit in bounds.limits]
    return raw


def c_sought(sought: Sought, numbers: Any) -> Any:
    """A struct roost_sought. numbers: an array of its numbers, ascending, which is to last as long as the listing."""
    raw = ffi.new("struct roost_sought *")
    for name in ("after", "born", "service", "bits", "quiet_s", "silence_s"):
        setattr(raw, name, int(getattr(sought, name)))
    raw.states = sum(1 << state for state in sought.states)
    ffi.memmove(raw.network, sought.network, 16)
    raw.numbers, raw.number_count = numbers, len(numbers)
    raw.by_class = sought.classes is not None
    for number in sought.classes or ():
        raw.classes[number // 64] |= 1 << number % 64
    return raw


def _fill_class(raw: Any, spec: ServiceSpec) -> None:
    for name in POLICY:
        setattr(raw, name, int(getattr(spec, name)))
    raw.quiet_ms = [spec.standby_quiet_ms, spec.idle_quiet_ms, spec.sleep_quiet_ms]


def c_rules(entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> tuple[Any, Any]:
    """An array of struct roost_rule, and one of struct roost_class."""
    rules = ffi.new("struct roost_rule[]", len(entries))
    for place, entry in zip(rules, entries, strict=True):
        ffi.memmove(place.network, entry.network, 16)
        ffi.memmove(place.local, entry.local, 16)
        place.bits, place.service, place.policy, place.group = entry.bits, entry.service, entry.policy, entry.group
    classes = ffi.new("struct roost_class[]", len(policies))
    for place, spec in zip(classes, policies, strict=True):
        _fill_class(place, spec)
        place.service = spec.index
    return rules, classes


def put_server(raw: Any, server: ServerAddress) -> None:
    """Fills a struct roost_server."""
    ffi.memmove(raw.address, pack_address(server[0]), 16)
    raw.port = server[1]
