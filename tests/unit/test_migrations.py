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
        return prepare_tables(connection)


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
        differ = compare_metadata(MigrationContext.configure(connection), schema.metadata)
        assert [one for one in differ if "comment" not in str(one)] == []
        assert get_meta(connection, "schema") == schema.SCHEMA_VERSION
    assert prepare(engine) is False
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
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
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
