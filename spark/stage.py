# SPDX-License-Identifier: Apache-2.0
"""Rows that several jobs read, kept as Parquet while a report is made: Spark's own cache is read ten times slower."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession


class Stage:
    """root: a directory, as a path or a URL of Hadoop's; of a cluster, one that all its nodes see."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._path = f"{root.rstrip('/')}/roost-report-{uuid4().hex}"

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        path = self._spark._jvm.org.apache.hadoop.fs.Path(self._path)  # type: ignore[union-attr]
        files: Any = path.getFileSystem(self._spark._jsc.hadoopConfiguration())
        files.delete(path, True)

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """The same rows. name: of nothing else that is kept."""
        path = f"{self._path}/{name}"
        frame.write.parquet(path)
        return self._spark.read.schema(frame.schema).parquet(path)
