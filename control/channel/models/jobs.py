# SPDX-License-Identifier: Apache-2.0
"""Jobs: an action for many connections."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from control.channel.models.common import Count, Moment, StateName, answer


@answer
class JobFilter(TypedDict):
    """For which connections: what was asked for of it."""

    state: NotRequired[StateName]
    client: NotRequired[str]
    """those whose client's address:port begins so"""
    network: NotRequired[str]
    """those whose client is in this network"""
    service: NotRequired[str]
    """those of this service"""
    name: NotRequired[str]
    """those whose name is like this"""
    tag: NotRequired[str]
    """those whose name has this tag"""
    quiet: NotRequired[Count]
    """s without payload, at least"""
    silence: NotRequired[Count]
    """s since the client was heard, at least"""
    rule: NotRequired[str]
    """those to whom the rule of this name gives a value"""


@answer
class Job(TypedDict):
    """A job, and how its connections fared."""

    number: Annotated[int, Field(ge=1, description="of the job, since the daemon began")]
    action: Literal["standby", "idle", "sleep", "wake", "close"]
    """what is done to each"""
    filter: Annotated[JobFilter | None, Field(description="empty: for all; null: it names its connections")]
    connections: Annotated[Count | None, Field(description="how many it names; null: it has a filter")]
    rate: Annotated[int, Field(ge=1, description="connections a second")]
    who: Annotated[str, Field(description="who asked for it")]
    state: Literal["waiting", "running", "done", "cancelled", "failed"]
    """waiting: for those before it"""
    asked_at_ms: Moment
    began_at_ms: Annotated[Moment | None, Field(description="null: it waits, or was cancelled before it began")]
    ended_at_ms: Annotated[Moment | None, Field(description="null: it has not")]
    found: Annotated[Count, Field(description="connections that it has come upon so far")]
    done: Annotated[Count, Field(description="of those: where they were to be")]
    unchanged: Annotated[Count, Field(description="of those that it names: were there already")]
    closed: Annotated[Count, Field(description="ended meanwhile")]
    refused: Annotated[dict[str, Count], Field(description="by the reason")]
    unanswered: Annotated[Count, Field(description="of which it is not known; after 10 s it is not waited for")]
    missing: Annotated[Count, Field(description="of those that it names: there is none, or not one alone")]
    missing_names: Annotated[list[str], Field(description="the first ten of them")]
    error: Annotated[str | None, Field(description="why it failed; null: it did not")]
