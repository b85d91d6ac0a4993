# SPDX-License-Identifier: Apache-2.0
"""The record as the appliance's PostgreSQL database has it, read by JDBC: the rows and columns of an export of it.

Which rows there are is asked at the beginning: what is written later is in none of the tables that have numbers. They
are read by ranges of their numbers, each by a connection and a transaction of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import errorcode
from functools import reduce
from typing import Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType, TimestampType
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from control.export.export import reading
from control.export.rows import SOURCES, Names
from control.export.rows import WHOLE as WHOLE_TABLES
from control.store.database import StoreError, parse_url, reason
from control.store.schema import history_parts
from spark.columns import struct_of
from spark.reading import CHUNKED, WHOLE, Aside, NoExportError

RANGE_ROWS: Final = 1_000_000
LEAST_ROWS: Final = 50_000
"""Of a range, at most; and at least, where there would be too few ranges for all that can work at a time."""

PARTS: Final = 64
"""Of the history, in one query. It locks each of them and its indexes, and a server has 6,400 locks for all of its
connections, unless it is told otherwise."""

FETCHED_ROWS: Final = 10_000
"""At a time: more of them are in no memory."""

REMOVED: Final = (
    "a part of the history was removed from the database meanwhile ([history] keep_days, keep_bytes): run it again, or "
    "let the history be kept for longer"
)

_UNDEFINED_TABLE: Final = "42P01"
_PART: Final = re.compile(r"\bhistory_(\d+)")
_CLIENT: Final = r"^\[?([^\]]+)\]?:(\d+)$"
_OPTIONS: Final = {
    "application_name": "ApplicationName", "connect_timeout": "connectTimeout", "gssencmode": "gssEncMode",
    "krbsrvname": "kerberosServerName", "options": "options", "sslcert": "sslcert", "sslkey": "sslkey",
    "sslmode": "sslmode", "sslpassword": "sslpassword", "sslrootcert": "sslrootcert",
}  # fmt: skip
"""What libpq calls them, and the driver."""


class Rows(NamedTuple):
    """A query, and conditions that part its rows; none: they are read in one go."""

    query: str
    conditions: Sequence[str] = ()


class Database:
    """url: as [paths] database has it. Raises NoExportError."""

    once = True

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.aside = Aside()
        self._spark = spark
        with _connected(url) as connection:
            self._url, self._properties = _jdbc(connection)
            self._names = Names.read(connection)
            parallel = spark.sparkContext.defaultParallelism
            self._rows = {source.name: list(_ranges(connection, source.tables(connection, 0), parallel))
                          for source in SOURCES}  # fmt: skip
        for name, _, query in WHOLE_TABLES:
            self._rows[name] = [Rows(_text(query))]

    def table(self, name: str) -> DataFrame:
        """Its rows, as an export has them."""
        struct = struct_of({**CHUNKED, **WHOLE}[name])
        found = [self._read(rows) for rows in self._rows[name]]
        if not found:
            return self._spark.createDataFrame([], struct)
        named = _columns(name, self._names)
        columns = [named.get(field.name, _plain(field.name, field.dataType)).cast(field.dataType).alias(field.name)
                   for field in struct]  # fmt: skip
        return reduce(DataFrame.unionAll, found).select(*columns)

    def _read(self, rows: Rows) -> DataFrame:
        table = f"({rows.query}) AS found"
        if not rows.conditions:
            return self._spark.read.jdbc(self._url, table, properties=self._properties)
        return self._spark.read.jdbc(self._url, table, predicates=[*rows.conditions], properties=self._properties)


def removed(url: str, error: Exception) -> bool:
    """Whether it is one of reading a part of the history that is not there any more."""
    named = {int(first) for first in _PART.findall(str(error))}
    if not named:
        return False
    try:
        with _connected(url) as connection:
            return not named <= set(connection.scalars(sa.select(history_parts.c.first)))
    except NoExportError:
        return False


# -- where it is -------------------------------------------------------------------------------------------------------


@contextmanager
def _connected(text: str) -> Iterator[Connection]:
    """Raises NoExportError."""
    try:
        url = parse_url(text)
    except StoreError as error:
        raise NoExportError(str(error)) from None
    if url.get_backend_name() == "sqlite":
        raise NoExportError("a database of SQLite's is not read by a report: let roost export write it to a directory, "
                            "and name that")  # fmt: skip
    hosts = [url.host or "", *_listed(url.query.get("host"))]
    if not any(hosts) or any(host.startswith(("/", "@")) for host in hosts):
        raise NoExportError("Java reaches PostgreSQL by TCP alone, and the URL names no host: write "
                            "postgresql://user:password@host:5432/name")  # fmt: skip
    host = next(filter(None, hosts))
    where = sa.URL.create("postgresql", host=host, port=url.port, database=url.database).render_as_string()
    try:
        with reading(text) as connection:
            yield connection
    except StoreError as error:
        raise NoExportError(f"{where}: {error}") from None
    except SQLAlchemyError as error:
        said = reason(error)
        if getattr(getattr(error, "orig", None), "sqlstate", None) != _UNDEFINED_TABLE:
            raise NoExportError(f"{where} cannot be read: {said}") from None
        raise NoExportError(REMOVED if _PART.search(said) else f"{where} has no tables of roost's") from None


def _listed(value: str | Sequence[str] | None) -> Sequence[str]:
    return [value] if isinstance(value, str) else value or []


def _jdbc(connection: Connection) -> tuple[str, dict[str, str]]:
    """The URL of the server that was reached, and how to get in, as the driver has it."""
    driver = connection.connection.driver_connection
    assert driver is not None
    found = driver.info
    host = f"[{found.host}]" if ":" in found.host else found.host
    options = {_OPTIONS[name]: value for name, value in found.get_parameters().items() if name in _OPTIONS}
    properties = {
        "driver": "org.postgresql.Driver", "fetchsize": str(FETCHED_ROWS), "tcpKeepAlive": "true",
        "ApplicationName": "roost report", **options, "user": found.user, "password": found.password,
    }  # fmt: skip
    return f"jdbc:postgresql://{host}:{found.port}/{quote(found.dbname, safe='')}", properties


# -- rows --------------------------------------------------------------------------------------------------------------


def _text(query: sa.Select[tuple[object, ...]] | sa.CompoundSelect[tuple[object, ...]]) -> str:
    return str(query.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]


def _ranges(connection: Connection, tables: Sequence[sa.Table | sa.Subquery], parallel: int) -> Iterator[Rows]:
    """All that is committed now. parallel: how many ranges can be read at a time."""
    queries = list[tuple[str, int, int]]()
    for begin in range(0, len(tables), PARTS):
        query = sa.union_all(*(sa.select(table) for table in tables[begin : begin + PARTS]))
        of = query.subquery().c.seq
        first, last = connection.execute(sa.select(sa.func.min(of), sa.func.max(of))).one()
        if first is not None:
            queries.append((_text(query), first, last))
    rows = sum(last - first + 1 for _, first, last in queries)
    size = min(RANGE_ROWS, max(LEAST_ROWS, -(-rows // parallel)))
    for text, first, last in queries:
        begins = range(first, last + 1, size)
        yield Rows(text, [f"seq BETWEEN {begin} AND {min(begin + size - 1, last)}" for begin in begins])


# -- columns -----------------------------------------------------------------------------------------------------------


def _plain(name: str, kind: DataType) -> Column:
    """A column as the database has it: times are ms since 1970, maps JSON."""
    column = F.col(name)
    if isinstance(kind, TimestampType):
        return F.timestamp_millis(column)
    return F.from_json(column, kind) if isinstance(kind, MapType) else column


def _columns(table: str, names: Names) -> dict[str, Column]:
    """Those of which the database has something else than the export: as control/export/rows.py."""
    client = {"address": _end(1), "port": _end(2)}
    service = {"service": _named(names.services, "service")}
    error = {"error": F.when(F.col("error") != 0, F.coalesce(_named(_ERRORS, "error"), F.col("error").cast("string")))}
    if table == "history":
        states = {name: _named(names.states, name) for name in ("from", "to")}
        return {**client, **service, **states, "cause": _named(names.causes, "cause"), **error}
    if table == "attaches":
        found = {"found": F.when(F.col("found") != 0, _named(names.states, "found"))}
        return {**client, **service, **found, **error, **_or_null("server", "step"), "id": F.nullif("id", F.lit(0))}
    if table == "snapshots":
        return {**service, **_or_null("rules")}
    return _or_null("error") if table == "audit" else {}


_ERRORS: Final = pa.array([errorcode.get(number) for number in range(max(errorcode) + 1)], pa.string())


def _named(texts: pa.Array, name: str) -> Column:
    """The texts at these places; null: there is none."""
    return F.get(F.array(*map(F.lit, texts.to_pylist())).cast("array<string>"), F.col(name))


def _end(group: int) -> Column:
    return F.nullif(F.regexp_extract("client", _CLIENT, group), F.lit(""))


def _or_null(*names: str) -> dict[str, Column]:
    return {name: F.nullif(F.col(name), F.lit("")) for name in names}
