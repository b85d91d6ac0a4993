# SPDX-License-Identifier: Apache-2.0
"""What each route answers: one table, for the document of the API (control/api/document.py) alone.

A route that is new has a row here, or tests/unit/test_api_document.py fails.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from control.channel.models.attach import Offer
from control.channel.models.connections import Connection, ConnectionInFull, Explanation, Moved, Page
from control.channel.models.history import Attach, Change, Event, Snapshot, Transition
from control.channel.models.jobs import Job
from control.channel.models.names import AgentClient, Dialled, Forgotten, Named, TagCount, Tags
from control.channel.models.rules import (
    AddressPolicy,
    Changed,
    ConnectionPolicy,
    Given,
    Outcome,
    RuleChange,
    RuleInFull,
    Rules,
)
from control.channel.models.status import Status
from control.channel.models.tokens import MadeToken, Me, Revoked, Token

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"

MEANINGS: Final = {
    400: "what is asked for cannot be read",
    401: "no token, or one that is not good (any more)",
    403: "the token's role may not do this",
    404: "there is no such connection, name, service, rule or token",
    408: "the request came too slowly: 10 s for its head, 30 s for the rest",
    409: "it is not as it would have to be, another has changed it since, or it is several connections'",
    412: "what If-Match names is not what there is: another has changed it since",
    413: "the request is too large",
    422: "what is asked for is none; the sentence names the field",
    429: "too often, or too many at once",
    431: "the head of the request has more than 16 KiB",
    502: "the client is not connected, or its connection ended meanwhile",
    503: "the daemon, or its database, is away, or does not answer in time",
    504: "the connection was not moved in time",
    507: "there is no room for it",
}
"""Every status but 200, and 405 of what is no method of the route."""

ALWAYS: Final = (400, 401, 403, 408, 413, 422, 429, 431, 503)
"""Those that every request may have, whatever it asks for."""


class Answer(NamedTuple):
    """Of a route. name: of the operation. kinds: the model of each media type, of lines and events all of them as one
    list (OpenAPI 3.2, 4.14.3). more: errors besides ALWAYS. status: of a success. etag: it comes with the version."""

    group: str
    name: str
    summary: str
    kinds: dict[str, Any]
    more: tuple[int, ...] = ()
    status: int = 200
    etag: bool = False


def _json(group: str, name: str, summary: str, model: Any, *more: int) -> Answer:
    return Answer(group, name, summary, {JSON: model}, more)


def _rules(name: str, summary: str, model: Any, *more: int) -> Answer:
    return _json("rules", name, summary, model, *more)._replace(etag=True)


MOVES: Final = {
    "standby": "Close its link to the server, and keep its socket",
    "idle": "Take it out of the kernel",
    "sleep": "Move its record to the database",
    "wake": "Put it back into the kernel",
    "close": "Close it, whatever its state",
}

ANSWERS: Final = {
    ("GET", "/v1/status"): _json("status", "status", "How the daemon stands", Status),
    ("GET", "/v1/connections"): Answer(
        "connections", "connections", "Connections, an object a line; with `after` a page of them",
        {LINES: list[Connection], JSON: Page}, (404,)),
    ("GET", "/v1/connections/{name}"):
        _json("connections", "connection", "All about one connection", ConnectionInFull, 404, 409),
    ("GET", "/v1/connections/{name}/explain"):
        _json("connections", "explain", "Why it is not asleep, or does not wake", Explanation, 404, 409),
    **{
        ("POST", f"/v1/connections/{{name}}/{action}"): _json("connections", action, summary, Moved, 404, 409, 504)
        for action, summary in MOVES.items()
    },
    ("PUT", "/v1/connections/{connection}/name"): _json("names", "name", "Give its client a name", Named, 404, 409),
    ("DELETE", "/v1/connections/{connection}/name"):
        _json("names", "unname", "Forget its client's name", Forgotten, 404, 409),
    ("DELETE", "/v1/names/{name}"):
        _json("names", "forget", "Forget a name, whether or not its client is connected", Forgotten, 404, 409),
    ("GET", "/v1/names/{name}/tags"): _json("names", "tags-of", "The tags of a name", Tags, 404),
    ("PUT", "/v1/names/{name}/tags"): _json("names", "tag", "Give a name tags, and take some away", Tags, 404),
    ("GET", "/v1/tags"): _json("names", "tags", "Tags, and how many names have each", list[TagCount]),
    ("GET", "/v1/agents"): _json("status", "agents", "The clients that agents speak for", list[AgentClient]),
    ("GET", "/v1/dialled"):
        _json("status", "dialled", "The clients that were dialled in vain, or are to stay", list[Dialled]),
    ("GET", "/v1/events"):
        Answer("history", "events", "Transitions, as they are committed", {EVENTS: list[Event]}, (404,)),
    ("GET", "/v1/history"): _json("history", "history", "The last transitions, oldest first", list[Transition]),
    ("GET", "/v1/attaches"):
        _json("history", "attaches", "The last servers that asked for a client, oldest first", list[Attach]),
    ("GET", "/v1/snapshots"): _json("history", "snapshots", "What was counted, oldest first", list[Snapshot]),
    ("GET", "/v1/audit"):
        _json("history", "audit", "The last changes that were asked for, oldest first", list[Change]),
    ("GET", "/v1/policy"): _rules("rules", "The rules that are in force", Rules),
    ("GET", "/v1/policy/history"): _json("rules", "rule-changes", "Changes of rules, oldest first", list[RuleChange]),
    ("GET", "/v1/policy/explain"):
        _json("rules", "explain-address", "What is in force for a client that would connect", AddressPolicy, 404),
    ("GET", "/v1/policy/rules/{name}"): _rules("rule", "One rule, and its last changes", RuleInFull, 404),
    ("PUT", "/v1/policy/rules/{name}"): _rules("set-rule", "Let a rule be this", Changed, 404, 409, 412),
    ("DELETE", "/v1/policy/rules/{name}"): _rules("remove-rule", "Let there be no such rule", Changed, 404, 409, 412),
    ("PUT", "/v1/policy/rules"): _rules("set-rules", "Let the rules of a file be so", Changed, 409, 412),
    ("POST", "/v1/policy/rollback"): _rules("rollback", "Let all rules be what they were", Changed, 404, 409, 412),
    ("POST", "/v1/policy/try"):
        _json("rules", "try-rules", "What a file of rules would change, and for how many", Outcome),
    ("GET", "/v1/connections/{name}/policy"):
        _json("connections", "connection-policy", "What is in force, and what gave it", ConnectionPolicy, 404, 409),
    ("PUT", "/v1/connections/{name}/policy"):
        _json("connections", "give", "Give it values of its own", Given, 404, 409, 504, 507),
    ("POST", "/v1/connections/{name}/attach"):
        _json("connections", "attach", "Where to connect to reach its client; or the way (Upgrade: roost)", Offer,
              404, 409, 502, 504),
    ("GET", "/v1/jobs"): _json("jobs", "jobs", "Those that have not ended, and the last ones that have", list[Job]),
    ("POST", "/v1/jobs"):
        Answer("jobs", "start-job", "Begin one: the same for many connections", {JSON: Job}, (404,), 202),
    ("GET", "/v1/jobs/{number}"): _json("jobs", "job", "How far one is", Job, 404),
    ("DELETE", "/v1/jobs/{number}"): _json("jobs", "cancel-job", "Let nothing more of one begin", Job, 404),
    ("GET", "/v1/me"): _json("tokens", "me", "Whose the token is", Me),
    ("GET", "/metrics"):
        Answer("status", "metrics", "What Prometheus is told",
               {"text/plain": str, "application/openmetrics-text": str}),
    ("GET", "/v1/tokens"):
        _json("tokens", "tokens", "Those there are, and those that ended in the last 90 days", list[Token]),
    ("POST", "/v1/tokens"): _json("tokens", "make-token", "Make one; its text is told this once", MadeToken, 409, 507),
    ("DELETE", "/v1/tokens/{which}"): _json("tokens", "revoke-token", "Let one be good no more", Revoked, 404),
    ("GET", "/v1/openapi.json"): _json("status", "openapi", "This document", dict[str, Any]),
}  # fmt: skip
