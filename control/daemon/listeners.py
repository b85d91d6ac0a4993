# SPDX-License-Identifier: Apache-2.0
"""The addresses of attach and of the local API: taken before anything moves, so that a connection which comes meanwhile
waits in a listen queue."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from errno import EADDRNOTAVAIL
from pathlib import Path

from appliance.box import sysctls
from appliance.box.owners import heard_by_clients
from appliance.frontends.frontend import bind
from appliance.wire import ServerAddress
from control.channel.api import bind_unix
from control.config import Config, parse_endpoint
from control.daemon.engine_setup import ports_of
from control.daemon.error import DaemonError, port_trouble
from control.daemon.waiting import NotYetError


def bind_attach(address: str, port: int) -> socket.socket:
    """A listening socket for attach. Raises DaemonError; NotYetError where this machine does not have the address."""
    try:
        return bind(address, port)
    except OSError as error:
        kind = NotYetError if error.errno == EADDRNOTAVAIL else DaemonError
        raise kind(port_trouble(str(error.strerror), error.errno)) from None


def open_to_clients(config: Config, listen: Iterable[ServerAddress]) -> str:
    """Why there may be no attach at these addresses: it asks for no password, and clients reach one of them. Empty:
    there may."""
    attach = config.attach
    if attach.auth != "none" or attach.at_clients:
        return ""
    where = heard_by_clients(listen, config.network.interfaces)
    return (f"[attach] listens without a password at {where}, and so each client would reach every other: name another "
            'address, set auth = "password", or say that it may, at_clients = true') if where else ""  # fmt: skip


class Listeners:
    """attach: of [attach] listen; away: the addresses there that this machine does not have yet. control: the local
    API's."""

    def __init__(self) -> None:
        self.attach: list[socket.socket] = []
        self.away: list[tuple[str, int]] = []
        self.control: socket.socket | None = None
        self._control_path: Path | None = None

    def bind(self, config: Config) -> None:
        """Take them all; raises DaemonError."""
        attach = [parse_endpoint(text) for text in config.attach.listen]
        if problem := open_to_clients(config, attach):
            raise DaemonError(problem)
        ports = [port for service in config.service for port in ports_of(service, config.network.link_ports)]
        sysctls.prepare([*(port for _, port in attach), *ports])
        for address, port in attach:
            try:
                self.attach.append(bind_attach(address, port))
            except NotYetError:
                self.away.append((address, port))
        try:
            self.control = bind_unix(config.control_socket)
            self._control_path = Path(config.control_socket)
        except OSError as error:
            reason = error.strerror or error
            raise DaemonError(f"cannot listen on the control socket {config.control_socket}: {reason}") from None

    def share_control(self, group: int) -> None:
        """Let the members of this group open the local API's socket, too; 0: nobody. Raises OSError."""
        if self._control_path is not None:
            os.chown(self._control_path, -1, group)
            self._control_path.chmod(0o660 if group else 0o600)

    def close(self) -> None:
        """Close those that are still here: what serves one may have closed it."""
        if self._control_path is not None:
            self._control_path.unlink(missing_ok=True)
        for listener in (*self.attach, self.control):
            if listener is not None:
                listener.close()
