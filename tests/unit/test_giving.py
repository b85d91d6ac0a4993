# SPDX-License-Identifier: Apache-2.0
"""Values that one connection is given by command: what the engine is told, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from errno import EIO, ENOENT, ENOSPC, ETIMEDOUT
from typing import Any, cast

import pytest

from appliance.wire import OVERRIDES, Command, Op
from control.clients.giving import ONES_OWN, Giving, read_own
from control.core.errors import OperationError
from control.core.ports import Outcome
from control.core.states import State
from tests.databases import Database, Sqlite
from tests.inner import ffi
from tests.unit.fake_engine import key
from tests.unit.test_registry import Rig


@pytest.mark.parametrize(
    ("values", "bits", "packed"),
    [
        ({"active_quiet": "1m"}, 1, (60_000, 0, 0, 0, 1, 0, 0, 0)),
        ({"standby_quiet": 2.5, "idle_quiet": "never"}, 6, (0, 2500, 0, 0, 6, 0, 0, 0)),
        ({"probe_interval": "5m", "idle_quiet": None}, 12, (0, 0, 0, 300, 8, 0, 0, 0)),
        (dict.fromkeys(ONES_OWN), 15, (0, 0, 0, 0, 0, 0, 0, 0)),
    ],
)
def test_values_are_told_by_their_bits(values: Mapping[str, Any], bits: int, packed: tuple[int, ...]) -> None:
    told, own, _ = read_own(values)
    assert (told, OVERRIDES.unpack(own)) == (bits, packed)


def test_the_keys_are_in_the_order_of_the_engines_struct() -> None:
    raw = ffi.new("struct roost_overrides *")
    ffi.memmove(raw, read_own({key: number for number, key in enumerate(ONES_OWN, 1)})[1], ffi.sizeof(raw[0]))
    assert ([*raw.quiet_ms], raw.probe_interval_s, raw.given) == ([1000, 2000, 3000], 4, 15)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "no value is given; of its own a connection may have active_quiet, standby_quiet, idle_quiet"),
        ({"idl_quiet": "1s"}, "`idl_quiet` is no key; of its own a connection may have"),
        ({"network": "10.0.0.0/8", "idle_quiet": 1}, "`network` is no key"),
        ({"priority": "low"}, "`priority` is given by rules and services alone"),
        ({"x" * 5000: None}, "is no key"),
        ({"idle_quiet": "soon"}, '`idle_quiet` "soon" is no duration'),
        ({"idle_quiet": 0.0001}, "`idle_quiet` a duration is counted in milliseconds"),
        ({"idle_quiet": -1}, "`idle_quiet` a duration lies between 0 and"),
        ({"idle_quiet": 1e300}, "a duration lies between"),
        ({"probe_interval": "1d"}, "`probe_interval` this duration is counted in whole seconds, at most 65535"),
        ({"probe_interval": {}}, "`probe_interval` a duration is seconds"),
    ],
)
def test_what_no_connection_can_have_is_refused(values: Mapping[str, Any], said: str) -> None:
    with pytest.raises(OperationError) as refused:
        read_own(values)
    assert said in str(refused.value)
    assert (refused.value.status, len(str(refused.value)) < 1000) == (422, True)


class Box:
    """One connection, and the engine's answer to commands."""

    def __init__(self, rig: Rig) -> None:
        self.commands: list[Command] = []
        self.answer = 0
        rig.engine.add(key(1), 7, State.IDLE)
        self.client = key(1).client_text
        self.giving = Giving(cast(Any, self), rig.locator)

    def command(
        self, command: Command, states: Iterable[State], timeout_s: float, first: Sequence[Command] = ()
    ) -> Future[Outcome]:
        self.commands.append(command)
        future: Future[Outcome] = Future()
        future.set_result(Outcome(self.answer))
        return future

    def give(self, name: str, **values: Any) -> dict[str, Any]:
        return asyncio.run(self.giving.give(name, values, "ann", "a test"))


@pytest.fixture
def box(sqlite: Sqlite) -> Iterator[Box]:
    rig = Rig(cast(Database, sqlite))
    yield Box(rig)
    rig.close()


def test_the_connection_that_is_meant_is_told(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    told = box.give(box.client, idle_quiet="1h", probe_interval=None)
    values = {"idle_quiet": 3600.0, "probe_interval": None}
    assert told == {"id": 7, "client": box.client, "state": "IDLE", "values": values}
    (command,) = box.commands
    assert (command.op, command.id, command.key, command.count) == (Op.GIVE, 7, key(1), 4 | 8)
    assert f"{box.client}: by command of ann: idle_quiet 3600 s, probe_interval of its policy (a test)" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ENOENT, 409, "it has ended"),
        (ENOSPC, 507, "as many different sets of values"),
        (EIO, 503, "its row cannot be read"),
        (ETIMEDOUT, 504, "no answer in 10 s"),
    ],
)
def test_what_the_engine_refuses_is_said(box: Box, error: int, status: int, said: str) -> None:
    box.answer = error
    with pytest.raises(OperationError) as refused:
        box.give(box.client, idle_quiet="1h")
    assert (refused.value.status, said in str(refused.value)) == (status, True)
    assert f"{box.client} keeps the values that it has" in str(refused.value)


@pytest.mark.parametrize("name", ["198.51.100.9:1", "9", "9" * 5000])
def test_a_connection_that_is_not_there_is_given_nothing(box: Box, name: str) -> None:
    with pytest.raises(OperationError, match="no connection"):
        box.give(name, idle_quiet="1h")
    assert box.commands == []


@pytest.mark.parametrize(
    ("who", "why", "said"),
    [("", "", "`who`"), ("a\nb", "", "`who`"), ("a", "x" * 1001, "`why`"), ("a", "\x1b", "`why`")],
)
def test_who_and_why_are_lines_of_text_since_the_log_has_them(box: Box, who: str, why: str, said: str) -> None:
    with pytest.raises(OperationError, match=f"{said} is a line of text") as refused:
        asyncio.run(box.giving.give(box.client, {"idle_quiet": 1}, who, why))
    assert (refused.value.status, box.commands) == (422, [])
