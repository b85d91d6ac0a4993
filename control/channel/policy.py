# SPDX-License-Identifier: Apache-2.0
"""The part of the local API that is about rules of the policy (control/clients/ruling.py), and what one connection is
given (giving.py).

    GET  /v1/policy                                 the rules that are in force, their version, and who made them
    GET  /v1/policy/history?limit=&rule=&before=    the last changes, some megabytes at most; those of versions before
    GET  /v1/policy/rules/{name}                    one rule, and its last changes
    PUT  /v1/policy/rules/{name}                    {"rule": {...}, "who": ..., "why": ..., "seen": 7}: the rule is this
    DELETE /v1/policy/rules/{name}                  {"who": ..., ...}: there is no such rule
    PUT  /v1/policy/rules                           {"file": "[[rule]]...", "who": ..., ...}: the rules of a file are so
    POST /v1/policy/rollback                        {"version": 3, "who": ..., ...}: all are what they were then
    POST /v1/policy/try                             {"file": ...}: what it would change, and for how many
    GET  /v1/policy/explain?client=&service=&server=
                                                    what is in force for a client that would connect from an address
    GET  /v1/connections/{id}/policy                what is in force for a connection, and what gave it
    PUT  /v1/connections/{id}/policy                {"values": {"idle_quiet": "5m"}, "who": ..., "why": ...}: it has
                                                    these of its own; null: what its rules and its service say

Who asks by the network is known by a token, whatever `who` says.

`seen` is the version of GET /v1/policy that a change was made of: 409, when another has changed the rules since.
Without it, or null, they are changed whatever they are. The version is the `ETag`, too, and If-Match (RFC 9110 13.1.1)
what `seen` is, with 412 for 409.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from control.channel import parameters as par
from control.channel.asker import AskedBy
from control.channel.strict import BODY, WHOLE, StrictRoute
from control.clients.giving import ONES_OWN, Giving
from control.clients.rules import OutdatedRulesError
from control.clients.ruling import WHY_LENGTH, Ruling
from control.core.errors import OperationError
from control.policy.rules import Rule

_LAST: Final = 2**53 - 1
"""What every reader of JSON has exactly (RFC 8259 6)."""

Version = Annotated[int, Field(ge=0, le=_LAST), WHOLE]


class _Keys:
    """The JSON schema of a rule, of what is read by control.policy.rules.read_rule. `name` is in the path, too."""

    @staticmethod
    def __get_pydantic_json_schema__(_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler.resolve_ref_schema(handler(Rule.__pydantic_core_schema__))
        return {**found, "required": []}


_Who = Annotated[str | None, Field(description="who asks; by the network the token's name counts")]
_Why = Annotated[str, Field(description="a line of text", json_schema_extra={"maxLength": WHY_LENGTH})]
_File = Annotated[
    str,
    Field(description="rules as [[rule]] of TOML, or as JSON",
          examples=['[[rule]]\nname = "meters"\nnetwork = "192.0.2.0/24"\nidle_quiet = "5m"']),
]  # fmt: skip
_OWN: Final[JsonSchemaValue] = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {
        key: {"type": ["number", "string", "null"], "description": "s, or a text such as 5m; null: what its rules say"}
        for key in ONES_OWN
    },
}


class Edit(BaseModel):
    """Of each change."""

    model_config = BODY

    who: _Who = None
    why: _Why = ""
    seen: Version | None = Field(None, description="the version that the change was made of; null: any")


class RuleEdit(Edit):
    """Of one rule."""

    rule: Annotated[dict[str, Any], _Keys] = Field(examples=[{"network": "192.0.2.0/24", "idle_quiet": "5m"}])


class FileEdit(Edit):
    """Of those in a file."""

    file: _File


class RulesTrial(BaseModel):
    """Of a file of rules."""

    model_config = BODY

    file: _File


class OwnEdit(BaseModel):
    """Of one connection's own values."""

    model_config = BODY

    values: Annotated[dict[str, Any], WithJsonSchema(_OWN)] = Field(
        description="by the key of [policy]", examples=[{"idle_quiet": "5m"}]
    )
    who: _Who = None
    why: _Why = ""


