# SPDX-License-Identifier: Apache-2.0
"""The live API answers as its document says, whatever it is asked: schemathesis makes the requests of the document,
those that it allows and those that it does not. Longer, by hand, and with other seeds:

    ROOST_SCHEMATHESIS="--max-examples 400 --max-time 600 --seed 7" python -m pytest tests/lab/test_api_schema.py
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from appliance.lab import Lab
from appliance.lab.processes import ROOT, python_environment
from tests.lab.api_lab import API_PORT, ApiLab

AT_MOST_S = 900
NOT_TRIED = ("ignored_auth", "missing_required_header")
"""Requests without a good token are tried in tests/unit/test_api_access.py, for each route and role: here their bound,
one in 5 s, would be reached."""

JUDGED = ("set-rule", "remove-rule", "set-rules", "rollback", "try-rules", "give", "make-token", "tag",
          "start-job")  # fmt: skip
"""Operations that no schema says all of: rules are judged together, a file is a text, a token's services are
there, a tag is not given and taken away at once, a job says in one way for which connections."""


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    """With clients in each state, names, tags, values of one's own, and rules."""
    with ApiLab(nat_free_lab) as box:
        box.wait_for_api()
        box.token("admin")
        box.addresses = [box.client(family)[1] for family in (4, 4, 4, 6, 6)]
        for number, address in enumerate((*box.addresses[:2], box.addresses[4])):
            done(box, "PUT", f"/v1/connections/{address}/name", {"name": f"thing-{number}"})
            done(box, "PUT", f"/v1/names/thing-{number}/tags", {"add": ["red", f"tag-{number}"]})
        for address, action in zip(box.addresses, ("sleep", "idle"), strict=False):
            done(box, "POST", f"/v1/connections/{address}/{action}")
        done(box, "PUT", f"/v1/connections/{box.addresses[4]}/policy", {"values": {"idle_quiet": "5m"}})
        for name, rule in (("spare", {"network": "198.51.100.0/24"}), ("named", {"client": "thing-*"})):
            done(box, "PUT", f"/v1/policy/rules/{name}", {"rule": {**rule, "idle_quiet": "1h"}})
        assert box.ask("admin", "POST", "/v1/jobs", {"action": "idle", "connections": [1]})[0] == 202
        yield box


def done(box: ApiLab, method: str, path: str, body: Any = None) -> Any:
    status, answer = box.ask("admin", method, path, body)
    assert status == 200, answer
    return answer


@pytest.fixture(scope="module")
def document(box: ApiLab) -> dict[str, Any]:
    found: dict[str, Any] = done(box, "GET", "/v1/openapi.json")
    return found


def settings(box: ApiLab, token: str) -> str:
    """Of schemathesis: what there is, so that three of four requests are about something. token: the name of one."""
    asleep, idle, closing, awake, standing = box.addresses
    there_is = {
        "connections": (r"^/v1/connections/\{\w+\}(/(name|explain|policy|attach|idle|sleep|wake))?$",
                        [asleep, idle, awake, "thing-0.roost", "1", "4"]),
        "standing": ("/standby$", [standing, "5"]),
        "closing": ("/close$", [closing, "3"]),
        "tagged": ("/tags$", ["thing-0", "thing-1"]),
        "forgotten": (r"^/v1/names/\{name\}$", ["thing-2"]),
        "jobs": (r"^/v1/jobs/\{number\}$", [1]),
        "rules": (r"^/v1/policy/rules/\{name\}$", ["spare", "named"]),
        "tokens": ("^/v1/tokens/", [token]),
        "addresses": ("explain$", ["10.10.0.9"]),
        "services": ("connections$|explain$|events$", ["lab4", "lab6"]),
    }  # fmt: skip
    keys = {
        "services": ("query.service",),
        "addresses": ("query.client",),
        "tokens": ("path.which",),
        "jobs": ("path.number",),
    }
    told = []
    for name, (paths, values) in there_is.items():
        of = (f'"{key}" = {{dictionary = "{name}", probability = 0.75}}'
              for key in keys.get(name, ("path.name", "path.connection")))  # fmt: skip
        told += [f"[dictionaries.{name}]", f"values = {json.dumps(values)}",
                 "[[operations]]", f"include-path-regex = '{paths}'", f"parameters = {{{', '.join(of)}}}"]  # fmt: skip
    for name in JUDGED:
        told += [
            "[[operations]]",
            f'include-operation-id = "{name}"',
            "checks.positive_data_acceptance.enabled = false",
        ]
    refused = '"400", "404", "405", "409", "413", "422"'
    told += ["[checks.positive_data_acceptance]", 'expected-statuses = ["2xx", "400", "404", "409"]']
    told += ["[checks.negative_data_rejection]", f"expected-statuses = [{refused}]"]
    return "\n".join(told)


