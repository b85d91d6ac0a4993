# SPDX-License-Identifier: Apache-2.0
"""`roost restore`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from appliance.paths import BPFFS, control_socket
from control.cli.client import CONFIG, config_of, config_option, json_option, print_json
from control.core.text import escaped, span

if TYPE_CHECKING:
    from control.config import Config

FRESH: Final = ".restore"
"""Behind the name of a file, until it is put in its place. A killed one's is replaced by the next."""


@click.command("restore")
@click.argument("file", metavar="FILE", type=click.File("rb"))
@config_option("The configuration of this box, which says where things are")
@click.option("--with-config", is_flag=True,
              help="Put the configuration of the backup there first, and the certificates and keys that it names, "
              f"where they belong below {Path(CONFIG).parent}, or this machine's own configuration names them. It is "
              "believed, but not in where database, socket and pins are to be.")  # fmt: skip
@click.option("--database", "database_path", metavar="PATH",
              help="Where the database is to be, if elsewhere. Without -c it alone is put there.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace what is there. The database that was there is kept beside it.")
@json_option
def command(file: IO[bytes], config_path: str | None, with_config: bool, database_path: str | None, force: bool,
            as_json: bool) -> None:  # fmt: skip
    """Put a backup's database in its place, on this machine or another. No daemon may run there, but one whose database
    is damaged: it waits for a good one at the same path, which `--database PATH --force` puts there.

    The next `roost up` takes its connections for those of a reboot: it puts them back, and their clients wake. Nothing
    is changed before all of FILE was read and found good. A killed restore leaves each file as it was or is to be.

    \b
    Examples:
      sudo roost restore /srv/box.roost
      sudo roost restore /srv/box.roost --with-config
    """
    if config_path is None and with_config:
        config_path = CONFIG
    elif config_path is None and database_path is None:
        config_path = config_of(None)
    from control.store.archive import ArchiveError
    from control.store.database import StoreError

    with ExitStack() as stack:
        try:
            told = _restored(file, config_path, with_config, database_path, force, stack)
        except (ArchiveError, StoreError) as error:
            where = f"{file.name}: " if isinstance(error, ArchiveError) else ""
            raise click.ClickException(f"{where}{error}; nothing was changed") from None
        except OSError as error:
            raise click.ClickException(f"{error.filename or file.name}: {error.strerror or error}") from None
    print_json(told) if as_json else _tell(told, file.name)


def _tell(told: dict[str, Any], file: str) -> None:
    at_s = told["at_ms"] / 1000
    when = f"{datetime.fromtimestamp(at_s):%Y-%m-%d %H:%M:%S}, {span(max(round(time.time() - at_s), 0))} ago"
    what = f"{told['sleeping']:,} sleeping connections are in {told['database']}" if told["database"] else "no database"
    click.echo(f'instance "{told["instance"]}" of {told["host"]}, {when}: {what}')
    if told["tokens"]:
        click.echo(f"{told['tokens']:,} API tokens are good as they were then, also those that were revoked since: see "
                   "`roost token list`")  # fmt: skip
    if told["replaced"]:
        click.echo(f"the database that was there is {told['replaced']} now")
    for path in told["put"]:
        click.echo(f"put: {escaped(path)}")
    for name, path in told["left"].items():
        click.echo(f"not put, for it is neither beside a configuration in {Path(CONFIG).parent}, nor named by this "
                   f"machine's own: {escaped(path)} (tar -xzOf {file} {name})")  # fmt: skip


