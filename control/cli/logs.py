# SPDX-License-Identifier: Apache-2.0
"""What the processes that run for long say meanwhile."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from control.cli.table import local_time
from control.core.logs import ABOUT

if TYPE_CHECKING:
    from control.config import Log


def _about(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, ABOUT, {})
    return fields


class Console(logging.Formatter):
    """For people: the local time with its zone, and the connection's number before what is said of it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(connection)s%(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return local_time(record.created * 1000, "milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:
        number = _about(record).get("connection")
        record.connection = f"connection {number}: " if number else ""
        return super().formatMessage(record)


class Json(logging.Formatter):
    """For programs: one object a line, at (RFC 3339, UTC), level, part, message, what the line is about
    (control/core/logs.py), and the traceback as exception."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"at": at, "level": record.levelname.lower(), "part": record.name, "message": record.getMessage()}
        traceback = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps({**line, **_about(record), **traceback})


FORMATTERS: Final = {"console": Console, "json": Json}


def log_to_stderr(settings: Log) -> None:
    """From now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[settings.format]())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    for name in ("uvicorn", "alembic", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
