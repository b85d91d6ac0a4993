# SPDX-License-Identifier: Apache-2.0
"""Whoever may see the connections of some services alone sees and changes no other, by whatever way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest

from control.channel.operations import Operations
from control.clients.scope import SCOPE
from control.config import Service
from control.core.states import State
from tests.databases import Database
from tests.unit.asked import asked, transport
from tests.unit.fake_engine import key, record
from tests.unit.test_registry import Rig


class Box:
    """Connections 1 to 4, of two services in turn, with names."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        services = cast("dict[int, Service]", rig.view._services)  # the locator's, too
        services[1] = services[1].model_copy(update={"name": "alarms"})
        services[2] = services[1].model_copy(update={"name": "gas, & water"})
        for number in range(1, 5):
            added = rig.engine.add(key(number), number, State.ACTIVE)
            added.record = record(key(number), number, (number - 1) % 2 + 1)
            rig.registry.give(f"meter-{number}", key(number).pack(), number)
        rig.registry.commit()
        parts: dict[str, Any] = {**dict.fromkeys(Operations.__dataclass_fields__), "view": rig.view}
        self.transport = transport(Operations(**{**parts, "naming": rig.naming, "moving": rig.moving}))

    def ask(self, method: str, path: str, services: str | None = None, **request: Any) -> httpx.Response:
        headers = {} if services is None else {"Roost-Services": services}
        return asked(self.transport, method, path, headers=headers, **request)


@pytest.fixture
def box(database: Database) -> Iterator[Box]:
    rig = Rig(database)
    yield Box(rig)
    rig.close()


ALARMS, GAS, BOTH, NONE = "alarms", quote("gas, & water"), f"alarms,{quote('gas, & water')}", "cameras"


def listed(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [httpx.Response(200, text=line).json()["id"] for line in answer.text.splitlines()]


def test_lists_and_pages_have_the_connections_of_its_services(box: Box) -> None:
    assert listed(box.ask("GET", "/v1/connections")) == [1, 2, 3, 4]
    ends = {"keys": ";".join(f"{key(number).client_text},{key(number).local_text}" for number in range(1, 5))}
    assert listed(box.ask("GET", "/v1/connections", ALARMS, params=ends)) == [1, 3]
    assert listed(box.ask("GET", "/v1/connections", ALARMS)) == [1, 3]
    assert listed(box.ask("GET", "/v1/connections", GAS)) == [2, 4]
    assert listed(box.ask("GET", "/v1/connections?name=meter-*", GAS)) == [2, 4]
    assert listed(box.ask("GET", "/v1/connections?service=alarms", BOTH)) == [1, 3]
    for query in ("", "&name=*", "&tag=x"):
        refused = box.ask("GET", f"/v1/connections?after=first&limit=1{query}", GAS)
        assert (refused.status_code, "pages are for" in refused.json()["error"]) == (403, True)
    for rule in ("fleet", "nothing"):
        refused = box.ask("GET", f"/v1/connections?rule={rule}", GAS)
        assert (refused.status_code, "which rules there are" in refused.json()["error"]) == (403, True)
    refused = box.ask("GET", "/v1/connections", BOTH)
    assert (refused.status_code, refused.json()["error"]) == (422, "service: say which, of: alarms, gas, & water")
    refused = box.ask("GET", "/v1/connections?service=alarms", GAS)
    assert refused.status_code == 404
    assert refused.json()["error"] == 'there is no service "alarms"; there are: gas, & water'
    assert box.ask("GET", "/v1/connections", NONE).status_code == 422
    assert box.ask("GET", "/v1/connections?service=cameras", NONE).status_code == 404


@pytest.mark.parametrize("name", ["2", "client", "meter-2.roost"])
def test_a_connection_of_another_service_is_none(box: Box, name: str) -> None:
    where = key(2).client_text if name == "client" else name
    for method, path in (("GET", ""), ("POST", "/wake"), ("POST", "/close"), ("POST", "/sleep")):
        refused = box.ask(method, f"/v1/connections/{where}{path}", ALARMS)
        assert (refused.status_code, refused.json()["error"]) == (404, f'no connection "{where}"')
    assert box.rig.engine.commands == []
    assert box.ask("GET", f"/v1/connections/{where}", GAS).json()["service"] == "gas, & water"
    assert box.ask("POST", f"/v1/connections/{where}/wake", GAS).json()["state"] == "ACTIVE"


def test_tags_are_those_of_its_clients(box: Box) -> None:
    for service, expected in ((ALARMS, 404), (GAS, 200), (None, 200)):
        assert box.ask("PUT", "/v1/names/meter-2/tags", service, json={"add": ["x"]}).status_code == expected
        assert box.ask("GET", "/v1/names/meter-2/tags", service).status_code == expected
    refused = box.ask("GET", "/v1/names/meter-2/tags", ALARMS)
    unknown = box.ask("GET", "/v1/names/meter-9/tags", ALARMS)
    assert refused.json()["error"].replace("2", "9") == unknown.json()["error"], "it is not told that there is one"


def test_it_ends_with_the_request(box: Box) -> None:
    assert listed(box.ask("GET", "/v1/connections", ALARMS)) == [1, 3]
    assert SCOPE.get() is None
    assert listed(box.ask("GET", "/v1/connections")) == [1, 2, 3, 4]


def test_a_connection_whose_service_is_not_configured_any_more_is_for_no_server(box: Box) -> None:
    del cast("dict[int, Service]", box.rig.view._services)[2]
    assert box.ask("GET", "/v1/connections/2").json()["service"] == "#2"
    for services in (GAS, quote("#2"), ""):
        assert box.ask("GET", "/v1/connections/2", services).status_code == 404
