# SPDX-License-Identifier: Apache-2.0
"""What may be asked with: parameters of the routes, with their bounds, what they mean, and examples."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Path, Query
from pydantic import BeforeValidator, Field
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from control.channel.asker import WHO_LENGTH
from control.core.names import NAME_LENGTH


def _digits(value: object) -> object:
    if isinstance(value, str) and not (value.isascii() and value.removeprefix("-").isdigit()):
        raise PydanticCustomError("int_parsing", "Input should be a whole number, in digits")
    return value


DIGITS: Final = BeforeValidator(_digits)
"""Of an int in a query: Python would take 1_0 and +1, too."""

PAGE_ROWS: Final = 100
PAGE_ROWS_MAX: Final = 10_000
"""Connections in a page: where it is not said, and at most."""

NAME: Final[JsonDict] = {"pattern": rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH - 1}}}$"}
"""Of clients' names and of tags: what refuses others says it in a sentence (control/clients/naming.py)."""

Tag = Annotated[str, Field(json_schema_extra=NAME)]

ACTIONS: Final = ("standby", "idle", "sleep", "wake", "close")
"""What a connection may be told to do: the last part of a path."""

# -- in the path ------------------------------------------------------------------------------------------------------

ConnectionId = Annotated[
    str,
    Path(description="a connection: its number, client-address:port (409: of several), or its name with the domain",
         examples=["4711", "192.0.2.7:40123", "thermostat-17.roost"]),
]  # fmt: skip
ClientName = Annotated[
    str,
    Path(description="a client's name, without the domain; case does not matter", examples=["thermostat-17"],
         json_schema_extra=NAME),
]  # fmt: skip
RuleName = Annotated[str, Path(description="a rule's name", examples=["meters"])]
TokenName = Annotated[str, Path(description="a token's id, or else its name", examples=["ann"])]

KEYS_MAX: Final = 100
"""4-tuples in a query."""

# -- in the query, of lists of connections ----------------------------------------------------------------------------

StateName = Annotated[Literal["ACTIVE", "STANDBY", "IDLE", "SLEEP"] | None, Query(description="those in this state")]
OfClient = Annotated[str, Query(description="those whose client's address:port begins so", examples=["192.0.2.7:"])]
OfNetwork = Annotated[str, Query(description="those whose client is in this network", examples=["192.0.2.0/24"])]
OfService = Annotated[str, Query(description="those of this service", examples=["meters"])]
OfName = Annotated[
    str, Query(description="those whose name is like this: `*` is any text, `?` one character", examples=["thermo*"])
]
OfTag = Annotated[str, Query(description="those whose name has this tag", examples=["red"])]
OfRule = Annotated[str, Query(description="those to whom the rule of this name gives a value", examples=["meters"])]
OfKeys = Annotated[
    str,
    Query(max_length=KEYS_MAX * 96, pattern=r"^[0-9A-Fa-f.:\[\],;]*$", examples=["192.0.2.7:40123,198.51.100.1:7000"],
          description="those of these 4-tuples alone, whatever else is asked for: of each the client's address and "
          f"port, a comma, and the one that it connected to; `;` between two; {KEYS_MAX} at most, each with a slot"),
]  # fmt: skip
Quiet = Annotated[int, Query(ge=0, le=2**32 - 1, description="s without payload, at least"), DIGITS]
Silence = Annotated[
    int,
    Query(ge=0, le=2**32 - 1, description="s since the client was heard, at least: of those in IDLE and SLEEP alone"),
    DIGITS,
]
Most = Annotated[
    int | None,
    Query(
        ge=0,
        le=2**31 - 1,
        description=f"how many, at most; of a page {PAGE_ROWS} where it is not said, and {PAGE_ROWS_MAX:,}",
    ),
    DIGITS,
]
Page = Annotated[
    str | None,
    Query(
        max_length=200,
        description="a page: `first`, or the `next` of the one before; not with a token of some services alone (403)",
        examples=["first"],
    ),
]

# -- in the query, of other lists -------------------------------------------------------------------------------------


def last(most: int) -> object:
    """How many of a list."""
    return Query(ge=0, le=most, description="how many, at most: the last ones")


Last10000 = Annotated[int, last(10_000), DIGITS]
Last100000 = Annotated[int, last(100_000), DIGITS]
Moments = Annotated[int, Query(ge=0, le=1440, description="of how many moments, at most: the last ones"), DIGITS]
Refused = Annotated[bool, Query(description="true: only what was refused or failed")]
Who = Annotated[str, Query(max_length=WHO_LENGTH, description="only what this one asked for", examples=["ann"])]
AfterTag = Annotated[str, Query(description="those that come after this one", examples=["red"])]
Tags = Annotated[int, Query(ge=0, le=PAGE_ROWS_MAX, description="how many, at most"), DIGITS]
BeforeVersion = Annotated[
    int | None,
    Query(ge=0, le=2**53 - 1, description="of versions before this one: an answer has some megabytes at most"),
    DIGITS,
]
OfOneId = Annotated[
    int | None, Query(ge=1, le=2**53 - 1, description="of the connection of this number, ended or not: 1,000"), DIGITS
]
OfOneRule = Annotated[str | None, Query(description="of this rule alone", examples=["meters"])]

# -- of a client that would connect -----------------------------------------------------------------------------------

Address = Annotated[str, Query(description="the address that it would connect from", examples=["192.0.2.7"])]
ToService = Annotated[str, Query(description="the service that it would connect to", examples=["meters"])]
ToServer = Annotated[
    str, Query(description="the address that it would connect to, of a service at every address", examples=["10.0.0.5"])
]
