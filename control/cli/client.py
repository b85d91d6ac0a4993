# SPDX-License-Identifier: Apache-2.0
"""How the commands reach the daemon, on its unix socket or by the network: roost.client (control/client/), whose errors
are a command's."""

from __future__ import annotations

import functools
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import click
from click.core import ParameterSource

from appliance.paths import control_socket
from control.client.calls import Call, path_of
from control.core.access import read_token

if TYPE_CHECKING:
    from control.client import Client as RoostClient
    from control.client import Event, Stream


CONFIG: Final = "/etc/roost/roost.toml"
"""Where a box has its configuration, for commands that are given none."""


def config_option(said: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """--config, of a command that reads the daemon's configuration; `config_path` goes through `config_of`. said: the
    beginning of its help, without a full stop."""
    return click.option("-c", "--config", "config_path", metavar="FILE", envvar="ROOST_CONFIG",
                        help=f"{said}; else the one that ROOST_CONFIG names, or {CONFIG}.")  # fmt: skip


def config_of(given: str | None) -> str:
    """The path of the configuration. Raises click.UsageError where none is given, and the box has none."""
    if not given and not Path(CONFIG).exists():
        raise click.UsageError(
            f"there is no {CONFIG}: write it (docs/configuration.md), or name another by -c FILE or ROOST_CONFIG"
        )
    return given or CONFIG


def daemon_options(function: Callable[..., None]) -> Callable[..., None]:
    """--config, --socket, --url: where the daemon is. The command is given its Client, as `daemon`."""

    @click.option("-c", "--config", "config_path", metavar="FILE", envvar="ROOST_CONFIG",
                  help="The daemon's configuration, to find its socket (or set ROOST_CONFIG).")  # fmt: skip
    @click.option("--socket", "socket_path", metavar="PATH", help="The daemon's control socket.")
    @click.option("--url", metavar="URL", envvar="ROOST_URL",
                  help="Another machine's API, such as https://box:8443 (or set ROOST_URL).")  # fmt: skip
    @click.option("--token-file", metavar="FILE", envvar="ROOST_TOKEN_FILE",
                  help="With --url: where the token is (or set ROOST_TOKEN_FILE).")  # fmt: skip
    @click.option("--ca", "ca_path", metavar="FILE", envvar="ROOST_CA",
                  help="With --url: certificates to believe instead of the system's (or set ROOST_CA).")  # fmt: skip
    @functools.wraps(function)
    def command(**arguments: object) -> None:
        daemon = daemon_of(click.get_current_context())
        function(daemon=daemon, **{key: one for key, one in arguments.items() if key not in _WHERE})

    return command


_WHERE: Final = ("config_path", "socket_path", "url", "token_file", "ca_path")


def daemon_of(context: click.Context, timeout: float = 60.0) -> Client:
    """Of a command with `daemon_options`. timeout: s for each step of an answer."""
    config_path, socket_path, url, token_file, ca_path = map(context.params.get, _WHERE)
    given = context.get_parameter_source
    local = socket_path or given("config_path") is ParameterSource.COMMANDLINE
    if url and (given("url") is ParameterSource.COMMANDLINE or not local):
        return Client(url, _read_token(token_file), ca_path, timeout)
    if config_path and not socket_path:
        socket_path = _socket_of(config_path)
    return Client(socket_path or control_socket(), timeout=timeout)


def _read_token(path: str | None) -> str:
    if path is None:
        raise click.UsageError("--url needs a token: --token-file, or ROOST_TOKEN_FILE")
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(1000).strip()
    except (OSError, UnicodeError) as error:
        raise click.UsageError(f"the token in {path} cannot be read: {error}") from None
    if read_token(token) is None:
        raise click.UsageError(f"{path} has no token: a line such as `roost token create` prints")
    return token


def _socket_of(config_path: str) -> str:
    """What a configuration says. It is checked as a whole, which takes 0.2 s, only where that is not plain."""
    try:
        with open(config_path, "rb") as file:
            data = tomllib.load(file)
        given, instance = data.get("paths", {}).get("control_socket", ""), data.get("instance", "main")
        if isinstance(given, str) and isinstance(instance, str):
            return given or control_socket(instance)
    except (OSError, ValueError, AttributeError):
        pass
    from control.config import load

    return load(config_path).control_socket


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


_UNUSED: Final = ("httpx._main", "anyio", "trio", "h2")
"""What httpx and httpcore import where it is there, and commands make no use of: 100 ms of a processor."""


def _library() -> ModuleType:
    """control.client, once something is asked: it takes 80 ms of a processor to import."""
    absent = [name for name in _UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: it is not there
    try:
        import control.client.client
    finally:
        for name in absent:
            del sys.modules[name]
    return control.client.client


class Client:
    """One daemon, by its socket's path, or by the URL of its API. Every failure is a click.ClickException with a
    sentence."""

    def __init__(self, where: str, token: str = "", ca_path: str | None = None, timeout: float = 60.0) -> None:
        self._where = where
        self._token = token
        self._ca_path = ca_path
        self._timeout = timeout

    @functools.cached_property
    def _client(self) -> RoostClient:
        where = {"url": self._where, "token": self._token, "ca": self._ca_path}
        try:
            made: RoostClient = _library().Client(
                **(where if self._token else {"socket": self._where}), timeout=self._timeout, retries=0
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        except OSError as error:
            raise click.UsageError(f"the certificates in {self._ca_path} cannot be read: {error}") from None
        return made

    @contextmanager
    def _asking(self) -> Iterator[RoostClient]:
        """Errors are said."""
        from control.client.errors import AwayError, RoostError

        try:
            yield self._client
        except AwayError as error:
            if isinstance(error.cause, FileNotFoundError | ConnectionRefusedError):
                raise click.ClickException(
                    f"no daemon answers at {self._where}. Start it with `roost up -c FILE`, or say where it is with -c "
                    "or --socket; on another machine, with --url."
                ) from None
            if isinstance(error.cause, PermissionError):
                raise click.ClickException(f"{self._where}: permission denied. Run this as root.") from None
            raise click.ClickException(f"{error}.") from None
        except RoostError as error:
            raise click.ClickException(str(error)) from None

    def get(self, path: str, **query: object) -> Any:
        """The JSON at `path`; query values that are None or "" are left out."""
        return self.send("GET", _with_query(path, query))

    def send(self, method: str, path: str, data: object = None) -> Any:
        """The JSON that `path` answers with to this method, and to `data` as JSON when it is given."""
        with self._asking() as client:
            return client.ask(Call(method, path, body=data))

    def lines(self, path: str, **query: object) -> Iterator[dict[str, Any]]:
        """The objects of an NDJSON answer, as they come."""
        with self._asking() as client:
            yield from client.lines(Call("GET", _with_query(path, query)))

    def events(self, last: int | None = None) -> Iterator[Event]:
        """What happens, for ever; those that happened last first."""
        with self._asking() as client:
            yield from client.events(last=last)

    def attach(self, name: str) -> Stream:
        """The bytes to and from a client."""
        with self._asking() as client:
            return client.attach(name)


def _with_query(path: str, query: dict[str, object]) -> str:
    given = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def connection_path(name: str) -> str:
    """The API's path of one connection."""
    return path_of("connections", name)


def print_json(data: object) -> None:
    """JSON for programs, one object."""
    click.echo(json.dumps(data, indent=2 if os.isatty(1) else None))
