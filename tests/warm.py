# SPDX-License-Identifier: Apache-2.0
"""Daemons that begin as a fork of a process which has imported what they import.

That takes a daemon more of a processor's time than all else of its start, and the tests start some hundreds. What
begins so is a child of multiprocessing's fork server, has that one's command line, and has imported nothing of a
test's.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from typing import IO, Any, Final

PROGRAM: Final = "control.cli.main"
IMPORTED: Final = ("control.cli.up", "control.daemon.daemon", "pydantic.v1", "tests.warm")  # FastAPI imports v1 late
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_PDEATHSIG: Final = 1

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(IMPORTED))
_here = os.open("/proc/self/ns/net", os.O_RDONLY)


class Descriptor:
    """One that a process of the fork server is handed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return DupFd(self.number)

    def __setstate__(self, handed: Any) -> None:
        self.number = handed.detach()


class Forked(subprocess.Popen[bytes]):
    """As far as the lab asks: its id, whether it has ended, and how."""

    def __init__(self, argv: Sequence[str], stdout: IO[bytes], env: Mapping[str, str]) -> None:
        self.args = argv
        self.stdin = self.stdout = self.stderr = None
        self.returncode = None
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_have_server).result()
        space = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        handed = (list(argv), Descriptor(space), Descriptor(stdout.fileno()), dict(env))
        self._process = _context.Process(target=_begin, args=handed, daemon=True)
        self._process.start()
        os.close(space)
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def __del__(self) -> None:
        """The fork server waits for it."""


def popen(
    otherwise: Callable[..., subprocess.Popen[Any]], argv: Sequence[str], owner: int, **options: Any
) -> subprocess.Popen[Any]:
    """In place of a lab's own: daemons are forked, and what else it starts is started as ever."""
    is_daemon = list(argv[:4]) == [sys.executable, "-m", PROGRAM, "up"] and options.get("stdin") == subprocess.DEVNULL
    if not is_daemon or not hasattr(options.get("stdout"), "fileno"):
        return otherwise(argv, owner, **options)
    return Forked(argv[3:], options["stdout"], options["env"])


def _have_server() -> None:
    """For a thread of its own: the server outlives labs, and must keep no namespace of one."""
    _enter(_here)
    forkserver.ensure_running()


def _enter(namespace: int) -> None:
    """As appliance.lab.namespaces.move_thread; a daemon does not import the lab."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _begin(arguments: list[str], space: Descriptor, log: Descriptor, environment: dict[str, str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
    for output in (1, 2):
        os.dup2(log.number, output)
    _enter(space.number)
    os.close(log.number)
    os.close(space.number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [PROGRAM, *arguments]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
