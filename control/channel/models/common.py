# SPDX-License-Identifier: Apache-2.0
"""What several answers have."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

answer: Final = with_config(ConfigDict(extra="forbid", use_attribute_docstrings=True))
"""Of each model: it has these keys and no others. The text below a key is its description; models that are made of this
one do not inherit it, but what Field(description=...) says."""

StateName = Annotated[Literal["ACTIVE", "STANDBY", "IDLE", "SLEEP"], Field(description="of the connection")]
AnyState = Literal["NONE", "ACTIVE", "STANDBY", "IDLE", "SLEEP", "CLOSED"]
"""NONE: where a connection comes from. CLOSED: where it goes."""

Count = Annotated[int, Field(ge=0)]
Number = Annotated[int, Field(ge=0, description="the number of the connection, which no other one ever has")]
Moment = Annotated[int, Field(ge=0, description="when, in ms since 1970")]
Client = Annotated[str, Field(description="the client's address and port", examples=["192.0.2.7:40123"])]


@answer
class Error(TypedDict):
    """Why not."""

    error: str
    """a sentence; it names the field that is wrong"""
