# SPDX-License-Identifier: Apache-2.0
"""[[service]] and the tables in it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from appliance.wire import SERVERS_MAX, endpoint_text
from control.config.limits import ServiceLimits
from control.config.sections import Policy, Section, Table
from control.config.values import (
    WHOSE,
    Duration,
    Endpoint,
    ServerText,
    Source,
    ToEngine,
    is_name,
    parse_endpoint,
    parse_server,
)

READY_LINKS_MAX: Final = 64


class Health(Section):
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


class InBand(Section):
    """Requests inside the payload of a service's connections, see [in-band.md](in-band.md). Which ones are allowed say
    `in_band_clients` and `in_band_servers`."""

    moved = MappingProxyType({key: f"`in_band_{key}` of [[service]]" for key in ("clients", "servers")})

    forward: Annotated[bool, ToEngine("in_band_forward")] = Field(
        False, description="requests are also passed on to the other end; `false`: only those that ask for it"
    )
    stay: Annotated[bool, ToEngine("in_band_stay")] = Field(
        False,
        description="clients understand when they are told in band to stay connected, since they cannot be dialled",
    )


class Service(Policy):
    """One for each address that clients connect to; any key of `[policy]` may stand here too."""

    # Those that are not given have the defaults of Policy here: `policy` tells what is in force.

    name: str = Field(
        description="its name: letters, digits, `.`, `_`, `-`; sleeping connections are tied to it",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
    )
    listen: Endpoint = Field(description="address and port for clients; `0.0.0.0` or `[::]` for every local address")
    server: ServerText | None = Field(
        None,
        description="address and port of the server, or a name and port: then all addresses that the name has are "
        "servers, see `[network] resolve_interval`; a transparent service needs none: the one the client meant; "
        "the kinds `agents` and `held` have none",
    )
    kind: Literal["server", "agents", "held"] = Field(
        "server",
        description="who answers clients: `server`: the server; `agents`: the daemon, clients are agents; `held`: "
        "nobody until a server asks for the client, for clients that agents tell to connect",
    )
    trust_address: bool = Field(
        False,
        description='with `kind = "held"`: a client that an agent lets connect is known by the address that it has in '
        "common with the agent, and need not say a nonce first ([agents.md](agents.md)): for clients that cannot. "
        "Whatever else connects from that address may take its place",
    )
    servers: tuple[ServerText, ...] = Field(
        (), max_length=SERVERS_MAX, description="instead of `server`: several, which share the links"
    )
    balance: Annotated[Literal["least-connections", "source-hash"], ToEngine("balance")] = Field(
        "least-connections",
        description="which of the servers a link goes to: the one with the fewest links now, or the one that the "
        "client's address stands for; when that is down, its clients alone go to others",
    )
    when_down: Annotated[Literal["wait", "refuse"], ToEngine("refuse_down")] = Field(
        "wait",
        description="what becomes of a client that connects while none of the servers is up: it waits for one, as "
        "long as `connect_timeout` says, or is refused at once, by RST",
    )
    health: Health = Field(
        Health(), description="`[service.health]`, see [below](#servicehealth): when a server counts as down"
    )
    ready_links: Annotated[int, ToEngine("ready_links")] = Field(
        0,
        ge=0,
        le=READY_LINKS_MAX,
        description="links to each server that are made before a client needs them: a client that wakes has one at "
        "once. For servers that see the appliance's address, and may wait for a client's first bytes",
    )
    reuse_links: Annotated[int, ToEngine("reuse_links")] = Field(
        0,
        ge=0,
        le=READY_LINKS_MAX,
        description="links to each server that clients which have fallen quiet leave to the next ones, at most: for "
        "protocols in which requests of several clients may follow each other on one connection, and servers that "
        "answer each whole and at once. A server sees no end between them. A link whose server has not spoken last, or "
        "says anything before the next client has it, is closed; what it says later reaches that one",
    )
    ready_for: Annotated[Duration, ToEngine("ready_ms")] = Field(
        20.0,
        description="a link without a client is closed after this long, and one of `ready_links` made anew: less than "
        "the time after which a server ends one that says nothing",
    )
    transparent: Annotated[bool, ToEngine("transparent")] = Field(
        False,
        description="`listen` is the server's own address and port, for which the router answers; `0.0.0.0` or `[::]`: "
        "every server behind `[router] lan`",
    )
    source: Source | None = Field(
        None,
        description="whose address the server sees: `client`, the default where the service is transparent, or "
        "`appliance`, or this one of the appliance's addresses, towards servers of its family. Of two machines "
        "(`[standby]`) a persistent service needs one that moves from one to the other, as its servers' connections do",
    )
    proxy_protocol: Annotated[Literal["none", "v1", "v2"], ToEngine("proxy_header")] = Field(
        "none",
        description="a header by which the server learns the client's address: the PROXY protocol's version 1 or 2",
    )
    interface: Annotated[Literal["transient", "persistent"], ToEngine("persistent")] = Field(
        "transient",
        description="what the server sees of a quiet client: `transient` closes the link to the server and makes a new "
        "one when the client speaks; `persistent` lets both sleep, each with its connection open, for protocols with a "
        "session in the connection (SSH, TLS, MQTT, SQL)",
    )
    born: Annotated[Literal["never", "storm", "always"], ToEngine("born")] = Field(
        "never",
        description="whether clients may be born asleep: their handshake is answered by SYN cookies in the data path, "
        "without a socket, and whoever says nothing sleeps from the first moment. `storm`: while more than `born_rate` "
        "connect; `always`: for clients that seldom speak at once. Such a client has a number and a history from when "
        "it speaks, or is spoken to, for the first time. `listen` must name an address, and the interface towards "
        "clients must forward (`net.ipv4.conf.NAME.forwarding`, also of IPv6): else the data path does not know the "
        "way to them, and each takes a socket to begin with",
    )
    born_rate: Annotated[int, ToEngine("born_rate")] = Field(
        1000, ge=1, description='with `born = "storm"`: how many clients a second, on one processor, are a storm'
    )
    born_silence: Annotated[Duration, ToEngine("born_silence_s")] = Field(
        86400.0,
        description="a client that was born asleep and has said nothing for so long, to within an hour, is reset; "
        "keep-alives are no word. At most 48h; `never`: it is kept while it answers probes",
    )
    in_band: InBand = Field(
        InBand(), description="`[service.in_band]`, see [below](#servicein_band): requests inside the payload"
    )

    limits: ServiceLimits = Field(
        ServiceLimits(), description="`[service.limits]`, see [below](#servicelimits): what one source may do"
    )
    names: tuple[str, ...] = Field(
        ("*",),
        description="names that may be given in band (`name` in `in_band_clients`) by its clients, as patterns: `*` "
        "stands for any characters, an empty list for none. Never one that an agent speaks for",
    )
    names_each: int = Field(
        60,
        ge=1,
        le=1_000_000,
        description="names an hour, on average and at once, that clients at one address, or in one /64 of IPv6, may be "
        "given in band and have not had before",
    )
    names_kept: Duration = Field(
        30 * 86400.0,
        description="how long a name that was given in band is kept when its connection is closed, at least; it goes "
        "before twice as long, unless it has tags. `never`: it does not go",
    )
    names_roam: bool = Field(
        False,
        description="whether a client that comes by another address takes its name from a connection that lives, or "
        "that had it of an operator: any client can take any such name then",
    )

    @field_validator("ready_for")
    @classmethod
    def _ready_for_a_while(cls, value: float) -> float:
        if not 1 <= value <= 3600:
            raise ValueError("must be between 1s and 1h")
        return value

    @field_validator("born_silence")
    @classmethod
    def _born_silence_is_counted(cls, value: float) -> float:
        if value > 172800:
            raise ValueError('must be at most 48h, or "never"')
        return value

    @property
    def every_server(self) -> tuple[str, ...]:
        """`server` or `servers`; none: each client means its own."""
        return (self.server,) if self.server else self.servers

    @property
    def hostnames(self) -> tuple[str, ...]:
        """The names among its servers, without ports."""
        return tuple(host for host, _ in map(parse_server, self.every_server) if is_name(host))

    def with_addresses(self, known: Mapping[str, Sequence[str]]) -> Service:
        """The service with all addresses that are known of a name in place of it: none, perhaps, and clients wait. With
        source = "client" those of the family that clients connect by."""
        if not self.hostnames:
            return self
        found: dict[str, None] = {}
        for host, port in map(parse_server, self.every_server):
            for address in known.get(host, ()) if is_name(host) else (host,):
                if self.source != "client" or (":" in address) == (":" in parse_endpoint(self.listen)[0]):
                    found[endpoint_text((address, port))] = None
        return self.model_copy(update={"server": None, "servers": tuple(found)[:SERVERS_MAX]})

    @property
    def shows_client(self) -> bool:
        """Whether servers see the client's address."""
        return (self.source or ("client" if self.transparent else "appliance")) == "client"

    @property
    def own_source(self) -> str:
        """The address of the appliance's that servers are to see; empty: the one that the kernel chooses."""
        return self.source if self.source and self.source not in WHOSE else ""

    @property
    def own_address(self) -> str:
        """The server that is the address that the service listens at; empty: there is none. A transparent service
        listens at its server's address."""
        listen, port = parse_endpoint(self.listen)
        local = ipaddress.ip_address(listen)
        for server in self.every_server if not self.transparent else ():
            host, at = parse_server(server)
            if at == port and not is_name(host):
                address = ipaddress.ip_address(host)
                if address == local or (
                    local.is_unspecified and local.version == address.version and address.is_loopback
                ):
                    return server
        return ""

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
        if len({parse_server(server) for server in self.servers}) < len(self.servers):
            return "names a server twice in `servers`"
        if self.transparent and self.hostnames:
            return f'is transparent: its `server` is an address, not the name "{self.hostnames[0]}"'
        if self.source == "client":
            hosts = [parse_server(text)[0] for text in (self.listen, *self.every_server)]
            families = {":" in host for host in hosts if not is_name(host)}
            if len(families) > 1:
                return ': with source = "client" listen and server are both IPv4 or both IPv6'
        for host, _ in map(parse_server, self.every_server if self.own_source else ()):
            if not is_name(host) and (":" in host) != (":" in self.own_source):
                return f': source = "{self.own_source}" and the server {host} must both be IPv4 or both IPv6'
        return ""

    def problem_of_ready_links(self) -> str:
        """Why no link can be without a client; empty: it can, or was not asked for."""
        key = "reuse_links" if self.reuse_links else "ready_links"
        if not self.ready_links and not self.reuse_links:
            return f"{key} is 0, and ready_for says how long they last" if "ready_for" in self.model_fields_set else ""
        if self.reuse_links and self.proxy_protocol != "none":
            return f"{key} and proxy_protocol, whose header says whose the link is: it can be no other client's"
        if self.interface == "persistent":
            return f'{key} and interface = "persistent": a client keeps its link while it sleeps'
        if self.shows_client:
            return f"{key} need source = \"appliance\": a link that shows the client's address can be no other client's"
        if not self.every_server:
            return f"{key} need `server`: which server a client means is not known before"
        return ""

    def problem_of_sleep(self, defaults: Policy, table: Table, by_address: str) -> str:
        """Why what sleeps needs its slot nevertheless; empty: it needs none, or was not asked to do without.
        by_address: who looks clients up by their addresses (Config.by_address)."""
        policy = self.policy(defaults)
        if policy.sleep_keepalive == "answer":
            return ""
        if self.interface == "persistent":
            return "is for transient services: a persistent one's server knows its client's slot"
        if by_address:
            return f"is not for {by_address}, which look clients up by their addresses"
        if self.kind != "server":
            return f'is not for kind = "{self.kind}"'
        if policy.probe_interval:
            return "and probe_interval: to probe a client takes its slot"
        return "" if table.filter else "needs room: [table] filter says for how many connections"

    def policy(self, defaults: Policy) -> Policy:
        """The policy in force for this service: its own keys over the defaults."""
        own = self.model_dump(include=set(Policy.model_fields), exclude_unset=True)
        if "probe_interval" in own:  # in place of both bounds of an experiment
            own.setdefault("most_probe_interval", 0.0)
        if self.interface == "persistent":  # the session ended with the server's connection
            own.setdefault("on_server_close", "close")
        policy = defaults.model_copy(update=own)
        if policy.sleep_keepalive == "none" and "probe_interval" not in policy.model_fields_set:
            return policy.model_copy(update={"probe_interval": 0.0})  # to probe a client takes its slot
        return policy
