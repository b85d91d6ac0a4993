# SPDX-License-Identifier: Apache-2.0
"""The part of the local API that is about rules of the policy (control/clients/ruling.py), and what one connection is
given (giving.py).

    GET  /v1/policy                                 the rules that are in force, their version, and who made them
    GET  /v1/policy/history?limit=&rule=            the last changes
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
Without it, or null, they are changed whatever they are.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field

from control.channel.asker import AskedBy
from control.clients.giving import Giving
from control.clients.ruling import Ruling

_LAST: Final = 2**63 - 1

Version = Annotated[int, Field(ge=0, le=_LAST)]


class Edit(BaseModel):
    """Of each change."""

    model_config = ConfigDict(extra="forbid")

    who: str | None = None
    why: str = ""
    seen: Version | None = None


class RuleEdit(Edit):
    """Of one rule."""

    rule: dict[str, Any]


class FileEdit(Edit):
    """Of those in a file."""

    file: str


class OwnEdit(BaseModel):
    """Of one connection's own values."""

    model_config = ConfigDict(extra="forbid")

    values: dict[str, Any]
    who: str | None = None
    why: str = ""


class Rollback(Edit):
    """Of all."""

    version: Version


def policy_routes(ruling: Ruling, giving: Giving) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/v1/policy")
    def policy() -> dict[str, Any]:
        return ruling.all()

    @routes.get("/v1/policy/history")
    def history(limit: Annotated[int, Query(ge=0, le=100_000)] = 100, rule: str | None = None) -> list[dict[str, Any]]:
        return ruling.history(limit, rule)

    @routes.get("/v1/policy/explain")
    def explain(client: str, service: str, server: str = "") -> dict[str, Any]:
        return ruling.explain_address(client, service, server)

    @routes.get("/v1/policy/rules/{name}")
    def show(name: str) -> dict[str, Any]:
        return ruling.show(name)

    @routes.put("/v1/policy/rules/{name}")
    def change(name: str, edit: RuleEdit, asker: AskedBy) -> dict[str, Any]:
        return ruling.set(name, edit.rule, asker.named(edit.who), edit.why, edit.seen)

    @routes.delete("/v1/policy/rules/{name}")
    def remove(name: str, edit: Edit, asker: AskedBy) -> dict[str, Any]:
        return ruling.remove(name, asker.named(edit.who), edit.why, edit.seen)

    @routes.put("/v1/policy/rules")
    def apply(edit: FileEdit, asker: AskedBy) -> dict[str, Any]:
        return ruling.apply(edit.file, asker.named(edit.who), edit.why, edit.seen)

    @routes.post("/v1/policy/rollback")
    def rollback(edit: Rollback, asker: AskedBy) -> dict[str, Any]:
        return ruling.rollback(edit.version, asker.named(edit.who), edit.why, edit.seen)

    @routes.post("/v1/policy/try")
    def attempt(file: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        return ruling.attempt(file)

    @routes.get("/v1/connections/{name}/policy")
    def explain_connection(name: str) -> dict[str, Any]:
        return ruling.explain(name)

    @routes.put("/v1/connections/{name}/policy")
    async def give(name: str, edit: OwnEdit, asker: AskedBy) -> dict[str, Any]:
        return await giving.give(name, edit.values, asker.named(edit.who), edit.why)

    return routes
