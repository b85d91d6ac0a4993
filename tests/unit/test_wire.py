# SPDX-License-Identifier: Apache-2.0
"""appliance/wire against the C headers: every number of an enum, every struct's size and the place of each field."""

from __future__ import annotations

import re
import struct
from enum import IntEnum, IntFlag

import pytest

from appliance.engine import ffi, lib
from appliance.wire import (
    CANDIDATE,
    KA,
    KEY,
    NO_REST,
    OVERRIDES,
    OVERRIDES_BYTES,
    PLACES,
    PROBE_COUNT,
    PROBE_COUNT_MAX,
    PROBE_RETRY_S,
    REST,
    ROW,
    ROW_BITS,
    SERVERS_MAX,
    TOKEN_COUNTED,
    WAITING_MAX,
    Balance,
    Born,
    EventType,
    Obstacle,
    OnServerClose,
    Op,
    Priority,
    SecondServer,
    Verb,
)
from appliance.wire.record import HEARD_SHIFT, HEARD_WRAP_S, PAIRED
from tests.mutants import ROOT


@pytest.mark.parametrize(
    ("kind", "c_name", "prefix"),
    [
        (Op, "enum roost_op", "ROOST_OP_"),
        (EventType, "enum roost_event_type", "ROOST_EV_"),
        (Balance, "enum roost_balance", "ROOST_"),
        (SecondServer, "enum roost_second_server", "ROOST_SECOND_"),
        (OnServerClose, "enum roost_on_server_close", "ROOST_CLOSE_"),
        (Born, "enum roost_born", "ROOST_BORN_"),
        (Priority, "enum roost_priority", "ROOST_PRIORITY_"),
        (Obstacle, "enum roost_obstacle", "ROOST_OB_"),
    ],
)
def test_an_enum_has_every_number_of_its_c_enum(kind: type[IntEnum | IntFlag], c_name: str, prefix: str) -> None:
    c = {name.removeprefix(prefix): number for number, name in ffi.typeof(c_name).elements.items()}
    assert {one.name: one.value for one in kind} == c


def test_verbs_are_those_that_an_end_may_ask_for() -> None:
    c = {name.removeprefix("ROOST_INBAND_"): n for n, name in ffi.typeof("enum roost_inband_verb").elements.items()}
    assert {one.name: one.value for one in Verb} == {name: n for name, n in c.items() if name not in ("UNKNOWN", "BAD")}


def test_constants_are_those_of_the_headers() -> None:
    assert (SERVERS_MAX, PLACES, WAITING_MAX) == (lib.ROOST_SERVERS_MAX, lib.ROOST_PLACES, lib.ROOST_WAITING_MAX)
    assert (PROBE_RETRY_S, PROBE_COUNT) == (lib.ROOST_PROBE_RETRY_S, lib.ROOST_PROBE_COUNT)
    assert PROBE_COUNT_MAX == lib.ROOST_PROBE_COUNT_MAX
    (counted,) = re.findall(r"#define ROOST_TOKEN_COUNTED (\w+)", (ROOT / "cext/base/types.h").read_text())
    assert int(counted, 16) == TOKEN_COUNTED  # 64 bits, which no enum of C has
    assert (CANDIDATE, PAIRED) == (lib.ROOST_CANDIDATE, lib.ROOST_F_PAIRED)
    assert (HEARD_SHIFT, HEARD_WRAP_S) == (lib.ROOST_HEARD_SHIFT, lib.ROOST_HEARD_WRAP_S)
    header = (ROOT / "ebpf/shared/record.h").read_text(encoding="utf-8")
    assert f"#define ROOST_NO_REST 0x{NO_REST:x}u" in header
    assert f"#define ROOST_ROW_BITS {ROW_BITS}\n" in header


SERVICE = 4
"""Bytes of the service's index behind roost_ka."""


@pytest.mark.parametrize(
    ("form", "name", "more"),
    [
        (KEY, "struct roost_key", 0),
        (KA, "struct roost_ka", SERVICE),
        (REST, "struct roost_rest", 0),
        (ROW, "struct roost_row", 0),
        (OVERRIDES, "struct roost_overrides", 0),
    ],
)
def test_a_packed_struct_has_the_size_and_fields_of_its_c_struct(form: struct.Struct, name: str, more: int) -> None:
    assert form.size == ffi.sizeof(name) + more
    # Each place of C's fields is filled from the form with a byte of its own, and read by the offset that C says.
    raw = bytes(range(1, form.size + 1))
    values = form.unpack(raw)
    sizes = [len(v) if isinstance(v, bytes) else max(1, (v.bit_length() + 7) // 8) for v in values]
    begins = [v[0] if isinstance(v, bytes) else v & 0xFF for v in values]  # little-endian: the first byte is the lowest
    offsets = dict(zip((begin - 1 for begin in begins), sizes, strict=True))
    fields = {field.offset: ffi.sizeof(field.type) for field_name, field in ffi.typeof(name).fields
              if field_name not in ("quiet_ms", "unused")}  # fmt: skip
    assert fields.items() <= offsets.items()


def test_overrides_are_what_an_event_has_room_for() -> None:
    assert ffi.sizeof("struct roost_overrides") == OVERRIDES_BYTES <= KA.size
