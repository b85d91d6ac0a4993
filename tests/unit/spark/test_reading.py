# SPDX-License-Identifier: Apache-2.0
"""What is read of an export, and what is set aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from control.export.columns import HISTORY
from spark import reading
from tests.unit.spark.given import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# -- an export ---------------------------------------------------------------------------------------------------------


def test_an_export_is_read_whole(spark: SparkSession, exported: Path) -> None:
    export = reading.Export(spark, str(exported))
    found = export.table("history")
    assert found.columns == HISTORY.names
    assert [one["seq"] for one in found.orderBy("seq").collect()] == list(range(1, 301))
    assert [one["run"] for one in export.table("runs").collect()] == [1]
    assert export.aside.counts == {}


@pytest.mark.parametrize("name", ["history", "a b", "ü=1%20"])
def test_an_export_may_lie_anywhere(spark: SparkSession, exported: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / name / "history" / "out"
    place.parent.mkdir(parents=True)
    exported.rename(place)
    export = reading.Export(spark, str(place))
    assert (export.table("history").count(), export.aside.counts) == (300, {})


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?", "{a,b}", "a\\b"])
def test_a_directory_that_hadoop_takes_for_a_pattern_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    with pytest.raises(reading.NoExportError, match="pattern"):
        reading.Export(spark, str(tmp_path / name))


def test_what_is_missing_unlisted_or_changed_is_set_aside_and_told(spark: SparkSession, exported: Path) -> None:
    gone, half, flipped, *_, last = files(exported)
    rows = {path: pq.read_metadata(path).num_rows for path in files(exported)}
    gone.unlink()
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    last.with_name("000000000000000900-000000000000000999.parquet").write_bytes(last.read_bytes())
    export = reading.Export(spark, str(exported))
    assert export.table("history").count() == 300 - rows[gone] - rows[half] - rows[flipped]
    assert export.aside.counts == {"missing": rows[gone], "changed": rows[half] + rows[flipped], "unlisted": 1}
    assert [str(gone.relative_to(exported)) in one for one in export.aside.told["missing"]] == [True]
    assert len(export.aside.told["changed"]) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"rows": 3}', '{"rows": "x", "files": 7}', "\0"])
def test_a_chunk_list_that_is_none_sets_its_files_aside(spark: SparkSession, exported: Path, content: str) -> None:
    (chunk,) = (exported / "history" / "_chunks").glob("*.json")
    chunk.write_text(content)
    export = reading.Export(spark, str(exported))
    assert export.table("history").count() == 0
    assert export.aside.counts == {"unlisted": len(files(exported)), "unreadable": 1}


def test_an_export_of_an_unknown_version_is_set_aside(spark: SparkSession, exported: Path) -> None:
    (exported / "_export.json").write_text(json.dumps({"version": 99}))
    export = reading.Export(spark, str(exported))
    assert export.table("history").count() == export.table("runs").count() == 0
    assert export.aside.told["version"] == ["the export has version 99 of the columns; this roost reads 1, 2"]


def test_runs_that_cannot_be_read_are_set_aside(spark: SparkSession, exported: Path) -> None:
    (exported / "runs" / "runs.parquet").write_bytes(b"PAR1 half")
    export = reading.Export(spark, str(exported))
    assert export.table("runs").count() == 0
    assert export.aside.counts == {"unreadable": 1}
    (exported / "runs" / "runs.parquet").unlink()
    export = reading.Export(spark, str(exported))
    assert export.table("runs").count() == 0
    assert export.aside.counts == {"missing": 1}


def test_runs_with_a_damaged_page_are_set_aside(spark: SparkSession, exported: Path) -> None:
    path = exported / "runs" / "runs.parquet"
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    export = reading.Export(spark, str(exported))
    assert export.table("runs").count() == 0
    assert export.aside.counts == {"unreadable": 1}


def test_where_there_is_no_export_one_sentence_says_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(reading.NoExportError, match="there is no such directory"):
        reading.Export(spark, str(tmp_path / "none"))
    with pytest.raises(reading.NoExportError, match="has no export"):
        reading.Export(spark, str(tmp_path))
    with pytest.raises(reading.NoExportError, match="cannot be read"):
        reading.Export(spark, "nowhere://x")
