# SPDX-License-Identifier: Apache-2.0
"""The file of a backup: a tar archive, compressed by gzip, whose first member says what the others are.

It is read as what an attacker made: no member's name is a path, nothing is read that the manifest did not announce, and
what it may announce is bounded. tarfile itself reads the long headers of other programs into memory, whatever their
size; here a header is one block of 512 bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import IO, Any, Final

MANIFEST: Final = "roost.json"
CONFIG: Final = "roost.toml"
DATABASE: Final = "roost.db"
FORMAT: Final = 1

_LEVEL: Final = 1  # of gzip: the higher ones save a tenth, and take five times as long
_CHUNK: Final = 1 << 20
_MANIFEST_MOST: Final = 1 << 16
_FILE_MOST: Final = 4 << 20
_PARTS_MOST: Final = 16
_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = tarfile.RECORDSIZE
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


BinaryFile = io.BytesIO | io.BufferedReader


class ArchiveError(Exception):
    """It is no backup, or a damaged one, or cannot become one; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Part:
    """A member of the archive. path: where it was on the machine that was saved; told, and never believed."""

    name: str
    size: int
    sha256: str
    path: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself. sleeping: connections that have a row in it."""

    version: str
    revision: str
    instance: str
    host: str
    at_ms: int
    sleeping: int
    parts: tuple[Part, ...]

    @property
    def database(self) -> Part | None:
        """None: it is PostgreSQL's, which is saved by its own programs."""
        return next((part for part in self.parts if part.name == DATABASE), None)


# -- writing -----------------------------------------------------------------------------------------------------------


def part_of(name: str, path: str, file: BinaryFile) -> Part:
    """What the manifest says of a file. Raises ArchiveError."""
    digest = hashlib.file_digest(file, "sha256")
    size = file.seek(0, io.SEEK_END)
    if name != DATABASE and size > _FILE_MOST:
        raise ArchiveError(f"{path} has more than {_FILE_MOST >> 20} MB: it is no {name}")
    return Part(name, size, digest.hexdigest(), path)


def write(target: IO[bytes], manifest: Manifest, files: Sequence[BinaryFile]) -> None:
    """The archive. files: those of the manifest's parts, in their order. Raises OSError."""
    told = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode()
    seconds = manifest.at_ms // 1000
    with gzip.GzipFile("", "wb", _LEVEL, target, mtime=seconds) as packed:
        _write_header(packed, MANIFEST, len(told), seconds)
        packed.write(told + _padding(len(told)))
        for part, file in zip(manifest.parts, files, strict=True):
            _write_header(packed, part.name, part.size, seconds)
            file.seek(0)
            while chunk := file.read(_CHUNK):
                packed.write(chunk)
            packed.write(_padding(part.size))
        packed.write(bytes(2 * _BLOCK))


def _write_header(target: gzip.GzipFile, name: str, size: int, seconds: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, seconds, 0o600
    target.write(member.tobuf(tarfile.GNU_FORMAT))


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


# -- reading -----------------------------------------------------------------------------------------------------------


class Archive:
    """One that is read from its beginning to its end. Everything raises ArchiveError where it is not as it must be, and
    OSError where it cannot be read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = gzip.GzipFile(fileobj=source, mode="rb")
        size = self._read_header(MANIFEST, _MANIFEST_MOST)
        self.manifest = _manifest(b"".join(self._read(size)))

    def parts(self) -> Iterator[tuple[Part, Iterator[bytes]]]:
        """Each with its content, which must be read to its end: only then it is known to be good."""
        for part in self.manifest.parts:
            size = self._read_header(part.name, part.size)
            if size != part.size:
                raise ArchiveError(f"{part.name} has {size:,} bytes, and should have {part.size:,}")
            yield part, self._checked(part)
        end = self._take(_END + 1)
        if len(end) < 2 * _BLOCK or len(end) > _END or end.strip(b"\0"):
            raise ArchiveError("there is something behind its last part, or its end is missing")

    def _checked(self, part: Part) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for chunk in self._read(part.size):
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != part.sha256:
            raise ArchiveError(f"{part.name} is damaged: its checksum is another")

    def _read_header(self, name: str, most: int) -> int:
        """The size of the member that begins here."""
        try:
            member = tarfile.TarInfo.frombuf(self._take(_BLOCK), "ascii", "strict")
        except (tarfile.HeaderError, UnicodeError, ValueError):
            raise ArchiveError(f"it is no backup of Roost, or it is cut off before {name}") from None
        if member.name != name or member.type != tarfile.REGTYPE:
            raise ArchiveError(f"in the place of {name} it has something else")
        if not 0 <= member.size <= most:
            raise ArchiveError(f"{name} has {member.size:,} bytes, and may have {most:,}")
        return member.size

    def _read(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            chunk = self._take(min(left, _CHUNK))
            if not chunk:
                raise ArchiveError("it is cut off")
            left -= len(chunk)
            yield chunk
        self._take(-size % _BLOCK)

    def _take(self, size: int) -> bytes:
        try:
            return self._source.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ArchiveError(f"it is no backup of Roost, or it is damaged or cut off ({error})") from None


def _manifest(content: bytes) -> Manifest:
    try:
        told = json.loads(content)
        if told.pop("format") != FORMAT:
            raise ArchiveError("a later Roost wrote it: restore it with that one")
        manifest = Manifest(**{**told, "parts": tuple(Part(**part) for part in told["parts"])})
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ArchiveError(f"its {MANIFEST} cannot be read") from None
    names = [part.name for part in manifest.parts]
    good = (
        _is_good(manifest)
        and all(map(_is_good, manifest.parts))
        and len(names) == len(set(names)) <= _PARTS_MOST
        and all(map(_NAME.fullmatch, names))
        and names[:1] == [CONFIG]
        and DATABASE not in names[:-1]
        and all(part.size <= _FILE_MOST for part in manifest.parts if part.name != DATABASE)
    )
    if not good:
        raise ArchiveError(f"its {MANIFEST} announces what no backup has")
    return manifest


def _is_good(told: Part | Manifest) -> bool:
    """Whether texts can be shown on a terminal, and numbers are such."""
    for field in fields(told):
        value: Any = getattr(told, field.name)
        if field.type == "str" and not (isinstance(value, str) and len(value) <= 4096 and value.isprintable()):
            return False
        if field.type == "int" and not (type(value) is int and 0 <= value < 1 << 62):
            return False
    return True
