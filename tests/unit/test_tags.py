# SPDX-License-Identifier: Apache-2.0
"""Tags of names: given and taken away, found by, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, cast

import pytest

from control.channel.operations import Operations
from control.core.states import State
from control.store.tagging import OF_A_NAME
from tests.databases import Database
from tests.unit.asked import asked, pages_of_connections, transport
from tests.unit.fake_engine import key
from tests.unit.test_registry import Rig


class Box:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        for number in range(1, 9):
            rig.engine.add(key(number), number, (State.ACTIVE, State.IDLE)[number % 2])
            rig.registry.give(f"meter-{number}", key(number).pack(), number)
        rig.registry.commit()
        parts: dict[str, Any] = {**dict.fromkeys(Operations.__dataclass_fields__), "view": rig.view}
        self.transport = transport(Operations(**{**parts, "naming": rig.naming}))

    def tag(self, name: str, expected: int = 200, **edit: Any) -> Any:
        answer = asked(self.transport, "PUT", f"/v1/names/{name}/tags", json=edit)
        assert answer.status_code == expected, answer.text
        return answer.json()

    def get(self, path: str, expected: int = 200, **query: Any) -> Any:
        answer = asked(self.transport, "GET", path, params=query)
        assert answer.status_code == expected, answer.text
        return answer.json()

    def tags_of(self, name: str) -> list[str]:
        return cast("list[str]", self.get(f"/v1/names/{name}/tags")["tags"])

    def page(self, **query: Any) -> list[int]:
        return [*chain.from_iterable(pages_of_connections(self.transport, **query))]


@pytest.fixture
def box(database: Database) -> Iterator[Box]:
    rig = Rig(database)
    yield Box(rig)
    rig.close()


def test_a_name_has_the_tags_that_it_was_given_and_not_those_that_were_taken_away(box: Box) -> None:
    assert box.tag("meter-1", add=["winter", "Basement"]) == {"name": "meter-1", "tags": ["basement", "winter"]}
    assert box.tag("METER-1", add=["winter"])["tags"] == ["basement", "winter"], "given again it is there once"
    assert box.tag("meter-1", remove=["winter", "summer"])["tags"] == ["basement"]
    assert box.tags_of("meter-1") == ["basement"]
    assert box.tags_of("meter-2") == []
    assert box.get("/v1/connections/1")["tags"] == ["basement"]


def test_connections_are_found_by_tag_in_pages_and_together_with_what_else_is_asked(box: Box) -> None:
    for number in (2, 3, 4, 7):
        box.tag(f"meter-{number}", add=["cellar"])
    box.tag("meter-5", add=["cella", "cellars"])
    assert box.page(tag="cellar") == [2, 3, 4, 7]
    assert box.page(tag="CELLAR", limit=1) == [2, 3, 4, 7]
    assert box.page(tag="cellar", state="IDLE") == [3, 7]
    assert box.page(tag="cellar", name="*-3") == [3]
    assert box.page(tag="nobody") == []
    for wrong in ("*", "\0", "x" * 200):
        assert "`tag`" in box.get("/v1/connections", 400, after="first", tag=wrong)["error"]
    assert box.get("/v1/tags") == [{"tag": "cella", "names": 1}, {"tag": "cellar", "names": 4},
                                   {"tag": "cellars", "names": 1}]  # fmt: skip


def test_tags_stay_when_the_client_connects_again_and_end_with_its_name(box: Box) -> None:
    box.tag("meter-1", add=["winter"])
    box.rig.engine.add(key(100), 100, State.ACTIVE)
    box.rig.registry.give("meter-1", key(100).pack(), 100)
    box.rig.registry.commit()
    assert box.page(tag="winter") == [100]
    assert asked(box.transport, "DELETE", "/v1/names/meter-1").status_code == 200
    box.rig.registry.give("meter-1", key(100).pack(), 100)
    assert box.tags_of("meter-1") == []


def test_tags_end_with_a_name_that_another_has_taken_the_place_of(box: Box) -> None:
    box.tag("meter-1", add=["winter"])
    box.rig.registry.give("renamed", key(1).pack(), 1)
    box.rig.registry.commit()
    assert box.get("/v1/tags") == []
    box.rig.registry.give("meter-1", key(2).pack(), 2)
    assert box.tags_of("meter-1") == []


def test_all_tags_come_in_pages(box: Box) -> None:
    box.tag("meter-1", add=["a", "b", "c"])
    box.tag("meter-2", add=["b"])
    assert box.get("/v1/tags", limit=2) == [{"tag": "a", "names": 1}, {"tag": "b", "names": 2}]
    assert box.get("/v1/tags", after="b") == [{"tag": "c", "names": 1}]


def test_what_is_no_tag_or_no_name_is_refused_and_nothing_changes(box: Box) -> None:
    box.tag("meter-1", add=["kept"])
    for wrong in ("", "-x", "a b", "é", "x" * 64, "a/b", "<b>", "\x00"):
        assert "is no tag" in box.tag("meter-1", 422, add=["good", wrong])["error"]
    assert "is to be given and taken away" in box.tag("meter-1", 422, add=["x"], remove=["X"])["error"]
    assert "no client has the name" in box.tag("nobody", 404, add=["x"])["error"]
    assert "no client has the name" in box.get("/v1/names/nobody/tags", 404)["error"]
    assert box.tag("meter-1", 422, adds=["x"])["error"].startswith("body.adds: ")
    assert box.tag("meter-1", 422, add="x")["error"].startswith("body.add: ")
    many = [f"t{n}" for n in range(OF_A_NAME)]
    assert f"{OF_A_NAME} at most" in box.tag("meter-1", 422, add=many)["error"]
    assert box.tags_of("meter-1") == ["kept"]
    assert len(box.tag("meter-1", add=many, remove=["kept"])["tags"]) == OF_A_NAME


def test_while_the_database_is_away_tags_are_neither_given_nor_lost(box: Box, database: Database) -> None:
    box.tag("meter-1", add=["kept"])
    box.rig.store._status.error = "the disk is full"
    assert "cannot be changed" in box.tag("meter-1", 503, add=["x"])["error"]
    box.rig.store._status.error = ""
    assert box.tags_of("meter-1") == ["kept"]
