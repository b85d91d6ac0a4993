# SPDX-License-Identifier: Apache-2.0
"""The addresses of attach and of the local API: taken before anything moves, so that a connection which comes meanwhile
waits in a listen queue."""

from __future__ import annotations

import socket
from pathlib import Path

from appliance.box import sysctls
from appliance.frontends.frontend import bind
from control.channel.api import bind_unix
from control.config import Config, parse_endpoint, parse_ports
from control.daemon.error import DaemonError, port_trouble


class Listeners:
    """attach: of [attach] listen. control: the local API's."""

    def __init__(self) -> None:
        self.attach: list[socket.socket] = []
        self.control: socket.socket | None = None
        self._control_path: Path | None = None

    def bind(self, config: Config) -> None:
        """Take them all; raises DaemonError."""
        attach = [parse_endpoint(text) for text in config.attach.listen]
        ports = [port for _, port in attach + [parse_endpoint(s.listen) for s in config.service]]
        if any(service.interface == "persistent" for service in config.service):
            first, last = parse_ports(config.network.link_ports)
            ports += range(first, last + 1)
        sysctls.prepare(ports)
        try:
            for address, port in attach:
                self.attach.append(bind(address, port))
        except OSError as error:
            raise DaemonError(port_trouble(str(error.strerror), error.errno)) from None
        try:
            self.control = bind_unix(config.control_socket)
            self._control_path = Path(config.control_socket)
        except OSError as error:
            reason = error.strerror or error
            raise DaemonError(f"cannot listen on the control socket {config.control_socket}: {reason}") from None

    def close(self) -> None:
        """Close those that are still here: what serves one may have closed it."""
        if self._control_path is not None:
            self._control_path.unlink(missing_ok=True)
        for listener in (*self.attach, self.control):
            if listener is not None:
                listener.close()
