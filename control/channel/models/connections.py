# SPDX-License-Identifier: Apache-2.0
"""Connections: in lists, one with all that is known, why it is where it is, what was done to it."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from control.channel.models.common import Client, Count, Moment, Number, StateName, answer
from control.channel.models.history import Transition

Milliseconds = Annotated[int, Field(ge=0, description="ms; 0: never")]


@answer
class Connection(TypedDict):
    """A connection in a list."""

    id: Annotated[Number | None, Field(description="null: it is in SLEEP, and the database cannot be read")]
    name: Annotated[str | None, Field(description="of its client, without the domain; null: it has none")]
    tags: Annotated[list[str], Field(description="of its name, in their order")]
    state: StateName
    client: Client
    local: Annotated[str, Field(description="the address and port that the client connected to")]
    service: Annotated[str, Field(description="the name of its service; #7: of one that is not configured any more")]
    quiet_s: Annotated[
        Annotated[float, Field(ge=0)] | None,
        Field(description="s since the last byte of payload; null: it is in SLEEP, and the database cannot be read"),
    ]


@answer
class Page(TypedDict):
    """A page of connections."""

    connections: list[Connection]
    """as many as were asked for at most; there may be fewer, even none"""
    next: str | None
    """the `after` of the page that follows; null: there is none"""


@answer
class KeepAlive(TypedDict):
    """What is in memory of a connection that is not awake. The first four numbers are not told by the network."""

    snd_nxt: NotRequired[Count]
    """the sequence number that we go on with"""
    rcv_nxt: NotRequired[Count]
    """the sequence number that the client goes on with"""
    ts_offset: NotRequired[Count]
    """of our timestamps"""
    ts_recent: NotRequired[Count]
    """the client's last timestamp"""
    heard_s_ago: Count
    """s since the client was heard, keep-alives included"""
    window: Count
    """that is told to the client, in units of its scale"""
    probe_interval_s: Count
    """s of silence after which it is probed; 0: never"""
    most_probe_interval_s: NotRequired[Count]
    """s; of an experiment its other bound"""
    probes_unanswered: Count
    """in a row"""


@answer
class Record(TypedDict):
    """Of a connection that is not awake."""

    snd_wnd: Count
    """bytes that the client would take"""
    max_window: Count
    """bytes; the largest window that it had"""
    mss: Count
    """bytes of payload in a segment"""


@answer
class Own(TypedDict):
    """Values of the policy that this connection alone has."""

    active_quiet_ms: NotRequired[Milliseconds]
    standby_quiet_ms: NotRequired[Milliseconds]
    idle_quiet_ms: NotRequired[Milliseconds]
    probe_interval_s: NotRequired[Count]
    """s; 0: never"""
    always_active: NotRequired[int]
    """1: it asked to stay awake"""


@answer
class ConnectionInFull(Connection):
    """All about one connection."""

    keep_alive: NotRequired[KeepAlive]
    """of one in IDLE or SLEEP that has a slot in memory"""
    slept_at_ms: NotRequired[Moment]
    record: NotRequired[Record]
    """of one in IDLE or SLEEP"""
    server: NotRequired[str | None]
    """address and port of the server with whose connection it sleeps together; null: it is not known any more"""
    in_band: NotRequired[Own]
    """what was asked for in the payload"""
    by_command: NotRequired[Own]
    """what an operator gave it"""
    came_back_from: NotRequired[list[Number]]
    """earlier connections of the same client, which said so"""
    history: NotRequired[list[Transition]]
    """oldest first; missing: the database cannot be read"""


@answer
class Moved(TypedDict):
    """Where a connection is after a command."""

    id: Number
    client: Client
    before: StateName
    """its state when the command came"""
    state: StateName | Annotated[str, Field(pattern="^CLOSED$")]
    """its state now"""


@answer
class Facts(TypedDict):
    """What is known of the connection and of what it depends on; what is not the case, or 0, is missing."""

    state: StateName
    service: str
    """its name"""
    awake: NotRequired[bool]
    """it is in ACTIVE or STANDBY"""
    idle: NotRequired[bool]
    """it is in IDLE"""
    asleep: NotRequired[bool]
    """it is in SLEEP"""
    unconfigured: NotRequired[bool]
    """its service is not configured any more"""
    unheard: NotRequired[bool]
    """no interface is heard"""
    store_error: NotRequired[str]
    """what the database says"""
    probe_count: NotRequired[Count]
    """unanswered probes after which it counts as dead"""
    always_active: NotRequired[bool]
    """it asked to stay awake"""
    key: NotRequired[str]
    """the key of the policy that says when it goes down"""
    next: NotRequired[StateName]
    """where it goes then"""
    quiet: NotRequired[str]
    """the time since its last byte of payload, with its unit"""
    never: NotRequired[bool]
    """it stays there for ever"""
    due: NotRequired[str]
    """after which time it goes down, with its unit"""
    left: NotRequired[str]
    """how long that is from now, with its unit"""
    overdue: NotRequired[str]
    """the time after which it was to go down, with its unit"""
    moving: NotRequired[bool]
    """it is being frozen or thawed"""
    grace: NotRequired[bool]
    """a freeze was cancelled a moment ago"""
    connecting: NotRequired[bool]
    """its link to the server is being made"""
    server_speaks: NotRequired[bool]
    """its server has just spoken, or ended"""
    ended: NotRequired[bool]
    """one end has ended its side"""
    client_blocked: NotRequired[bool]
    """bytes wait because the client does not read"""
    server_blocked: NotRequired[bool]
    """bytes wait because the server does not read"""
    server_waits: NotRequired[bool]
    """a server waits for it"""
    in_band: NotRequired[bool]
    """a request in the payload is not finished"""
    link_local: NotRequired[bool]
    """its addresses mean something on one link alone"""
    refused: NotRequired[str]
    """the error of the last freeze that was refused"""
    refusal: NotRequired[str]
    """what that error means"""
    client_unread: NotRequired[Count]
    """bytes of the client that wait to be read"""
    client_unacknowledged: NotRequired[Count]
    """bytes to the client"""
    server_unread: NotRequired[Count]
    """bytes of the server that wait to be read"""
    server_unacknowledged: NotRequired[Count]
    """bytes to the server"""
    without_slot: NotRequired[bool]
    """of a sleeping one: in memory is a fingerprint alone"""
    slot: NotRequired[bool]
    """of one that is not awake: in memory is what keep-alives are answered from"""
    heard: NotRequired[str]
    """the time since the client was heard, with its unit"""
    probes: NotRequired[Count]
    """unanswered ones, in a row"""
    paired: NotRequired[bool]
    """it sleeps together with its server's connection"""
    server: NotRequired[str]
    """that server's address and port"""
    down: NotRequired[str]
    """why no server of the service is up"""
    awake_now: NotRequired[Count]
    """connections that are awake; like the next three not told to a server"""
    max_awake: NotRequired[Count]
    """connections that may be awake"""
    pressure: NotRequired[bool]
    """nearly as many are awake as may be"""
    attention: NotRequired[str]
    """what an operator should look at"""


@answer
class Explanation(TypedDict):
    """Why a connection is not asleep, or does not wake."""

    id: Annotated[int, Field(ge=0, description="the number of the connection; 0: it is not known")]
    client: Client
    service: str
    """its name"""
    state: StateName
    sentences: list[str]
    """for people"""
    facts: Facts
