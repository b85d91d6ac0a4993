# SPDX-License-Identifier: Apache-2.0
"""alembic's revisions lead to the tables that the store writes, and a database that cannot follow is left as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from control.store import file, migrations, schema
from control.store.database import StoreError, begin_writing, get_meta, open_engine, parse_url, set_meta
from control.store.migrate import prepare_tables
from tests.databases import Database


def opened(database: Database) -> sa.Engine:
    url = parse_url(database.url)
    if database.name == "sqlite":
        file.prepare(str(url.database))
    return open_engine(url, timeout_s=2.0, writer=True)


def prepare(engine: sa.Engine) -> bool:
    with engine.begin() as connection:
        begin_writing(connection)
        return prepare_tables(connection, lambda _: None)


BY_TEXT = {"ix_sleeping_key", "ix_sleeping_generation"}
"""Indexes that the metadata do not have."""


def context_of(connection: sa.Connection) -> MigrationContext:
    def is_its(_object: object, name: str | None, *_: object) -> bool:
        return name not in BY_TEXT

    return MigrationContext.configure(connection, opts={"include_object": is_its})


def indexes(connection: sa.Connection) -> dict[str, str]:
    """As the database says how they are made, by name; but those of primary keys."""
    text = {"sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND name LIKE 'ix%'",
            "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE indexname LIKE 'ix%'"}  # fmt: skip
    rows = connection.execute(sa.text(text[connection.dialect.name]))
    return {name: made.replace('"', "") for name, made in rows}


def test_the_last_revision_is_the_one_that_a_new_database_has() -> None:
    directory = Path(migrations.__file__).parent
    assert ScriptDirectory(str(directory)).get_heads() == [schema.REVISION]


@pytest.mark.parametrize("version", [1, 5])
def test_the_revisions_lead_to_the_tables_that_the_store_knows(database: Database, version: int) -> None:
    engine = opened(database)
    with engine.begin() as connection:
        schema.meta.create(connection)  # the rest of it is made
        set_meta(connection, "schema", version)
    assert prepare(engine) is False
    with engine.connect() as connection:
        differ = compare_metadata(context_of(connection), schema.metadata)
        assert [one for one in differ if "comment" not in str(one)] == []
        assert get_meta(connection, "schema") == schema.SCHEMA_VERSION
        found = indexes(connection)
    assert prepare(engine) is False
    with engine.begin() as connection:
        schema.metadata.drop_all(connection)
        schema.metadata.create_all(connection)
        assert found == indexes(connection), "of a new database"
    assert {"ix_sleeping_key"} < found.keys()
    engine.dispose()


def make_sleeping_before(connection: sa.Connection) -> sa.Table:
    """The table of sleepers as it was until revision 0010, empty, in place of today's."""
    schema.metadata.drop_all(connection, [schema.sleeping, schema.clocks])
    before = sa.Table(
        "sleeping",
        sa.MetaData(),
        sa.Column("key", sa.LargeBinary(36), primary_key=True),
        sa.Column("id", sa.BigInteger, nullable=False, index=True),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("client", sa.String(47), nullable=False),
        sa.Column("local", sa.String(47), nullable=False),
        sa.Column("service", sa.Integer, nullable=False),
        sa.Column("slept_at", sa.BigInteger, nullable=False),
        sa.Column("boot_id", sa.String(36), nullable=False),
        sa.Column("wall_offset_ms", sa.BigInteger, nullable=False),
        sa.Column("ka", sa.LargeBinary(36), nullable=False),
        sa.Column("rest", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    before.create(connection)
    return before


def test_whoever_slept_before_the_revision_that_numbers_rows_sleeps_after_it(database: Database) -> None:
    """Of two rows with the same number, which no daemon should have written, the later one."""
    engine = opened(database)
    assert prepare(engine) is True
    rows = [  # key, id, generation, boot, offset
        (b"d", 4, 1, "first boot", 1000),
        (b"c", 3, 2, "first boot", 1001),
        (b"b", 2, 3, "second boot", 1001),
        (b"a", 1, 4, "second boot", 61_000),
        (b"e", 1, 5, "second boot", 61_000),
    ]
    with engine.begin() as connection:
        before = make_sleeping_before(connection)
        for key, number, generation, boot, offset in rows:
            connection.execute(sa.insert(before).values(
                key=key, id=number, generation=generation, client="", local="", service=1, slept_at=7, boot_id=boot,
                wall_offset_ms=offset, ka=key * 36, rest=key * 40))  # fmt: skip
        connection.execute(sa.text("ALTER TABLE history_parts DROP COLUMN layout"))
        schema.tags.drop(connection)
        schema.in_band_names.drop(connection)
        schema.groups.drop(connection)
        schema.audit.drop(connection)
        schema.tokens.drop(connection)
        connection.execute(sa.update(schema.revisions).values(version_num="0009"))
    assert prepare(engine) is False
    with engine.connect() as connection:
        of, clocks = schema.sleeping.c, schema.clocks.c
        query = sa.select(of.id, of.key, of.by_key, of.generation, of.slept_at, of.ka, of.rest, clocks.boot_id,
                          clocks.wall_offset_ms).where(of.clock == clocks.clock).order_by(of.id)  # fmt: skip
        found = [tuple(row) for row in connection.execute(query)]
        assert connection.scalar(sa.select(sa.func.count()).select_from(schema.clocks)) == 3
    kept = [rows[4], rows[2], rows[1], rows[0]]
    assert found == [
        (number, key, 1, generation, 7, key * 36, key * 40, boot, 1000 if number == 3 else offset)
        for key, number, generation, boot, offset in kept
    ]
    engine.dispose()


def test_a_run_before_the_revision_that_keeps_them_is_the_first_of_them(database: Database) -> None:
    engine = opened(database)
    with engine.begin() as connection:
        schema.meta.create(connection)
        set_meta(connection, "schema", 5)
        set_meta(connection, "run_first", 4711)
    assert prepare(engine) is False
    with engine.connect() as connection:
        (run,) = connection.execute(sa.select(schema.runs))
        assert (run.run, run.first, run.ended) == (1, 4711, None)
        assert get_meta(connection, "run_first") is None
    engine.dispose()


def test_a_new_database_needs_no_revision(database: Database) -> None:
    engine = opened(database)
    assert prepare(engine) is True
    with engine.connect() as connection:
        assert compare_metadata(context_of(connection), schema.metadata) == []
    assert prepare(engine) is False
    engine.dispose()


def test_an_upgrade_that_fails_in_the_middle_leaves_the_database_as_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(database)
    with engine.begin() as connection:
        schema.meta.create(connection)
        set_meta(connection, "schema", 5)
        connection.execute(sa.text("CREATE TABLE owner (one INTEGER)"))  # in the way of the second revision
    with pytest.raises(sa.exc.SQLAlchemyError):
        prepare(engine)
    with engine.connect() as connection:
        assert sorted(sa.inspect(connection).get_table_names()) == ["meta", "owner"]
        assert get_meta(connection, "schema") == 5
    engine.dispose()


def test_a_revision_of_a_later_version_is_left_alone(database: Database) -> None:
    engine = opened(database)
    prepare(engine)
    with engine.begin() as connection:
        connection.execute(sa.update(schema.revisions).values(version_num="9999"))
    with pytest.raises(StoreError, match=f"has revision 9999, this roost writes {schema.REVISION}"):
        prepare(engine)
    engine.dispose()
