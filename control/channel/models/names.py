# SPDX-License-Identifier: Apache-2.0
"""Names of clients, their tags, and the clients that agents speak for or that were dialled in vain."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from control.channel.models.common import Client, Count, Moment, Number, answer

Name = Annotated[str, Field(description="without the domain, in lower case", examples=["thermostat-17"])]


@answer
class Named(TypedDict):
    """A connection has a name."""

    id: Number
    client: Client
    name: Name
    target: str
    """the name with the domain, by which servers ask for it"""


@answer
class Forgotten(TypedDict):
    """A name stands for nobody any more."""

    name: Name


@answer
class Tags(TypedDict):
    """Of a name."""

    name: Name
    tags: list[str]
    """in their order"""


@answer
class TagCount(TypedDict):
    """A tag, and how many have it."""

    tag: str
    """as it is kept: in lower case"""
    names: Count
    """that have it"""


@answer
class AgentClient(TypedDict):
    """A client that an agent speaks for."""

    name: Name
    agent: str
    """the address and port of the agent's connection"""
    id: Number
    connected: bool
    """whether the agent's connection lives"""
    connects_to: str | None
    """the service that the agent connects its client to; null: it does not say"""
    stay: bool
    """whether it is told to stay connected"""
    since_ms: Moment


@answer
class Dialled(TypedDict):
    """A client that was dialled in vain, or is to stay connected."""

    client: str
    """its name, or its address"""
    failures: Count
    """in a row"""
    stay: Literal["no", "due", "told"]
    """whether it is to stay connected; due: it is not told yet"""
    at_ms: Moment
