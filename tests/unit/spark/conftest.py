# SPDX-License-Identifier: Apache-2.0
"""A Spark, and an export, for each test that asks for one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control.export.export import Export
from control.store.store import Store
from tests.databases import Sqlite, written
from tests.quick import quick
from tests.unit.spark.given import BEGIN_MS, HOUR_MS
from tests.unit.test_store import row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def _spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def spark(_spark_directory: Path) -> SparkSession:
    """One Java for each process of the tests; its settings are as no module has changed them."""
    return quick(master="local[2]", memory="1g", directory=str(_spark_directory))


@pytest.fixture
def exported(sqlite: Sqlite, tmp_path: Path) -> Path:
    """300 rows in five hours, and a run."""
    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    store.service_indexes(["web"])
    assert store.begin_run() == (0, 0)
    store.start()
    store.add([row(n, n, at=BEGIN_MS + n * HOUR_MS // 60) for n in range(1, 301)])
    assert written(store)
    Export(tmp_path / "out").add(sqlite.url, None, None, lambda _table, _rows: None)
    store.close()
    return tmp_path / "out"
