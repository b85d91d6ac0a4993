# SPDX-License-Identifier: Apache-2.0
"""Files of an export: written all of it or nothing, and told by their SHA-256."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class ExportError(Exception):
    """The directory cannot be added to, or is not what it says; the message says why, and what to do."""


def entries(directory: Path, names: Sequence[re.Pattern[str]]) -> Iterator[tuple[Path, bool]]:
    """Files below, those in one directory by their names, and whether an export writes such. names: of directories, and
    at last of a file. Others are not entered, nor is what a symbolic link leads to. What Spark and pyarrow do not read,
    it begins with `_` or `.`, is left out."""
    if directory.is_symlink() or not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        is_directory = path.is_dir() and not path.is_symlink()
        is_like = names[0].fullmatch(path.name) is not None and is_directory == (len(names) > 1)
        if is_like and is_directory:
            yield from entries(path, names[1:])
        elif not path.name.startswith(("_", ".")):
            yield path, is_like


def opened(path: Path) -> BufferedReader:
    """To read: a file, and neither a link nor a device, which a directory of others may have there. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(fd, "rb")


def read(path: Path) -> bytes:
    """As `opened`. Raises OSError."""
    with opened(path) as file:
        return file.read()


def problem_of(root: Path, path: str, sha256: str | None, rows: int | None = None) -> str:
    """What is wrong with a file of Parquet, a sentence; empty: nothing. It is read in full. None: not known."""
    try:
        with opened(root / path) as file:
            if sha256 not in (None, hashlib.file_digest(file, "sha256").hexdigest()):
                return f"{path} was changed since it was written"
            file.seek(0)
            found = pq.read_metadata(file).num_rows
    except FileNotFoundError:
        return f"{path} is missing"
    except pa.ArrowException as error:
        return f"{path} is no Parquet: {error}"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return "" if rows in (None, found) else f"{path} has {found:,} rows in place of {rows:,}"


def read_json(path: Path) -> dict[str, Any]:
    """An object. Raises ExportError, OSError."""
    try:
        found = json.loads(read(path))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ExportError(f"{path} is not as an export writes it")
    return found


def make_directory(path: Path) -> None:
    """And those above it: for their owner and group alone, as the database is. Those that are there stay as they are.
    Raises OSError."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=0o750, exist_ok=True)


def created(path: Path) -> BufferedWriter:
    """To write: a file for its owner and group alone, in place of what is there and not of what a link leads to. Raises
    ExportError where a directory is a link, OSError."""
    if path.parent.resolve() != path.parent:
        raise ExportError(f"{path.parent} leads by a symbolic link to {path.parent.resolve()}, and an export writes in "
                          "its own directory alone: remove the link")  # fmt: skip
    make_directory(path.parent)
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "wb")


def write_json(path: Path, content: object) -> None:
    """All of it, or nothing."""
    temporary = path.with_name(f"{path.name}.tmp")
    with created(temporary) as file:
        file.write(json.dumps(content).encode("ascii"))
    settle(temporary, path)


def write_table(path: Path, table: pa.Table) -> str:
    """All of it, or nothing, as Parquet; the SHA-256 of the file."""
    return write_parts(path, table.schema, [table])


def write_parts(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> str:
    """All of them, one after the other, or nothing, as Parquet; the SHA-256 of the file."""
    temporary = path.with_suffix(".tmp")
    with (
        created(temporary) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for part in parts:
            writer.write_table(part)
    digest = digest_of(temporary)
    settle(temporary, path)
    return digest


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settle(temporary: Path, path: Path) -> None:
    """Let `path` name what was written to `temporary`, once it is on the disk."""
    _sync(temporary)
    temporary.rename(path)
    for directory in list(path.parents)[:4]:  # those of the hour, the day and the table may be new
        _sync(directory)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
