# SPDX-License-Identifier: Apache-2.0
"""Tokens of the API: what is kept of each is a hash. Everything is within a transaction or a reader's connection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from control.store.database import StoreError, fetch, places
from control.store.schema import tokens

TOKENS_MAX: Final = 10_000
"""That are good at once."""

KEEP_MS: Final = 90 * 86_400_000
"""For so long after its end, a token is still listed."""


class TokenRow(NamedTuple):
    """A row of `tokens`. Times: wall clock, ms; expires_at, revoked_at: None: never. services: None: all."""

    id: str
    name: str
    role: str
    services: tuple[str, ...] | None
    digest: bytes
    made_at: int
    made_by: str
    expires_at: int | None = None
    revoked_at: int | None = None

    def is_good(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class TakenError(StoreError):
    """A good token has this name, or it is the id of one."""


class TooManyError(StoreError):
    """TOKENS_MAX are good."""


class NoSuchTokenError(StoreError):
    """No good token has this name or id."""


_SERVICES: Final = TokenRow._fields.index("services")
_GOOD: Final = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {})"


def _good(now: int) -> sa.TextClause:
    return sa.text(_GOOD.format(":now")).bindparams(now=now)


def add(connection: Connection, row: TokenRow) -> None:
    """Raises TakenError, TooManyError. A name is no id, even of a token that has ended: by it that one may be meant.
    Those whose end is KEEP_MS ago are removed."""
    now = row.made_at
    if connection.scalar(sa.select(tokens.c.id).where(_good(now), tokens.c.name == row.name)) is not None:
        raise TakenError(f'there is a token "{row.name}"; revoke it first, or choose another name')
    if (whose := connection.scalar(sa.select(tokens.c.name).where(tokens.c.id == row.name))) is not None:
        raise TakenError(f'"{row.name}" is the id of the token "{whose}"; choose another name')
    if (connection.scalar(sa.select(sa.func.count()).select_from(tokens).where(_good(now))) or 0) >= TOKENS_MAX:
        raise TooManyError(f"there are {TOKENS_MAX:,} tokens; revoke some first")
    ended = sa.or_(tokens.c.revoked_at < now - KEEP_MS, tokens.c.expires_at < now - KEEP_MS)
    connection.execute(sa.delete(tokens).where(ended))
    services = json.dumps(row.services) if row.services is not None else None
    connection.execute(sa.insert(tokens), row._replace(services=None)._asdict() | {"services": services})


def revoke(connection: Connection, which: str, now: int) -> TokenRow:
    """The token with this id, or else this name, is good no more; what it was. Raises NoSuchTokenError."""
    named = sa.or_(tokens.c.name == which, tokens.c.id == which)
    row = connection.execute(sa.select(tokens).where(_good(now), named).order_by(tokens.c.id != which)).first()
    if row is None:
        raise NoSuchTokenError(f'there is no token "{which}" that could be used')
    connection.execute(sa.update(tokens).where(tokens.c.id == row.id).values(revoked_at=now))
    return _row(row)


def read(connection: Connection, good_at: int | None = None) -> list[TokenRow]:
    """All, or those that are good then, the oldest first."""
    text, values = f"SELECT {', '.join(TokenRow._fields)} FROM tokens", list[int]()
    if good_at is not None:
        values = [good_at]
        text += f" WHERE {_GOOD.format(places(connection.dialect.name, values))}"
    return [_row(row) for row in fetch(connection, f"{text} ORDER BY made_at, id", values)]


def _row(columns: Sequence[Any]) -> TokenRow:
    row = TokenRow._make(columns)
    services = tuple(json.loads(columns[_SERVICES])) if row.services is not None else None
    return row._replace(services=services)
