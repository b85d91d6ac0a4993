# SPDX-License-Identifier: Apache-2.0
"""What no route has is refused by each, and the sentence names it: parameters, fields, bodies, numbers as texts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest

from control.api.access import ACCESS, EVENTS, ME, METRICS, Access
from control.api.document import document
from control.channel.operations import Operations
from control.store.appended import Audit
from tests.unit.asked import asked, transport
from tests.unit.test_api_access import Box
from tests.unit.test_api_stream import Source

FOUND = document()["paths"]
ROUTES = [pytest.param(one, id=f"{one.method} {one.path}") for one in ACCESS]
OWN = (EVENTS, ME, METRICS)
"""Answered by the API's process itself, the others by the daemon."""

BODIES: dict[str, tuple[Any, str]] = {
    "name": ({"name": 7}, "body.name: Input should be a valid string"),
    "start-job": ({"action": "wake", "rate": "9"}, "body.rate: Input should be a valid integer"),
    "tag": ({"add": "red"}, "body.add: Input should be a valid list"),
    "give": ({"values": [], "why": ""}, "body.values: Input should be a valid dictionary"),
    "set-rule": ({"rule": {}, "seen": "7"}, "body.seen: Input should be a valid integer"),
    "remove-rule": ({"seen": 7.5}, "body.seen: Input should be a valid integer"),
    "set-rules": ({"file": None}, "body.file: Input should be a valid string"),
    "rollback": ({"version": True}, "body.version: Input should be a valid integer"),
    "try-rules": ({"file": {}}, "body.file: Input should be a valid string"),
    "make-token": ({"name": "ann", "role": "viewer", "expires_s": "60"}, "body.expires_s: Input should be a valid int"),
}
"""By the name of the operation, one that has a wrong type, and how the sentence about it begins."""


async def chunks() -> AsyncIterator[bytes]:
    yield b"{}"


class Local:
    """The daemon's API, of which no operation may be reached, and what the API's process answers itself."""

    def __init__(self) -> None:
        self.box = Box()
        self.box.source = Source()
        self.box.app = self.box.made(10_000)
        self.rows: list[Audit] = []
        parts = cast(dict[str, Any], dict.fromkeys(Operations.__dataclass_fields__))
        self.transport = transport(Operations(**parts), self.rows.append)

    def refuses(self, access: Access, query: str = "", **request: Any) -> str:
        """The sentence; 422, and it is kept that this was refused."""
        path = re.sub(r"\{[a-z]+\}", "7", access.path)
        self.rows.clear()
        answer: httpx.Response
        if access.path in OWN:
            answer = self.box.asked("admin", access.method, path + query, **request)
        else:
            answer = asked(self.transport, access.method, path + query, **request)
        assert answer.status_code == 422, answer.text
        error: str = answer.json()["error"]
        kept = [(row.status, row.error) for row in self.rows]
        assert kept == ([] if access.method == "GET" else [(422, error)])
        return error


@pytest.fixture(scope="module")
def local() -> Local:
    return Local()


@pytest.mark.parametrize("access", ROUTES)
def test_a_parameter_that_a_route_does_not_have_is_refused_and_so_is_one_that_comes_twice(
    local: Local, access: Access
) -> None:
    said = local.refuses(access, "?nonsense=1")
    assert said.startswith(("nonsense: there is no such parameter; there are: ", "nonsense: there is no such key; "))
    operation = FOUND[access.path][access.method.lower()]
    for one in operation["parameters"]:
        if one["in"] == "query" and one["schema"].get("type") != "array":
            key = one["name"]
            assert local.refuses(access, f"?{key}=1&{key}=1") == f"{key}: once"
            for text in ("1_0", "%2B1", "%201", "1.0", "", "x") if one["schema"].get("type") == "integer" else ():
                said = local.refuses(access, f"?{key}={text}")
                assert f"query.{key}: Input should be a whole number" in said or f"{key}: a number from" in said, text


@pytest.mark.parametrize("access", ROUTES)
def test_a_number_has_a_bound(local: Local, access: Access) -> None:
    for one in FOUND[access.path][access.method.lower()]["parameters"]:
        schema = next((some for some in one["schema"].get("anyOf", [one["schema"]]) if some["type"] == "integer"), None)
        if schema is not None:
            where, most = one["in"], schema.get("maximum", 2**63)
            if where == "query":
                said = local.refuses(access, f"?{one['name']}={most + 1}")
                assert "less than or equal" in said or said.startswith(f"{one['name']}: a number from 0 to "), said
            assert most < 2**63, one["name"]


@pytest.mark.parametrize("access", ROUTES)
def test_a_body_that_a_route_does_not_have_is_refused_with_its_field_named(local: Local, access: Access) -> None:
    operation = FOUND[access.path][access.method.lower()]
    if "requestBody" not in operation:
        assert local.refuses(access, json={}) == "body: this request has none"
        assert local.refuses(access, content=chunks()) == "body: this request has none"
        return
    body, why = BODIES[operation["operationId"]]
    assert local.refuses(access, json=body).startswith(why)
    assert "body.nonsense: Extra inputs are not permitted" in local.refuses(access, json={"nonsense": 1})
    assert local.refuses(access, content=b"{", headers={"Content-Type": "application/json"}).startswith("body: ")
    assert local.refuses(access, content=b"a=1", headers={"Content-Type": "text/plain"}).startswith("body: ")


def test_what_fails_says_so_as_all_else_does(local: Local) -> None:
    answer = asked(local.transport, "GET", "/v1/status")
    assert (answer.status_code, list(answer.json())) == (500, ["error"])


def test_allow_names_every_method_of_a_path() -> None:
    box = Box()
    for path, of_path in FOUND.items():
        answer = box.asked("admin", "PATCH", re.sub(r"\{[a-z]+\}", "7", path))
        assert answer.status_code == 405
        assert set(answer.headers["Allow"].split(", ")) == {method.upper() for method in of_path}, path
    assert box.daemon.asked == []
