# SPDX-License-Identifier: Apache-2.0
"""A database for each test that asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from control.store.store import Store
from tests.databases import Cluster, Database, Postgres, Sqlite


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """PostgreSQL's server: one for each process of the tests."""
    made = Cluster()
    yield made
    made.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Sqlite:
    return Sqlite(tmp_path)


@pytest.fixture
def postgres(cluster: Cluster) -> Iterator[Postgres]:
    made = Postgres(cluster)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Database:
    """One test on each kind."""
    made: Database = request.getfixturevalue({"sqlite": "sqlite", "postgresql": "postgres"}[request.param])
    return made


@pytest.fixture
def make(database: Database) -> Iterator[Callable[..., Store]]:
    """Stores on the test's database, open and at work."""
    made: list[Store] = []

    def factory(**options: Any) -> Store:
        store = Store(database.url, lambda slept: None, **options)
        made.append(store)
        assert store.open() == ""
        store.start()
        return store

    yield factory
    for store in made:
        store.close()
