# SPDX-License-Identifier: Apache-2.0
"""The part of the local API that is about jobs: an action for many connections.

POST /v1/jobs                                   {"action": "wake", "filter": {"network": "10.0.0.0/8"}, "rate": 2000}
                                                `filter` has those of GET /v1/connections; in place of it
                                                {"connections": [4711, "192.0.2.7:40123", "camera-1.roost"]}
GET  /v1/jobs                                   those that have not ended, and the last ones that have
GET  /v1/jobs/{number}                          one
DELETE /v1/jobs/{number}                        nothing more of it is begun; what was done stays
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from control.channel.asker import AskedBy
from control.clients.jobs import LISTED_MAX, RATE, RATE_MAX, Jobs
from control.clients.view import Wanted
from control.core.states import State

_MODEL = ConfigDict(extra="forbid")
_Seconds = Annotated[int, Field(ge=0, le=2**32 - 1)]
_Text = Annotated[str, Field(max_length=300)]
_Number = Annotated[int, Path(ge=0, le=2**63 - 1)]


class Filter(BaseModel):
    """As in GET /v1/connections."""

    model_config = _MODEL

    state: Literal["ACTIVE", "STANDBY", "IDLE", "SLEEP"] | None = None
    client: _Text = ""
    network: _Text = ""
    service: _Text = ""
    name: _Text = ""
    tag: _Text = ""
    quiet: _Seconds = 0
    silence: _Seconds = 0
    rule: _Text = ""

    def wanted(self) -> Wanted:
        """What it is for View."""
        state = State[self.state] if self.state else None
        return Wanted(state, self.client, self.network, self.service, self.name.lower(), self.tag.lower(), self.quiet,
                      self.silence, self.rule)  # fmt: skip


class NewJob(BaseModel):
    """What is asked for. rate: connections a second."""

    model_config = _MODEL

    action: Literal["standby", "idle", "sleep", "wake", "close"]
    filter: Filter | None = None
    everything: bool = False
    connections: list[_Text | Annotated[int, Field(ge=1, le=2**63 - 1)]] | None = Field(
        None, min_length=1, max_length=LISTED_MAX
    )
    rate: int = Field(RATE, ge=1, le=RATE_MAX)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        narrow = self.filter is not None and bool(self.filter.model_dump(exclude_defaults=True))
        if narrow + self.everything + (self.connections is not None) != 1:
            raise ValueError("for which connections, says one of these: a filter that leaves some out, connections, or "
                             "everything: true")  # fmt: skip
        return self


def job_routes(jobs: Jobs) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.post("/v1/jobs")
    def begin(job: NewJob, asker: AskedBy) -> JSONResponse:
        wanted = (job.filter or Filter()).wanted()
        told: dict[str, Any] = {"filter": None, "connections": None}
        if job.connections is None:
            told["filter"] = job.filter.model_dump(exclude_defaults=True) if job.filter else {}
        else:
            told["connections"] = len(job.connections)
        names = [str(one) for one in job.connections or ()]
        return JSONResponse(jobs.begin(job.action, wanted, names, job.rate, told, asker.who), 202)

    @routes.get("/v1/jobs")
    def all_jobs() -> JSONResponse:
        return JSONResponse(jobs.all())

    @routes.get("/v1/jobs/{number}")
    def show(number: _Number) -> JSONResponse:
        return JSONResponse(jobs.show(number))

    @routes.delete("/v1/jobs/{number}")
    def cancel(number: _Number) -> JSONResponse:
        return JSONResponse(jobs.cancel(number))

    return routes
