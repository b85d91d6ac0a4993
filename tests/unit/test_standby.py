# SPDX-License-Identifier: Apache-2.0
"""What the machine that stands by has in its table, with a real store and an engine without a kernel."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from errno import EOPNOTSUPP
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from appliance.wire import KEY, Key
from control.config import Config
from control.core.states import State
from control.daemon import standby as module
from control.daemon.error import DaemonError
from control.daemon.manager import Manager
from control.daemon.standby import Mirror, StandingBy
from control.store import schema
from control.store.database import open_engine, parse_url
from control.store.owner import Owner
from control.store.reading import Reader
from control.store.starting import wall_offset_ms
from control.store.store import Store
from tests.databases import Database
from tests.unit.fake_engine import FakeEngine, key
from tests.unit.test_store import Recorder, sleeper, until


class Table(FakeEngine):
    """The part of an engine that a standby uses: before it starts, a row replaces an earlier one of its 4-tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[int] = set()
        self.put: list[int] = []

    def put_back(self, keys: bytes, kas: bytes, numbers: array[int], clocks: array[int],
                 shifts: Mapping[int, tuple[int, int]]) -> tuple[int, bytes]:  # fmt: skip
        errors = bytearray(len(numbers))
        for at, number in enumerate(numbers):
            if number in self.refused:
                errors[at] = EOPNOTSUPP
                continue
            k = Key.unpack(keys[at * KEY.size : (at + 1) * KEY.size])
            self.add(k, number, State.SLEEP)
            self.shifted[number] = shifts[clocks[at]]
            self.put.append(number)
        return len(numbers), bytes(errors)

    def retain(self, numbers: array[int]) -> int:
        gone = [k for k, c in self.connections.items() if c.id not in frozenset(numbers)]
        for k in gone:
            del self.connections[k]
        return len(gone)

    @property
    def numbers(self) -> set[int]:
        return {c.id for c in self.connections.values()}


class Rig:
    """A store that another machine's daemon writes, and the mirror of it."""

    def __init__(self, database: Database) -> None:
        self.url = database.url
        self.owner = replace(Owner.here("there"), pid_namespace=1)
        self.stores: list[Store] = []
        self.store = self.begin()
        self.table = Table()
        self.reader = Reader(parse_url(database.url))
        self.mirror = Mirror(cast(Any, self.table), self.reader)

    def begin(self) -> Store:
        self.slept = Recorder()
        store = Store(self.url, self.slept, owner=self.owner, paired_lease_s=1.0)
        self.stores.append(store)
        assert store.take() == ""
        store.start()
        return store

    def sleep(self, *numbers: int) -> None:
        before = len(self.slept.slept)
        self.store.add(upserts=[sleeper(number, number) for number in numbers])
        until(lambda: len(self.slept.slept) == before + len(numbers))

    def wake(self, number: int) -> None:
        self.store.add(deletes=[(sleeper(number, number)[0], number)])
        until(lambda: self.store.sleeping_by_id(number) is None)

    def close(self) -> None:
        self.reader.close_readers()
        for store in self.stores:
            store.close()


@pytest.fixture
def rig(database: Database) -> Iterator[Rig]:
    rig = Rig(database)
    yield rig
    rig.close()


def test_only_what_is_new_is_read_and_what_has_gone_is_removed(rig: Rig) -> None:
    rig.sleep(11, 12, 13)
    rig.mirror.refresh()
    rig.wake(12)
    rig.sleep(12, 14)  # the row of 12 is another one
    rig.wake(13)
    rig.mirror.refresh()
    assert rig.table.put == [11, 12, 13, 12, 14]
    assert list(rig.mirror.retain()) == [11, 12, 14]
    assert rig.table.numbers == {11, 12, 14}


def test_another_owner_begins_generations_anew_and_all_is_read_again(rig: Rig) -> None:
    rig.sleep(11, 12)
    rig.mirror.refresh()
    rig.store.close()
    rig.store = rig.begin()
    rig.store._generation = 0  # its wall clock is behind
    rig.sleep(13)
    rig.mirror.refresh()
    assert sorted(rig.table.put) == [11, 11, 12, 12, 13]


def test_what_was_read_before_the_claim_is_not_read_again_after_it(rig: Rig) -> None:
    rig.sleep(11, 12, 13)
    rig.mirror.refresh()
    rig.wake(11)
    rig.sleep(14)
    rig.store.close()
    here = Store(rig.url, Recorder(), owner=Owner.here("here"), paired_lease_s=1.0)
    rig.stores.append(here)
    assert here.take() == ""
    found = rig.mirror.taken_over()
    assert rig.table.put == [11, 12, 13, 14]
    assert (list(found.sleep_ids), list(found.left or ()), found.other_boot) == ([12, 13, 14], [], 3)
    assert rig.table.numbers == {12, 13, 14}


def test_what_was_refused_once_is_put_back_by_the_daemon_and_has_no_slot_until_then(rig: Rig) -> None:
    """It may have an old one, of which the daemon would believe that another connection has its 4-tuple."""
    rig.sleep(11, 12)
    rig.mirror.refresh()
    rig.table.refused = {12, 13}
    rig.wake(12)
    rig.sleep(12, 13)
    rig.mirror.refresh()
    rig.table.refused = set()
    rig.wake(13)
    rig.sleep(14)
    rig.store.close()
    here = Store(rig.url, Recorder(), owner=Owner.here("here"), paired_lease_s=1.0)
    rig.stores.append(here)
    assert here.take() == ""
    found = rig.mirror.taken_over()
    assert list(found.left or ()) == [12], "13 has gone"
    assert rig.table.numbers == {11, 14}


def test_a_clock_that_is_set_has_all_rows_read_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other machine's times are so far from ours by other measure; and one that was suspended counts on."""
    engine = open_engine(parse_url(rig.url), 1.0, True)
    rig.sleep(11)
    with engine.begin() as connection:
        connection.execute(sa.update(schema.clocks).values(boot_id="of another machine"))
    rig.mirror.refresh()
    before, _ = rig.table.shifted[11]
    offset = wall_offset_ms()
    monkeypatch.setattr(module, "wall_offset_ms", lambda: offset + 3_600_000)
    rig.mirror.refresh()
    assert rig.table.put == [11, 11]
    assert rig.table.shifted[11][0] == pytest.approx(before - 3_600_000, abs=5000)
    engine.dispose()


def test_a_machine_that_cannot_tell_its_addresses_says_so(rig: Rig, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    (tmp_path / "ipv4").write_text("1\n")
    monkeypatch.setattr(module, "NONLOCAL_BIND", f"{tmp_path}/ipv{{}}")
    config = Config.model_validate({
        "paths": {"database": "postgresql://roost@db/roost"},
        "standby": {"address": "192.0.2.1"},
        "service": [{"name": "a", "listen": "192.0.2.1:80", "server": "10.0.0.1:80"}],
    })  # fmt: skip
    with socket.socket() as control, pytest.raises(DaemonError, match="ip_nonlocal_bind"):
        StandingBy(config, control, Manager(int, {}), cast(Any, None), rig.store, lambda: None)


def test_rows_with_the_same_4_tuple_leave_the_later_one(rig: Rig) -> None:
    rig.sleep(11)
    rig.mirror.refresh()
    k, record = sleeper(11, 21)
    rig.store.add(upserts=[(k, record)])
    until(lambda: rig.store.sleeping_by_id(21) is not None)
    rig.mirror.refresh()
    assert rig.table.connections[key(11)].id == 21
