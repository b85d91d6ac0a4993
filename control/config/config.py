# SPDX-License-Identifier: Apache-2.0
"""The whole file, and what its sections demand of each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from appliance.paths import control_socket
from control.config.limits import Limits
from control.config.places import Location
from control.config.sections import (
    Absent,
    Agent,
    Agents,
    Api,
    Attach,
    Export,
    History,
    Log,
    Network,
    Paths,
    Policy,
    Pressure,
    Router,
    Section,
    Standby,
    Table,
    section_of,
)
from control.config.service import Service
from control.config.values import parse_endpoint

Conflict = tuple[str, Location]
"""A sentence, and the table or key that it is about."""


class ConflictError(ValueError):
    """Values that are good each by itself, and do not go together."""

    def __init__(self, found: Sequence[Conflict]) -> None:
        super().__init__("; ".join(sentence for sentence, _ in found))
        self.found = found


class Config(Section):
    """The whole file."""

    instance: str = Field(
        "main",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,30}$",
        description="name of this daemon: several may run on one machine",
    )
    paths: Paths = Field(default_factory=Paths)
    network: Network = Field(default_factory=Network)
    router: Router = Field(default_factory=Router)
    standby: Standby = Field(default_factory=Standby)
    table: Table = Field(default_factory=Table)
    policy: Policy = Field(default_factory=Policy)
    pressure: Pressure = Field(default_factory=Pressure)
    limits: Limits = Field(default_factory=Limits)
    attach: Attach = Field(default_factory=Attach)
    absent: Absent = Field(default_factory=Absent)
    agents: Agents = Field(default_factory=Agents)
    agent: tuple[Agent, ...] = ()
    api: Api = Field(default_factory=Api)
    history: History = Field(default_factory=History)
    export: Export = Field(default_factory=Export)
    log: Log = Field(default_factory=Log)
    service: tuple[Service, ...] = ()

    @model_validator(mode="after")
    def _goes_together(self) -> Config:
        conflicts = (
            self._alike,
            self._services_with_problems,
            self._agents,
            self._sides,
            self._dialled,
            self._absent,
            self._database_of_two,
        )
        if found := [each for conflict in conflicts for each in conflict()]:
            raise ConflictError(found)
        return self

    def _alike(self) -> Iterator[Conflict]:
        for kind, several, keys in (("service", self.service, ("name", "listen")),
                                    ("agent", self.agent, ("name", "token"))):  # fmt: skip
            for key in keys:
                seen = set[str]()
                for index, one in enumerate(several):
                    if (value := getattr(one, key)) in seen:
                        shown = f"the same {key}" if kind == "agent" else f'the {key} "{value}"'
                        yield f"two [[{kind}]] have {shown}", (kind, index, key)
                    seen.add(value)

    def _services_with_problems(self) -> Iterator[Conflict]:
        for index, service in enumerate(self.service):
            if problem := self._problem_of(service):
                yield f'[[service]] "{service.name}"{problem}', ("service", index)

    def _problem_of(self, service: Service) -> str:
        """What is wrong with it, as goes on behind its name; empty: nothing."""
        if service.kind != "server":
            about_one = (
                service.transparent
                or service.source
                or service.interface != "transient"
                or service.ready_links
                or service.reuse_links
            )
            if service.every_server or about_one or service.proxy_protocol != "none":
                return f': kind = "{service.kind}" has no server, and no key about one'
        elif problem := self._problem_of_server(service):
            return problem
        if service.trust_address and service.kind != "held":
            return ': trust_address is for kind = "held"'
        if problem := service.problem_of_sleep(self.policy, self.table, self.by_address):
            return f': sleep_keepalive = "none" {problem}'
        return ""

    def _problem_of_server(self, service: Service) -> str:
        if service.born != "never":
            listen, _ = parse_endpoint(service.listen)
            if service.interface != "transient" or service.transparent:
                return f': born = "{service.born}" is for transient services that are not transparent'
            if ipaddress.ip_address(listen).is_unspecified:
                why = f'needs the address that clients connect to: listen = "{service.listen}" stands for any'
                return f': born = "{service.born}" {why}'
        if own := service.own_address:
            return f" has the server {own}, which is where it listens: it would connect to itself"
        if problem := service.problem_of_servers():
            return f"{' ' if problem[0] != ':' else ''}{problem}"
        if problem := service.problem_of_ready_links():
            return f": {problem}"
        moves = service.shows_client or service.own_source
        if self.standby.address and service.interface == "persistent" and not moves:
            return (" is persistent, and the other machine of [standby] is to go on with its servers' connections: "
                    "source must name the address that servers see, one that moves, too")  # fmt: skip
        if not self.router.lan and (service.transparent or service.source == "client"):
            key = "transparent = true" if service.transparent else 'source = "client"'
            return f" has {key}: [router] must name its lan interfaces"
        return ""

    def _agents(self) -> Iterator[Conflict]:
        listening = [index for index, service in enumerate(self.service) if service.kind == "agents"]
        if listening and not self.agent:
            yield 'a [[service]] has kind = "agents": [[agent]] must say who they are', ("service", listening[0])
        if self.agent and not listening:
            yield 'there is an [[agent]], but no [[service]] with kind = "agents"', ("agent", 0)

    def _sides(self) -> Iterator[Conflict]:
        if both := sorted(set(self.router.lan) & set(self.network.interfaces)):
            yield f'the interface "{both[0]}" is in [router] lan and in [network] interfaces', ("router", "lan")
        if self.attach.local_connect and "lo" in self.network.interfaces:
            yield '[attach] local_connect: "lo" must not be in [network] interfaces', ("attach", "local_connect")

    def _absent(self) -> Iterator[Conflict]:
        there = ", ".join(self.absent.steps) or "none"
        places: list[tuple[str, Policy, tuple[str | int, ...]]] = [("[policy]", self.policy, ("policy",))]
        places += ((f'[[service]] "{one.name}"', one, ("service", at)) for at, one in enumerate(self.service))
        for what, one, where in places:
            steps = one.when_absent if "when_absent" in one.model_fields_set else ()
            if steps and not set(steps) & set(self.absent.steps):
                why = f"when_absent is {', '.join(steps)}, and [absent] steps has {there}: nothing is done"
                yield f"{what}: {why}", (*where, "when_absent")

    def _dialled(self) -> Iterator[Conflict]:
        if "dial" in self.absent.steps and self.service and not self.dial_services:
            name = self.absent.dial_service
            why = f'dial_service = "{name}" is none' if name else "there is none"
            yield f'[absent] steps has "dial", for clients of a [[service]] with servers: {why}', ("absent", "steps")

    def _database_of_two(self) -> Iterator[Conflict]:
        if self.standby.address and not self.database_url.startswith("postgresql"):
            yield (
                "[standby] is for two machines with one database: [paths] database must be a URL of PostgreSQL",
                (
                    "standby",
                    "address",
                ),
            )

    def with_log(self, verbose: bool, inherited: str = "") -> Self:
        """The same, but for its log. verbose: level debug. inherited: the section as JSON; empty: none."""
        log = Log.model_validate_json(inherited) if inherited else self.log
        return self.model_copy(update={"log": log.model_copy(update={"level": "debug"}) if verbose else log})

    @property
    def dial_services(self) -> dict[int, str]:
        """The names of the services whose clients are dialled, by version of IP."""
        wanted = self.absent.dial_service
        own = [one for one in self.service if one.kind == "server" and wanted in ("", one.name)]
        found: dict[int, str] = {}
        for one in [*filter(lambda one: one.transparent, own), *own]:
            found.setdefault(ipaddress.ip_address(parse_endpoint(one.listen)[0]).version, one.name)
        return found

    @property
    def by_address(self) -> str:
        """Who looks clients up by their addresses; empty: nobody does."""
        return "routers" if self.router.lan else "programs with local_connect" if self.attach.local_connect else ""

    @property
    def problem(self) -> str:
        """Why no daemon can run it, though every key is right; empty: one can."""
        return "" if self.service else "there is no [[service]]; at least one is needed"

    @property
    def pin_dir(self) -> str:
        return self.paths.pin_dir or f"/sys/fs/bpf/roost/{self.instance}"

    @property
    def database_url(self) -> str:
        """An SQLAlchemy URL."""
        database = self.paths.database or f"/var/lib/roost/{self.instance}.db"
        return database if "://" in database else f"sqlite:///{Path(database).absolute()}"

    @property
    def files(self) -> dict[str, str]:
        """The files that it names, by what they are: `api.private_key`."""
        keys = {"agents": ("certificate", "private_key"), "api": ("certificate", "private_key", "client_ca")}
        found = {f"{section}.{key}": getattr(getattr(self, section), key) for section in keys for key in keys[section]}
        return {name: path for name, path in found.items() if path}

    @property
    def control_socket(self) -> str:
        return self.paths.control_socket or control_socket(self.instance)


SECTIONS: Final = {key: section for key in Config.model_fields if (section := section_of(Config, key)) is not None}

LISTS: Final = ("agent", "service")
"""Sections of which there may be several."""
