# SPDX-License-Identifier: Apache-2.0
"""The databases that the store's tests run on: a file of SQLite's, and a database of a PostgreSQL server that is
started for them. Both can be taken away, locked, filled up and given back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import sqlalchemy as sa

from control.store.store import Store

PROGRAMS: Final = Path("/usr/lib/postgresql")  # Debian keeps them off the path, below the version
OPTIONS: Final = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "8MB",
    "max_wal_size": "64MB",
    "autovacuum": "off",
}
RULES: Final = """local all careful scram-sha-256
local all all trust
host all all 127.0.0.1/32 scram-sha-256
"""
SMALL: Final = "256k"  # of the disk that can be filled up
PAGE: Final = 8192  # bytes
NO_HEADER: Final = b"\xff" * 24  # in the place of a page's

# The server lives until this shell's standard input ends: with the tests, however those end. At every line it is
# started or stopped, and the answer is pg_ctl's exit code. `stop` is a crash without leftovers in memory, `halt` an end
# in order, after which nothing is to be recovered.
KEEPER: Final = """
while read -r word; do
    case $word in
        start) pg_ctl -s -w -D data -l log start ;;
        stop) pg_ctl -s -w -D data -m immediate stop ;;
        halt) pg_ctl -s -w -D data -m fast stop ;;
    esac <&- >&2
    echo $?
done
pg_ctl -s -w -D data -m immediate stop >&2
"""

# Around it, the directory and, where root can mount it, the small disk. `unshare` gives that a mount namespace.
PLACE: Final = """
[ ! -d small ] || mount -t tmpfs -o size=$0,uid=postgres,mode=700 tmpfs small || exit
"$@"
[ ! -d small ] || umount small
rm -rf -- "$PWD"
"""

HOLD_A_LOCK: Final = """
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


class Database(Protocol):
    """One that is empty, for one test."""

    name: str
    url: str
    Error: type[Exception]
    """What its driver raises."""
    away: str
    """What its error says, in part, while it is away."""
    survives: bool
    """Whether what was written is there again after it was away."""

    def execute(self, statement: str, /) -> list[Any]:
        """One statement, in a connection of its own; its rows."""

    def take_away(self) -> None:
        """Until `give_back` it can be neither read nor written."""

    def give_back(self) -> None: ...

    def locked(self) -> Any:
        """A context in which another process keeps writers out."""

    def full(self, engine: sa.Engine) -> Any:
        """A context in which what this engine (the store's writer's) writes finds no room; its error: `no_room`."""

    no_room: str

    def close(self) -> None: ...


