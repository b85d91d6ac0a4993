# SPDX-License-Identifier: Apache-2.0
"""[export]: when an export is begun, what is told of it, and that it ends with the daemon. In place of `roost export`
stands a shell."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.lab import wait_until
from appliance.lab.processes import python_environment
from control.config import ConfigError, Export, parse
from control.daemon import beside, exports
from control.daemon.exports import Exports

DONE = '{"seconds": 0.1, "history": {"rows": 7, "missed": 0}, "attaches": {"rows": 1, "missed": 2}}'
COUNT = f"echo . >>$0/begun; echo '{DONE}'"
"""Notes in the directory that it was begun."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "START_S", 0.0)
    monkeypatch.setattr(exports, "LOOK_S", 0.01)


@asynccontextmanager
async def running(wanted: Export | Callable[[], Export], script: str) -> AsyncIterator[Exports]:
    made = Exports(wanted if callable(wanted) else lambda: wanted, ("sh", "-c", script))
    task = asyncio.ensure_future(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def begun(directory: Path) -> int:
    """How many were begun there."""
    noted = directory / "begun"
    return len(noted.read_text().split()) if noted.exists() else 0


def test_one_is_made_soon_after_the_start_and_then_again_and_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(Export(directory=str(tmp_path), every="1s"), COUNT) as made:
            await until(lambda: begun(tmp_path) == 2)
            told = made.status()
            assert (told["directory"], told["rows"], told["error"]) == (
                str(tmp_path),
                {"history": 7, "attaches": 1},
                "",
            )
            assert told["at_ms"] > 1_700_000_000_000

    asyncio.run(scene())


def test_none_is_made_where_none_is_asked_for_until_one_is(tmp_path: Path) -> None:
    wanted = Export()

    async def scene() -> None:
        nonlocal wanted
        async with running(lambda: wanted, COUNT) as made:
            await asyncio.sleep(0.1)
            assert made.status() == {"directory": "", "at_ms": None, "seconds": None, "rows": {}, "error": ""}
            wanted = Export(directory=str(tmp_path), every="1h")
            await until(lambda: begun(tmp_path))
            other = tmp_path / "other"
            other.mkdir()
            wanted = Export(directory=str(other), every="1h")
            await until(lambda: begun(other))
            assert begun(tmp_path) == 1

    asyncio.run(scene())


def test_how_often_follows_the_configuration(tmp_path: Path) -> None:
    wanted = Export(directory=str(tmp_path), every="1h")

    async def scene() -> None:
        nonlocal wanted
        async with running(lambda: wanted, COUNT):
            await until(lambda: begun(tmp_path) == 1)
            wanted = Export(directory=str(tmp_path), every="1s")
            await until(lambda: begun(tmp_path) == 2)

    asyncio.run(scene())


DAEMON = """
import asyncio, sys
from control.config import Export
from control.daemon import exports
exports.START_S, exports.LOOK_S = 0.0, 0.01
script = "echo $$ >$0/made; mv $0/made $0/pid; exec sleep 60"
asyncio.run(exports.Exports(lambda: Export(directory=sys.argv[1]), ("sh", "-c", script)).run())
"""


def test_one_that_is_at_work_is_ended_by_the_kernel_when_the_daemon_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DAEMON, str(tmp_path)], env=python_environment()) as daemon:
        wait_until((tmp_path / "pid").exists, 20, "it is at work")
        pid = int((tmp_path / "pid").read_text())
        daemon.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 10, "it is ended")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'history: 5 rows' >&2; echo 'Error: /srv is no directory' >&2; exit 1", "/srv is no directory"),
        ("exit 3", "it ended with 3"),
        ("echo '[]'", "it ended with 0"),
        ("kill -9 $$", "it ended with -9"),
    ],
)
def test_what_keeps_one_from_being_made_is_told_once_and_tried_again(
    script: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        async with running(Export(directory=str(tmp_path), every="1s"), f"echo . >>$0/begun; {script}") as made:
            await until(lambda: begun(tmp_path) == 2)
            assert made.status()["error"] == said
            (tmp_path / "begun").unlink()

    asyncio.run(scene())
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"export to {tmp_path}: {said}; what was exported is kept" in caplog.text


def test_an_end_while_one_is_being_begun_leaves_no_process_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its creation is cancelled, asyncio reaps a process that has ended, and then warns that it is reaped."""
    watcher, reap = asyncio.ThreadedChildWatcher, asyncio.ThreadedChildWatcher._do_waitpid  # type: ignore[attr-defined]

    def reap_late(*arguments: Any) -> None:
        time.sleep(0.05)
        reap(*arguments)

    monkeypatch.setattr(watcher, "_do_waitpid", reap_late)

    async def scene(turns: int) -> None:
        task = asyncio.ensure_future(Exports(Export, ("sh", "-c", "echo $$ >>$0/pids"))._export(str(tmp_path)))
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(0.03)  # the process has ended
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    for turns in range(1, 12):
        asyncio.run(scene(turns))
    assert [record.getMessage() for record in caplog.records] == []
    pids = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("turns", range(5))
def test_a_cancellation_that_comes_with_the_end_of_one_is_obeyed(turns: int) -> None:
    """Of asyncio.wait_for() it would be lost (Python 3.11), and exports went on in a daemon that ends."""

    async def scene() -> None:
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()
        ending = asyncio.ensure_future(beside.kill(process))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = ending.cancel()
        await asyncio.wait({ending})
        assert ending.cancelled() == cancelled

    asyncio.run(scene())


def test_an_error_is_over_with_the_next_that_is_made_and_where_another_directory_is_asked_for(tmp_path: Path) -> None:
    wanted = Export(directory=str(tmp_path), every="1s")

    async def scene() -> None:
        nonlocal wanted
        async with running(lambda: wanted, f"[ -e $0/good ] || exit 1; {COUNT}") as made:
            await until(lambda: made.status()["error"])
            (tmp_path / "good").touch()
            await until(lambda: not made.status()["error"])
            (tmp_path / "good").unlink()
            await until(lambda: made.status()["error"])
            wanted = Export()
            await until(lambda: not made.status()["error"])

    asyncio.run(scene())


def test_rows_that_were_gone_before_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with running(Export(directory=str(tmp_path)), COUNT) as made:
            await until(lambda: made.status()["rows"])

    asyncio.run(scene())
    assert "2 rows of attaches had been removed from the database before" in caplog.text


def test_one_that_is_at_work_is_ended_with_the_daemon(tmp_path: Path) -> None:
    async def scene() -> int:
        async with running(Export(directory=str(tmp_path)), "echo $$ >$0/made; mv $0/made $0/pid; exec sleep 60"):
            await until((tmp_path / "pid").exists)
        return int((tmp_path / "pid").read_text())

    pid = asyncio.run(scene())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_the_programs_that_it_is_started_by_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "_WITH_US", ("roost-has-no-such-program",))

    async def scene() -> None:
        async with running(Export(directory=str(tmp_path)), COUNT) as made:
            await until(lambda: made.status()["error"])
            assert made.status()["error"] == "roost-has-no-such-program: No such file or directory"

    asyncio.run(scene())


def test_a_directory_that_hangs_on_where_the_daemon_stands_is_refused() -> None:
    with pytest.raises(ConfigError, match="no absolute path"):
        parse('[export]\ndirectory = "exports"')
