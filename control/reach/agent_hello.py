# SPDX-License-Identifier: Apache-2.0
"""Which agents may come, and for which clients each may speak. What a hello may not say raises ProtocolError or
ValueError."""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from appliance.agent.roost_agent import MAX_CLIENTS, ProtocolError, token_digest
from control.clients.registry import canonical
from control.config import Agent
from control.core.names import may_be


@dataclass(frozen=True, slots=True)
class Settings:
    """agents: those that may come, as they are configured now. services: their numbers by name, those that
    clients may connect to. says_nonce: whether a client of the service with this number, when it was told to connect,
    says so first. domain: of names, which are given without it. tls: None: none."""

    agents: Callable[[], Sequence[Agent]]
    services: Callable[[], Mapping[str, int]]
    says_nonce: Callable[[int], bool]
    hello_s: float
    domain: str
    tls: ssl.SSLContext | None = None
    tls_sessions: int = 10_000


def agent_of(settings: Settings, token: object) -> Agent:
    """The agent that has this token."""
    digest = token_digest(token if isinstance(token, str) else "")
    found = [agent for agent in settings.agents() if hmac.compare_digest(agent.token, digest)]
    if not found or not isinstance(token, str):
        raise ProtocolError("a wrong token")
    return found[0]


def may_speak_for(settings: Settings, name: str, token: bytes) -> bool:
    """Whether an agent that has said the token with this SHA-256 may speak for the client still."""
    return any(agent.token == token.hex() and may_be(name, agent.clients) for agent in settings.agents())


def may_be_spoken_for(settings: Settings, name: str) -> bool:
    """Whether there is an agent that may speak for the client."""
    return any(may_be(name, agent.clients) for agent in settings.agents())


def wanted_clients(settings: Settings, agent: Agent, clients: object) -> dict[str, int]:
    """The clients of a hello, each with the number of its service."""
    if not isinstance(clients, dict) or not 1 <= len(clients) <= MAX_CLIENTS:
        raise ProtocolError(f"a hello names 1 to {MAX_CLIENTS} clients")
    wanted, services = dict[str, int](), settings.services()
    for text, about in clients.items():
        name = canonical(text, settings.domain)
        if not may_be(name, agent.clients):
            raise ProtocolError(f'the agent {agent.name} may not speak for "{name}"')
        service = about.get("service") if isinstance(about, dict) else None
        if service is not None and (not isinstance(service, str) or service not in services):
            raise ProtocolError(f'there is no service "{service}"')
        wanted[name] = services[service] if service is not None else 0
    return wanted
