# SPDX-License-Identifier: Apache-2.0
"""`roost export`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.paths import how_to_install
from control.cli.client import config_of, config_option, json_option

if TYPE_CHECKING:
    from control.export.export import Export


class Time(click.ParamType[int]):
    """ISO 8601, of this machine's time zone where it names none; ms since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return round(datetime.fromisoformat(str(value)).timestamp() * 1000)
        except (ValueError, OverflowError):
            self.fail(f"{value} is no time; write 2026-11-25, 2026-11-25T13:00 or 2026-11-25T13:00:00Z", param, ctx)


@click.command("export")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@config_option("The daemon's configuration, which names the database")
@click.option("--from", "since_ms", type=Time(), help="Only rows from this time on.")
@click.option("--to", "until_ms", type=Time(), help="Only rows before this time.")
@click.option("--check", is_flag=True, help="Export nothing; read DIR in full and say what is wrong with it.")
@json_option
def command(
    directory: Path, config_path: str | None, since_ms: int | None, until_ms: int | None, check: bool, as_json: bool
) -> None:
    """Write the transitions, attaches, snapshots and changes on record to DIR as Parquet: what is new since the last
    export.

    The daemon may run meanwhile. An export that is cut off is gone on with by the next one. Columns: docs/export.md.

    \b
    Examples:
      sudo roost export /srv/roost
      roost export /srv/roost --check
    """
    try:
        from control.export.export import Export
        from control.export.files import ExportError
    except ImportError as error:
        raise click.ClickException(f"an export needs pyarrow ({error}): {how_to_install('pyarrow')}") from None
    from control.config import load
    from control.store.database import StoreError

    export = Export(directory)
    try:
        if check:
            _tell_problems(export.check(), export, as_json)
            return
        began = time.monotonic()
        database = load(config_of(config_path)).database_url
        done = export.add(
            database, since_ms, until_ms, lambda table, rows: click.echo(f"{table}: {rows:,} rows", err=True)
        )
    except (ExportError, StoreError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        if check:
            raise click.ClickException(f"{error.filename or directory}: {error.strerror}") from None
        raise click.ClickException(f"{error.filename or directory}: {error.strerror}; what was exported until then is "
                                   "kept, and the next export goes on there") from None  # fmt: skip
    for table, outcome in done.items():
        if outcome.missed:
            click.echo(f"{table}: {outcome.missed:,} rows had been removed from the database before they were exported",
                       err=True)  # fmt: skip
    seconds = time.monotonic() - began
    if as_json:
        click.echo(json.dumps({"seconds": seconds, **{table: asdict(outcome) for table, outcome in done.items()}}))
    else:
        more = _told({table: outcome.rows for table, outcome in done.items()})
        click.echo(f"{more} more, in {seconds:.1f} s; in {directory}: {_told(export.rows)}")


def _told(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} of {table}" for table, count in rows.items())


def _tell_problems(problems: list[str], export: Export, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"rows": export.rows, "problems": problems, "unknown": export.unknown or None}))
    for problem in filter(None, [*problems, export.unknown]):
        click.echo(problem, err=True)
    if problems:
        raise click.exceptions.Exit(1)
    if not as_json:
        click.echo(f"{_told(export.rows)}: all as they were written")
