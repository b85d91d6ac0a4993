# SPDX-License-Identifier: Apache-2.0
"""Rules in the database: a version for each change, nothing lost between two editors, and what is kept of the past."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.store import file, policies
from control.store.database import StoreError
from control.store.owner import Owner
from control.store.policies import ForgottenError, OutdatedError
from control.store.store import Store
from tests.databases import Database
from tests.unit.test_store import on_sqlite

A, B = '{"name": "a"}', '{"name": "b"}'


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    made = Store(database.url, lambda slept: None)
    assert made.open() == ""
    yield made
    made.close()


def contents(store: Store, version: int | None = None) -> dict[str, str]:
    return {row.rule: row.content for row in store.rules(version)[1] if row.content is not None}


def test_a_version_counts_each_change_and_the_newest_row_of_a_rule_is_what_it_is(store: Store) -> None:
    assert store.rules() == (0, [])
    assert [row.version for row in store.change_rules({"a": A}, "ann", "first", 0)] == [1]
    assert [row.version for row in store.change_rules({"a": None, "b": B}, "bob", "", 1)] == [2, 2]
    assert store.change_rules({"a": A}, "ann", "again", 2) == store.rule_changes(1)
    version, rows = store.rules()
    assert version == 3
    assert [(row.rule, row.version, row.who, row.why, row.content) for row in rows] == [
        ("a", 3, "ann", "again", A), ("b", 2, "bob", "", B),
    ]  # fmt: skip
    assert all(row.at > 1_600_000_000_000 for row in rows)
    assert [contents(store, version) for version in range(4)] == [{}, {"a": A}, {"b": B}, {"a": A, "b": B}]
    assert [(row.version, row.rule, row.content) for row in store.rule_changes(100)][:2] == [(1, "a", A), (2, "b", B)]
    assert [row.version for row in store.rule_changes(2)] == [2, 3]
    assert [row.version for row in store.rule_changes(100, "a")] == [1, 2, 3]


def test_changes_are_read_in_pages_of_so_many_bytes_and_none_is_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "TOLD_BYTES", 100)
    for version in range(4):
        store.change_rules({"a": json.dumps(["x" * 40, version]), "b": "{}"}, "ann", "", version)
    seen: list[tuple[int, str]] = []
    before = None
    while page := store.rule_changes(100_000, before=before):
        seen = [(row.version, row.rule) for row in page] + seen
        before = page[0].version
        assert sum(len(row.content or "") for row in page) <= 100
    assert seen == [(version, rule) for version in range(1, 5) for rule in ("b", "a")]
    store.change_rules({"c": "x" * 101, "d": "x" * 101}, "ann", "", 4)  # longer than a page
    assert [(row.version, row.rule) for row in store.rule_changes(100_000)] == [(5, "c")]
    assert [row.version for row in store.rule_changes(100_000, "d")] == [5]
    store.change_rules({"a": A}, "ann", "x" * 101, 5)  # as why may be
    assert [row.version for row in store.rule_changes(100_000)] == [6]


def test_a_removed_rule_still_says_at_which_version(store: Store) -> None:
    store.change_rules({"a": A}, "ann", "", 0)
    store.change_rules({"a": None}, "ann", "", 1)
    assert store.rules()[0] == 2
    assert contents(store) == {}


def test_the_second_of_two_editors_is_told_and_changes_nothing(store: Store) -> None:
    store.change_rules({"a": A}, "ann", "", 0)
    store.change_rules({"b": B}, "bob", "night shift", 1)
    with pytest.raises(OutdatedError, match="the rules are at version 2") as told:
        store.change_rules({"a": None}, "ann", "", 1)
    assert told.value.newest is not None
    assert (told.value.newest.who, told.value.newest.why) == ("bob", "night shift")
    assert contents(store) == {"a": A, "b": B}


def test_of_editors_at_once_one_changes_the_rules(store: Store) -> None:
    done: list[str] = []

    def edit(name: str) -> None:
        try:
            store.change_rules({name: A}, name, "", 0)
            done.append(name)
        except OutdatedError:
            pass

    editors = [threading.Thread(target=edit, args=(f"e{i}",)) for i in range(4)]
    for editor in editors:
        editor.start()
    for editor in editors:
        editor.join(20)
    assert len(done) == 1
    assert list(contents(store)) == done


def test_a_version_that_is_not_there_is_told(store: Store) -> None:
    store.change_rules({"a": A}, "ann", "", 0)
    with pytest.raises(ForgottenError, match="there is no version 2: the newest one is 1"):
        store.rules(2)


def test_the_past_is_kept_so_far_and_what_is_kept_is_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "KEEP_ROWS", 4)
    store.change_rules({"old": A, "gone": A}, "ann", "", 0)
    store.change_rules({"gone": None}, "ann", "", 1)
    for version in range(2, 10):
        store.change_rules({"a": f"{version + 1}"}, "ann", "", version)
    assert [row.version for row in store.rule_changes(100, "a")] == [6, 7, 8, 9, 10]
    assert store.rule_changes(100, "gone") == []
    assert [contents(store, version) for version in (6, 10)] == [{"old": A, "a": "6"}, {"old": A, "a": "10"}]
    with pytest.raises(ForgottenError, match="what the rules were at version 5 is not kept any more"):
        store.rules(5)
    assert store.rules(0) == (0, []), "there were none, whatever is kept"


def test_the_rules_are_kept_beside_the_database_and_its_password_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "DEFAULT_DIRECTORY", tmp_path / "made")
    for url, path in (
        (f"sqlite:///{tmp_path}/x.db", tmp_path / "x.db.rules"),
        ("postgresql://roost:secret@db/roost", tmp_path / "made" / "one.rules"),
    ):
        kept = Store(url, lambda slept: None, owner=Owner.here("one")).rules_file
        kept.write(1, [policies.RuleRow(1, "a", 0, "ann", "", A)], {frozenset({"x"}): 7})
        assert "secret" not in path.read_text()
        found = kept.read()
        assert found is not None
        assert (found.version, found.rules[0].content, dict(found.groups)) == (1, A, {frozenset({"x"}): 7})
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(path.parent.glob("*.new")) == []
        kept.write(0, [], {})
        assert not path.exists()


def test_a_database_that_is_away_refuses_changes(database: Database) -> None:
    store = Store(database.url, lambda slept: None)
    store.open()
    store.change_rules({"a": A}, "ann", "", 0)
    database.take_away()
    with pytest.raises(StoreError, match=database.away):
        store.change_rules({"a": None}, "ann", "", 1)
    database.give_back()
    store.close()


@on_sqlite
def test_a_file_that_was_replaced_gets_no_change(store: Store, database: Database) -> None:
    database.give_back()
    with pytest.raises(StoreError, match="was removed or replaced"):
        store.change_rules({"a": A}, "ann", "", 0)


def test_a_daemon_whose_database_was_taken_over_changes_nothing(database: Database) -> None:
    first = Store(database.url, lambda slept: None, owner=Owner.here("one"))
    first.open()
    other = Store(database.url, lambda slept: None, owner=Owner.here("two"), take_over=True)
    assert other.open() == ""
    with pytest.raises(StoreError, match="was taken over"):
        first.change_rules({"a": A}, "ann", "", 0)
    assert other.change_rules({"b": B}, "ann", "", 0)
    assert contents(other) == {"b": B}
    other.close()
    first.close()


def test_a_store_that_could_not_be_opened_says_why(database: Database) -> None:
    database.take_away()
    store = Store(database.url, lambda slept: None)
    error = store.open()
    assert error
    with pytest.raises(StoreError) as told:
        store.change_rules({"a": A}, "ann", "", 0)
    assert str(told.value) == error
    database.give_back()
    store.close()
