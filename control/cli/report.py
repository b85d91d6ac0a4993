# SPDX-License-Identifier: Apache-2.0
"""`roost report`."""

from __future__ import annotations

import logging
import re
import signal
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from control.cli.client import json_option
from control.cli.export import Time

_DATABASE: Final = re.compile(r"(postgres|sqlite)[a-z]*(\+[a-z0-9_]+)?:")
"""How the URL of a database begins."""


@click.command("report")
@click.argument("data", metavar="DIR")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("report"), show_default=True,
              help="Where it is written.")  # fmt: skip
@click.option("--from", "since_ms", type=Time(), help="Only transitions from this time on.")
@click.option("--to", "until_ms", type=Time(), help="Only transitions before this time.")
@click.option("--memory", help="Of Java's heap; else 8g, or of less than 14 GB three fifths.")
@click.option("--master", default="local[*]", show_default=True,
              help="Where Spark works: here, or in a cluster, as spark://HOST:7077, which reads DIR, too.")  # fmt: skip
@click.option("--scratch", metavar="DIR",
              help="Where rows are kept meanwhile, else in TMPDIR. All nodes of a cluster must see it.")  # fmt: skip
@json_option
def command(data: str, out: Path, since_ms: int | None, until_ms: int | None, memory: str | None,
            master: str, scratch: str | None, as_json: bool) -> None:  # fmt: skip
    """How connections behave: for how long they stay in which state, when and how networks lose them, which rules
    follow: a page, tables and recommendations, made of an export or a database.

    DIR is what `roost export` wrote, a path or a URL of a file system that Hadoop knows; or the appliance's database
    itself, where that is PostgreSQL. Needs Java, the Python packages pyspark, pyarrow and matplotlib, and for a
    database Debian's libpostgresql-jdbc-java.

    \b
    Examples:
      roost report /srv/roost
      roost report /srv/roost --from 2026-11-01 --to 2026-12-01 --out november
      PGPASSFILE=/root/db.pass roost report postgresql://roost@db:5432/roost
    """
    from spark.session import SparkError, end, reason, start

    began = time.monotonic()
    is_local = master.startswith("local")
    if scratch is None and not is_local:
        raise click.UsageError("a cluster needs --scratch, a directory or URL that all of its nodes see")
    if scratch is not None and is_local and not Path(scratch).is_dir():
        raise click.BadParameter(f"{scratch}: there is no such directory", param_hint="--scratch")
    is_database = _DATABASE.match(data) is not None
    interrupted = threading.Event()

    def interrupt(_signal: int, _frame: object) -> None:
        """Spark's own asks Java amid what is asked of it already, and py4j logs a traceback and makes another error."""
        interrupted.set()
        logging.disable()
        raise KeyboardInterrupt

    def say(what: str) -> None:
        click.echo(f"{time.monotonic() - began:6.1f} s  {what}", err=True)

    with ExitStack() as stack:
        if is_local:  # removed when Java has ended: what is cancelled may write on for a while
            try:
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="roost-report-", dir=scratch))
            except OSError as error:
                raise click.ClickException(f"{error.filename or scratch}: {error.strerror}") from None
        try:
            session = start(master=master, memory=memory, directory=scratch if is_local else None,
                            reads_database=data.startswith("postgresql"))  # fmt: skip
        except SparkError as error:
            raise click.ClickException(str(error)) from None
        stack.callback(end, session)
        signal.signal(signal.SIGINT, interrupt)
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from spark.database import REMOVED, Database, removed
        from spark.page.page import NAME as PAGE
        from spark.reading import Export, NoExportError
        from spark.report import NAME, Report
        from spark.stage import Stage

        try:
            export = Database(session, data) if is_database else Export(session, data)
            with Stage(session, str(scratch)) as stage:
                outcome = Report(export, out, stage, since_ms, until_ms, say).run()
        except NoExportError as error:
            raise click.ClickException(str(error)) from None
        except (OSError, PySparkException, Py4JError) as error:
            if interrupted.is_set():
                raise click.Abort from None
            if isinstance(error, OSError):
                raise click.ClickException(f"{error.filename or out}: {error.strerror}") from None
            if is_database and removed(data, error):
                raise click.ClickException(REMOVED) from None
            raise click.ClickException(f"Spark cannot go on: {reason(error)}") from None
    for kind, count in sorted(outcome.aside.counts.items()):
        click.echo(f"set aside, {kind}: {count:,}; the first: {outcome.aside.told[kind][0]}", err=True)
    if as_json:
        click.echo((out / NAME).read_text(), nl=False)
        return
    if not outcome.tables:
        click.echo("there are no transitions of these times", err=True)
    click.echo(out / PAGE)
    for name in outcome.files:
        click.echo(out / name)