def answered(report: Path) -> dict[str, Counter[int]]:
    """How often there was which status, by the operation."""
    found = defaultdict[str, Counter[int]](Counter)
    for line in report.read_text().splitlines():
        recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
        for one in recorder.get("interactions", {}).values():  # a phase that has nothing to ask has none
            found[recorder["label"]][one["response"]["status_code"]] += 1
    return found


def test_whatever_is_asked_is_answered_as_the_document_says(
    box: ApiLab, document: dict[str, Any], tmp_path: Path
) -> None:
    box.token("viewer")
    revoked = box.names.pop("viewer")
    del box.texts["viewer"]
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "schemathesis.toml").write_text(settings(box, revoked))
    more = shlex.split(os.environ.get("ROOST_SCHEMATHESIS", "--max-examples 6 --seed 4711"))
    argv = [sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", f"http://{box.host}:{API_PORT}",
            "--header", f"Authorization: Bearer {box.texts['admin']}", "--exclude-checks", ",".join(NOT_TRIED),
            "--phases", "examples,coverage,fuzzing", "--exclude-path", "/v1/events", "--no-color",
            "--continue-on-failure", "--generation-database", "none", "--request-timeout", "15",
            "--report-ndjson-path", "report.ndjson", *more]  # fmt: skip
    environment = python_environment({"SCHEMATHESIS_HOOKS": str(ROOT / "tests/lab/schemathesis_hooks.py")})
    with (tmp_path / "said").open("wb") as said:
        process = box.lab.run("lan", argv, stdout=said, stderr=said, cwd=tmp_path, env=environment)
    status = process.wait(AT_MOST_S)
    assert status == 0, (tmp_path / "said").read_text()[-20_000:]
    counts = answered(tmp_path / "report.ndjson")
    assert len(counts) == sum(map(len, document["paths"].values())) - 1, "each was asked, but /v1/events"
    refused = [operation for operation, statuses in counts.items() if not (statuses[200] or statuses[202])]
    assert len(refused) <= len(counts) // 10, f"by chance, which is the seed's, some were only refused: {refused}"
    assert "Traceback" not in box.daemon.log.read_text()


