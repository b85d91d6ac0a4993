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
from pydantic import BaseModel, Field, model_validator

from control.channel.asker import AskedBy
from control.channel.strict import BODY, WHOLE, StrictRoute
from control.clients.jobs import LISTED_MAX, RATE, RATE_MAX, Jobs
from control.clients.view import Wanted
from control.core.states import State

_NUMBER_MAX = 2**63 - 1
_Seconds = Annotated[int, WHOLE, Field(ge=0, le=2**32 - 1)]
_Text = Annotated[str, Field(max_length=300)]
_Number = Annotated[int, Path(ge=0, le=_NUMBER_MAX, description="a job's number")]


class Filter(BaseModel):
    """As the parameters of GET /v1/connections."""

    model_config = BODY

    state: Literal["ACTIVE", "STANDBY", "IDLE", "SLEEP"] | None = Field(None, description="those in this state")
    client: _Text = Field("", description="those whose client's address:port begins so")
    network: _Text = Field("", description="those whose client is in this network", examples=["10.0.0.0/8"])
    service: _Text = Field("", description="those of this service")
    name: _Text = Field("", description="those whose name is like this: `*` is any text, `?` one character")
    tag: _Text = Field("", description="those whose name has this tag")
    quiet: _Seconds = Field(0, description="s without payload, at least")
    silence: _Seconds = Field(0, description="s since the client was heard, at least: of those in IDLE and SLEEP alone")
    rule: _Text = Field("", description="those to whom the rule of this name gives a value")

    def wanted(self) -> Wanted:
        """What it is for View."""
        state = State[self.state] if self.state else None
        return Wanted(state, self.client, self.network, self.service, self.name.lower(), self.tag.lower(), self.quiet,
                      self.silence, self.rule)  # fmt: skip


class NewJob(BaseModel):
    """What is asked for."""

    model_config = BODY

    action: Literal["standby", "idle", "sleep", "wake", "close"] = Field(description="what is done to each")
    filter: Filter | None = Field(None, description="for which connections; one that leaves none out does not do")
    everything: bool = Field(False, description="for all of them")
    connections: list[_Text | Annotated[int, WHOLE, Field(ge=1, le=_NUMBER_MAX)]] | None = Field(
        None, min_length=1, max_length=LISTED_MAX, examples=[[4711, "192.0.2.7:40123"]],
        description="for these: numbers, client-address:port, names with the domain",
    )  # fmt: skip
    rate: Annotated[int, WHOLE] = Field(RATE, ge=1, le=RATE_MAX, description="connections a second")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        narrow = self.filter is not None and bool(self.filter.model_dump(exclude_defaults=True))
        if narrow + self.everything + (self.connections is not None) != 1:
            raise ValueError("for which connections, says one of these: a filter that leaves some out, connections, or "
                             "everything: true")  # fmt: skip
        return self


def job_routes(jobs: Jobs) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=StrictRoute)

    @routes.post("/v1/jobs")
    def begin(job: NewJob, asker: AskedBy) -> JSONResponse:
        wanted = (job.filter or Filter()).wanted()
        told: dict[str, Any] = {"filter": None, "connections": None}
        if job.connections is None:
            told["filter"] = job.filter.model_dump(exclude_defaults=True) if job.filter else {}
        else:
            told["connections"] = len(job.connections)
        names = [str(one) for one in job.connections or ()]
        return JSONResponse(jobs.begin(job.action, wanted, names, job.rate, told, asker.who, asker.by_token), 202)

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
