# SPDX-License-Identifier: Apache-2.0
"""What the processes that run for long say meanwhile."""

from __future__ import annotations

import logging
import sys

from control.cli.table import local_time


class Formatter(logging.Formatter):
    """Of the log: the time with its zone."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return local_time(record.created * 1000, "milliseconds")


def log_to_stderr(verbose: bool) -> None:
    """From now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    for name in ("uvicorn", "alembic", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
