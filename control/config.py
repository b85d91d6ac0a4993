# SPDX-License-Identifier: Apache-2.0
"""The configuration: one TOML file, read once at start and again on SIGHUP.

Every key is a field below with its description and default; docs/configuration.md is generated from them
(``python -m control.config > docs/configuration.md``; a unit test holds the two together). A wrong key or value is
answered with the file, the key and what was probably meant.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticUndefined

from appliance.engine import SERVERS_MAX
from appliance.frontends.passwords import HASH_COMMAND, USER, PasswordHash

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_MAX_S = (2**32 - 1) / 1000  # the engine counts in milliseconds, 32 bits wide


class ConfigError(Exception):
    """The configuration cannot be used; the message names file and key, one problem a line."""


def parse_duration(value: object) -> float:
    """Seconds out of ``"90s"``, ``"1h30m"``, ``"250ms"``, ``2.5`` (seconds), ``0`` or ``"never"`` (both 0.0)."""
    seconds: float
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('a duration is seconds, or text such as "90s", "5m", "1h30m", "never"')
    if isinstance(value, str):
        text = value.strip()
        if text == "never":
            return 0.0
        if re.fullmatch(r"\d+(\.\d+)?", text):
            seconds = float(text)
        else:
            position, seconds = 0, 0.0
            while position < len(text):
                if (part := _PART.match(text, position)) is None:
                    raise ValueError(f'"{value}" is no duration; write "90s", "5m", "1h30m", 2.5 (seconds) or "never"')
                seconds += float(part[1]) * _UNIT_S[part[2]]
                position = part.end()
            if not text:
                raise ValueError('an empty text is no duration; write "never" for none')
    else:
        seconds = float(value)
    if not 0 <= seconds <= _MAX_S:
        raise ValueError(f"a duration lies between 0 and {_MAX_S / 86400:.0f} days")
    return seconds


def _whole_seconds(value: object) -> float:
    seconds = parse_duration(value)
    if seconds != int(seconds) or seconds > 65535:
        raise ValueError("this duration is counted in whole seconds, at most 65535")
    return seconds


Duration = Annotated[float, BeforeValidator(parse_duration)]
WholeSeconds = Annotated[float, BeforeValidator(_whole_seconds)]


def parse_endpoint(text: str) -> tuple[str, int]:
    """(address, port) out of ``192.0.2.1:80`` or ``[2001:db8::1]:80``; names are refused."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ValueError
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
        if bracketed != (address.version == 6):
            raise ValueError
    except ValueError:
        raise ValueError(f'"{text}" is no address and port; write "192.0.2.1:80" or "[2001:db8::1]:80"') from None
    return str(address), int(port)