class Rollback(Edit):
    """Of all."""

    version: Version = Field(description="back to which")


_IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="the `ETag` of the rules that the change was made of; *: any")
]


def _tagged(response: Response, told: dict[str, Any]) -> dict[str, Any]:
    response.headers["ETag"] = f'"{told["version"]}"'
    return told


def policy_routes(ruling: Ruling, giving: Giving) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=StrictRoute)

    def made(of: Edit, if_match: str | None, change: Callable[[int | None], dict[str, Any]]) -> dict[str, Any]:
        """change: of the version that it is to have been made of, -1: of none that there is."""
        if if_match is None or if_match.strip() == "*":
            return change(of.seen)
        tags, version = map(str.strip, if_match.split(",")), ruling.version
        fits = f'"{version}"' in tags and of.seen in (None, version)
        try:
            return change(version if fits else -1)
        except OutdatedRulesError:
            raise OperationError(412, f'If-Match: the rules are "{ruling.version}" now. Look again') from None

    @routes.get("/v1/policy")
    def policy(response: Response) -> dict[str, Any]:
        return _tagged(response, ruling.all())

    @routes.get("/v1/policy/history")
    def history(
        limit: par.Last100000 = 100, rule: par.OfOneRule = None, before: par.BeforeVersion = None
    ) -> list[dict[str, Any]]:
        return ruling.history(limit, rule, before)

    @routes.get("/v1/policy/explain")
    def explain(client: par.Address, service: par.ToService, server: par.ToServer = "") -> dict[str, Any]:
        return ruling.explain_address(client, service, server)

    @routes.get("/v1/policy/rules/{name}")
    def show(name: par.RuleName, response: Response) -> dict[str, Any]:
        return _tagged(response, ruling.show(name))

    @routes.put("/v1/policy/rules/{name}")
    def change(
        name: par.RuleName, edit: RuleEdit, asker: AskedBy, response: Response, if_match: _IfMatch = None
    ) -> dict[str, Any]:
        who = asker.named(edit.who)
        return _tagged(response, made(edit, if_match, partial(ruling.set, name, edit.rule, who, edit.why)))

    @routes.delete("/v1/policy/rules/{name}")
    def remove(
        name: par.RuleName, edit: Edit, asker: AskedBy, response: Response, if_match: _IfMatch = None
    ) -> dict[str, Any]:
        return _tagged(response, made(edit, if_match, partial(ruling.remove, name, asker.named(edit.who), edit.why)))

    @routes.put("/v1/policy/rules")
    def apply(edit: FileEdit, asker: AskedBy, response: Response, if_match: _IfMatch = None) -> dict[str, Any]:
        who = asker.named(edit.who)
        return _tagged(response, made(edit, if_match, partial(ruling.apply, edit.file, who, edit.why)))

    @routes.post("/v1/policy/rollback")
    def rollback(edit: Rollback, asker: AskedBy, response: Response, if_match: _IfMatch = None) -> dict[str, Any]:
        who = asker.named(edit.who)
        return _tagged(response, made(edit, if_match, partial(ruling.rollback, edit.version, who, edit.why)))

    @routes.post("/v1/policy/try")
    def attempt(trial: RulesTrial) -> dict[str, Any]:
        return ruling.attempt(trial.file)

    @routes.get("/v1/connections/{name}/policy")
    def explain_connection(name: par.ConnectionId) -> dict[str, Any]:
        return ruling.explain(name)

    @routes.put("/v1/connections/{name}/policy")
    async def give(name: par.ConnectionId, edit: OwnEdit, asker: AskedBy) -> dict[str, Any]:
        return await giving.give(name, edit.values, asker.named(edit.who), edit.why)

    return routes
