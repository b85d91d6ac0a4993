# SPDX-License-Identifier: Apache-2.0
"""Rows that several jobs read, kept as Parquet while a report is made: Spark's own cache is read ten times slower."""

from __future__ import annotations

import errno
import shutil
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from spark.session import apart

ROW_BYTES: Final = 100
"""Of the disk, for each transition, with what Spark sorts: `roost bench report` has 73 (peak_disk_gb). Of a database,
21 more for the history."""


class Stage:
    """root: a directory, as a path or a URL of Hadoop's; of a cluster, one that all its nodes see."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root
        self._path = f"{root.rstrip('/')}/roost-report-{uuid4().hex}"

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        apart(partial(self._end, kind is not None))

    def _end(self, gives_up: bool) -> None:
        if gives_up:  # what is at work would write on
            self._spark.sparkContext.setLogLevel("OFF")  # that it ends is no news
            self._spark.sparkContext.cancelAllJobs()
        path = self._spark._jvm.org.apache.hadoop.fs.Path(self._path)  # type: ignore[union-attr]
        files: Any = path.getFileSystem(self._spark._jsc.hadoopConfiguration())
        files.delete(path, True)

    def check(self, transitions: int) -> None:
        """Whether there is room for a report of so many, where that can be seen. Raises OSError."""
        needed = transitions * ROW_BYTES
        if Path(self._root).is_dir() and (free := shutil.disk_usage(self._root).free) < needed:
            said = (
                f"a report of {transitions:,} transitions takes {needed / 1e9:,.1f} GB meanwhile, and "
                f"{free / 1e9:,.1f} GB are free; give --scratch another directory, or less by --from and --to"
            )
            raise OSError(errno.ENOSPC, said, self._root)

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """The same rows. name: of nothing else that is kept."""
        path = f"{self._path}/{name}"
        frame.write.parquet(path)
        return self._spark.read.schema(frame.schema).parquet(path)
