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
from control.core.text import escaped

if TYPE_CHECKING:
    from control.config import Log


def _about(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, ABOUT, {})
    return fields


AT_ONCE: Final = 20
A_SECOND: Final = 1.0
"""How many lines of one kind that outsiders may cause are written at once, and how many a second after that."""


OF_OUTSIDERS: Final = frozenset(
    {"asyncio", "roost.agents", "roost.api", "roost.attach", "roost.daemon_links", "roost.in_band", "roost.reach"}
)
"""Loggers of the parts that serve whoever connects. asyncio warns of each write behind a reset."""


class Sparing(logging.Filter):
    """Leaves out what outsiders can make without end: of lines of one kind (their format) that are about a connection,
    or by a part that serves outsiders, those beyond AT_ONCE and A_SECOND. The next one that is written says how many
    there were. Errors are all written."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], tuple[float, float, int]] = {}
        """What is left of a kind, at what time, and how many were left out since it was written last."""

    def filter(self, record: logging.LogRecord) -> bool:
        outsiders = record.name in OF_OUTSIDERS or {"connection", "client", "server"} & _about(record).keys()
        if record.levelno >= logging.ERROR or not outsiders:
            return True
        kind = (record.name, record.levelname + str(record.msg))
        left, at, left_out = self._kinds.get(kind, (float(AT_ONCE), record.created, 0))
        left = min(AT_ONCE, left + max(0.0, record.created - at) * A_SECOND)
        if left < 1:
            self._kinds[kind] = (left, record.created, left_out + 1)
            return False
        self._kinds[kind] = (left - 1, record.created, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out:,} more like it)", None
        return True


class Console(logging.Formatter):
    """For people: the local time with its zone, and the connection's number before what is said of it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(connection)s%(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return local_time(record.created * 1000, "milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:
        number = _about(record).get("connection")
        record.connection = f"connection {number}: " if number else ""
        record.message = escaped(record.message)
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
    handler.addFilter(Sparing())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    for name in ("uvicorn", "alembic", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
