# SPDX-License-Identifier: Apache-2.0
"""Tokens, by which it is known who asks."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from control.channel.models.common import Moment, answer


@answer
class Token(TypedDict):
    """A token, without its secret."""

    id: str
    """8 characters, which its text has, too"""
    name: str
    role: Literal["viewer", "operator", "admin", "server"]
    services: list[str] | None
    """whose connections it is for; null: those of all"""
    good: bool
    """whether it may be used"""
    made_at_ms: Moment
    made_by: str
    expires_at_ms: Moment | None
    """null: it does not"""
    revoked_at_ms: Moment | None
    """null: it was not"""


@answer
class MadeToken(Token):
    """A token that was made just now."""

    token: str
    """its text, which is told this once"""


@answer
class Revoked(TypedDict):
    """A token that is good no more."""

    id: str
    name: str
