# SPDX-License-Identifier: Apache-2.0
"""The document of the API is whole; that it is true is tried on the live API (tests/lab/test_api_schema.py)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import jsonschema_rs
import pytest
from click.testing import CliRunner

from control.api.access import ACCESS, ATTACH
from control.api.stream import _KEYS
from control.channel.answers import ANSWERS, MEANINGS
from control.cli.api import command
from control.core.errors import OperationError
from control.daemon import beside
from control.daemon.document import Document

OF_ALL = (400, 401, 403, 408, 413, 422, 429, 431, 503)
"""Errors that control/api/ may answer with whatever is asked for, and 422 of control/channel/strict.py."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    answer = CliRunner().invoke(command, ["--openapi"])
    assert answer.exit_code == 0, answer.output
    return cast("dict[str, Any]", json.loads(answer.output))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, of_path in document["paths"].items():
        yield from ((method.upper(), path, one) for method, one in of_path.items())


def test_every_route_says_what_it_answers_which_errors_and_who_may(document: dict[str, Any]) -> None:
    assert sorted(ANSWERS) == sorted((one.method, one.path) for one in ACCESS), "each route has a row, and no other"
    found = {(method, path): one for method, path, one in operations(document)}
    assert len({one["operationId"] for one in found.values()}) == len(ACCESS) == len(found)
    for access in ACCESS:
        operation = found[access.method, access.path]
        assert (operation["x-role"], operation["x-server"]) == (access.least, access.server)
        statuses = {int(status) for status in operation["responses"]}
        assert {202 if access.path == "/v1/jobs" and access.method == "POST" else 200, *OF_ALL} <= statuses
        assert statuses - ({101} if access.path == ATTACH else set()) <= {200, 202, *MEANINGS}
        assert (101 in statuses) == (access.path == ATTACH)
        in_path = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert in_path == set(re.findall(r"\{([a-z]+)\}", access.path)), access.path
        assert not in_path or 404 in statuses, "at least of a name that is `..`"


def test_what_may_be_asked_of_events_is_what_is_read(document: dict[str, Any]) -> None:
    parameters = document["paths"]["/v1/events"]["get"]["parameters"]
    assert [one["name"] for one in parameters if one["in"] == "query"] == list(_KEYS)
    several = [one["name"] for one in parameters if one["schema"]["type"] == "array"]
    assert several == ["service", "to"], "as read_query has it"
    assert [one["name"] for one in parameters if one["in"] == "header"] == ["Last-Event-ID"]


def test_every_field_and_parameter_is_explained_and_every_model_closed(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    def is_explained(schema: dict[str, Any]) -> bool:
        further = [schemas[schema["$ref"].rpartition("/")[2]]] if "$ref" in schema else schema.get("anyOf", ())
        return "description" in schema or any(map(is_explained, further))

    for name, model in schemas.items():
        if model.get("type") == "object":
            assert model["additionalProperties"] is False, name
        for key, schema in model.get("properties", {}).items():
            assert is_explained(schema), f"{name}.{key}"
    for method, path, operation in operations(document):
        for one in operation["parameters"]:
            assert one["description"], f"{method} {path}: {one['name']}"


def test_its_schemas_are_of_json_schema_and_refer_to_nothing_that_is_not_there(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        refer = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema))
        assert set(refer) <= set(document["components"]["schemas"]), name


def test_nothing_of_it_is_imported_where_requests_are_answered() -> None:
    code = "import sys, control.daemon.daemon, control.api.process; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "control.channel.api" in found
    assert not [name for name in found if name.startswith(("control.channel.models", "control.channel.answers"))]


def test_it_is_made_once_and_tried_again_where_it_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        made = Document()
        monkeypatch.setattr(beside, "roost", lambda _: ("false",))
        with pytest.raises(OperationError, match="could not be made: its process ended with status 1") as refused:
            await made.read()
        assert refused.value.status == 503
        monkeypatch.setattr(beside, "roost", lambda _: ("sh", "-c", 'echo "$0" $$'))
        first, second = await asyncio.gather(made.read(), made.read())
        assert first == second
        assert first.startswith(b"--openapi ")

    asyncio.run(scene())