def _restored(file: IO[bytes], config_path: str | None, with_config: bool, database_path: str | None, force: bool,
              stack: ExitStack) -> dict[str, Any]:  # fmt: skip
    """What was done. stack: takes back what may not stay."""
    from control.config import load
    from control.store import archive, backup
    from control.store.schema import REVISION

    opened = archive.Archive(file)
    manifest = opened.manifest
    if manifest.revision > REVISION:
        raise archive.ArchiveError(f"Roost {manifest.version} wrote it, whose databases have revision "
                                   f"{manifest.revision}, and this one knows {REVISION}: install that one, or a later "
                                   "one")  # fmt: skip
    small, database, parts = dict[str, bytes](), iter(list[bytes]()), opened.parts()
    for part, content in parts:
        if part is manifest.database:
            database = content
            break
        small[part.name] = b"".join(content)
    places, left = dict[str, bytes](), dict[str, str]()
    config = None
    if config_path is not None and with_config:
        config, own = _read(small[archive.CONFIG], file.name), _own(config_path)
        _refuse_foreign(config, own, config_path, database_path)
        places, left = _places(config, own, os.path.realpath(config_path), small)
    elif config_path is not None:
        config = load(config_path)
    path = _place_of_database(config, database_path) if manifest.database else ""
    if not path and not with_config:
        raise archive.ArchiveError("its database is PostgreSQL's, which pg_restore puts back, and the configuration is "
                                   "put in its place by --with-config alone")  # fmt: skip
    damaged, tokens = _refuse_running(config, path, stack), 0
    for place in filter(None, (path, *places)):
        if os.path.lexists(place) and not force:
            raise click.ClickException(f"{place} is there already; nothing was changed. --force replaces it")
    if manifest.database:
        free = shutil.disk_usage(Path(path).parent).free
        if free < manifest.database.size:
            raise archive.ArchiveError(f"its database has {manifest.database.size:,} bytes, and {free:,} are free in "
                                       f"{Path(path).parent}")  # fmt: skip
        _write(path, database, None, stack)
        for _ in parts:  # none follows it: the end is looked at
            pass
        tokens = backup.make_ready(path + FRESH, manifest.revision)
        backup.sync(Path(path + FRESH))
    for place, data in places.items():
        _write(place, [data], config_path, stack)
    replaced = backup.put(path + FRESH, path, damaged) if path else ""
    for place in places:  # the configuration last: without it no daemon begins
        Path(place + FRESH).rename(place)
        backup.sync(Path(place).parent)
    return {"instance": manifest.instance, "host": manifest.host, "at_ms": manifest.at_ms, "database": path,
            "sleeping": manifest.sleeping, "tokens": tokens, "replaced": replaced, "put": list(places),
            "left": left}  # fmt: skip


def _read(content: bytes, file: str) -> Config:
    """The backup's configuration. Raises ConfigError, which can be shown on a terminal."""
    from control.config import ConfigError, parse

    try:
        return parse(content.decode(errors="replace"), f"the configuration in {file}")
    except ConfigError as error:
        raise ConfigError([replace(one, sentence=escaped(one.sentence)) for one in error.mistakes]) from None


def _own(path: str) -> Config | None:
    """This machine's configuration, where there is a good one."""
    from control.config import ConfigError, load

    try:
        return load(path)
    except ConfigError:
        return None


def _refuse_foreign(config: Config, own: Config | None, config_path: str, database: str | None) -> None:
    """A backup that is not what it seems must not say where root writes. Raises ArchiveError where database, lock or
    pins would be elsewhere than by default, and nothing on this machine says so; or BPF programs, which the kernel
    runs."""
    from control.store.archive import ArchiveError
    from control.store.file import DEFAULT_DIRECTORY

    usual = {"database": DEFAULT_DIRECTORY, "control_socket": Path(control_socket()).parent, "pin_dir": BPFFS / "roost"}
    said = _paths(own) if own is not None else {}
    for key, path in _paths(config).items():
        known = [one for one in (said.get(key), database if key == "database" else None) if one]
        if not path or os.path.realpath(path) in map(os.path.realpath, known):
            continue
        if key not in usual or not _is_below(path, usual[key]):
            where = f"not below {usual[key]}" if key in usual else "not the one that Roost came with"
            so = "name it by --database, or " if key == "database" else ""
            raise ArchiveError(
                f"its configuration has [paths] {key} at {escaped(path)}, which is {where}. If it is to be there, {so}"
                f"write [paths] {key} in {config_path} by hand first, and add --force"
            )


def _paths(config: Config) -> dict[str, str]:
    """What of [paths] a daemon, and a restore before it, would write to, or load; "": nothing."""
    return {"database": _file_of(config), "control_socket": config.control_socket, "pin_dir": config.pin_dir,
            "bpf_dir": config.paths.bpf_dir}  # fmt: skip


