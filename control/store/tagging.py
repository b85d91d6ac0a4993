# SPDX-License-Identifier: Apache-2.0
"""Tags: labels of names, which stay with a client however often it connects, and are removed with the name's row
(statements.write_keyed). Everything is within a transaction or a reader's connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from control.store.database import StoreError, chunks
from control.store.schema import names, successors, tags

OF_A_NAME: Final = 32
"""At most."""


class NoSuchNameError(StoreError):
    """No client has it."""


class TooManyTagsError(StoreError):
    """A name would have more than OF_A_NAME."""


def change(connection: Connection, name: str, add: Sequence[str], remove: Sequence[str]) -> list[str]:
    """Give a name these tags, and take those away; all that it has then. Raises NoSuchNameError, TooManyTagsError."""
    if connection.scalar(sa.select(names.c.name).where(names.c.name == name)) is None:
        raise NoSuchNameError(f'no client has the name "{name}"')
    before = of(connection, [name]).get(name, [])
    after = sorted((set(before) - set(remove)) | set(add))
    if len(after) > OF_A_NAME:
        raise TooManyTagsError(f'"{name}" would have {len(after)} tags: {OF_A_NAME} at most')
    if gone := sorted(set(before) - set(after)):
        connection.execute(sa.delete(tags).where(tags.c.name == name, tags.c.tag.in_(gone)))
    if new := sorted(set(after) - set(before)):
        connection.execute(sa.insert(tags), [{"tag": tag, "name": name} for tag in new])
    return after


def of(connection: Connection, several: Sequence[str]) -> dict[str, list[str]]:
    """The tags of these names, of those that have any."""
    found: dict[str, list[str]] = {}
    for chunk in chunks(several):
        query = sa.select(tags.c.name, tags.c.tag).where(tags.c.name.in_(chunk)).order_by(tags.c.name, tags.c.tag)
        for name, tag in connection.execute(query):
            found.setdefault(name, []).append(tag)
    return found


def connections() -> sa.Select[tuple[str, str, int]]:
    """(tag, name, id) of each name that has tags: the connection that it stands for, and those before it by which its
    client had connected, as far back as `successors` tells."""
    tagged = sa.select(names.c.name, names.c.id).where(names.c.name.in_(sa.select(tags.c.name)))
    of_name = tagged.cte("of_name", recursive=True)
    before = sa.select(of_name.c.name, successors.c.id).where(successors.c.successor == of_name.c.id)
    of_name = of_name.union(before)  # not union_all: it ends where numbers would go in a circle
    found = sa.select(tags.c.tag, of_name.c.name, of_name.c.id).where(of_name.c.name == tags.c.name)
    return found.order_by(tags.c.tag, of_name.c.name, of_name.c.id)


def counts(connection: Connection, after: str, limit: int) -> list[tuple[str, int]]:
    """Tags in their order, those after one, and how many names have each."""
    query = sa.select(tags.c.tag, sa.func.count()).where(tags.c.tag > after).group_by(tags.c.tag)
    return [(tag, count) for tag, count in connection.execute(query.order_by(tags.c.tag).limit(limit))]
