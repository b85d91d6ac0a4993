# SPDX-License-Identifier: Apache-2.0
"""The sections of the file that stand for themselves: a field is a key, with its description and default."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from appliance.frontends.passwords import USER
from appliance.wire import PROBE_COUNT, PROBE_COUNT_MAX, PROBE_RETRY_S
from control.config.values import (
    AddressRange,
    Duration,
    Endpoint,
    PasswordText,
    PortRange,
    Ports,
    ToEngine,
    WholeSeconds,
    parse_endpoint,
    words,
)


class Section(BaseModel):
    """Knows its keys alone, and never changes."""

    moved: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Keys that stood here in an earlier version, and what they are now."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def section_of(model: type[Section], key: str | int) -> type[Section] | None:
    """The section, or the kind of each of several, that this key of `model` holds; None: it holds none."""
    annotation = model.model_fields[key].annotation if key in model.model_fields else None
    found = (get_args(annotation) or (annotation,))[0]
    return found if isinstance(found, type) and issubclass(found, Section) else None


class Paths(Section):
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
        "`postgresql://roost:PASSWORD@db/roost`; default `/var/lib/roost/<instance>.db`",
    )
    control_socket: str = Field("", description="the daemon's local API; default `/run/roost/<instance>.sock`")


class Network(Section):
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
    resolve_interval: Duration = Field(
        30.0,
        ge=1,
        description="how often the names of servers are asked for again. An address that a name has no more gets no "
        "new links, those that are there go on; a name that cannot be resolved keeps its addresses",
    )
    xdp_mode: Literal["auto", "native", "generic"] = Field(
        "auto", description="`native` needs the driver's support; `auto` falls back to `generic` with a warning"
    )


class Router(Section):
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


class Standby(Section):
    """One of two machines that have the connections in turn, with one PostgreSQL database: which of them, an address
    says that keepalived gives to one at a time. The other one stands by, with all that sleep in a table of its own."""

    address: str = Field(
        "",
        description="the address that only the machine with the connections has, by keepalived's VRRP or otherwise; "
        "empty: this machine is none of a pair",
    )
    lease: WholeSeconds = Field(
        2,
        ge=1,
        le=60,
        description="for so long a machine that does not reach the database may wake and probe connections; the other "
        "one takes over when this time has passed, and not earlier. Longer, and a database may be away for longer; "
        "shorter, and a machine that died is replaced sooner",
    )

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        address = ipaddress.ip_address(value or "192.0.2.1")
        if address.is_unspecified or address.is_multicast or address.is_loopback or address.is_link_local:
            raise ValueError("it must be an address that moves from one machine to the other")
        return str(address) if value else value


class Table(Section):
    """Sizes of the pinned tables. A table that already exists keeps the size it has."""

    ipv4: int = Field(262_144, ge=1, le=1 << 28, description="inactive IPv4 connections (IDLE and SLEEP)")
    ipv6: int = Field(65_536, ge=1, le=1 << 28, description="inactive IPv6 connections (IDLE and SLEEP)")
    grow: bool = Field(
        True,
        description="whether these tables (`ipv4`, `ipv6`, `idle`) grow when they are 92 % full, while a quarter of "
        "the machine's memory stays available (`MemAvailable` of `/proc/meminfo`: what files take counts as "
        "available)",
    )
    idle: int = Field(
        262_144,
        ge=1,
        le=1 << 28,
        description="IDLE connections, both families together, for which there is room before it grows; those that "
        "were born asleep and have not spoken yet are not counted",
    )
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
        "freezes the least recently active down to 3/4, and resets those that have taken nothing of what was sent to "
        "them for 5 s, as many as it takes. One of 32 is kept for those that wake. 0 = what the limit of descriptors "
        "allows",
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


InBandRequest = Literal["done", "quiet", "keepalive", "always-active", "name", "sleep", "status"]
ServersRequest = Literal[InBandRequest, "release"]


Step = Literal["agent", "dial", "wait"]


class Policy(Section):
    """Defaults for every service; a `[[service]]` may override each key. A connection falls quiet with its last payload
    byte in either direction: keep-alives are not activity."""

    active_quiet: Annotated[Duration, ToEngine("standby_quiet_ms")] = Field(
        60.0,
        description="ACTIVE to STANDBY after this long without payload; of a persistent service to IDLE. **Unless the "
        "service is persistent the server's side ends then, by FIN, whichever side began it: sessions of servers that "
        "asked for the client, and of agents, too.** So the rest of a request that stalls for longer in its midst, "
        "since a network is away, comes by another connection of the server's. `never` keeps them",
    )
    standby_quiet: Annotated[Duration, ToEngine("idle_quiet_ms")] = Field(
        120.0, description="STANDBY to IDLE, counted from the last payload byte"
    )
    idle_quiet: Annotated[Duration, ToEngine("sleep_quiet_ms")] = Field(
        3600.0, description="IDLE to SLEEP, counted from the last payload byte"
    )
    probe_interval: Annotated[WholeSeconds, ToEngine("probe_interval_s")] = Field(
        64800.0,
        description="probe an inactive client that was not heard for this long, give or take an eighth. The default, "
        "18 hours, finds one that is gone within a day, and costs each client a probe and its answer in that time; "
        "with 10,000,000 asleep 154 probes a second, at 0.8 µs each. With "
        '`sleep_keepalive = "none"` the default is `never`',
    )
    most_probe_interval: Annotated[WholeSeconds, ToEngine("most_probe_s")] = Field(
        0.0,
        description="an experiment: each silence is probed after a time of its own between `probe_interval` and this, "
        "at random, so that it can be learned for how long the networks between let a connection be silent; for some "
        "clients, see [policy.md](policy.md#experiments), and only with a `probe_interval` beside it. `never`: no "
        "experiment",
    )
    awake_probe_interval: Annotated[WholeSeconds, ToEngine("awake_probe_s")] = Field(
        120.0,
        description="probe the client and the server of a connection that is awake, each when it was not heard for "
        "this long; a client that does not answer is closed, a server that does not answer is as one that has failed",
    )
    attach_silence: Annotated[WholeSeconds, ToEngine("attach_silence_s")] = Field(
        60.0,
        description="a server that wants a client which was not heard for this long gets it only when the client has "
        "answered a probe, which takes a round trip to it; without an answer within `[attach] timeout` the server is "
        "refused. One that was heard since is given at once, and if it has gone meanwhile, its silence tells",
    )
    write_timeout: Annotated[WholeSeconds, ToEngine("write_timeout_s")] = Field(
        180.0,
        description="an awake connection is reset when bytes wait for one of its ends, client or server, and none of "
        "them was taken for this long, whatever it says or answers; when sockets run short, after 5 s",
    )
    probe_retry: Annotated[WholeSeconds, ToEngine("probe_retry_s")] = Field(
        float(PROBE_RETRY_S), description="between unanswered probes"
    )
    probe_count: Annotated[int, ToEngine("probe_count")] = Field(
        PROBE_COUNT, ge=1, le=PROBE_COUNT_MAX, description="the client is dead after this many unanswered probes"
    )
    sleep_keepalive: Annotated[Literal["answer", "none"], ToEngine("no_keepalives")] = Field(
        "answer",
        description="what is in memory of a connection in SLEEP: `answer`: what its client's keep-alives are answered "
        "from, 41 bytes; `none`: 2 bytes, for clients that send none, see [below](#sleep-without-keep-alives)",
    )
    priority: Annotated[Literal["low", "normal", "high"], ToEngine("priority")] = Field(
        "normal", description="when too many connections are awake, those of a lower priority are frozen first"
    )
    new_clients: Annotated[Literal["serve", "refuse"], ToEngine("refuses")] = Field(
        "serve",
        description="whether clients that connect are served, or reset; those that are connected stay. With rules for "
        "networks this is a list of those that are refused, or of those alone that are not, see "
        "[policy.md](policy.md#networks-that-are-refused)",
    )
    connect_timeout: Annotated[Duration, ToEngine("connect_timeout_ms")] = Field(
        10.0, description="how long a link to the server is tried before the client is reset"
    )
    on_server_close: Annotated[Literal["standby", "close", "idle", "sleep"], ToEngine("on_server_close")] = Field(
        "standby",
        description="what becomes of the client when the server closes its connection: `standby`: its quiet intervals "
        "begin; `idle`, `sleep`: it goes down that far at once; `close`: it is closed, too, unless that server had "
        "asked for it. A persistent service has `close` unless it says otherwise itself",
    )
    on_second_server: Annotated[Literal["refuse", "wait", "take-over"], ToEngine("second_server")] = Field(
        "refuse",
        description="what becomes of a server that wants a client which is linked to another: it is refused, waits "
        "until the client is free, or takes the place of the other, whose link is ended in order",
    )
    second_server_wait: Annotated[Duration, ToEngine("second_server_ms")] = Field(
        10.0, le=3600, description="how long it waits, or tries to take over; then it is refused"
    )

    when_absent: Annotated[tuple[Step, ...], BeforeValidator(words)] = Field(
        ("agent", "dial", "wait"),
        description="what may be done for a server that wants a client which is not connected: of `[absent] steps` "
        "those that are tried for this client, in that order; empty: none, the server is refused at once. Where it "
        "asks for a name, rules give it by that and its tags, and by the address and the service of the last "
        "connection; where it asks for an address, rules for networks alone give it, and no service",
    )
    least_quiet: Annotated[Duration, ToEngine("least_quiet_ms")] = Field(
        0.0,
        description="where clients or servers may set quiet intervals in band: a shorter one is refused, and one that "
        "was set before counts as this; `never` may always be asked for",
    )
    least_probe_interval: Annotated[WholeSeconds, ToEngine("least_probe_s")] = Field(
        0.0, description="likewise: probes more often than that"
    )

    in_band_clients: Annotated[tuple[InBandRequest, ...], BeforeValidator(words), ToEngine("in_band_clients")] = Field(
        (),
        description="what clients may ask for inside their payload, and `ping`, see [in-band.md](in-band.md); empty: "
        "what clients send is not looked at. An end that chooses bytes of the payload can ask",
    )
    in_band_servers: Annotated[tuple[ServersRequest, ...], BeforeValidator(words), ToEngine("in_band_servers")] = Field(
        (), description="the same for servers"
    )

    @field_validator("probe_retry", "connect_timeout", "second_server_wait")
    @classmethod
    def _not_never(cls, value: float) -> float:
        if value == 0:
            raise ValueError('must not be 0 or "never"')
        return value

    @model_validator(mode="after")
    def _bounds_of_an_experiment(self) -> Self:
        most, least = self.most_probe_interval, self.probe_interval
        if most and "probe_interval" not in self.model_fields_set:
            raise ValueError("`most_probe_interval` needs a `probe_interval` beside it, the least")
        if most and not 0 < least < most:
            raise ValueError("`most_probe_interval` must be longer than `probe_interval`, which must not be never")
        return self


class Attach(Section):
    """How servers reach clients: by HTTP CONNECT or SOCKS5, to `client-address:client-port` or to a client's name."""

    listen: tuple[Endpoint, ...] = Field(
        (),
        description="addresses and ports for servers, all protocols at each; reachable from servers "
        'alone, since with `auth = "none"` whoever reaches them reaches every client',
    )
    networks: tuple[AddressRange, ...] = Field(
        (),
        description="servers come to `listen` from these networks alone, others are refused (403); empty: from any",
    )
    protocols: tuple[Literal["connect", "socks5"], ...] = Field(
        ("connect", "socks5"), min_length=1, description="what is served; the first byte of a connection tells which"
    )
    timeout: Duration = Field(
        10.0,
        gt=0,
        description="how long a sleeping client may take to be woken, and one that must answer a probe to do so",
    )
    released_for: Duration = Field(
        300.0,
        gt=0,
        description="a server that has released its client in band keeps its connection for so long without asking for "
        "another one",
    )
    local_connect: bool = Field(
        False,
        description="programs on this machine, in the daemon's network namespace, reach a client by `connect()` to its "
        "address and port, whatever `auth` says: while it has a connection, asleep or awake, they get that one, see "
        "[below](#programs-on-this-machine)",
    )
    domain: str = Field(
        "roost",
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$",
        max_length=180,
        description="what stands behind the name of a client, and a dot, when a server asks for it",
    )
    auth: Literal["none", "password"] = Field(
        "none", description="`password`: only for a user of `[attach.users]` (Basic, or RFC 1929)"
    )
    at_clients: bool = Field(
        False,
        description='with `auth = "none"`: whether an address of `listen` may be one of an interface that clients are '
        "heard on (`[network] interfaces`), so that each client reaches every other",
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


class Absent(Section):
    """What is done for a server that asks for a client which is not connected, by the proxy ([attach]). `dial` is done
    for one that connects to its client's address as well, at a port in [router] attach_ports."""

    steps: tuple[Step, ...] = Field(
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
    dial_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="port that is dialled; 0: the one that the server asked for, if it is one of `dial_ports`",
    )
    dial_ports: tuple[Ports, ...] = Field(
        (),
        description='with `dial_port = 0`: ports and ranges of ports, such as `[443, "8000-8099"]`, that a server may '
        "ask for. It reaches each of them at every host of `dial_networks`, from the appliance's address: name no port "
        'that other services there listen on. `["1-65535"]`: any',
    )
    dial_timeout: Duration = Field(5.0, gt=0, le=300, description="how long a client may take to accept")
    dial_limit: int = Field(
        256,
        ge=1,
        le=10_000,
        description="clients that are being dialled at once",
    )
    dial_service: str = Field(
        "",
        description="service whose clients are dialled, from where it listens; what they say while no server is linked "
        "goes to its servers, and clients with its version of IP alone are dialled; empty: of each version the first "
        "that is transparent, else the first",
    )
    stay_after: int = Field(
        3,
        ge=0,
        le=1000,
        description="a client that was dialled in vain so often in a row is told to stay connected when it connects "
        "the next time; 0: never",
    )

    @model_validator(mode="after")
    def _networks_and_ports_are_known(self) -> Absent:
        if "dial" in self.steps and not self.dial_networks:
            raise ValueError('steps has "dial": dial_networks must say where clients are')
        if "dial" in self.steps and not self.dial_port and not self.dial_ports:
            raise ValueError(
                "dial_port is 0: dial_ports must say which ports a server may ask for, "
                '["1-65535"]: any; or give dial_port'
            )
        if self.dial_port and self.dial_ports:
            raise ValueError(f"dial_port = {self.dial_port} is the only one that is dialled: leave dial_ports out")
        if len(set(self.steps)) < len(self.steps):
            raise ValueError("steps names a step twice")
        return self


class Agents(Section):
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
            raise ValueError("needs certificate and private_key, or neither")
        return self


class Agent(Section):
    """One for each agent, or for each group of agents that may share a token."""

    name: str = Field(description="for people", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    token: str = Field(
        description="SHA-256 of its token in hexadecimal; `roost-agent --new-token` makes both",
        pattern=r"^[0-9a-f]{64}$",
    )
    clients: tuple[str, ...] = Field(
        min_length=1, description="names of clients that it may speak for; `*` stands for any characters"
    )


class Pressure(Section):
    """When something runs short, connections that have been quiet longest, of the lowest priority first, go down a
    step, awake ones to IDLE and those in IDLE to SLEEP, until it is over. Looked at once a second; 0 switches a
    threshold off. Besides, awake connections go down when they are more than 7/8 of `[table] max_awake`."""

    connections: int = Field(
        0,
        ge=0,
        description="connections that are not in SLEEP; those that were born asleep and have not spoken yet are not "
        "counted: they have a slot alone, and no step to go down",
    )
    idle: float = Field(
        0.0, ge=0, le=100, description="% of the records of IDLE connections, where `[table] grow` makes no more"
    )
    memory: float = Field(
        95.0,
        ge=0,
        le=100,
        description="% in use of the memory that a cgroup of the daemon allows, or of the machine's, whichever is "
        "nearer to its end, without what the kernel would give up of files",
    )
    memory_stall: float = Field(
        20.0,
        ge=0,
        le=100,
        description="% of the last 10 s in which a task of the daemon's cgroup waited for memory (PSI)",
    )
    cpu_stall: float = Field(0.0, ge=0, le=100, description="the same of processors")
    descriptors: float = Field(95.0, ge=0, le=100, description="% of the descriptors that the daemon may have")
    clear: float = Field(
        5.0,
        gt=0,
        le=50,
        description="it is over when what was reached has fallen by so many percentage points; each threshold in % is "
        "above it, or 0",
    )
    rate: float = Field(
        5.0,
        gt=0,
        le=100,
        description="% of the awake connections, and of those in IDLE, that go down in a second; where connections "
        "are counted, as many as are too many",
    )

    @model_validator(mode="after")
    def _can_be_over(self) -> Pressure:
        percents = ("idle", "memory", "memory_stall", "cpu_stall", "descriptors")
        if never := [f"{key} = {value:g}" for key in percents if 0 < (value := getattr(self, key)) <= self.clear]:
            raise ValueError(
                f"{' and '.join(never)}: once reached, it would never be over, for it has to fall by clear = "
                f"{self.clear:g}; give a threshold above `clear`, or 0, which switches it off"
            )
        return self


def _changed_at(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


class Api(Section):
    """HTTP for operators and servers by the network ([api.md](api.md)), served by a process of its own: it has no
    privileges, and no part of what moves packets is in it."""

    listen: tuple[Endpoint, ...] = Field((), description="addresses and ports; empty: the process is not started")
    user: str = Field(
        "roost",
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}$",
        description="the user that it runs as, a name or a number: it may read the database and open the daemon's "
        "socket, by that user's group, and nothing else of the appliance's. Not root",
    )
    certificate: str = Field("", description="PEM file; with it TLS is spoken (1.2 or later)")
    private_key: str = Field("", description="PEM file of the certificate's key; root's alone is best")
    client_ca: str = Field(
        "", description="PEM file; with it a client needs a certificate that one of these signed, beside its token"
    )
    plain: bool = Field(
        False, description="without a certificate it listens on loopback alone, unless this is true: tokens can be read"
    )
    at_clients: bool = Field(
        False,
        description="whether an address of `listen` may be one of an interface that clients are heard on (`[network] "
        "interfaces`)",
    )
    connections: int = Field(1000, ge=1, le=100_000, description="connections to it at once")
    connections_each: int = Field(
        50, ge=1, le=100_000, description="connections at once from one address, or from one /64 of IPv6"
    )
    connections_rate: int = Field(
        50,
        ge=1,
        le=100_000,
        description="new connections a second from one address, or from one /64 of IPv6, on average: with TLS each "
        "takes the processor for some ms",
    )
    requests: int = Field(50, ge=1, le=100_000, description="requests a second by one token, on average")

    def changed_at(self) -> list[int]:
        """When each of its files was changed, ns; 0: it is not there, or cannot be looked at."""
        return [_changed_at(path) for path in (self.certificate, self.private_key, self.client_ca) if path]

    @model_validator(mode="after")
    def _is_protected(self) -> Api:
        if bool(self.certificate) != bool(self.private_key):
            raise ValueError("needs certificate and private_key, or neither")
        if self.client_ca and not self.certificate:
            raise ValueError("client_ca needs a certificate of its own: certificate and private_key")
        if self.user in ("root", "0"):
            raise ValueError("user must not be root")
        for text in self.listen if not (self.certificate or self.plain) else ():
            if not ipaddress.ip_address(parse_endpoint(text)[0]).is_loopback:
                raise ValueError(f'listens at {text}, where others may read tokens: it needs a certificate and '
                                 "private_key, or plain = true")  # fmt: skip
        return self


class History(Section):
    """The history of transitions, the records of attaches and of changes, snapshots, and the writing of the store."""

    keep_days: float = Field(
        30.0,
        ge=0,
        le=36500,
        description="a table of history is removed once its youngest row is older than this, and a row of attaches, "
        "snapshots or changes once it is; 0 = never",
    )
    keep_bytes: int = Field(
        10_000_000_000,
        ge=100_000_000,
        le=1_000_000_000_000_000,
        description="the oldest tables are removed when there is more history than this, at 75 bytes a row, the "
        "oldest attaches, at 160, the oldest snapshots, at 600, and the oldest changes, at 200",
    )
    batch: int = Field(2000, ge=1, le=100_000, description="rows written in one transaction at most")


class Export(Section):
    """The record as Parquet, written again and again, what is new each time ([export.md](export.md))."""

    directory: str = Field("", description="where, an absolute path; empty: nowhere")
    every: Duration = Field(3600.0, ge=1, description="how often")

    @field_validator("directory")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if value and not value.startswith("/"):
            raise ValueError(f'"{value[:100]}" is no absolute path')
        return value


class Log(Section):
    """What the daemon and the API's process say on standard error. Neither payload nor a token is in it."""

    format: Literal["console", "json"] = Field(
        "console",
        description="`console`: for people; `json`: one object a line, see [below](#the-log)",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="what is said at all, from this level up; `-v` is `debug`"
    )