def test_what_happens_is_told_as_the_document_says(box: ApiLab, document: dict[str, Any]) -> None:
    def is_valid(value: Any, schema: dict[str, Any]) -> bool:
        return jsonschema_rs.is_valid({**schema, "components": document["components"]}, value)

    content = document["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]
    (media_type,) = content
    with box.begun("admin", "GET", "/v1/events?last=10000&to=SLEEP&to=ACTIVE&network=0.0.0.0/0") as answer:
        assert answer.headers["Content-Type"].partition(";")[0] == media_type
        lines = [answer.readline().decode().rstrip("\n") for _ in range(3 + 3 * 4)]
    fields = [
        line.partition(": ") for line in lines[3:]
    ]  # behind a comment and its number; then three events of three lines
    found: list[Any] = [{key: value for key, _, value in fields[at : at + 3]} for at in (0, 4, 8)]
    assert is_valid(found, content[media_type]["schema"])
    item = document["components"]["schemas"]["Event"]["properties"]["data"]["contentSchema"]
    assert all(is_valid(json.loads(one["data"]), item) for one in found)
    assert not is_valid([{**found[0], "more": ""}], content[media_type]["schema"])
    for query in ("limit=1", "last=1&last=1", "last=-1", "to=AWAY", "network=lan", "after=x"):
        status, refused = box.ask("admin", "GET", f"/v1/events?{query}")
        assert (status, refused["error"].partition(":")[0]) == (422, query.partition("=")[0])


BAD: tuple[tuple[str, str, str, Any, int, str], ...] = (
    # who, method, path, body, status, what the sentence names
    ("viewer", "PUT", "/v1/names/thing-0/tags", {"add": ["blue"]}, 403, "viewer"),
    ("operator", "POST", "/v1/tokens", {"name": "eve", "role": "admin", "expires_s": None}, 403, "operator"),
    ("server", "DELETE", "/v1/names/thing-0", None, 403, "server"),
    ("server", "PUT", "/v1/connections/{other}/policy", {"values": {"idle_quiet": "5m"}}, 404, "{other}"),
    ("expired", "PUT", "/v1/names/thing-0/tags", {"add": ["blue"]}, 401, "token"),
    ("operator", "PUT", "/v1/names/thing-0/tags", {"add": ["blue"], "ad": []}, 422, "body.ad:"),
    ("operator", "PUT", "/v1/names/thing-0/tags", {"add": [7]}, 422, "body.add:"),
    ("operator", "PUT", "/v1/names/thing-0/tags?dry=1", {"add": ["blue"]}, 422, "dry:"),
    ("operator", "PUT", "/v1/names/thing-0/tags", {"add": ["x" * 64]}, 422, "tag"),
    ("operator", "PUT", "/v1/names/thing-0/tags", {"add": ["x" * 65_536]}, 413, "65,536 bytes"),
    ("operator", "PUT", "/v1/policy/rules/spare", {"rule": {"idle_quiet": "soon"}}, 422, "`idle_quiet`"),
    ("operator", "PUT", "/v1/policy/rules/spare", {"rule": {"idle_quite": "5m"}}, 422, "`idle_quite`"),
    ("operator", "PUT", "/v1/policy/rules/spare", {"rule": {"idle_quiet": "5m"}, "seen": 10**30}, 422, "body.seen:"),
    ("operator", "PUT", "/v1/connections/{own}/policy", {"values": {"idle_quiet": 10**400}}, 422, "`idle_quiet`"),
    ("operator", "PUT", "/v1/connections/{own}/policy", {"values": {"priority": "low"}}, 422, "`priority`"),
    ("operator", "PUT", "/v1/connections/{own}/name", {"name": ["thing-9"]}, 422, "body.name:"),
    ("operator", "POST", "/v1/connections/{own}/sleep", {"now": True}, 422, "body:"),
    ("operator", "POST", f"/v1/connections/{'9' * 5000}/sleep", None, 404, "9999"),
    ("operator", "POST", f"/v1/connections/{'9' * 17_000}/sleep", None, 431, "16,384 bytes"),
    ("admin", "POST", "/v1/tokens", {"name": "eve", "role": "root", "expires_s": 60}, 422, "body.role:"),
    ("admin", "POST", "/v1/tokens", {"name": "eve", "role": "viewer", "expires_s": -1}, 422, "body.expires_s:"),
    ("admin", "DELETE", "/v1/tokens/nobody", None, 404, "nobody"),
)  # fmt: skip


def test_what_is_wrong_is_refused_by_its_name_and_nothing_changes(box: ApiLab) -> None:
    (_, own), (_, other) = box.client(4), box.client(6)
    box.token("server", "lab4")
    made = box.daemon.http("POST", "/v1/tokens", json={"name": "expired", "role": "admin", "expires_s": 1}).json()
    box.texts["expired"] = made["token"]
    while time.time_ns() // 1_000_000 <= made["expires_at_ms"]:
        time.sleep(0.1)
    for role in ("viewer", "operator"):
        box.token(role)

    def there_is() -> list[Any]:
        paths = ("tags", "policy", "tokens", f"connections/{own}", f"connections/{own}/policy", f"connections/{other}")
        found = [done(box, "GET", f"/v1/{path}") for path in paths]
        return [{key: one[key] for key in one if key != "quiet_s"} if isinstance(one, dict) else one for one in found]

    before, began = there_is(), time.time_ns() // 1_000_000
    reached = []
    for who, method, path, body, status, name in BAD:
        path, name = (text.format(own=own, other=other) for text in (path, name))
        found, answer = box.ask(who, method, path, body)
        assert (found, name in answer["error"]) == (status, True), f"{method} {path[:100]}: {found} {answer}"[:300]
        if status in (401, 403, 404, 422):  # else it is refused before the daemon is asked
            reached.append((method, path.partition("?")[0][:500], status, answer["error"][:500]))
    assert there_is() == before
    kept = [row for row in done(box, "GET", "/v1/audit?limit=100&refused=true") if row["at_ms"] >= began]
    told = [(row["method"], row["path"], row["status"], row["error"]) for row in kept]
    assert sorted(told) == sorted(reached)  # those of a millisecond are in no order: two processes write them
    assert [row["at_ms"] for row in kept] == sorted(row["at_ms"] for row in kept)
