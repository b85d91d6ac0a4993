# SPDX-License-Identifier: Apache-2.0
"""The rules of the policy as the database has them: each change is a version of all of them, and the newest row of each
rule is what it is. Everything is within a transaction or a reader's connection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from control.store.database import StoreError, get_meta, set_meta
from control.store.schema import groups, rules

KEEP_ROWS: Final = 100_000
"""So many rows of changes are kept; of those before, what the rules were at the first version that is kept whole."""

TOLD_BYTES: Final = 4_000_000
"""Of changes that are read at once."""

KEPT_FROM: Final = "rules_from"
"""In `meta`: that version."""


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A change of a rule: a row of `rules`. at: wall clock, ms. content: JSON, None: it was removed."""

    version: int
    rule: str
    at: int
    who: str
    why: str
    content: str | None


class OutdatedError(StoreError):
    """Another has changed the rules since; `newest` is a row of the last change, None: there was none."""

    def __init__(self, newest: RuleRow | None) -> None:
        self.newest = newest
        super().__init__(f"the rules are at version {newest.version if newest else 0}")


class ForgottenError(StoreError):
    """There is no such version, or it is not kept any more."""


def state(connection: Connection, version: int | None = None) -> tuple[int, list[RuleRow]]:
    """The last version, up to this one, and the newest row of each rule then, removed ones included. Raises
    ForgottenError."""
    kept = sa.true() if version is None else rules.c.version <= version
    if version:  # at 0 there were none
        if version < (get_meta(connection, KEPT_FROM) or 0):
            raise ForgottenError(f"what the rules were at version {version} is not kept any more")
        newest = connection.scalar(sa.select(sa.func.max(rules.c.version))) or 0
        if version > newest:
            raise ForgottenError(f"there is no version {version}: the newest one is {newest}")
    last = sa.select(rules.c.rule, sa.func.max(rules.c.version).label("version")).where(kept)
    each = last.group_by(rules.c.rule).subquery()
    query = sa.select(rules).join(each, sa.and_(each.c.rule == rules.c.rule, each.c.version == rules.c.version))
    found = [_row(row) for row in connection.execute(query.order_by(rules.c.rule))]
    return max((row.version for row in found), default=0), found


def changes(connection: Connection, limit: int, rule: str | None = None, before: int | None = None) -> list[RuleRow]:
    """The last `limit` rows, of one rule or of all, of versions before this one or of all, oldest first. Fewer, where
    they have more than TOLD_BYTES: then those of whole versions, or of one version some."""
    query = sa.select(rules).order_by(rules.c.version.desc(), rules.c.rule).limit(limit)
    query = query.where(rules.c.rule == rule) if rule is not None else query
    query = query.where(rules.c.version < before) if before is not None else query
    found, told = list[RuleRow](), 0
    with connection.execute(query, execution_options={"yield_per": 50}) as rows:
        for row in map(_row, rows):
            told += len(row.content or "") + len(row.why)
            if told > TOLD_BYTES and found:
                found = [one for one in found if one.version != row.version] or found
                break
            found.append(row)
    return found[::-1]


def write(connection: Connection, contents: Mapping[str, str | None], who: str, why: str, seen: int) -> list[RuleRow]:
    """A change of these rules to these contents (None: removed) is the next version; its rows. Raises OutdatedError,
    unless the last version is the one that was seen."""
    newest = next(iter(changes(connection, 1)), None)
    if (newest.version if newest else 0) != seen:
        raise OutdatedError(newest)
    now = time.time_ns() // 1_000_000
    rows = [RuleRow(seen + 1, name, now, who, why, content) for name, content in contents.items()]
    connection.execute(sa.insert(rules), [asdict(row) for row in rows])
    _forget_old(connection)
    return rows


def _forget_old(connection: Connection) -> None:
    newest_first = sa.select(rules.c.version).order_by(rules.c.version.desc(), rules.c.rule)
    if (first := connection.scalar(newest_first.offset(KEEP_ROWS).limit(1))) is None:
        return
    later = rules.alias()
    replaced = sa.exists().where(later.c.rule == rules.c.rule, later.c.version > rules.c.version,
                                 later.c.version <= first)  # fmt: skip
    connection.execute(sa.delete(rules).where(rules.c.version < first, replaced))
    connection.execute(sa.delete(rules).where(rules.c.version < first, rules.c.content.is_(None)))
    set_meta(connection, KEPT_FROM, first)


def read_groups(connection: Connection) -> dict[frozenset[str], int]:
    """The sets of rules that connections have by their names (Rule.selector), and the number of each."""
    return {frozenset(json.loads(row.rules)): row.number for row in connection.execute(sa.select(groups))}


def write_groups(connection: Connection, wanted: Mapping[frozenset[str], int]) -> None:
    """These are all that there are."""
    connection.execute(sa.delete(groups))
    if wanted:
        rows = [{"number": number, "rules": json.dumps(sorted(several))} for several, number in wanted.items()]
        connection.execute(sa.insert(groups), rows)


def _row(row: sa.Row[Any]) -> RuleRow:
    return RuleRow(**row._mapping)
