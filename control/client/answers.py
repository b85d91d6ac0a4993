# SPDX-License-Identifier: Apache-2.0
"""What the API answers, as json.loads() makes it. docs/api.md says what the words mean; a key that ends in `_ms` is in
milliseconds, in `_s` in seconds, in `_at_ms` in milliseconds since 1970."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

StateName = Literal["ACTIVE", "STANDBY", "IDLE", "SLEEP"]
AnyState = Literal["NONE", "ACTIVE", "STANDBY", "IDLE", "SLEEP", "CLOSED"]
"""NONE: where a connection comes from. CLOSED: where it goes."""

Role = Literal["viewer", "operator", "admin", "server"]
Action = Literal["standby", "idle", "sleep", "wake", "close"]

_From = TypedDict("_From", {"from": AnyState})


class Transition(_From):
    """A connection went from one state to another."""

    at_ms: int
    id: int
    client: str
    service: str
    to: AnyState
    cause: str
    rx_bytes: int
    tx_bytes: int
    gap_ms: int
    server: str | None
    error: str | None
    probes: int | None
    silence_s: int | None
    successor: NotRequired[int]


class Attach(TypedDict):
    """A server asked for a client."""

    at_ms: int
    way: str
    server: str
    target: str
    step: str | None
    id: int | None
    client: str | None
    service: str | None
    found: StateName | None
    error: str | None
    reason: str | None
    answer_ms: int
    first_ms: int | None


class Snapshot(TypedDict):
    """What was counted at one moment: a row for all, for each service, and for each set of rules."""

    at_ms: int
    span_ms: int
    service: str | None
    rules: str | None
    counts: dict[str, int]


class Change(TypedDict):
    """A change was asked for."""

    at_ms: int
    who: str
    origin: str
    method: str
    path: str
    body: str
    status: int
    error: str | None


class Connection(TypedDict):
    """A connection in a list."""

    id: int | None
    name: str | None
    tags: list[str]
    state: StateName
    client: str
    local: str
    service: str
    quiet_s: float | None


class Page(TypedDict):
    """A page of connections."""

    connections: list[Connection]
    next: str | None


class KeepAlive(TypedDict):
    """What is in memory of a connection that is not awake. The first four numbers are not told by the network."""

    snd_nxt: NotRequired[int]
    rcv_nxt: NotRequired[int]
    ts_offset: NotRequired[int]
    ts_recent: NotRequired[int]
    heard_s_ago: int
    window: int
    probe_interval_s: int
    most_probe_interval_s: NotRequired[int]
    probes_unanswered: int


class Record(TypedDict):
    """Of a connection that is not awake."""

    snd_wnd: int
    max_window: int
    mss: int


class Own(TypedDict):
    """Values of the policy that this connection alone has."""

    active_quiet_ms: NotRequired[int]
    standby_quiet_ms: NotRequired[int]
    idle_quiet_ms: NotRequired[int]
    probe_interval_s: NotRequired[int]
    always_active: NotRequired[int]


class ConnectionInFull(Connection):
    """All about one connection."""

    keep_alive: NotRequired[KeepAlive]
    slept_at_ms: NotRequired[int]
    record: NotRequired[Record]
    server: NotRequired[str | None]
    in_band: NotRequired[Own]
    by_command: NotRequired[Own]
    came_back_from: NotRequired[list[int]]
    history: NotRequired[list[Transition]]


class Moved(TypedDict):
    """Where a connection is after a command."""

    id: int
    client: str
    before: StateName
    state: AnyState


class Explanation(TypedDict):
    """Why a connection is not asleep, or does not wake."""

    id: int
    client: str
    service: str
    state: StateName
    sentences: list[str]
    facts: dict[str, Any]


class Named(TypedDict):
    """A connection has a name."""

    id: int
    client: str
    name: str
    target: str


class Forgotten(TypedDict):
    """A name stands for nobody any more."""

    name: str


class Tags(TypedDict):
    """Of a name."""

    name: str
    tags: list[str]


class TagCount(TypedDict):
    """A tag, and how many have it."""

    tag: str
    names: int


class AgentClient(TypedDict):
    """A client that an agent speaks for."""

    name: str
    agent: str
    id: int
    connected: bool
    connects_to: str | None
    stay: bool
    since_ms: int


class Dialled(TypedDict):
    """A client that was dialled in vain, or is to stay connected."""

    client: str
    failures: int
    stay: Literal["no", "due", "told"]
    at_ms: int


class Made(TypedDict):
    """Who made a rule what it is."""

    version: int
    at_ms: int
    who: str
    why: str


class About(Made):
    """A rule that is there."""

    problems: list[str]


class Rules(TypedDict):
    """The rules that are in force."""

    version: int
    error: str
    rule: list[dict[str, Any]]
    about: dict[str, About]


class RuleChange(Made):
    """A rule was changed."""

    name: str
    rule: dict[str, Any] | None


class RuleInFull(Rules):
    """One rule, and what it was."""

    history: list[RuleChange]


class Both(TypedDict):
    """A rule before and after."""

    name: str
    before: dict[str, Any] | None
    rule: dict[str, Any] | None


class Changed(TypedDict):
    """Rules were changed."""

    version: int
    changed: list[Both]


class Tried(TypedDict):
    """A rule of a file."""

    name: str
    change: Literal["same", "changed", "new"]
    names: NotRequired[int]


class Planned(TypedDict):
    """Values that some connections would get."""

    service: str
    networks: list[str]
    more_networks: int
    connections: int
    changed: int
    values: dict[str, Any]
    rules: list[str]


class Outcome(TypedDict):
    """What a file would change; nothing has changed."""

    version: int
    rules: list[Tried]
    connections: int
    changed: int
    lose: int
    without_slot: int
    policies: list[Planned]


class InForce(TypedDict):
    """A value of the policy."""

    key: str
    value: float | str | list[str]
    source: str
    rule: NotRequired[str]
    version: NotRequired[int]


class AddressPolicy(TypedDict):
    """What is in force for a client that would connect."""

    client: str
    service: str
    version: int
    error: str
    values: list[InForce]


class ConnectionPolicy(TypedDict):
    """What is in force for a connection."""

    id: int
    client: str
    state: StateName
    service: str
    version: int
    error: str
    values: list[InForce]


class Given(TypedDict):
    """A connection has values of its own."""

    id: int
    client: str
    state: StateName
    values: dict[str, float | None]


class States(TypedDict):
    """Connections in each state."""

    ACTIVE: int
    STANDBY: int
    IDLE: int
    SLEEP: int


class Memory(TypedDict):
    """Of the box that Roost takes."""

    maps_bytes: int
    daemon_rss_bytes: int
    maps_bytes_per_inactive: float | None


class Store(TypedDict):
    """The database, and what waits to be written."""

    state: str
    pending_sleep: int
    pending_history: int
    dropped_history: int
    dropped_attaches: int
    dropped_snapshots: int
    dropped_audit: int
    written_history: int
    kept_history: int
    rescued: int
    last_commit_ms: float


class Server(TypedDict):
    """A server of a service."""

    server: str
    state: Literal["up", "down", "leaving"]
    reason: str
    links: int
    ready: int
    linked: int
    failed: int


class Service(TypedDict):
    """A service that is configured."""

    name: str
    index: int
    listen: str
    server: str
    transparent: bool
    interface: str
    balance: str
    check: str
    leaving: bool
    servers: list[Server]


class PolicyStatus(TypedDict):
    """Of the rules."""

    version: int
    rules: int
    error: str
    problems: int
    problem: str


class Asked(TypedDict):
    """Connections that were to go down under pressure since the daemon began."""

    awake: int
    idle: int


class Pressure(TypedDict):
    """Of [pressure]."""

    reached: dict[str, float]
    asked: Asked


class Export(TypedDict):
    """The last export."""

    directory: str
    at_ms: int | None
    seconds: float | None
    rows: dict[str, int]
    error: str


class Api(TypedDict):
    """The API"s process."""

    listen: list[str]
    pid: int | None
    ended: int


