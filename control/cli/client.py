# SPDX-License-Identifier: Apache-2.0
"""How the commands reach the daemon: HTTP on its unix socket, with nothing to import but the standard library."""

from __future__ import annotations

import functools
import getpass
import http.client
import json
import os
import socket
import tomllib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import click

from appliance.paths import control_socket


def daemon_options(function: Callable[..., None]) -> Callable[..., None]:
    """--config, --socket: where the daemon is. The command is given its Client, as `daemon`."""

    @click.option("-c", "--config", "config_path", metavar="FILE", envvar="ROOST_CONFIG",
                  help="The daemon's configuration, to find its socket (or set ROOST_CONFIG).")  # fmt: skip
    @click.option("--socket", "socket_path", metavar="PATH", help="The daemon's control socket.")
    @functools.wraps(function)
    def command(config_path: str | None, socket_path: str | None, **arguments: object) -> None:
        if config_path and not socket_path:
            socket_path = _socket_of(config_path)
        function(daemon=Client(socket_path or control_socket()), **arguments)

    return command


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


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def who() -> str:
    """Who asks, for the record."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


class Client:
    """One daemon. Every failure is a click.ClickException with a sentence."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path

    def _open(self, method: str, path: str, data: object = None, timeout: float = 60.0) -> http.client.HTTPResponse:
        connection = _UnixConnection(self._path, timeout)
        headers = {} if method == "GET" else {"Roost-Who": quote(who(), errors="replace")}
        body = None
        if data is not None:
            body, headers = json.dumps(data), {**headers, "Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
        except (FileNotFoundError, ConnectionRefusedError):
            raise click.ClickException(
                f"no daemon answers at {self._path}. Start it with `roost up -c FILE`, or say where it is with -c or "
                "--socket."
            ) from None
        except PermissionError:
            raise click.ClickException(f"{self._path}: permission denied. Run this as root.") from None
        except TimeoutError:
            raise click.ClickException(f"the daemon at {self._path} does not answer in {timeout:.0f} s.") from None
        except (OSError, http.client.HTTPException) as error:
            raise click.ClickException(f"the daemon at {self._path} ended the connection: {error}") from None
        if response.status >= 400:
            raise click.ClickException(_reason(response))
        return response

    def get(self, path: str, **query: object) -> Any:
        """The JSON at `path`; query values that are None or "" are left out."""
        return self.send("GET", _with_query(path, query))

    def send(self, method: str, path: str, data: object = None) -> Any:
        """The JSON that `path` answers with to this method, and to `data` as JSON when it is given."""
        with self._open(method, path, data) as response:
            return json.load(response)

    def lines(self, path: str, **query: object) -> Iterator[dict[str, Any]]:
        """The objects of an NDJSON answer, as they come."""
        with self._open("GET", _with_query(path, query)) as response:
            for line in response:
                yield json.loads(line)

    def events(self, path: str, **query: object) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind, data) of server-sent events, until the daemon ends."""
        kind = "message"
        # The daemon says something every 5 s; three times that without a word and it hangs.
        with self._open("GET", _with_query(path, query), timeout=20.0) as response:
            for raw in response:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    yield kind, json.loads(line[6:])


def _with_query(path: str, query: dict[str, object]) -> str:
    given = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def _reason(response: http.client.HTTPResponse) -> str:
    body = response.read()
    try:
        data = json.loads(body)
    except ValueError:
        return f"the daemon answered {response.status} {response.reason}"
    if isinstance(data, dict) and isinstance(data.get("error"), str):
        return str(data["error"])
    return f"the daemon answered {response.status}: {body.decode(errors='replace')[:300]}"


def connection_path(name: str) -> str:
    """The API's path of one connection."""
    return f"/v1/connections/{quote(name, safe='')}"


def print_json(data: object) -> None:
    """JSON for programs, one object."""
    click.echo(json.dumps(data, indent=2 if os.isatty(1) else None))
