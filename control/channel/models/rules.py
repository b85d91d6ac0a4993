# SPDX-License-Identifier: Apache-2.0
"""Rules of the policy, their changes, and which of them gave a connection what."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from control.channel.models.common import Client, Count, Moment, Number, StateName, answer
from control.policy.rules import Rule

Version = Annotated[int, Field(ge=0, description="of the rules; each change makes one")]
Name = Annotated[str, Field(description="of the rule")]
Error = Annotated[str, Field(description="why rules are not in force as they should be; empty: they are")]


@answer
class Made(TypedDict):
    """Who made a rule what it is."""

    version: Version
    at_ms: Moment
    who: Annotated[str, Field(description="a token's name, or what was said by the daemon's socket")]
    why: Annotated[str, Field(description="a line of text; empty: it was not said")]


@answer
class About(Made):
    """A rule that is there."""

    problems: list[str]
    """why it does not give all that it says, a sentence each"""


@answer
class Rules(TypedDict):
    """The rules that are in force."""

    version: Version
    error: Error
    rule: Annotated[list[Rule], Field(description="durations in s; without those that this version cannot read")]
    about: Annotated[dict[str, About], Field(description="of each rule, by its name")]


@answer
class RuleChange(Made):
    """A rule was changed."""

    name: Name
    rule: dict[str, Any] | None
    """its keys since then, as whichever version wrote them; null: it was removed"""


@answer
class RuleInFull(Rules):
    """One rule, and what it was."""

    history: list[RuleChange]
    """its last changes, oldest first"""


@answer
class Both(TypedDict):
    """A rule before and after."""

    name: Name
    before: Rule | None
    """null: there was none, or this version cannot read it"""
    rule: Rule | None
    """null: there is none, or this version cannot read it"""


@answer
class Changed(TypedDict):
    """Rules were changed."""

    version: Version
    changed: list[Both]
    """the rules that are others now"""


@answer
class Tried(TypedDict):
    """A rule of a file."""

    name: Name
    change: Literal["same", "changed", "new"]
    """what it would be beside the rules that are in force"""
    names: NotRequired[Count]
    """of a rule for clients by their names, how many there are that it is for"""


@answer
class Planned(TypedDict):
    """Values that some connections would get."""

    service: str
    """its name"""
    networks: list[str]
    """of those who would get them, the first five"""
    more_networks: Count
    """that are not named"""
    connections: Count
    """which would have them"""
    changed: Count
    """of these which have others now"""
    values: dict[str, Any]
    """by the key of [policy]; durations in s"""
    rules: list[str]
    """the names of those that give something of it"""


@answer
class Outcome(TypedDict):
    """What a file would change; nothing has changed."""

    version: Version
    rules: list[Tried]
    """those of the file"""
    connections: Count
    """those that would have values of rules"""
    changed: Count
    """those that would have other values than now"""
    lose: Count
    """of these who would be left with those of their service"""
    without_slot: Count
    """those that sleep without a slot, of which none is counted"""
    policies: list[Planned]
    """the sets of values that some would get"""


@answer
class InForce(TypedDict):
    """A value of the policy."""

    key: str
    """of [policy]"""
    value: float | str | list[str]
    """durations in s; 0: never"""
    source: str
    """what gave it"""
    rule: NotRequired[str]
    """the name of the rule that gave it"""
    version: NotRequired[Version]


@answer
class AddressPolicy(TypedDict):
    """What is in force for a client that would connect."""

    client: str
    """its address"""
    service: str
    """its name"""
    version: Version
    error: Error
    values: list[InForce]
    """of each key of [policy]"""


@answer
class ConnectionPolicy(TypedDict):
    """What is in force for a connection."""

    id: Number
    client: Client
    state: StateName
    service: str
    """its name"""
    version: Version
    error: Error
    values: list[InForce]
    """of each key of [policy]"""


@answer
class Given(TypedDict):
    """A connection has values of its own."""

    id: Number
    client: Client
    state: StateName
    values: dict[str, Annotated[float, Field(ge=0)] | None]
    """those that were asked for, in s; null: what its rules and its service say"""
