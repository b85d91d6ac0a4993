# SPDX-License-Identifier: Apache-2.0
"""Roost's daemon, run in the lab's appliance."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from appliance.lab import leftovers
from appliance.lab.processes import Process, python_environment

Start = Callable[..., Process]  # Lab.run, bound to the appliance's namespace


class DaemonError(Exception):
    """The daemon did not come up, or its control socket refused something."""


class DaemonHandle:
    """One configured daemon, which may be ended and started again any number of times."""

    def __init__(self, start: Start, config: Path, paths: Mapping[str, Any],
                 enter: Callable[[], AbstractContextManager[None]]) -> None:  # fmt: skip
        """paths: [paths] of the configuration. enter: moves a thread into the appliance's network namespace."""
        self.config = config
        self.control_socket = Path(paths["control_socket"])
        self.pin_dir = Path(paths["pin_dir"])
        self.log = config.with_suffix(".log")
        self._start = start
        self._enter = enter
        self._process: Process | None = None
        self._http: httpx.Client | None = None

    @property
    def process(self) -> Process:
        if self._process is None:
            raise DaemonError("the daemon was not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def begin(self, program: Sequence[str] = ("-m", "control.cli.main", "up"), under: Sequence[str] = (),
              environment: Mapping[str, str] = MappingProxyType({}), pass_fds: Sequence[int] = ()) -> None:  # fmt: skip
        """As `start`, without waiting for anything."""
        if self.running:
            raise DaemonError("the daemon is running already")
        with self.log.open("ab") as log:
            self._process = self._start([*under, sys.executable, *program, "-c", str(self.config)],
                                        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                        pass_fds=pass_fds, env=python_environment(environment))  # fmt: skip

    def start(self, timeout_s: float = 30.0, program: Sequence[str] = ("-m", "control.cli.main", "up"),
              under: Sequence[str] = (), environment: Mapping[str, str] = MappingProxyType({}),
              pass_fds: Sequence[int] = ()) -> None:  # fmt: skip
        """Start it, and wait until its control socket answers. program: what Python runs with `-c CONFIG`. under: a
        program that runs it, with its arguments. environment: is added to its own. pass_fds: descriptors that it has,
        too."""
        self.begin(program, under, environment, pass_fds)
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while True:
            if not self._process.running:
                raise DaemonError(f"the daemon ended (exit code {self._process.wait()}):\n{self.log_tail()}"
                                  f"{self._sockets()}")  # fmt: skip
            try:
                answer = self.http("GET", "/v1/status")
                if answer.status_code == 200:
                    return
                problem = answer.text  # that it stands by, e.g. until the lease of the machine before it is over
            except httpx.TransportError as error:
                problem = str(error)
            if time.monotonic() > deadline:
                raise DaemonError(f"no answer on {self.control_socket} within {timeout_s} s ({problem}):\n"
                                  f"{self.log_tail()}")  # fmt: skip
            time.sleep(0.02)

    def _sockets(self) -> str:
        """Who has the ports, if that may be why the daemon ended."""
        if os.strerror(errno.EADDRINUSE) not in self.log_tail():
            return ""
        with self._enter():
            return "\n" + subprocess.run(["ss", "-tanp"], capture_output=True, text=True, check=False).stdout

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> int:
        """SIGKILL: a crash."""
        return self.process.kill()

    def terminate(self, timeout_s: float = 60.0) -> int:
        """SIGTERM: a shutdown, which freezes what it can. The exit code."""
        return self.process.terminate(timeout_s)

    def restart(self, timeout_s: float = 60.0) -> None:
        """SIGTERM, and start again."""
        if self.running:
            self.terminate(timeout_s)
        self.start()

    def http(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request on the control socket, e.g. http("POST", "/v1/connections/7/wake"); any status is returned."""
        if self._http is None:
            # The daemon closes a connection that was quiet for 5 s, and may be about to when it is used again.
            # Without `verify=False` each client reads all certificates, 30 ms, though no TLS is spoken here.
            limits = httpx.Limits(keepalive_expiry=1)
            transport = httpx.HTTPTransport(uds=str(self.control_socket), limits=limits, verify=False)
            self._http = httpx.Client(transport=transport, base_url="http://roost", timeout=60)
        try:
            return self._http.request(method, path, **options)
        except httpx.TransportError:
            self._http.close()  # a kept connection of a daemon that is gone; the next request begins anew
            self._http = None
            raise

    def get(self, path: str, **params: Any) -> Any:
        """JSON of a GET; DaemonError with the answer's text unless it is 200."""
        return self._good("GET", path, params=params).json()

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.get("/v1/status")
        return status

    def counts(self) -> dict[str, int]:
        """Connections by state; empty: it stands by, or does not answer."""
        try:
            connections: dict[str, int] = self.status()["connections"]
        except (DaemonError, httpx.TransportError):
            return {}
        return connections

    def standby(self) -> str:
        """What it says while it stands by for another machine; empty: it does not, or does not answer."""
        try:
            answer = self.http("GET", "/v1/status")
        except httpx.TransportError:
            return ""
        return str(answer.json()["error"]) if answer.status_code == 503 else ""

    def connections(self, **filters: Any) -> list[dict[str, Any]]:
        """GET /v1/connections, one JSON object a line, e.g. connections(state="IDLE")."""
        answer = self._good("GET", "/v1/connections", params=filters)
        return [json.loads(line) for line in answer.text.splitlines()]

    def act(self, connection: str | int, action: str) -> dict[str, Any]:
        """POST /v1/connections/{id or address:port}/{standby, idle, sleep, wake or close}."""
        done: dict[str, Any] = self._good("POST", f"/v1/connections/{connection}/{action}").json()
        return done

    def _good(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self.http(method, path, **options)
        if answer.status_code != 200:
            raise DaemonError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer

    def close(self) -> None:
        """Kill it if it runs, and take away what it pinned."""
        if self._process is not None:
            self._process.close()
        if self._http is not None:
            self._http.close()
            self._http = None
        self.unpin()

    def unpin(self) -> None:
        """Take away what it pinned, and detach it from the interfaces: what a reboot does. It must not be running."""
        with self._enter():
            leftovers.unpin(self.pin_dir)


def toml(data: Mapping[str, Any]) -> str:
    """A mapping of scalars, lists of scalars, tables and lists of tables, as TOML."""
    return "\n".join(_table(data, ())) + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in data.items() if not isinstance(v, Mapping) and not _is_tables(v)}
    if empty := [key for key, value in plain.items() if value is None]:
        raise TypeError(f"{empty[0]} has no value: TOML has no null")
    # What JSON writes of the others is TOML, too.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False, default=os.fspath)}" for key, value in plain.items()]
    for key, value in data.items():
        name = ".".join((*path, key))
        if isinstance(value, Mapping):
            lines += [f"[{name}]", *_table(value, (*path, key))]
        elif _is_tables(value):
            for entry in value:
                lines += [f"[[{name}]]", *_table(entry, (*path, key))]
    return lines


def _is_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(v, Mapping) for v in value)
