# SPDX-License-Identifier: Apache-2.0
"""The console's files (docs/console.md): a fixed table, read once; no path of a request is ever a file's.

They hold no secret, so that no token is asked for: what they show, the browser asks of the API with the token that was
typed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

PREFIX: Final = "/console/"

_DIRECTORY: Final = Path(__file__).with_name("console")
_INDEX: Final = "index.html"

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""The last two: no text of a client's can become markup, whatever mistake is in a script (innerHTML throws)."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class File(NamedTuple):
    """One, with all the headers of an answer but its length."""

    body: bytes
    headers: Mapping[str, str]


def read_files() -> dict[str, File]:
    """By the path that they are served at."""
    files = {f"{PREFIX}{path.name}": _read(path) for path in sorted(_DIRECTORY.iterdir()) if path.suffix in _TYPES}
    return {PREFIX: files.pop(f"{PREFIX}{_INDEX}"), **files}


def _read(path: Path) -> File:
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return File(body, {**HEADERS, "Content-Type": _TYPES[path.suffix], "ETag": etag})