def _file_of(config: Config) -> str:
    """SQLite's; "": the database is PostgreSQL's."""
    from control.store.database import parse_url

    url = parse_url(config.database_url)
    return url.database or "" if url.get_backend_name() == "sqlite" else ""


def _is_below(path: str, directory: Path) -> bool:
    """Whether it lies there, and has a name that can be shown."""
    return path.isprintable() and Path(os.path.realpath(directory)) in Path(os.path.realpath(path)).parents


def _places(config: Config, own: Config | None, config_path: str,
            small: dict[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:  # fmt: skip
    """What comes to which path, where that does not have it already, and which files are to be put by hand: a backup
    that is not what it seems must not write wherever it wants."""
    from control.store import archive

    places, left = dict[str, bytes](), dict[str, str]()
    for name, path in config.files.items():
        real = Path(os.path.realpath(path))
        known = own.files.get(name) if own is not None else None
        may = _belongs(path, Path(config_path).parent) or (known is not None and os.path.realpath(known) == str(real))
        if name in small and may and real != Path(config_path):
            places[str(real)] = small[name]
        else:
            left[name] = path
    places[config_path] = small[archive.CONFIG]
    return {path: data for path, data in places.items() if not _has(path, data)}, left


def _belongs(path: str, directory: Path) -> bool:
    """Whether it is a file beside a configuration in Roost's own directory, or below, and no hidden one: in a home a
    file's name alone says what becomes of it."""
    home, real = Path(os.path.realpath(Path(CONFIG).parent)), Path(os.path.realpath(path))
    return (_is_below(path, directory) and directory.is_relative_to(home)
            and not any(part.startswith(".") for part in real.relative_to(home).parts))  # fmt: skip


def _has(path: str, data: bytes) -> bool:
    try:
        return Path(path).read_bytes() == data
    except OSError:
        return False


def _place_of_database(config: Config | None, given: str | None) -> str:
    """Its path, in a directory that is there."""
    from control.store import file
    from control.store.database import StoreError

    path = given or (_file_of(config) if config is not None else "")
    if not path:
        raise StoreError("a database of SQLite's is in the backup, and the configuration names PostgreSQL: --database "
                         "says where else to put it")  # fmt: skip
    path = os.path.realpath(path)
    if problem := file.problem_of_directory(path):
        raise StoreError(problem)
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _refuse_running(config: Config | None, path: str, stack: ExitStack) -> bool:
    """None begins before the stack ends, either. Whether the database that is there is damaged."""
    from control.store import backup
    from control.store.owner import Owner

    me = Owner.here("restore")
    if config is not None:
        from control.daemon.lock import InstanceLock

        stack.callback(InstanceLock(config).release)
        me = Owner.here(config.instance, config.pin_dir)
        if any(Path(config.pin_dir).iterdir()):
            raise click.ClickException(
                f"connections are asleep in {config.pin_dir}, and what the backup says of them may be old by now; "
                "nothing was changed. Let them go first: roost unpin"
            )
    return bool(path) and os.path.lexists(path) and backup.refuse_running(path, me)


def _write(place: str, content: Iterable[bytes], like: str | None, stack: ExitStack) -> None:
    """Beside its place. like: whose owner and mode it has, if it takes no file's place, and that is there."""
    fresh = Path(place + FRESH)
    fresh.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    for suffix in ("", "-journal", "-wal", "-shm"):  # SQLite would take a killed one's for the new file's
        Path(f"{fresh}{suffix}").unlink(missing_ok=True)
        stack.callback(Path(f"{fresh}{suffix}").unlink, missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        for chunk in content:
            target.write(chunk)
        known = next((one for one in (place, like) if like and one and os.path.exists(one)), None)  # noqa: PTH110
        if known is not None:
            status = os.stat(known)  # noqa: PTH116
            os.fchown(target.fileno(), status.st_uid, status.st_gid)
            os.fchmod(target.fileno(), status.st_mode & 0o777)
        target.flush()
        os.fsync(target.fileno())