def _endpoint(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError('an address and port is text: "192.0.2.1:80" or "[2001:db8::1]:80"')
    parse_endpoint(value)
    return value


Endpoint = Annotated[str, BeforeValidator(_endpoint)]


def parse_ports(text: str) -> tuple[int, int]:
    """(first, last) out of ``10240-32767``."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535):
        raise ValueError(f'"{text}" is no range of ports; write "10240-32767"')
    return int(first), int(last)


def _ports(value: str) -> str:
    parse_ports(value)
    return value


PortRange = Annotated[str, AfterValidator(_ports)]


def _password_hash(value: str) -> str:
    PasswordHash.parse(value)
    return value


PasswordText = Annotated[str, AfterValidator(_password_hash)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paths(_Section):
    """Where things lie. `<instance>` stands for the value of `instance`."""

    pin_dir: str = Field(
        "",
        description="directory of the pinned programs and tables, below a bpffs; "
        "default `/sys/fs/bpf/roost/<instance>`",
    )
    bpf_dir: str = Field("", description="directory of the compiled BPF objects; default: where `roost` built them")
    database: str = Field(
        "",
        description="path of the SQLite file, or an SQLAlchemy URL such as "
        "`postgresql+psycopg://roost@db/roost`; default `/var/lib/roost/<instance>.db`",
    )
    control_socket: str = Field("", description="the daemon's local API; default `/run/roost/<instance>.sock`")


class Network(_Section):
    """Interfaces that clients are heard on."""

    interfaces: tuple[str, ...] = Field(
        (),
        description="interfaces the XDP program is attached to; every interface "
        "that a client's packets arrive on belongs here",
    )
    server_interfaces: tuple[str, ...] = Field(
        (),
        description="interfaces that the servers of persistent services are heard on; default: `[router] lan`, and "
        "those by which the routing table reaches the servers. Servers that come by themselves (`[attach]`) from "
        "elsewhere need theirs here",
    )
    link_ports: PortRange = Field(
        "10240-32767",
        description="local ports of links to the servers of persistent services. The kernel must not give them to "
        "others: those of its own range (`net.ipv4.ip_local_port_range`) are reserved",
    )
    xdp_mode: Literal["auto", "native", "generic"] = Field(
        "auto", description="`native` needs the driver's support; `auto` falls back to `generic` with a warning"
    )


class Router(_Section):
    """Answering for servers and clients under their own addresses, as the router between them."""

    lan: tuple[str, ...] = Field(
        (),
        description="interfaces towards the servers; empty: this machine is no router. Those towards the clients are "
        "`[network] interfaces`. Every host behind these reaches every client of a transparent service",
    )
    fail: Literal["open", "closed"] = Field(
        "open",
        description="new clients of transparent services while no daemon runs: `open` routes them to their server, "
        "`closed` refuses them; sleeping ones stay either way",
    )
    wait: Duration = Field(
        0.0,
        le=3600,
        description="how long a server that connects to a client's address waits while that client is not connected; "
        "then it is reset",
    )
    attach_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(
        (), description="ports at which servers reach a client by its address, whichever port its connection has"
    )


class Table(_Section):
    """Sizes of the pinned tables. A table that already exists keeps the size it has."""

    ipv4: int = Field(262_144, ge=1, le=1 << 28, description="inactive IPv4 connections (IDLE and SLEEP)")
    ipv6: int = Field(65_536, ge=1, le=1 << 28, description="inactive IPv6 connections (IDLE and SLEEP)")
    grow: bool = Field(
        True,
        description="whether the tables of inactive connections grow when they are 92 % full, while a quarter of the "
        "machine's memory stays free",
    )
    idle: int = Field(262_144, ge=1, le=1 << 28, description="IDLE connections, both families together")
    filter: int = Field(
        0,
        ge=0,
        le=1 << 28,
        description='connections in SLEEP that need no slot of a table (`sleep_keepalive = "none"`), both families '
        "together: 1.8 bytes each. It does not grow; whoever finds no room keeps a slot",
    )
    ring_kb: int = Field(
        4096, ge=64, le=1 << 20, description="ring buffer for the packets that wake connections, KiB, a power of two"
    )
    max_awake: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="client connections with a socket; passing 7/8 of it "
        "freezes the least recently active down to 3/4. 0 = what the descriptor limit allows",
    )
    workers: int | None = Field(
        None,
        ge=0,
        le=63,
        description="threads that help to freeze and thaw in bulk; unset = one for each processor but the engine's own",
    )

    @field_validator("ring_kb")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two")
        return value


class Policy(_Section):
    """Defaults for every service; a `[[service]]` may override each key. A connection falls quiet with its last payload
    byte in either direction: keep-alives are not activity."""

    active_quiet: Duration = Field(
        60.0, description="ACTIVE to STANDBY after this long without payload; of a persistent service to IDLE"
    )
    standby_quiet: Duration = Field(120.0, description="STANDBY to IDLE, counted from the last payload byte")
    idle_quiet: Duration = Field(3600.0, description="IDLE to SLEEP, counted from the last payload byte")
    probe_interval: WholeSeconds = Field(
        0.0, description="probe an inactive client that was not heard for this long, give or take an eighth"
    )
    probe_retry: WholeSeconds = Field(10.0, description="between unanswered probes")
    probe_count: int = Field(4, ge=1, le=255, description="the client is dead after this many unanswered probes")
    sleep_keepalive: Literal["answer", "none"] = Field(
        "answer",
        description="what is in memory of a connection in SLEEP: `answer`: what its client's keep-alives are answered "
        "from, 41 bytes; `none`: 2 bytes, for clients that send none, see [below](#sleep-without-keep-alives)",
    )
    connect_timeout: Duration = Field(
        10.0, description="how long a link to the server is tried before the client is reset"
    )
    on_server_close: Literal["standby", "close"] = Field(
        "standby",
        description="what becomes of the client when the server closes its connection; a persistent service has "
        "`close` unless it says otherwise itself",
    )
    on_second_server: Literal["refuse", "wait", "take-over"] = Field(
        "refuse",
        description="what becomes of a server that wants a client which is linked to another: it is refused, waits "
        "until the client is free, or takes the place of the other, whose link is ended in order",
    )
    second_server_wait: Duration = Field(
        10.0, le=3600, description="how long it waits, or tries to take over; then it is refused"
    )

    @field_validator("probe_retry", "connect_timeout", "second_server_wait")
    @classmethod
    def _not_never(cls, value: float) -> float:
        if value == 0:
            raise ValueError('must not be 0 or "never"')
        return value


class Attach(_Section):
    """How servers reach clients: by HTTP CONNECT or SOCKS5, to `client-address:client-port` or to a client's name."""

    listen: tuple[Endpoint, ...] = Field(
        (),
        description="addresses and ports for servers, all protocols at each; reachable from servers "
        'alone, since with `auth = "none"` whoever reaches them reaches every client',
    )
    protocols: tuple[Literal["connect", "socks5"], ...] = Field(
        ("connect", "socks5"), min_length=1, description="what is served; the first byte of a connection tells which"
    )
    timeout: Duration = Field(10.0, gt=0, description="how long a sleeping client may take to be woken")
    domain: str = Field(
        "roost",
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$",
        max_length=180,
        description="what stands behind the name of a client, and a dot, when a server asks for it",
    )
    auth: Literal["none", "password"] = Field(
        "none", description="`password`: only for a user of `[attach.users]` (Basic, or RFC 1929)"
    )
    users: dict[str, PasswordText] = Field(
        {}, description="`[attach.users]`: name and password's hash of each user, see [below](#users-of-attach)"
    )

    @field_validator("users")
    @classmethod
    def _names_of_users(cls, value: dict[str, str]) -> dict[str, str]:
        if wrong := [name for name in value if not USER.fullmatch(name)]:
            raise ValueError(f'"{wrong[0]}" is no name of a user: printable ASCII without spaces and colons')
        return value

    @model_validator(mode="after")
    def _users_are_asked(self) -> Attach:
        if self.auth == "password" and not self.users:
            raise ValueError('auth = "password" needs a user: [attach.users]')
        if self.users and self.auth == "none":
            raise ValueError('[attach.users] are asked for nothing; set auth = "password"')
        return self


def _network(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError('a network is text: "192.0.2.0/24" or "2001:db8::/32"')
    return str(ipaddress.ip_network(value))


AddressRange = Annotated[str, BeforeValidator(_network)]


class Absent(_Section):
    """What is done for a server that asks for a client which is not connected, by the proxy ([attach])."""

    steps: tuple[Literal["agent", "dial", "wait"], ...] = Field(
        ("agent",),
        description="what is tried, in this order; `[]`: the server is refused at once. `agent`: the agent that has "
        "the client's name is asked, see docs/agents.md; `dial`: the appliance connects to the client; `wait`: the "
        "server waits until the client connects",
    )
    wait: Duration = Field(30.0, gt=0, le=3600, description="how long a server waits in the step `wait`")
    agent_timeout: Duration = Field(15.0, gt=0, le=3600, description="how long an agent and its client may take")
    dial_networks: tuple[AddressRange, ...] = Field(
        (), description="clients are dialled in these networks alone; the appliance's own addresses never are"
    )
    dial_port: int = Field(0, ge=0, le=65535, description="port that is dialled; 0: the one that the server asked for")
    dial_timeout: Duration = Field(5.0, gt=0, le=300, description="how long a client may take to accept")
    dial_limit: int = Field(
        256,
        ge=1,
        le=10_000,
        description="connections that were dialled, at once; each costs 6 descriptors, and none of them ever sleeps",
    )
    stay_after: int = Field(
        3,
        ge=0,
        le=1000,
        description="a client that was dialled in vain so often in a row is told to stay connected when it connects "
        "the next time; 0: never",
    )

    @model_validator(mode="after")
    def _networks_are_known(self) -> Absent:
        if "dial" in self.steps and not self.dial_networks:
            raise ValueError('[absent] steps has "dial": dial_networks must say where clients are')
        if len(set(self.steps)) < len(self.steps):
            raise ValueError("[absent] steps names a step twice")
        return self


class Agents(_Section):
    """The control connections of agents, at services with `kind = "agents"`."""

    certificate: str = Field("", description="PEM file; with it agents must speak TLS (1.2 or later)")
    private_key: str = Field("", description="PEM file of the certificate's key")
    tls_sessions: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="agents with TLS at once; each costs the daemon 17 KB, asleep or not",
    )
    hello_timeout: Duration = Field(10.0, gt=0, le=300, description="how long an agent may take to say who it is")

    @model_validator(mode="after")
    def _both_or_none(self) -> Agents:
        if bool(self.certificate) != bool(self.private_key):
            raise ValueError("[agents] needs certificate and private_key, or neither")
        return self


class Agent(_Section):
    """One for each agent, or for each group of agents that may share a token."""

    name: str = Field(description="for people", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    token: str = Field(
        description="SHA-256 of its token in hexadecimal; `roost-agent --new-token` makes both",
        pattern=r"^[0-9a-f]{64}$",
    )
    clients: tuple[str, ...] = Field(
        min_length=1, description="names of clients that it may speak for; `*` stands for any characters"
    )


class History(_Section):
    """The history of transitions, and the writing of the store."""

    keep_days: float = Field(30.0, ge=0, le=36500, description="rows of history older than this are removed; 0 = never")
    batch: int = Field(2000, ge=1, le=100_000, description="rows written in one transaction at most")


class Health(_Section):
    """When a server of the service counts as down: links go to the others then. Where there is none that is up, clients
    wait, as long as `connect_timeout` says. With a single server nothing is checked unless a key here says so."""

    check: Literal["auto", "tcp", "http", "none"] = Field(
        "auto",
        description="active checks: a TCP connection, or a GET of `path` on it that is answered 2xx or 3xx; `auto`: "
        "`tcp` where there are several servers",
    )
    path: str = Field("/", pattern=r"^/[!-~]*$", description="what `http` asks for")
    interval: Duration = Field(2.0, ge=0.1, description="between two checks of a server")
    timeout: Duration = Field(2.0, gt=0, description="a check that takes longer has failed")
    rise: int = Field(2, ge=1, le=1000, description="checks in a row that bring a server up")
    fall: int = Field(3, ge=1, le=1000, description="failed checks in a row that take it down")
    max_fails: int | None = Field(
        None,
        ge=0,
        le=255,
        description="failed links of clients in a row that take it down; 0: they do not. Not given: 3 where there are "
        "several servers, else 0",
    )
    fail_timeout: Duration = Field(
        10.0, gt=0, description="without active checks: after this long it is given links again"
    )


InBandRequest = Literal["done", "quiet", "keepalive", "always-active", "name", "sleep", "status"]


class InBand(_Section):
    """What the ends of a service's connections may ask for inside their payload, see [in-band.md](in-band.md). Whoever
    chooses bytes of the payload can ask: by default nobody may, and nothing is looked at."""

    clients: tuple[InBandRequest, ...] = Field(
        (), description="what clients may ask for, and `ping`; empty: what clients send is not looked at"
    )
    servers: tuple[InBandRequest, ...] = Field((), description="the same for servers")
    forward: bool = Field(
        False, description="requests are also passed on to the other end; `false`: only those that ask for it"
    )
    stay: bool = Field(
        False,
        description="clients understand when they are told in band to stay connected, since they cannot be dialled",
    )


class Service(_Section):
    """One for each address that clients connect to; any key of `[policy]` may stand here too."""

    name: str = Field(
        description="its name: letters, digits, `.`, `_`, `-`; sleeping connections are tied to it",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
    )
    listen: Endpoint = Field(description="address and port for clients; `0.0.0.0` or `[::]` for every local address")
    server: Endpoint | None = Field(
        None,
        description="address and port of the server; a transparent service needs none: the one the client meant; "
        "the kinds `agents` and `held` have none",
    )
    kind: Literal["server", "agents", "held"] = Field(
        "server",
        description="who answers clients: `server`: the server; `agents`: the daemon, clients are agents; `held`: "
        "nobody until a server asks for the client, for clients that agents tell to connect",
    )
    servers: tuple[Endpoint, ...] = Field(
        (), max_length=SERVERS_MAX, description="instead of `server`: several, which share the links"
    )
    balance: Literal["least-connections", "source-hash"] = Field(
        "least-connections",
        description="which of the servers a link goes to: the one with the fewest links now, or the one that the "
        "client's address stands for; when that is down, its clients alone go to others",
    )
    health: Health = Field(
        Health(), description="`[service.health]`, see [below](#servicehealth): when a server counts as down"
    )
    transparent: bool = Field(
        False,
        description="`listen` is the server's own address and port, for which the router answers; `0.0.0.0` or `[::]`: "
        "every server behind `[router] lan`",
    )
    source: Literal["client", "appliance"] | None = Field(
        None,
        description="whose address the server sees; the client's by default where the service is transparent",
    )
    proxy_protocol: Literal["none", "v1", "v2"] = Field(
        "none",
        description="a header by which the server learns the client's address: the PROXY protocol's version 1 or 2",
    )
    interface: Literal["transient", "persistent"] = Field(
        "transient",
        description="what the server sees of a quiet client: `transient` closes the link to the server and makes a new "
        "one when the client speaks; `persistent` lets both sleep, each with its connection open, for protocols with a "
        "session in the connection (SSH, TLS, MQTT, SQL)",
    )
    born: Literal["never", "storm", "always"] = Field(
        "never",
        description="whether clients may be born asleep: their handshake is answered by SYN cookies in the data path, "
        "without a socket, and whoever says nothing sleeps from the first moment. `storm`: while more than `born_rate` "
        "connect; `always`: for clients that seldom speak at once. Such a client has a number and a history from when "
        "it speaks, or is spoken to, for the first time. `listen` must name an address",
    )
    born_rate: int = Field(
        1000, ge=1, description='with `born = "storm"`: how many clients a second, on one processor, are a storm'
    )
    in_band: InBand = Field(
        InBand(), description="`[service.in_band]`, see [below](#servicein_band): requests inside the payload"
    )
    active_quiet: Duration | None = None
    standby_quiet: Duration | None = None
    idle_quiet: Duration | None = None
    probe_interval: WholeSeconds | None = None
    probe_retry: WholeSeconds | None = None
    probe_count: int | None = Field(None, ge=1, le=255)
    sleep_keepalive: Literal["answer", "none"] | None = None
    connect_timeout: Duration | None = None
    on_server_close: Literal["standby", "close"] | None = None
    on_second_server: Literal["refuse", "wait", "take-over"] | None = None
    second_server_wait: Duration | None = Field(None, le=3600)

    @field_validator("probe_retry", "connect_timeout", "second_server_wait")
    @classmethod
    def _not_never(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError('must not be 0 or "never"')
        return value

    @property
    def every_server(self) -> tuple[str, ...]:
        """`server` or `servers`; none: each client means its own."""
        return (self.server,) if self.server else self.servers

    @property
    def check(self) -> Literal["tcp", "http", "none"]:
        """The active check of its servers."""
        if self.health.check != "auto":
            return self.health.check
        return "tcp" if len(self.every_server) > 1 else "none"

    @property
    def max_fails(self) -> int:
        """Failed links in a row that take a server down; 0: they do not."""
        if self.health.max_fails is not None:
            return self.health.max_fails
        return 3 if len(self.every_server) > 1 else 0

    def problem_of_servers(self) -> str:
        """What is wrong with the servers; empty: nothing."""
        if self.server and self.servers:
            return "has both `server` and `servers`; `server` is short for a list of one"
        if self.transparent and self.servers:
            return "is transparent and has `servers`: each of its clients means its own; `server` sends all to one"
        if not self.every_server:
            if not self.transparent:
                return ": the key `server` is missing"
            if given := sorted({"balance", "health"} & self.model_fields_set):
                return f"is transparent and has `{given[0]}`: it has no servers to choose from"
        if len({parse_endpoint(server) for server in self.servers}) < len(self.servers):
            return "names a server twice in `servers`"
        if self.source == "client":
            families = {":" in parse_endpoint(text)[0] for text in (self.listen, *self.every_server)}
            if len(families) > 1:
                return ': with source = "client" listen and server are both IPv4 or both IPv6'
        return ""

    def problem_of_sleep(self, defaults: Policy, table: Table, router: Router) -> str:
        """Why what sleeps needs its slot nevertheless; empty: it needs none, or was not asked to do without."""
        policy = self.policy(defaults)
        if policy.sleep_keepalive == "answer":
            return ""
        if self.interface == "persistent":
            return "is for transient services: a persistent one's server knows its client's slot"
        if router.lan:
            return "is not for routers, which look clients up by their addresses"
        if self.kind != "server":
            return f'is not for kind = "{self.kind}"'
        if policy.probe_interval:
            return "and probe_interval: to probe a client takes its slot"
        return "" if table.filter else "needs room: [table] filter says for how many connections"

    def policy(self, defaults: Policy) -> Policy:
        """The policy in force for this service: its own keys over the defaults."""
        own = {key: value for key in Policy.model_fields if (value := getattr(self, key)) is not None}
        if self.interface == "persistent":  # the session ended with the server's connection
            own.setdefault("on_server_close", "close")
        return defaults.model_copy(update=own)


class Config(_Section):
    """The whole file."""

    instance: str = Field(
        "main",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,30}$",
        description="name of this daemon: several may run on one machine",
    )
    paths: Paths = Field(default_factory=Paths)
    network: Network = Field(default_factory=Network)
    router: Router = Field(default_factory=Router)
    table: Table = Field(default_factory=Table)
    policy: Policy = Field(default_factory=Policy)
    attach: Attach = Field(default_factory=Attach)
    absent: Absent = Field(default_factory=Absent)
    agents: Agents = Field(default_factory=Agents)
    agent: tuple[Agent, ...] = Field((), description="agents")
    history: History = Field(default_factory=History)
    service: tuple[Service, ...] = Field((), description="services")

    @model_validator(mode="after")
    def _services_differ(self) -> Config:
        for key in ("name", "listen"):
            seen: set[str] = set()
            for service in self.service:
                value = getattr(service, key)
                if value in seen:
                    raise ValueError(f'two [[service]] have the {key} "{value}"')
                seen.add(value)
        return self

    @model_validator(mode="after")
    def _servers_are_known(self) -> Config:
        for service in self.service:
            if service.kind != "server":
                about_one = service.transparent or service.source or service.interface != "transient"
                if service.every_server or about_one or service.proxy_protocol != "none":
                    why = f'kind = "{service.kind}" has no server, and no key about one'
                    raise ValueError(f'[[service]] "{service.name}": {why}')
                continue
            if service.born != "never":
                listen, _ = parse_endpoint(service.listen)
                if service.interface != "transient" or service.transparent:
                    why = "is for transient services that are not transparent"
                elif ipaddress.ip_address(listen).is_unspecified:
                    why = f'needs the address that clients connect to: listen = "{service.listen}" stands for any'
                else:
                    why = ""
                if why:
                    raise ValueError(f'[[service]] "{service.name}": born = "{service.born}" {why}')
            if problem := service.problem_of_servers():
                raise ValueError(f'[[service]] "{service.name}"{" " if problem[0] != ":" else ""}{problem}')
            if not self.router.lan and (service.transparent or service.source == "client"):
                key = "transparent = true" if service.transparent else 'source = "client"'
                raise ValueError(f'[[service]] "{service.name}" has {key}: [router] must name its lan interfaces')
        return self

    @model_validator(mode="after")
    def _sleepers_can_be_found(self) -> Config:
        for service in self.service:
            if problem := service.problem_of_sleep(self.policy, self.table, self.router):
                raise ValueError(f'[[service]] "{service.name}": sleep_keepalive = "none" {problem}')
        return self

    @model_validator(mode="after")
    def _agents_are_known(self) -> Config:
        listening = any(service.kind == "agents" for service in self.service)
        if listening and not self.agent:
            raise ValueError('a [[service]] has kind = "agents": [[agent]] must say who they are')
        if self.agent and not listening:
            raise ValueError('there is an [[agent]], but no [[service]] with kind = "agents"')
        for key in ("name", "token"):
            values = [getattr(agent, key) for agent in self.agent]
            if len(set(values)) < len(values):
                raise ValueError(f"two [[agent]] have the same {key}")
        return self

    @model_validator(mode="after")
    def _sides_differ(self) -> Config:
        if both := sorted(set(self.router.lan) & set(self.network.interfaces)):
            raise ValueError(f'the interface "{both[0]}" is in [router] lan and in [network] interfaces')
        return self

    @property
    def pin_dir(self) -> str:
        return self.paths.pin_dir or f"/sys/fs/bpf/roost/{self.instance}"

    @property
    def database_url(self) -> str:
        """An SQLAlchemy URL."""
        database = self.paths.database or f"/var/lib/roost/{self.instance}.db"
        return database if "://" in database else f"sqlite:///{Path(database).absolute()}"

    @property
    def control_socket(self) -> str:
        return self.paths.control_socket or f"/run/roost/{self.instance}.sock"


def parse(text: str, source: str = "configuration") -> Config:
    """The configuration in `text`; raises ConfigError, whose message begins with `source`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from None
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {_explain(detail, data)}" for detail in error.errors())) from None


def load(path: str | Path) -> Config:
    """The configuration in the file at `path`; raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    return parse(text, str(path))


def _where(location: tuple[int | str, ...], data: dict[str, Any]) -> str:
    if not location:
        return "at the top level"
    if location[0] in _LISTS and len(location) > 1 and isinstance(location[1], int):
        name = data[str(location[0])][location[1]]
        name = name.get("name") if isinstance(name, dict) else None
        part = f"[service.{location[2]}] of " if location[2:3] in (("health",), ("in_band",)) else ""
        return part + (f'[[{location[0]}]] "{name}"' if name else f"[[{location[0]}]] number {location[1] + 1}")
    return f"[{location[0]}]"


def _explain(detail: ErrorDetails, data: dict[str, Any]) -> str:
    """One sentence for a person out of one pydantic error."""
    location = detail["loc"]
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        model = _model_at(location[:-1])
        key = str(location[-1])
        close = difflib.get_close_matches(key, list(model.model_fields), n=1, cutoff=0.5)
        if not close:  # "qiet" is far from "active_quiet" as a whole, near to its last word
            words = {word: name for name in model.model_fields for word in (name, *name.split("_"))}
            close = [words[word] for word in difflib.get_close_matches(key, list(words), n=1, cutoff=0.6)]
        hint = f"; did you mean `{close[0]}`?" if close else f"; known keys: {', '.join(model.model_fields)}"
        return f"unknown key `{key}` {_in(location[:-1], data)}{hint}"
    if not location:
        return message
    if detail["type"] == "missing":
        return f"{_where(location[:-1], data)}: the key `{location[-1]}` is missing"
    names = [str(part) for part in location if isinstance(part, str)]
    key = names[-1] if len(names) > 1 or location[0] not in _SECTIONS else str(location[0])
    given = detail.get("input")
    # A password or a token written in place of its hash does not belong in a log.
    secret = location[:2] == ("attach", "users") or (location[0] == "agent" and location[-1] == "token")
    told = isinstance(given, str | int | float) and str(given) not in message and not secret
    shown = f" (it is {given!r})" if told else ""
    place = _where(location[:-1] if len(location) > 1 else (), data)
    return f"`{key}` {'in ' + place if place[0] == '[' else place}: {message}{shown}"


def _model_at(location: tuple[int | str, ...]) -> type[_Section]:
    """The section that a place in the file belongs to."""
    model: type[_Section] = Config
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if part in _SECTIONS:
            model = _SECTIONS[str(part)]
        elif isinstance(annotation, type) and issubclass(annotation, _Section):
            model = annotation
    return model


def _in(location: tuple[int | str, ...], data: dict[str, Any]) -> str:
    place = _where(location, data)
    return f"in {place}" if place[0] == "[" else place


_SECTIONS: dict[str, type[_Section]] = {
    "paths": Paths,
    "network": Network,
    "router": Router,
    "table": Table,
    "policy": Policy,
    "attach": Attach,
    "absent": Absent,
    "agents": Agents,
    "agent": Agent,
    "history": History,
    "service": Service,
}

_LISTS = ("agent", "service")
"""Sections of which there may be several."""


def _shown_default(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, bool):
        return "`true`" if default else "`false`"
    if isinstance(default, _Section):
        return ""
    if default in ("", (), {}):
        return "" if default == "" else "`[]`" if default == () else ""
    if isinstance(default, tuple):
        return f"`{list(default)}`".replace("'", '"')
    if isinstance(default, str):
        return f'`"{default}"`'
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _shown_type(annotation: object, metadata: list[Any]) -> str:
    if any(isinstance(item, BeforeValidator) and item.func in (parse_duration, _whole_seconds) for item in metadata):
        return "duration"
    if any(isinstance(item, BeforeValidator) and item.func is _endpoint for item in metadata):
        return "address:port"
    if get_origin(annotation) is Literal:
        return " or ".join(f'`"{value}"`' for value in get_args(annotation))
    if get_origin(annotation) is tuple and get_origin(get_args(annotation)[0]) is Literal:
        return "list of " + _shown_type(get_args(annotation)[0], []).replace(" or ", ", ")
    if get_origin(annotation) is tuple:
        of = get_args(annotation)[0]
        return "list of " + ("names" if of is str else "numbers" if get_args(of)[0] is int else "addresses")
    if get_origin(annotation) is dict or annotation is Health:
        return "table"
    if get_origin(annotation) is Union:
        return _shown_type(get_args(annotation)[0], metadata)
    return {str: "text", int: "number", float: "number", bool: "`true` or `false`"}.get(annotation, "")  # type: ignore[call-overload, no-any-return]


def _render_keys(model: type[_Section], skip: tuple[str, ...] = ()) -> list[str]:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if name in skip:
            continue
        default = _shown_default(field.default)
        lines.append(
            f"| `{name}` | {_shown_type(field.annotation, field.metadata)} | {default} | {field.description} |"
        )
    return lines


def _described(model: type[_Section]) -> list[str]:
    return [" ".join((model.__doc__ or "").split()), ""]


EXAMPLE = """\
instance = "main"

[network]
interfaces = ["eth0"]

[policy]
active_quiet = "30s"      # the server link is closed
standby_quiet = "1m"      # the socket leaves the kernel
idle_quiet = "1h"         # the record goes to the database
probe_interval = "20m"    # for networks that forget quiet connections

[attach]
listen = ["10.0.0.1:3128"]

[[service]]
name = "telemetry"
listen = "0.0.0.0:7000"
server = "10.0.0.5:7000"

[[service]]
name = "updates"
listen = "[::]:7001"
server = "10.0.0.6:7001"
idle_quiet = "never"      # always awake within microseconds
"""


HEALTH_EXAMPLE = """\
[[service]]
name = "telemetry"
listen = "0.0.0.0:7000"
servers = ["10.0.0.5:7000", "10.0.0.6:7000"]

[service.health]          # of the service above
check = "http"
path = "/alive"
"""

HEALTH_NOTE = """\
A link that a server refuses goes to the next one at once; one that does not answer leaves each of the others its
share of `connect_timeout`. What a client says meanwhile waits in its connection and is not lost. A server that is
down keeps the links it has, and so does one that leaves the list at a SIGHUP. Servers are up when the daemon starts.
`roost status` shows them.
"""


def render_reference() -> str:
    """docs/configuration.md, whole."""
    lines = [
        "# Configuration",
        "",
        "<!-- Generated by `python -m control.config > docs/configuration.md`; change control/config.py instead. -->",
        "",
        "One TOML file, given to `roost up -c FILE`. On SIGHUP it is read again: the keys of `[policy]` and those of",
        "`[[service]]` but `listen`, `transparent` and `source` take effect at once; a change of any other key is",
        "reported and waits for a restart (sleeping clients do not notice a restart).",
        "",
        'A *duration* is a number of seconds (`2.5`) or text: `"250ms"`, `"90s"`, `"5m"`, `"1h30m"`, `"2d"`.',
        '`0` and `"never"` switch it off.',
        "",
        "```toml",
        *EXAMPLE.splitlines(),
        "```",
        "",
        "## Top level",
        "",
        *_render_keys(Config, skip=tuple(_SECTIONS)),
    ]
    for name, model in _SECTIONS.items():
        title = f"[[{name}]]" if name in _LISTS else f"[{name}]"
        skip = tuple(Policy.model_fields) if model is Service else ()
        lines += ["", f"## {title}", "", *_described(model), *_render_keys(model, skip)]
        if model is Service:
            lines += ["", "Overrides: " + ", ".join(f"`{key}`" for key in Policy.model_fields) + "."]
            lines += [
                "",
                "## [service.health]",
                "",
                *_described(Health),
                *_render_keys(Health),
            ]
            lines += ["", "```toml", *HEALTH_EXAMPLE.splitlines(), "```", "", *HEALTH_NOTE.splitlines()]
            lines += ["", "## [service.in_band]", "", *_described(InBand), *_render_keys(InBand)]
    lines += [
        "",
        "## Sleep without keep-alives",
        "",
        'With `sleep_keepalive = "none"` a connection that goes to SLEEP leaves the table of inactive connections:',
        "what is left of it in memory is a fingerprint in a filter (`[table] filter`), the rest is its row in the",
        "database. It is for clients that say nothing for hours, keep-alives included, behind networks that do not",
        "mind.",
        "",
        "Nothing else changes for them. Whatever such a client sends, a keep-alive too, is looked up in the",
        "database, and the connection has its slot back; it leaves it again after `idle_quiet` without a word. What",
        "the database costs, some milliseconds, a client that wakes from SLEEP pays anyway. The appliance sends no",
        "keep-alives of its own to them: a client that asked to be probed (in band) keeps its slot. While the",
        "database cannot be read they can neither be woken nor answered. The first packet of one stranger in 430 is",
        "looked up, too, and goes on to where it was going.",
        "",
        "```toml",
        "[table]",
        "filter = 10_000_000",
        "",
        "[[service]]",
        'name = "meters"',
        'listen = "0.0.0.0:7002"',
        'server = "10.0.0.7:7002"',
        'sleep_keepalive = "none"',
        "```",
        "",
        "## Users of attach",
        "",
        'With `auth = "password"` a server names itself by `Proxy-Authorization: Basic` or by RFC 1929; neither is',
        "encrypted. The configuration knows passwords by their hash alone, which this command makes:",
        "",
        "```sh",
        *HASH_COMMAND.splitlines(),
        "```",
        "",
        "```toml",
        "[attach]",
        'listen = ["10.0.0.1:3128"]',
        'auth = "password"',
        "",
        "[attach.users]",
        'billing = "$scrypt$ln=15,r=8,p=1$..."',
        "```",
        "",
        "## Names of clients",
        "",
        "`roost name ID thermostat-17` gives a connection a name, by which servers reach it as `thermostat-17.roost`",
        "(`domain`), whatever its address:",
        "",
        "```sh",
        "curl --proxytunnel --proxy http://billing:PASSWORD@10.0.0.1:3128 http://thermostat-17.roost/status",
        "curl --socks5-hostname billing:PASSWORD@10.0.0.1:3128 http://thermostat-17.roost/status",
        "```",
        "",
        "A name stands for one connection, so the port that a server asks for with it means nothing, unless the client",
        "is dialled (`[absent]`). Given again it moves to the new connection; given to a connection that has one it",
        "replaces that one. It outlives its connection: a server that asks for it then is told that the client is not",
        "connected, or whatever the steps of `[absent]` come to. Upper and lower case are the same. Names are never",
        "looked up in the DNS, and nothing is reached but clients: the appliance's own addresses and `localhost` are",
        "refused (403, or SOCKS5 reply 2). Agents bring names of their own, see [agents.md](agents.md).",
        "",
        "## The store",
        "",
        "A connection counts as SLEEP only when its row is committed (SQLite: WAL, `synchronous=FULL` for transactions",
        "that carry such rows, `NORMAL` for history alone). When the database cannot be written (locked, corrupt, disk",
        "full), connections stay IDLE, `roost status` shows `store: error` with the reason, and writing is tried again",
        "with back-off; the data path goes on. History waits in memory meanwhile, up to a bound; what does not fit is",
        "dropped, counted, and said. Services are known by their name: they may be reordered, and sleeping connections",
        "keep theirs.",
        "",
        "## What the daemon sets on the machine",
        "",
        "In its network namespace, at each start, and said in its log; the settings stay when it ends:",
        "",
        "- `net.ipv4.tcp_tw_reuse = 1`: links to a server leave ports in TIME-WAIT, all towards one address; some",
        "  hundred links a second would use them up (RFC 6191; the kernel reuses them only where both ends use",
        "  timestamps).",
        "- `net.ipv4.tcp_ecn = 0`: a socket that is rebuilt cannot be told that ECN was agreed on, so it is not agreed",
        "  on.",
        "- `net.ipv4.ip_local_reserved_ports`: the ports of `listen` that lie in the range of outgoing ones are added,",
        "  so that no link can take them while the daemon is away.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_reference(), end="")