class Attention(TypedDict):
    """What an operator should look at."""

    name: str
    object: str
    what: str
    do: str


class Took(TypedDict):
    """How long servers waited: how many for so many s at most, and all of them."""

    buckets: dict[str, int]
    sum_s: float


class Attaches(TypedDict):
    """Servers that asked for a client, by the state it was found in, and by the error's name."""

    took: dict[str, Took]
    failed: dict[str, int]


class Class(TypedDict):
    """Connections of a service that have the same rules."""

    service: str
    rules: str
    connections: States
    transitions: dict[str, int]
    probes: int
    rx_bytes: int
    tx_bytes: int


class Classes(TypedDict):
    """As of the last snapshot."""

    at_ms: int | None
    rows: list[Class]


class Status(TypedDict):
    """How the daemon stands."""

    instance: str
    version: str
    pid: int
    max_awake: int
    interfaces: dict[str, str]
    waiting: list[str]
    pin_dir: str
    database: str
    attach: list[tuple[str, int]]
    attach_protocols: list[str]
    attach_counts: dict[str, int]
    uptime_s: float
    connections: States
    awake: int
    memory: Memory
    store: Store
    control: dict[str, int]
    services: list[Service]
    policy: PolicyStatus
    pressure: Pressure
    export: Export
    api: Api
    classes: Classes
    attaches: Attaches
    agents: dict[str, int]
    counters: dict[str, int]
    attention: list[Attention]


class Token(TypedDict):
    """A token, without its secret."""

    id: str
    name: str
    role: Role
    services: list[str] | None
    good: bool
    made_at_ms: int
    made_by: str
    expires_at_ms: int | None
    revoked_at_ms: int | None


class MadeToken(Token):
    """A token that was made just now."""

    token: str


class Revoked(TypedDict):
    """A token that is good no more."""

    id: str
    name: str


class Me(TypedDict):
    """Whose a token is."""

    name: str
    role: str
    services: list[str] | None
    expires_at_ms: int | None


class Ticket(TypedDict):
    """What lets one through to a client once: `authority` is to be asked for by CONNECT at `address`, on loopback."""

    address: str
    authority: str
    good_s: float


class Offer(TypedDict):
    """Where to connect to reach a client."""

    id: int | None
    client: str | None
    state: StateName | None
    target: str
    at: list[str]
    protocols: list[str]
    credentials: bool


class Job(TypedDict):
    """An action for many connections, and how they fared."""

    number: int
    action: Action
    filter: dict[str, Any] | None
    connections: int | None
    rate: int
    who: str
    state: Literal["waiting", "running", "done", "cancelled", "failed"]
    asked_at_ms: int
    began_at_ms: int | None
    ended_at_ms: int | None
    found: int
    done: int
    unchanged: int
    closed: int
    refused: dict[str, int]
    unanswered: int
    missing: int
    missing_names: list[str]
    error: str | None
