# SPDX-License-Identifier: Apache-2.0
"""How the daemon stands."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from control.channel.models.common import Count, Moment, answer

Counts = dict[str, Count]


@answer
class States(TypedDict):
    """Connections in each state."""

    ACTIVE: Count
    """a socket, linked to a server"""
    STANDBY: Count
    """a socket without a link"""
    IDLE: Count
    """no socket; the record is in memory"""
    SLEEP: Count
    """no socket; the record is in the database"""


@answer
class Memory(TypedDict):
    """Of the box that Roost takes."""

    maps_bytes: Count
    """of BPF maps"""
    daemon_rss_bytes: Count
    """of the daemon's process"""
    maps_bytes_per_inactive: Annotated[float, Field(ge=0)] | None
    """for each connection in IDLE or SLEEP; null: there is none"""


@answer
class Store(TypedDict):
    """The database, and what waits to be written."""

    state: str
    """ok, or what is wrong"""
    pending_sleep: Count
    """connections that wait for it on their way to SLEEP"""
    pending_history: Count
    """transitions that wait to be written"""
    dropped_history: Count
    """transitions that were not written, since the start"""
    dropped_attaches: Count
    """likewise of attaches"""
    dropped_snapshots: Count
    """likewise of snapshots"""
    dropped_audit: Count
    """likewise of changes that were asked for"""
    written_history: Count
    """transitions that were written since the start"""
    kept_history: Count
    """transitions that there are"""
    rescued: Count
    """how often its file was gone under the daemon"""
    last_commit_ms: Annotated[float, Field(ge=0)]
    """ms that it took"""


@answer
class Server(TypedDict):
    """A server of a service."""

    server: str
    """its address and port"""
    state: Literal["up", "down", "leaving"]
    """leaving: it is not configured any more, and has links"""
    reason: str
    """why it is down; empty: it is not, or it is not known"""
    links: Count
    """that it has"""
    ready: Count
    """connections to it that wait for a client"""
    linked: Count
    """links that were made since the start"""
    failed: Count
    """links that were not made since the start"""


@answer
class Service(TypedDict):
    """A service that is configured."""

    name: str
    """that the configuration gives it"""
    index: Count
    """its number"""
    listen: str
    """its address and port"""
    server: str
    """those to which its clients are linked, or its kind where there are none"""
    transparent: bool
    """whether servers see the client's address"""
    interface: str
    """transient or persistent"""
    balance: str
    """how a server is chosen"""
    check: str
    """how servers are looked after"""
    leaving: bool
    """whether it takes no new clients: the configuration has it no more, and those that it has go on"""
    servers: list[Server]
    """in the order of the configuration"""


@answer
class PolicyStatus(TypedDict):
    """Of the rules."""

    version: Count
    """each change makes one"""
    rules: Count
    """how many there are"""
    error: str
    """why they are not in force; empty: they are"""
    problems: Count
    """how many rules do not give all that they say"""
    problem: str
    """the first one; empty: there is none"""


@answer
class Asked(TypedDict):
    """Connections that were to go down under pressure since the daemon began."""

    awake: Count
    """of those in ACTIVE and STANDBY"""
    idle: Count
    """of those in IDLE"""


@answer
class Pressure(TypedDict):
    """Of [pressure]."""

    reached: dict[str, Annotated[float, Field(ge=0)]]
    """% of each threshold that is reached, by its key"""
    asked: Asked


@answer
class Export(TypedDict):
    """The last export."""

    directory: str
    """empty: none is configured"""
    at_ms: Moment | None
    """null: there was none"""
    seconds: Annotated[float, Field(ge=0)] | None
    """s that it took; null: there was none"""
    rows: Counts
    """by table"""
    error: str
    """what kept it from being made; empty: nothing"""


@answer
class Api(TypedDict):
    """The API's process."""

    listen: list[str]
    """addresses and ports"""
    pid: Count | None
    """null: it does not run"""
    ended: Count
    """how often it ended by itself"""


@answer
class Took(TypedDict):
    """How long servers waited for their answer."""

    buckets: Counts
    """how many waited for so many s at most, by that"""
    sum_s: Annotated[float, Field(ge=0)]
    """s, of all of them"""


@answer
class Attaches(TypedDict):
    """Servers that asked for a client since the start."""

    took: dict[str, Took]
    """by the state in which their client was found"""
    failed: Counts
    """by the error's name"""


@answer
class Class(TypedDict):
    """Connections of a service that have the same rules."""

    service: str
    """the name of their service"""
    rules: str
    """names of rules, with a comma between two; empty: none"""
    connections: States
    transitions: Counts
    """since the start, by the states and the cause"""
    probes: Count
    """keep-alive probes sent, since the start"""
    rx_bytes: Count
    """payload from clients, since the start"""
    tx_bytes: Count
    """payload to clients, since the start"""


@answer
class Classes(TypedDict):
    """As of the last snapshot."""

    at_ms: Annotated[Moment | None, Field(description="null: there was none yet")]
    rows: list[Class]
    """empty: there was none yet"""


@answer
class Attention(TypedDict):
    """What an operator should look at."""

    name: str
    """of what is looked for"""
    object: str
    """what it happened to"""
    what: str
    """what happened"""
    do: str
    """what mends it"""


@answer
class Status(TypedDict):
    """How the daemon stands."""

    instance: str
    """the name of this daemon among those of the machine"""
    version: str
    """of Roost"""
    pid: Count
    """of the daemon"""
    max_awake: Count
    """connections that may be awake"""
    interfaces: dict[str, str]
    """those on which clients are heard, and how: native or generic XDP"""
    waiting: list[str]
    """what it waits for"""
    pin_dir: str
    """where BPF maps are pinned"""
    database: str
    """its URL, without a password"""
    attach: list[tuple[str, int]]
    """addresses and ports for servers"""
    attach_protocols: list[str]
    """by which servers may ask"""
    attach_counts: Counts
    """servers, by what became of them"""
    uptime_s: Annotated[float, Field(ge=0)]
    """s since the daemon began"""
    connections: States
    awake: Count
    """connections that are"""
    memory: Memory
    store: Store
    control: Counts
    """what the control plane counted since the start, by name"""
    services: list[Service]
    """those that are configured"""
    policy: PolicyStatus
    pressure: Pressure
    export: Export
    api: Api
    classes: Classes
    attaches: Attaches
    agents: Counts
    """what agents said and were asked since the start"""
    counters: dict[str, int]
    """what the engine and XDP counted since the start, and how full tables are, by name"""
    attention: list[Attention]
    """empty: all is well"""
