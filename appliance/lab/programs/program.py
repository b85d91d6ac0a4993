# SPDX-License-Identifier: Apache-2.0
"""What the programs of the lab have in common: a server that says when it is ready, and a client that is talked to."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.lab.lab import Lab
from appliance.lab.processes import Process

Endpoint = tuple[str, int]
_LOG_S = 30.0


class ProgramError(Exception):
    """A program did not start, ended, or did not say what was waited for."""


class ServerProgram:
    """A server program and its log. `ready` is a text that its log has once it listens."""

    def __init__(self, lab: Lab, space: str, argv: Sequence[str], ready: str, user: str | None = None,
                 env: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self.what = f"{type(self).__name__} in {space}"
        self.log = _free(lab.workspace / f"{type(self).__name__}.log")
        with self.log.open("wb") as log:
            self.process = lab.run_tree(space, argv, user, cwd="/", env=env or environment(lab),
                                        stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # fmt: skip
        self.wait_for_log(ready)

    def wait_for_log(self, text: str) -> None:
        """Until its log has the text; ProgramError if the program ends, or takes half a minute."""
        deadline = time.monotonic() + _LOG_S
        while text not in self.log.read_text(errors="replace"):
            if not self.process.running or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                raise ProgramError(f"{self.what} did not log {text!r}; its log ends:\n{tail}")
            time.sleep(0.02)

    def close(self) -> None:
        """End it as a machine that fails would: its connections end with it."""
        self.process.close()


def _free(path: Path) -> Path:
    """path, or path with a number, such that nothing is there."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free


def environment(lab: Lab) -> dict[str, str]:
    """Nothing of the user's: no proxy, no password, no configuration at home."""
    return {"PATH": os.environ["PATH"], "HOME": str(lab.workspace), "LC_ALL": "C.UTF-8"}


def directory(lab: Lab, name: str) -> Path:
    """A new directory in the lab's workspace."""
    path = _free(lab.workspace / name)
    path.mkdir()
    return path


def run(lab: Lab, argv: Sequence[str], user: str | None = None, space: str = "lan") -> str:
    """Run a tool to its end, such as a generator of keys; what it printed, or ProgramError with that if it failed."""
    process = lab.run_tree(space, argv, user, cwd="/", env=environment(lab), stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    said, _ = process.popen.communicate(timeout=60)
    text: str = said.decode(errors="replace")
    if process.popen.returncode != 0:
        raise ProgramError(f"{argv[0]} failed: {text.strip()}")
    return text


class Dialogue:
    """A client program that reads lines and prints answers: what a person at a terminal would type and see."""

    def __init__(self, lab: Lab, space: str, argv: Sequence[str], env: Mapping[str, str] | None = None,
                 tree: bool = False, cwd: str = "/") -> None:  # fmt: skip
        """tree: what it starts ends with it."""
        self.process: Process = (lab.run_tree if tree else lab.run)(
            space, argv, env=env or environment(lab), cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, bufsize=0)  # fmt: skip
        self._unread = b""

    def say(self, line: str) -> None:
        try:
            self.process.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise ProgramError(f"{self.process.what} ended; it said {self._unread!r}") from None

    def hear(self, wanted: str, timeout_s: float = 20.0) -> str:
        """What it prints, up to and with `wanted`; what comes after that is for the next time."""
        deadline = time.monotonic() + timeout_s
        while (at := self._unread.find(wanted.encode())) < 0:
            if not (more := self.process.read(deadline)):
                end = f"ended with code {self.process.wait(10)}" if more == b"" else f"was silent for {timeout_s} s"
                raise ProgramError(f"{self.process.what} {end}; {wanted!r} was not in {self._unread.decode()!r}")
            self._unread += more
        end_of = at + len(wanted.encode())
        heard, self._unread = self._unread[:end_of], self._unread[end_of:]
        return heard.decode(errors="replace")

    def ask(self, line: str, wanted: str, timeout_s: float = 20.0) -> str:
        """Say a line, and hear the answer up to `wanted`."""
        self.say(line)
        return self.hear(wanted, timeout_s)

    def end(self) -> int:
        """Close its input, as ^D does, and wait for it; its exit code."""
        stdin = self.process.popen.stdin
        assert stdin is not None
        stdin.close()
        return self.process.wait(20)

    def close(self) -> None:
        self.process.close()
