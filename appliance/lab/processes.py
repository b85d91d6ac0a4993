# SPDX-License-Identifier: Apache-2.0
"""Processes inside a lab's namespaces: started, ended by id, and never left behind."""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import appliance
from appliance.lab.namespaces import Namespace, move_thread

# Where the packages lie, for `python -m`. (appliance may be a namespace package: __path__ then, not __file__.)
ROOT: Final = Path(next(iter(appliance.__path__))).resolve().parent


class Process:
    """A process of the lab. It is ended by its id when the lab closes, and by the kernel when the lab's owner dies."""

    def __init__(self, popen: subprocess.Popen[Any], what: str) -> None:
        self.popen = popen
        self.what = what

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def wait(self, timeout_s: float | None = None) -> int:
        return self.popen.wait(timeout_s)

    def kill(self) -> int:
        """SIGKILL, and wait."""
        if self.running:
            self.popen.kill()
        return self.popen.wait()

    def terminate(self, timeout_s: float = 20.0) -> int:
        """SIGTERM, wait; a process that does not end in time is killed and that is an error."""
        if self.running:
            self.popen.terminate()
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.what} did not end within {timeout_s} s of SIGTERM and was killed") from None

    def memory_bytes(self, kind: str = "VmRSS") -> int:
        """Resident memory now. RssAnon: without the files, and whatever else it has mapped (proc(5))."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) * 1024
        raise ProcessLookupError(f"{self.what} has no memory: it ended")

    def cpu_s(self) -> float:
        """Processor time used so far, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def write(self, data: bytes) -> None:
        """To its standard input, a pipe without a buffer; BrokenPipeError when it has ended."""
        stdin = self.popen.stdin
        assert stdin is not None
        while data:
            data = data[stdin.write(data) :]  # unbuffered: a write may be partial

    def read(self, deadline: float) -> bytes | None:
        """What it has written to its standard output, b"" at its end; None: nothing until then (time.monotonic)."""
        stdout = self.popen.stdout
        assert stdout is not None
        poll = select.poll()  # select(2) knows no descriptor past 1023
        poll.register(stdout, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        return os.read(stdout.fileno(), 1 << 16)

    def close(self) -> None:
        self.kill()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):  # unsent commands of a process that we have just killed
                    stream.close()


class ProcessTree(Process):
    """A program with all that it forks, in a PID namespace of its own: they end together, however they end.

    The process that was started is unshare(1), which forks the namespace's first process and waits for it; that one is
    the program, and the kernel ends the others with it. `user`: the user that the program runs as, when root will not
    do.
    """

    @staticmethod
    def argv(program: Sequence[str], user: str | None = None) -> list[str]:
        # A change of user clears the death signal that unshare has set.
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--pdeathsig=KILL", "--"]
        return ["unshare", "--pid", "--fork", "--kill-child", "--", *(become if user else []), *program]

    def kill(self) -> int:
        """SIGKILL to all, and wait until the last has ended."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with suppress(FileNotFoundError, ProcessLookupError):
            for program in map(int, children.read_text().split()):
                os.kill(program, signal.SIGKILL)
                return self.wait()
        return super().kill()  # it has not forked yet


def start_bound(argv: Sequence[str], owner: int, **options: Any) -> subprocess.Popen[Any]:
    """A program that the kernel ends when the thread that calls this ends. It is not begun where `owner`, the calling
    process, has ended before the kernel knew.

    Programs do what a preexec_fn could: with one, Python copies the page tables of its own process, 15 ms in one of
    260 MB.
    """
    bound = ["setpriv", "--pdeathsig=KILL", "--", "sh", "-c", '[ "$PPID" = "$0" ] || exit 127; exec "$@"', str(owner)]
    # A process group of its own: ^C on the terminal is for the lab's owner, which ends its processes in order.
    return subprocess.Popen([*bound, *argv], process_group=0, **options)


class Spawner:
    """Starts processes from one thread that lives as long as the lab.

    The kernel sends PR_SET_PDEATHSIG when the *thread* that forked ends, so that a process started from a short-lived
    worker thread would be killed with it.
    """

    popen: ClassVar[Callable[..., subprocess.Popen[Any]]] = staticmethod(start_bound)

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "lab-spawner")
        self._owner = os.getpid()

    def start(self, space: Namespace, argv: Sequence[str], what: str, **popen: Any) -> Process:
        return Process(self._thread.submit(self._start, space, list(argv), popen).result(), what)

    def start_tree(
        self, space: Namespace, argv: Sequence[str], what: str, user: str | None = None, **popen: Any
    ) -> ProcessTree:
        return ProcessTree(self._thread.submit(self._start, space, ProcessTree.argv(argv, user), popen).result(), what)

    def _start(self, space: Namespace, argv: list[str], popen: dict[str, Any]) -> subprocess.Popen[Any]:
        move_thread(space.fd)
        return self.popen(argv, self._owner, **popen)

    def close(self) -> None:
        self._thread.shutdown()


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which `python -m appliance...` and `-m control...` find their packages."""
    inherited = os.environ.get("PYTHONPATH")
    path = str(ROOT) if not inherited else f"{ROOT}{os.pathsep}{inherited}"
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


class PeerError(Exception):
    """A program at one of the lab's ends refused a command, ended, or did not answer in time."""


class Peer:
    """A program of appliance.peers: one JSON command a line in, one JSON answer a line out, several under way."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._tokens = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._input = b""

    def send(self, do: str, **fields: Any) -> int:
        """Send a command; the token with which to ask for its answer."""
        token = next(self._tokens)
        line = json.dumps({"do": do, "token": token, **fields}).encode() + b"\n"
        try:
            self.process.write(line)
        except BrokenPipeError:
            raise PeerError(f"{self.process.what} ended (exit code {self.process.popen.poll()})") from None
        return token

    def receive(self, token: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """The answer to a command, once it is there."""
        deadline = time.monotonic() + timeout_s
        while token not in self._answers:
            self._read(deadline)
        answer = self._answers.pop(token)
        if "error" in answer:
            raise PeerError(f"{self.process.what}: {answer['error']}")
        return answer

    def request(self, do: str, timeout_s: float = 60.0, **fields: Any) -> dict[str, Any]:
        return self.receive(self.send(do, **fields), timeout_s)

    def _read(self, deadline: float) -> None:
        data = self.process.read(deadline)
        if data is None:
            raise PeerError(f"{self.process.what} did not answer in time")
        if not data:
            code = self.process.wait(10)
            raise PeerError(f"{self.process.what} ended (exit code {code}); its standard error says why")
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            answer: dict[str, Any] = json.loads(line)
            self._answers[int(answer.pop("re"))] = answer

    def close(self) -> None:
        self.process.close()


def descriptor_limit() -> int:
    """How many descriptors one process of the lab can hold."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
