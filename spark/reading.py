# SPDX-License-Identifier: Apache-2.0
"""An export as `roost export` writes it (control/export/), on any file system that Hadoop knows.

What is not as it was written is set aside, counted by kind, and told with its reason; it ends nothing:

    missing    a file that a chunk names is not there
    unlisted   a file that no chunk names: an export was cut off, or is at work
    changed    a file has another SHA-256 than its chunk says: half of it is there, or it was damaged
    unreadable a chunk's list, or a table, is not as an export writes it
    version    the export is of another version of the columns
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pydantic import ValidationError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from control.export.chunk import CHUNK, File
from control.export.columns import ATTACHES, AUDIT, HISTORY, RULES, RUNS, SNAPSHOTS, TAGS, VERSION
from spark.columns import struct_of
from spark.session import reason

CHUNKED: Final[dict[str, pa.Schema]] = {
    "history": HISTORY, "attaches": ATTACHES, "snapshots": SNAPSHOTS, "audit": AUDIT,
}  # fmt: skip
WHOLE: Final[dict[str, pa.Schema]] = {"runs": RUNS, "rules": RULES, "tags": TAGS}
LATER: Final = frozenset({"tags"})
"""Tables that an export of an earlier roost does not have."""
READ_VERSIONS: Final = (1, VERSION)
"""Columns that the first one lacks are null."""

PATTERN: Final = frozenset("[]{}*?\\")

TOLD: Final = 20
"""Of each kind that is set aside, so many are told one by one."""


class NoExportError(Exception):
    """There is no export to read, or no database; a sentence."""


@dataclass
class Aside:
    """What was set aside, by kind: how many, and the first of them."""

    counts: Counter[str] = field(default_factory=Counter)
    told: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, what: str, count: int = 1) -> None:
        """what: a sentence."""
        self.counts[kind] += count
        some = self.told.setdefault(kind, [])
        if len(some) < TOLD:
            some.append(what)


class Record(Protocol):
    """What a report is made of. once: its rows are read once and kept, since it takes long, and some may be gone the
    next time."""

    aside: Aside
    once: bool

    def table(self, name: str) -> DataFrame:
        """Its rows: the columns of control/export/columns.py."""


class Export:
    """root: a path or a URL of Hadoop's. Raises NoExportError."""

    once = False

    def __init__(self, spark: SparkSession, root: str) -> None:
        if used := sorted(set(root) & PATTERN):
            raise NoExportError(f"{root}: Hadoop takes {' '.join(used)} for a pattern; give the directory another name")
        self._spark = spark
        self._root = root.rstrip("/")
        self.aside = Aside()
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            top = self._path(self._root)
            self._files = top.getFileSystem(spark._jsc.hadoopConfiguration())
            there = self._files.exists(top)
        except Py4JJavaError as error:
            raise NoExportError(f"{root} cannot be read: {reason(error)}") from None
        if not there:
            raise NoExportError(f"{root}: there is no such directory")
        if not self._files.exists(self._path(f"{self._root}/_export.json")):
            raise NoExportError(f"{root} has no export; roost export writes one")
        self._top = self._files.getFileStatus(top).getPath().toString().rstrip("/")
        self.readable = self._is_of_a_known_version()

    def _is_of_a_known_version(self) -> bool:
        try:
            version = json.loads(self._text(f"{self._root}/_export.json"))["version"]
        except (ValueError, RecursionError, TypeError, KeyError):
            version = None
        except Py4JJavaError as error:
            raise NoExportError(f"{self._root}/_export.json cannot be read: {reason(error)}") from None
        if version in READ_VERSIONS:
            return True
        self.aside.add("version", f"the export has version {version} of the columns; this roost reads "
                                  f"{', '.join(map(str, READ_VERSIONS))}")  # fmt: skip
        return False

    def table(self, name: str) -> DataFrame:
        """Its rows, as they were written; none, where all of them were set aside."""
        schema = {**CHUNKED, **WHOLE}[name]
        struct = struct_of(schema)
        paths: Sequence[str] = ()
        if self.readable:
            paths = self._good_files(name) if name in CHUNKED else self._whole(name, struct)
        if not paths:
            return self._spark.createDataFrame([], struct)
        return self._spark.read.schema(struct).parquet(*paths).select(*struct.names)

    # -- files --------------------------------------------------------------------------------------------------------

    def _whole(self, name: str, struct: StructType) -> list[str]:
        path = f"{self._root}/{name}/{name}.parquet"
        if not self._files.exists(self._path(path)):
            if name not in LATER:
                self.aside.add("missing", f"{name}/{name}.parquet is not there")
            return []
        try:
            self._spark.read.schema(struct).parquet(path).write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            self.aside.add("unreadable", f"{name}/{name}.parquet: {reason(error)}")
            return []
        return [path]

    def _there(self, name: str) -> set[str]:
        found = self._files.globStatus(self._path(f"{self._root}/{name}/date=*/hour=*/*.parquet")) or []
        return {one.getPath().toString().removeprefix(f"{self._top}/") for one in found}

    def _listed(self, name: str) -> Iterator[File]:
        """Files that chunks name."""
        for found in self._files.globStatus(self._path(f"{self._root}/{name}/_chunks/*.json")) or []:
            path = found.getPath()
            try:
                yield from CHUNK.validate_json(self._text(path.toString()), strict=True).files
            except ValidationError:
                self.aside.add("unreadable", f"{name}/_chunks/{path.getName()} is not as an export writes it")
            except Py4JJavaError as error:
                self.aside.add("unreadable", f"{name}/_chunks/{path.getName()}: {reason(error)}")

    def _text(self, path: str) -> str:
        stream = self._files.open(self._path(path))
        try:
            return str(self._spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))  # type: ignore[union-attr]
        finally:
            stream.close()

    def _good_files(self, name: str) -> list[str]:
        there, good = self._there(name), list[str]()
        listed = {file.path: file for file in self._listed(name)}
        for path in sorted(there - listed.keys()):
            self.aside.add("unlisted", f"{path} is named by no chunk")
        for path in sorted(listed.keys() - there):
            self.aside.add("missing", f"{path} is not there: {listed[path].rows:,} rows", listed[path].rows)
        known = sorted(listed.keys() & there)
        if not known:
            return []
        content = self._spark.read.format("binaryFile").load([f"{self._top}/{path}" for path in known])
        digests = content.select("path", F.sha2("content", 256).alias("sha256")).collect()
        found = {row["path"].removeprefix(f"{self._top}/"): row["sha256"] for row in digests}
        for path in known:
            file = listed[path]
            if found.get(path) == file.sha256:
                good.append(f"{self._top}/{path}")
            else:
                self.aside.add("changed", f"{path} was changed since it was written: {file.rows:,} rows", file.rows)
        return good
