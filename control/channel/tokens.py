# SPDX-License-Identifier: Apache-2.0
"""The part of the local API that is about tokens of the network's (control/api/).

GET  /v1/tokens                                 those there are, and those that ended in the last 90 days
POST /v1/tokens                                 {"name": "ann", "role": "operator", "expires_s": 7776000}; of a
                                                server with its "services". The answer has the token itself, once
DELETE /v1/tokens/{id or name}                  it is good no more; an id goes before a name
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field

from control.channel import parameters as par
from control.channel.asker import AskedBy
from control.channel.strict import BODY, WHOLE, StrictRoute
from control.core.access import Role, new_token
from control.core.errors import OperationError
from control.core.names import NAME_LENGTH
from control.store.database import StoreError
from control.store.store import Store
from control.store.tokens import NoSuchTokenError, TakenError, TokenRow, TooManyError

SERVICES_MAX: Final = 1000
EXPIRES_MAX_S: Final = 100 * 366 * 86_400


class NewToken(BaseModel):
    """What is asked for."""

    model_config = BODY

    name: str = Field(
        pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH - 1}}}$", description="of whom it is", examples=["ann"]
    )
    role: Role = Field(strict=False)
    services: list[str] = Field([], max_length=SERVICES_MAX, description="of a server: whose connections it is for")
    expires_s: Annotated[int, Field(ge=1, le=EXPIRES_MAX_S), WHOLE] | None = Field(
        description="s that it is good for; null: for ever"
    )


class Tokens:
    """services: the names of those that are configured. Everything may block until the database has it."""

    def __init__(self, store: Store, services: Callable[[], Collection[str]]) -> None:
        self._store = store
        self._services = services

    def all(self) -> list[dict[str, Any]]:
        """Every one, the oldest first."""
        now = time.time_ns() // 1_000_000
        return [_shown(row, now) for row in self._store.tokens()]

    def make(self, wanted: NewToken, who: str) -> dict[str, Any]:
        """A new one, and its text."""
        if (wanted.role is Role.SERVER) != bool(wanted.services):
            raise OperationError(422, 'services: a token with the role "server" is for services, and no other is')
        known = self._services()
        if unknown := [name for name in wanted.services if name not in known]:
            raise OperationError(422, f'services: there is no service "{unknown[0]}"; there are: {", ".join(known)}')
        text, (number, digest) = new_token()
        now = time.time_ns() // 1_000_000
        expires = now + wanted.expires_s * 1000 if wanted.expires_s is not None else None
        services = tuple(dict.fromkeys(wanted.services)) or None
        row = TokenRow(number, wanted.name, wanted.role, services, digest, now, who, expires)
        try:
            self._store.add_token(row)
        except TakenError as error:
            raise OperationError(409, str(error)) from None
        except TooManyError as error:
            raise OperationError(507, str(error)) from None
        except StoreError as error:
            raise OperationError(503, f"no token can be made now: store: {error}") from None
        return {"token": text, **_shown(row, now)}

    def revoke(self, which: str) -> dict[str, Any]:
        """The token with this id, or else this name, is good no more."""
        try:
            row = self._store.revoke_token(which)
        except NoSuchTokenError as error:
            raise OperationError(404, str(error)) from None
        except StoreError as error:
            raise OperationError(503, f"no token can be revoked now: store: {error}") from None
        return {"id": row.id, "name": row.name}


def _shown(row: TokenRow, now: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "role": row.role,
        "services": list(row.services) if row.services is not None else None,
        "good": row.is_good(now),
        "made_at_ms": row.made_at,
        "made_by": row.made_by,
        "expires_at_ms": row.expires_at,
        "revoked_at_ms": row.revoked_at,
    }


def token_routes(tokens: Tokens) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=StrictRoute)

    @routes.get("/v1/tokens")
    def all_tokens() -> list[dict[str, Any]]:
        return tokens.all()

    @routes.post("/v1/tokens")
    def make(wanted: NewToken, asker: AskedBy) -> dict[str, Any]:
        return tokens.make(wanted, asker.who)

    @routes.delete("/v1/tokens/{which}")
    def revoke(which: par.TokenName) -> dict[str, Any]:
        return tokens.revoke(which)

    return routes
