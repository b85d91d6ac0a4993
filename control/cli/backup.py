# SPDX-License-Identifier: Apache-2.0
"""`roost backup`."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from control.cli.client import Client, config_of, config_option, json_option, print_json

if TYPE_CHECKING:
    from control.config import Config
    from control.store.archive import Manifest


@click.command("backup")
@click.argument("file", metavar="FILE", type=click.Path())
@config_option("The configuration of the box")
@click.option("--force", is_flag=True, help="Replace FILE.")
@json_option
def command(file: str, config_path: str | None, force: bool, as_json: bool) -> None:
    """Write to FILE what another machine needs to take this one's place, while the daemon runs: the database, the
    configuration, and the certificates and keys that it names.

    FILE is root's alone, for keys are in it; `-` is the standard output. Connections that are awake or in IDLE have no
    row in the database, and are not in FILE. With PostgreSQL the database is not in it either: pg_dump saves that.

    \b
    Example:
      sudo roost backup /srv/box.roost
      sudo roost restore /srv/box.roost
    """
    from control.config import load

    path = config_of(config_path)
    config = load(path)
    began = time.monotonic()
    if file == "-" and sys.stdout.isatty():
        raise click.UsageError("a backup is nothing for a terminal: name a file, or pipe it somewhere")
    if file == "-" and as_json:
        raise click.UsageError("the standard output has room for the backup alone: leave out --json")
    try:
        with _directory_for(file, force) as directory:
            manifest = _make(directory, config, path)
            made = directory / "archive"
            size = made.stat().st_size
            if file == "-":
                with made.open("rb") as archive:
                    shutil.copyfileobj(archive, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            else:
                from control.store.backup import sync

                sync(made)
                made.rename(file)
                sync(Path(file).absolute().parent)
    except OSError as error:
        what = "there is no room for a backup" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise click.ClickException(f"{error.filename or file}: {what}; nothing was kept") from None
    not_held, unknown = _awake(config)
    told = {"file": file, "bytes": size, "seconds": round(time.monotonic() - began, 2),
            "sleeping": manifest.sleeping, "database": manifest.database is not None,
            "files": [part.path for part in manifest.parts if part is not manifest.database],
            "not_held": not_held}  # fmt: skip
    print_json(told) if as_json else _tell(told, config, unknown)


@contextmanager
def _directory_for(file: str, force: bool) -> Iterator[Path]:
    """Where the backup is made, and of which nothing stays. A killed one's is taken over by the next."""
    if file == "-":
        with tempfile.TemporaryDirectory(prefix="roost-backup-") as made:
            yield Path(made)
        return
    if os.path.lexists(file) and not force:
        raise click.ClickException(f"{file} is there already: name another file, or --force to replace it")
    if Path(file).is_dir():
        raise click.ClickException(f"{file} is a directory: name a file in it")
    directory = Path(file + ".part")
    directory.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, opened)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(f"another backup to {file} is being made: {directory} is in use") from None
        names = ("archive", "roost.db", "roost.db-journal")
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or {*os.listdir(opened)} - {*names}:  # noqa: PTH208
            raise click.ClickException(f"{directory} is no backup that was killed: remove it, or name another file")
        for name in names:
            (directory / name).unlink(missing_ok=True)
        stack.callback(directory.rmdir)
        for name in names:
            stack.callback((directory / name).unlink, missing_ok=True)
        yield directory


def _make(directory: Path, config: Config, config_path: str) -> Manifest:
    """The archive in it."""
    from appliance import __version__
    from control.store import archive, backup
    from control.store.database import parse_url

    at_ms = time.time_ns() // 1_000_000
    url = parse_url(config.database_url)
    revision, sleeping = "", 0
    found = {archive.CONFIG: config_path, **config.files}
    if url.get_backend_name() == "sqlite":
        database = url.database or ""
        _look_for_room(database, directory)
        copied = str(directory / "roost.db")
        revision, sleeping = backup.copy(database, copied)
    with ExitStack() as stack:
        files: list[archive.BinaryFile] = [BytesIO(Path(path).read_bytes()) for path in found.values()]
        parts = [archive.part_of(name, path, file) for (name, path), file in zip(found.items(), files, strict=True)]
        if revision:
            files.append(stack.enter_context((directory / "roost.db").open("rb")))
            parts.append(archive.part_of(archive.DATABASE, database, files[-1]))
        manifest = archive.Manifest(__version__, revision, config.instance, socket.gethostname(), at_ms, sleeping,
                                    tuple(parts))  # fmt: skip
        opened = os.open(directory / "archive", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        archive.write(stack.enter_context(os.fdopen(opened, "wb")), manifest, files)
    return manifest


def _look_for_room(database: str, directory: Path) -> None:
    """For the copy and the archive: the daemon may write to the same disk, and must not find it full."""
    need = 2 * (Path(database).stat().st_size if Path(database).is_file() else 0)
    if (free := shutil.disk_usage(directory).free) < need:
        raise click.ClickException(f"{directory.parent.absolute()}: a backup takes up to {need:,} bytes while it "
                                   f"is made, and {free:,} are free; make room, or name a file elsewhere")  # fmt: skip


def _awake(config: Config) -> tuple[dict[str, int] | None, str]:
    """How many have no row; None: no daemon says it, for that reason."""
    try:
        status = Client(config.control_socket, timeout=10).get("/v1/status")
    except click.ClickException as error:
        return None, str(error)
    return {"idle": status["connections"]["IDLE"], "awake": status["awake"]}, ""


def _tell(told: dict[str, Any], config: Config, unknown: str) -> None:
    """unknown: why nothing is known of those without a row."""
    to_stderr = told["file"] == "-"
    held = f"{told['sleeping']:,} sleeping connections and " if told["database"] else ""
    click.echo(f"{told['file']}: {told['bytes']:,} bytes, with {held}{' '.join(told['files'])}, in "
               f"{told['seconds']:.1f} s", err=to_stderr)  # fmt: skip
    if not told["database"]:
        from control.store.database import parse_url, without_secrets

        url = without_secrets(parse_url(config.database_url))
        click.echo("The database is PostgreSQL's, and not in it. Save that, too:\n  pg_dump --format=custom "
                   f"--file={told['file']}.dump --dbname='{url}'", err=to_stderr)  # fmt: skip
    missing = told["not_held"]
    if missing is None:
        click.echo(f"What is in IDLE, if any, has no row and is not in it: no daemon says how many ({unknown})",
                   err=to_stderr)  # fmt: skip
    elif missing["idle"] or missing["awake"]:
        click.echo(f"Not in it, for they have no row: {missing['idle']:,} connections in IDLE, {missing['awake']:,} "
                   "awake. Those in IDLE get one by `roost job start sleep --state idle`.", err=to_stderr)  # fmt: skip
