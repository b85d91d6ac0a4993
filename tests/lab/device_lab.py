# SPDX-License-Identifier: Apache-2.0
"""A device that calls home, and operators that log in on it: OpenSSH on both ends."""

from __future__ import annotations

from typing import Any

from appliance.lab import Lab
from appliance.lab.programs import CallingHome, Endpoint, Keys, Nginx, visit
from tests.lab.program_lab import PROXY_PORT, ProgramLab, Way

BY_CONNECT = "-X connect -x {}:{}"
BY_SOCKS = "-X 5 -x {}:{}"


class DeviceLab(ProgramLab):
    """A device that calls home, to a service behind which nginx listens and says nothing before it is asked."""

    def __init__(self, lab: Lab, way: Way, family: int = 4, **options: Any) -> None:
        super().__init__(lab, way, family, 8022, **options)
        self.nginx = Nginx(lab, self.server_space, [self.server])
        self.keys = Keys(lab)
        self.device = CallingHome(lab, "wan", self.door, self.keys)
        self.id = self.the_connection()
        self.wait_path(self.id, "ACTIVE")

    def close(self) -> None:
        self.device.close()

    def visit(self, proxy: str | None = BY_CONNECT, to: Endpoint | None = None, space: str = "lan") -> tuple[int, str]:
        """An operator on the LAN, or on the appliance, logs in on the device, by proxy or at the address itself."""
        if proxy is not None:
            proxy = proxy.format(self.proxy, PROXY_PORT)
        return visit(self.lab, space, self.keys, to or self.device.address, "echo at home: $SSH_CONNECTION", proxy)

    def at_home(self) -> tuple[int, str]:
        """What a visit returns: the device sees the address that it called, and no other."""
        here, there = self.device.address, self.device.socket.getpeername()
        return 0, f"at home: {there[0]} {there[1]} {here[0]} {here[1]}\n"
