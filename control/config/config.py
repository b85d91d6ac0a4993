# SPDX-License-Identifier: Apache-2.0
"""The whole file, and what its sections demand of each other."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from appliance.paths import control_socket
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
    Table,
    section_of,
)
from control.config.service import Service
from control.config.values import parse_endpoint


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
    table: Table = Field(default_factory=Table)
    policy: Policy = Field(default_factory=Policy)
    pressure: Pressure = Field(default_factory=Pressure)
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
                about_one = (
                    service.transparent
                    or service.source
                    or service.interface != "transient"
                    or service.ready_links
                    or service.reuse_links
                )
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
            if own := service.own_address:
                why = "which is where it listens: it would connect to itself"
                raise ValueError(f'[[service]] "{service.name}" has the server {own}, {why}')
            if problem := service.problem_of_servers():
                raise ValueError(f'[[service]] "{service.name}"{" " if problem[0] != ":" else ""}{problem}')
            if problem := service.problem_of_ready_links():
                raise ValueError(f'[[service]] "{service.name}": {problem}')
            if not self.router.lan and (service.transparent or service.source == "client"):
                key = "transparent = true" if service.transparent else 'source = "client"'
                raise ValueError(f'[[service]] "{service.name}" has {key}: [router] must name its lan interfaces')
        return self

    @model_validator(mode="after")
    def _sleepers_can_be_found(self) -> Config:
        for service in self.service:
            if problem := service.problem_of_sleep(self.policy, self.table, self.by_address):
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
        if self.attach.local_connect and "lo" in self.network.interfaces:
            raise ValueError('[attach] local_connect: "lo" must not be in [network] interfaces')
        return self

    @model_validator(mode="after")
    def _dialled_clients_have_a_service(self) -> Config:
        if "dial" not in self.absent.steps or not self.service:
            return self
        if not self.dial_services:
            name = self.absent.dial_service
            why = f'dial_service = "{name}" is none' if name else "there is none"
            raise ValueError(f'[absent] steps has "dial", for clients of a [[service]] with servers: {why}')
        return self

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
    def control_socket(self) -> str:
        return self.paths.control_socket or control_socket(self.instance)


SECTIONS: Final = {key: section for key in Config.model_fields if (section := section_of(Config, key)) is not None}

LISTS: Final = ("agent", "service")
"""Sections of which there may be several."""
