# SPDX-License-Identifier: Apache-2.0
"""The way to a client."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from control.channel.models.common import Client, Number, StateName, answer


@answer
class Offer(TypedDict):
    """Where servers connect to reach a client."""

    id: Annotated[Number | None, Field(description="null: it is not connected, or not known")]
    client: Annotated[Client | None, Field(description="null: it is not connected")]
    state: Annotated[StateName | None, Field(description="null: it is not connected")]
    target: str
    """what is to be asked for, at any of `at`"""
    at: list[str]
    """addresses and ports, of [attach] listen"""
    protocols: list[Literal["connect", "socks5"]]
    """by any of which"""
    credentials: bool
    """whether a user and password are needed"""
