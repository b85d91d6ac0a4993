# SPDX-License-Identifier: Apache-2.0
"""Exports of the record, again and again ([export]).

Each is a process of its own, `roost export`: it takes a processor for as long as it lasts, which the daemon must not be
without. It gives way to the daemon, is ended with it, and what it has not written the next one writes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from control.config import Export
from control.daemon import beside

log = logging.getLogger("roost.export")

START_S: Final = 10.0
"""After the daemon's: clients that come back are more urgent."""

LOOK_S: Final = 1.0


class Exports:
    """wanted: what the configuration says now. command: the program and its arguments that exports to the directory
    which follows them."""

    def __init__(self, wanted: Callable[[], Export], command: Sequence[str]) -> None:
        self._wanted = wanted
        self._command = command
        self._first = time.monotonic() + START_S
        self._began: float | None = None
        """When the last one was."""

        self._done: dict[str, Any] = {"at_ms": None, "seconds": None, "rows": {}, "error": ""}
        self._directory = ""

    @classmethod
    def of(cls, config_path: str, wanted: Callable[[], Export]) -> Exports:
        """With `roost export` of this daemon's configuration."""
        path = str(Path(config_path).absolute())
        return cls(wanted, (*beside.roost("export"), "-c", path, "--json", "--"))

    def status(self) -> dict[str, Any]:
        """Of the last one that ended: when (wall clock, ms), how long it took, rows by table, and what kept it from
        being made."""
        return {"directory": self._wanted().directory, **self._done}

    async def run(self) -> None:
        """Make them, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            wanted = self._wanted()
            if self._directory != wanted.directory:
                self._directory, self._began = wanted.directory, None
                self._done["error"] = ""  # of a directory that is not asked for any more
            due = self._first if self._began is None else self._began + wanted.every
            if wanted.directory and time.monotonic() >= due:
                self._began = time.monotonic()
                await self._export(wanted.directory)

    async def _export(self, directory: str) -> None:
        began = time.monotonic()
        try:
            process = await beside.begin(*beside.GENTLY, *self._command, directory, stdin=DEVNULL, stdout=PIPE,
                                         stderr=PIPE)  # fmt: skip
        except OSError as error:
            self._note(began, {}, f"{error.filename}: {error.strerror}", directory)
            return
        try:
            out, said = await process.communicate()
        finally:
            await beside.kill(process)
        try:
            tables = {table: one for table, one in json.loads(out).items() if table != "seconds"}
            rows = {table: int(one["rows"]) for table, one in tables.items()}
            missed = {table: int(one["missed"]) for table, one in tables.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            last = said.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {process.returncode}"]
            self._note(began, {}, last[0].removeprefix("Error: "), directory)
            return
        self._note(began, rows, "", directory)
        for table, count in missed.items():
            if count:
                log.warning("export to %s: %d rows of %s had been removed from the database before: export more often, "
                            "or keep them longer ([export] every, [history])", directory, count, table)  # fmt: skip

    def _note(self, began: float, rows: dict[str, int], error: str, directory: str) -> None:
        if error and error != self._done["error"]:
            log.error("export to %s: %s; what was exported is kept, and it is tried again", directory, error)
        elif not error:
            told = ", ".join(f"{count} of {table}" for table, count in rows.items())
            log.info("export to %s: %s more", directory, told or "nothing")
        self._done = {"at_ms": time.time_ns() // 1_000_000, "seconds": round(time.monotonic() - began, 1), "rows": rows,
                      "error": error}  # fmt: skip
