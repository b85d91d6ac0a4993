# SPDX-License-Identifier: Apache-2.0
"""How the commands reach the daemon: HTTP on its unix socket, or to the API by the network, with nothing to import but
the standard library."""

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
from urllib.parse import quote, urlencode, urlsplit

import click
from click.core import ParameterSource

from appliance.paths import control_socket
from control.core.access import read_token


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
    def command(config_path: str | None, socket_path: str | None, url: str | None, token_file: str | None,
                ca_path: str | None, **arguments: object) -> None:  # fmt: skip
        given = click.get_current_context().get_parameter_source
        local = socket_path or given("config_path") is ParameterSource.COMMANDLINE
        if url and (given("url") is ParameterSource.COMMANDLINE or not local):
            function(daemon=Client(url, token=_read_token(token_file), ca_path=ca_path), **arguments)
            return
        if config_path and not socket_path:
            socket_path = _socket_of(config_path)
        function(daemon=Client(socket_path or control_socket()), **arguments)

    return command


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
    """One daemon, by its socket's path, or by the URL of its API. Every failure is a click.ClickException with a
    sentence."""

    def __init__(self, where: str, token: str = "", ca_path: str | None = None) -> None:
        self._where = where
        self._token = token
        self._ca_path = ca_path

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if not self._token:
            return _UnixConnection(self._where, timeout)
        try:
            url = urlsplit(self._where)
            kind, host, port = url.scheme, url.hostname, url.port
        except ValueError:
            kind, host, port = "", None, None
        if kind == "http" and host:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        if kind != "https" or not host:
            raise click.UsageError(f'"{self._where}" is no URL of an API; write https://box:8443')
        import ssl  # 10 ms

        try:
            context = ssl.create_default_context(cafile=self._ca_path)
        except OSError as error:
            raise click.UsageError(f"the certificates in {self._ca_path} cannot be read: {error}") from None
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)

    def _open(self, method: str, path: str, data: object = None, timeout: float = 60.0) -> http.client.HTTPResponse:
        connection = self._connection(timeout)
        body, headers = None, {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        elif method != "GET":
            headers["Roost-Who"] = quote(who(), errors="replace")
        if data is not None:
            body, headers = json.dumps(data), {**headers, "Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
        except (FileNotFoundError, ConnectionRefusedError):
            raise click.ClickException(
                f"no daemon answers at {self._where}. Start it with `roost up -c FILE`, or say where it is with -c or "
                "--socket; on another machine, with --url."
            ) from None
        except PermissionError:
            raise click.ClickException(f"{self._where}: permission denied. Run this as root.") from None
        except TimeoutError:
            raise click.ClickException(f"the daemon at {self._where} does not answer in {timeout:.0f} s.") from None
        except (OSError, http.client.HTTPException) as error:
            raise click.ClickException(f"the daemon at {self._where} ended the connection: {error}") from None
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
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


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
