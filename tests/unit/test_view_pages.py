# SPDX-License-Identifier: Apache-2.0
"""Lists of connections, whole and in pages, of one kind or another, as the API is asked for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, cast

import httpx
import pytest

from control.channel.operations import Operations
from control.channel.parameters import PAGE_ROWS
from control.core.states import State
from tests.databases import Database, Sqlite
from tests.unit.asked import asked, pages_of_connections, transport
from tests.unit.fake_engine import key
from tests.unit.test_registry import Rig

CLIENTS = 250


class Box:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        for number in range(1, CLIENTS + 1):
            rig.engine.add(key(number), number, (State.ACTIVE, State.IDLE)[number % 2])
        parts: dict[str, Any] = {**dict.fromkeys(Operations.__dataclass_fields__), "view": rig.view}
        self.transport = transport(Operations(**parts))

    def ask(self, **query: Any) -> httpx.Response:
        return asked(self.transport, "GET", "/v1/connections", params=query)

    def listed(self, **query: Any) -> list[int]:
        answer = self.ask(**query)
        assert answer.status_code == 200, answer.text
        return [httpx.Response(200, text=line).json()["id"] for line in answer.text.splitlines()]

    def paged(self, **query: Any) -> list[list[int]]:
        return list(pages_of_connections(self.transport, **query))


@pytest.fixture
def box(database: Database) -> Iterator[Box]:
    rig = Rig(database)
    yield Box(rig)
    rig.close()


@pytest.fixture
def lite(sqlite: Sqlite) -> Iterator[Box]:
    """Where the database does not matter."""
    rig = Rig(cast(Database, sqlite))
    yield Box(rig)
    rig.close()


def test_pages_together_are_the_list(lite: Box) -> None:
    everybody = list(range(1, CLIENTS + 1))
    assert lite.listed() == everybody
    for query in ({}, {"limit": 1}, {"limit": 100}, {"limit": CLIENTS}, {"limit": 5000}):
        pages = lite.paged(**query)
        assert [number for page in pages for number in page] == everybody
        assert max(map(len, pages)) == min(query.get("limit", PAGE_ROWS), CLIENTS)
    assert lite.listed(state="IDLE") == everybody[::2]
    assert [number for page in lite.paged(state="IDLE", limit=10) for number in page] == everybody[::2]


def test_names_are_found_by_pattern(box: Box) -> None:
    names = {"camera-1": 1, "camera-2": 2, "camera-10": 3, "cam_ra-1": 4, "meter-1": 5, "camera%": 6}
    for name, number in list(names.items())[:5]:
        box.rig.registry.give(name, key(number).pack(), number)
    box.rig.registry.commit()
    for pattern, wanted in (("camera-*", [1, 3, 2]), ("camera-?", [1, 2]), ("cam_ra-1", [4]), ("*-1", [4, 1, 5]),
                            ("CAMERA-1", [1]), ("*", [4, 1, 3, 2, 5]), ("nobody*", []), ("camera", [])):  # fmt: skip
        assert box.listed(name=pattern) == wanted, pattern
        assert [number for page in box.paged(name=pattern, limit=1) for number in page] == wanted, pattern
    assert box.listed(name="camera-*", state="ACTIVE") == [2]
    del box.rig.engine.connections[key(1)]
    assert box.listed(name="camera-*") == [3, 2], "a name outlives its connection"


def test_those_without_a_slot_are_on_the_last_pages(box: Box) -> None:
    numbers = [3, 5, 7]
    for number in numbers:
        box.rig.engine.add(key(number), number, State.IDLE, by_key=True)
        box.rig.sleep(number)
        del box.rig.engine.connections[key(number)]
        box.rig.engine.without_slot[key(number)] = number
    box.rig.engine.counted["filter_members"] = 3
    pages = box.paged(limit=100)
    assert sorted(number for page in pages[-3:] for number in page)[:3] == numbers
    assert sorted(number for page in pages for number in page) == list(range(1, CLIENTS + 1))
    assert sorted(box.listed(state="SLEEP")) == numbers == sorted(chain(*box.paged(state="SLEEP", limit=2)))
    assert box.listed(state="SLEEP", network="192.0.0.0/8", quiet=2**32 - 1) == []


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ({"network": "10.0.0.1/8"}, 400, "`network`: 10.0.0.1/8 has host bits set"),
        ({"network": "here"}, 400, "`network`:"),
        ({"service": "b"}, 404, 'there is no service "b"; there are: a'),
        ({"name": "a b"}, 400, "`name` is a client's name"),
        ({"name": "*a" * 5}, 400, "at most 4 `*`"),
        ({"name": "x" * 64}, 400, "`name`"),
        ({"quiet": -1}, 422, "quiet"),
        ({"silence": 2**32}, 422, "silence"),
        ({"state": "AWAKE"}, 422, "state"),
        ({"after": "row:xyz"}, 400, 'after="row:xyz" is not what a page ended with'),
        ({"after": "nothing"}, 400, "is not what a page ended with"),
        ({"after": "first:3"}, 400, "is not what a page ended with"),
        ({"after": "1" * 300}, 422, "after"),
    ],
)
def test_what_cannot_be_asked_for_is_told(lite: Box, query: dict[str, Any], status: int, said: str) -> None:
    answer = lite.ask(**query)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    if "after" not in query:
        assert lite.ask(**query, after="first").status_code == status


def test_connections_are_found_by_their_4_tuples(lite: Box) -> None:
    def ends(number: int) -> str:
        return f"{key(number).client_text},{key(number).local_text}"

    lite.rig.registry.give("camera-1", key(7).pack(), 7)
    lite.rig.registry.commit()
    assert lite.listed(keys=";".join(map(ends, (7, 9, CLIENTS + 1)))) == [7, 9]
    assert lite.ask(keys=ends(7)).json()["name"] == "camera-1"
    near = f"{key(7).client_text},{key(7).client_text}"
    assert lite.listed(keys=near) == [], "another service, the same client"
    for wrong, status in ((";", 400), (ends(7).partition(",")[0], 400), ("camera-1,camera-2", 422)):
        assert lite.ask(keys=wrong).status_code == status, wrong
