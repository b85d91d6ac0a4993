# SPDX-License-Identifier: Apache-2.0
"""Tokens, by which it is known who asks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from control.channel.models.common import Moment, answer

Id = Annotated[str, Field(description="8 characters, which its text has, too")]
Name = Annotated[str, Field(description="that it was given")]


@answer
class Token(TypedDict):
    """A token, without its secret."""

    id: Id
    name: Name
    role: Annotated[Literal["viewer", "operator", "admin", "server"], Field(description="what it may do")]
    services: Annotated[list[str] | None, Field(description="whose connections it is for; null: those of all")]
    good: Annotated[bool, Field(description="whether it may be used")]
    made_at_ms: Moment
    made_by: Annotated[str, Field(description="who asked for it")]
    expires_at_ms: Annotated[Moment | None, Field(description="null: it does not")]
    revoked_at_ms: Annotated[Moment | None, Field(description="null: it was not")]


@answer
class MadeToken(Token):
    """A token that was made just now."""

    token: str
    """its text, which is told this once"""


@answer
class Revoked(TypedDict):
    """A token that is good no more."""

    id: Id
    name: Name


@answer
class Me(TypedDict):
    """Whose the token is that the request has."""

    name: Name
    role: Annotated[Literal["viewer", "operator", "admin", "server"], Field(description="what it may do")]
    services: Annotated[list[str] | None, Field(description="whose connections it is for; null: those of all")]
    expires_at_ms: Annotated[Moment | None, Field(description="null: it does not")]