class Sqlite:
    """A file."""

    name = "sqlite"
    Error = sqlite3.OperationalError
    away = "not a database"
    no_room = "full"
    survives = False

    def __init__(self, directory: Path) -> None:
        self.file = directory / "below" / "roost.db"  # the store makes the directory
        self.url = f"sqlite:///{self.file}"

    def execute(self, statement: str, /) -> list[Any]:
        """One statement, in a connection of its own; its rows."""
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    def _files(self) -> list[Path]:
        return [self.file.with_name(self.file.name + suffix) for suffix in ("", "-wal", "-shm")]

    def take_away(self) -> None:
        """The file is overwritten with what is no database."""
        self.file.parent.mkdir(exist_ok=True)
        for file in self._files():
            file.write_bytes(b"this is no database at all, whatever its name says" * 100)

    def give_back(self) -> None:
        """An empty one: the file is removed."""
        for file in self._files():
            file.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        argv = [sys.executable, "-c", HOLD_A_LOCK, str(self.file)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            try:
                yield
            finally:
                holder.communicate()

    @contextmanager
    def full(self, engine: sa.Engine) -> Iterator[None]:
        """SQLite's own way to run out of space."""
        limit = ["PRAGMA max_page_count=1"]
        sa.event.listen(engine, "connect", lambda connection, _record: connection.execute(limit[0]))
        engine.dispose()
        try:
            yield
        finally:
            limit[0] = "PRAGMA max_page_count=1000000"
            engine.dispose()

    def close(self) -> None:
        """Its directory is pytest's."""


class Cluster:
    """A PostgreSQL server that trusts everybody who reaches its Unix socket but the role `careful`, whose password is
    `right`. By TCP, for which the options give it an address and a port, it asks everybody for a password. It ends with
    the process that made it, and leaves nothing."""

    def __init__(self, options: Mapping[str, str] = OPTIONS, small: str = SMALL) -> None:
        """options: of PostgreSQL's configuration file. small: size of the disk of the tablespace of this name."""
        found = [path.parent for path in PROGRAMS.glob("*/bin/postgres")]
        assert found, "PostgreSQL's server is not installed: apt-get install postgresql"
        self.programs = max(found, key=lambda path: float(path.parent.name))
        self.directory = Path(tempfile.mkdtemp(prefix="roost-postgres-"))
        self.port = options.get("port", "")
        space, become = list[str](), list[str]()
        if os.geteuid() == 0:  # which the server refuses to be
            shutil.chown(self.directory, "postgres", "postgres")
            become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]
            space = ["unshare", "--mount", "--"]
            (self.directory / "small").mkdir()
        self.can_be_full = bool(space)
        self._small = small
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        made = subprocess.run(
            [*become, "initdb", "-D", "data", "-U", "roost", "--auth=trust", "--no-sync", "--locale=C",
             "--encoding=UTF8", "--no-instructions"],
            cwd=self.directory, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        (self.directory / "data" / "pg_hba.conf").write_text(RULES)
        with (self.directory / "data" / "postgresql.conf").open("a") as file:
            there = {**options, "unix_socket_directories": str(self.directory)}
            file.writelines(f"{name} = '{value}'\n" for name, value in there.items())
        self._keeper = subprocess.Popen(
            [*space, "sh", "-c", PLACE, small, *become, "sh", "-c", KEEPER], cwd=self.directory, env=environment,
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.start()
        self.execute("CREATE ROLE careful LOGIN PASSWORD 'right'")
        if self.can_be_full:
            self.execute(f"CREATE TABLESPACE small LOCATION '{self.directory}/small'")

    def _tell(self, word: str) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(f"{word}\n")
        self._keeper.stdin.flush()
        if (answer := self._keeper.stdout.readline()) != "0\n":
            log = self.directory / "log"
            said = log.read_text()[-2000:] if log.exists() else ""
            raise RuntimeError(f"PostgreSQL could not {word} ({answer.strip() or 'its keeper ended'}): {said}")

    def start(self) -> None:
        """And wait until it answers."""
        self._tell("start")

    def stop(self) -> None:
        """As a crash: every connection is cut, and the next start recovers."""
        self._tell("stop")

    @property
    def _disk(self) -> Path:
        """Of the tablespace `small`, as the server's mount namespace has it."""
        return Path(f"/proc/{self._keeper.pid}/root{self.directory}/small")

    @contextmanager
    def damaged(self, table: str, every: int = 1) -> Iterator[None]:
        """One page in so many of a table is none, and what reads it fails (SQLSTATE XX001); afterwards each is as it
        was. The server is restarted before and after."""
        ((path,),) = self.execute(f"SELECT pg_relation_filepath('{table}')")
        is_elsewhere = path.startswith("pg_tblspc/")  # by a link that leads astray outside of the mount namespace
        file = self._disk / path.split("/", 2)[2] if is_elsewhere else self.directory / "data" / path
        self._tell("halt")
        good = dict[int, bytes]()
        with file.open("r+b", buffering=0) as opened:
            for at in range(0, file.stat().st_size, every * PAGE):
                good[at] = os.pread(opened.fileno(), PAGE, at)
                os.pwrite(opened.fileno(), NO_HEADER, at)
        try:
            self.start()
            yield
        finally:
            with suppress(RuntimeError):  # if it did not start
                self._tell("halt")
            with file.open("r+b", buffering=0) as opened:
                for at, page in good.items():
                    if os.pread(opened.fileno(), len(NO_HEADER), at) == NO_HEADER:
                        os.pwrite(opened.fileno(), page, at)
            self.start()

    def log(self) -> str:
        """What the server has said so far."""
        return (self.directory / "log").read_text(errors="replace")

    @contextmanager
    def full(self) -> Iterator[None]:
        """The disk of the tablespace `small` has no room but what its files have."""
        while True:
            told = os.statvfs(self._disk)
            if self._resize(f"{(told.f_blocks - told.f_bfree) * told.f_frsize}"):
                break  # else they have grown meanwhile
        try:
            yield
        finally:
            assert self._resize(self._small)

    def _resize(self, size: str) -> bool:
        argv = ["mount", "-o", f"remount,size={size}", str(self.directory / "small")]
        enter = ["nsenter", "--target", str(self._keeper.pid), "--mount", "--"]
        return subprocess.run([*enter, *argv], stderr=subprocess.DEVNULL, check=False).returncode == 0

    def url(self, database: str = "postgres", user: str = "roost", password: str = "") -> str:
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@/{database}?host={self.directory}" + (f"&port={self.port}" if self.port else "")

    def execute(self, statement: str) -> list[Any]:
        """One statement outside of a transaction; its rows."""
        import psycopg

        with psycopg.connect(host=str(self.directory), port=self.port or None, user="roost", dbname="postgres",
                             autocommit=True) as connection:  # fmt: skip
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def close(self) -> None:
        self._keeper.communicate(timeout=60)


class Postgres:
    """The cluster's database; it is emptied when a test closes it, since making one takes ten times as long."""

    name = "postgresql"
    away = "No such file or directory"  # of the socket
    no_room = "No space left on device"
    survives = True

    def __init__(self, cluster: Cluster) -> None:
        from psycopg import OperationalError

        self.Error: type[Exception] = OperationalError
        self.cluster = cluster
        self.url = cluster.url()
        self._away = False

    def execute(self, statement: str, /) -> list[Any]:
        """One statement, in a connection of its own; its rows."""
        return self.cluster.execute(statement)

    def take_away(self) -> None:
        """The server is stopped."""
        self.cluster.stop()
        self._away = True

    def give_back(self) -> None:
        self.cluster.start()
        self._away = False

    def cut(self) -> int:
        """End every connection to it, as a firewall that lost its state does; how many there were."""
        return len(
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid()"
            )
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        engine = sa.create_engine(sa.make_url(self.url).set(drivername="postgresql+psycopg"))
        with engine.begin() as connection:
            connection.execute(sa.text("LOCK TABLE sleeping IN EXCLUSIVE MODE"))
            yield
        engine.dispose()

    @contextmanager
    def full(self, _engine: sa.Engine) -> Iterator[None]:
        """The tables are on a disk that is too small for them."""
        tables = ["sleeping", *(f"history_{first}" for (first,) in self.execute("SELECT first FROM history_parts"))]
        for table in tables:
            self.execute(f"ALTER TABLE {table} SET TABLESPACE small")
        try:
            yield
        finally:
            for table in tables:
                self.execute(f"ALTER TABLE {table} SET TABLESPACE pg_default")
            self.execute("CHECKPOINT")  # recovery would write there again

    def close(self) -> None:
        if self._away:
            self.give_back()
        self.cut()
        for statement in (
            "DROP SCHEMA public CASCADE",
            "CREATE SCHEMA public",
            "GRANT USAGE ON SCHEMA public TO public",
            "ALTER DATABASE postgres RESET ALL",
        ):
            self.execute(statement)


def written(store: Store) -> bool:
    """All that was queued is committed. On a busy machine a commit may take longer than flush() waits by itself."""
    return store.flush(30.0)
