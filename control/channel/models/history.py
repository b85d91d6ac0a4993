# SPDX-License-Identifier: Apache-2.0
"""What happened: transitions, attaches, snapshots, changes that were asked for."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field, Json
from typing_extensions import TypedDict

from control.channel.models.common import AnyState, Client, Count, Moment, Number, StateName, answer

_From = TypedDict("_From", {"from": Annotated[AnyState, Field(description="NONE: it begins")]})


@answer
class Transition(_From):
    """A connection went from one state to another."""

    at_ms: Moment
    id: Number
    client: Client
    service: Annotated[str, Field(description="the name of its service; #7: of one that is not configured any more")]
    to: Annotated[AnyState, Field(description="CLOSED: it ends")]
    cause: Annotated[str, Field(description="what wanted it", examples=["quiet", "client-data"])]
    rx_bytes: Count
    """from the client, since the last transition"""
    tx_bytes: Count
    """to the client, since the last transition"""
    gap_ms: Count
    """ms since the last byte of payload"""
    server: str | None
    """address and port of the server that it was linked to, or was to be; null: of none"""
    error: str | None
    """the name of the errno of the end whose fault it was, such as ETIMEDOUT; null: it was none's"""
    probes: Count | None
    """unanswered ones, in a row; null: there were none"""
    silence_s: Count | None
    """s since the client was heard; null: it is not known, or nothing depends on it"""
    successor: NotRequired[Number]
    """the connection by which the client came back"""


@answer
class Removed(TypedDict):
    """Rows of the history that are not kept any more."""

    first: Count
    """the number of the first row that is there"""
    count: Count
    """rows that were not told"""


@answer
class Reset(TypedDict):
    """The numbers of rows are given again: the database is an earlier one."""

    last: Count
    """the number of the newest row, behind which it goes on"""


@answer
class Event(TypedDict):
    """One of the server-sent events. Where there is nothing to tell, a comment comes every 5 s, with an `id`."""

    id: str
    """the number of the row, the last of those that were removed, or the newest that there is"""
    event: Literal["transition", "removed", "reset"]
    """removed: rows are not kept any more; reset: their numbers are given again"""
    data: Json[Transition | Removed | Reset]
    """JSON, by the kind of the event"""


@answer
class Attach(TypedDict):
    """A server asked for a client."""

    at_ms: Moment
    way: str
    """how it asked, such as connect or socks5"""
    server: str
    """its address and port"""
    target: str
    """what it asked for"""
    step: str | None
    """of [absent] steps, the one that found the client; null: none was needed"""
    id: Number | None
    """null: no connection was found"""
    client: Client | None
    """null: no connection was found"""
    service: str | None
    """the name of its service; null: no connection was found"""
    found: StateName | None
    """the state that the connection was in; null: none was found"""
    error: str | None
    """the name of the errno of a refusal; null: it was not refused"""
    reason: str | None
    """of a refusal; null: it was not refused"""
    answer_ms: Count
    """ms until the server was answered"""
    first_ms: Count | None
    """ms until the client's first byte; null: there was none"""


@answer
class Snapshot(TypedDict):
    """What was counted at one moment: a row for all, for each service, and for each set of rules."""

    at_ms: Moment
    span_ms: Count
    """ms since the snapshot before"""
    service: str | None
    """its name; null: all that is no service's"""
    rules: str | None
    """names of the rules that give something; null: none does"""
    counts: dict[str, int]
    """each by its name; what is 0 may be missing"""


@answer
class Change(TypedDict):
    """A change was asked for."""

    at_ms: Moment
    who: str
    """the token's name; by the daemon's socket what was said"""
    origin: str
    """the address that it came from; local: the daemon's socket, or a signal"""
    method: str
    """of the request, or the signal's name"""
    path: str
    """of the request, its first 500 characters; SIGHUP: the configuration's"""
    body: str
    """its first 1,000 bytes"""
    status: Annotated[int, Field(ge=100, le=599)]
    """of the answer"""
    error: str | None
    """null: it was done"""
