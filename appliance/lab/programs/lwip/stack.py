# SPDX-License-Identifier: Apache-2.0
"""A host with lwIP in the lab, and its connections as sockets."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import time
from typing import Any, Final, NamedTuple

from pyroute2 import IPRoute

from appliance.lab.lab import Lab
from appliance.lab.programs.lwip import build
from appliance.lab.programs.program import ProgramError

MSS: Final = 1460
_SPACE: Final = "nat"
_START_S: Final = 20.0
_numbers = itertools.count(1)


class PcbInfo(NamedTuple):
    """What lwIP knows of a connection; tell() in host.c says what each is."""

    unacked: int
    probes: int
    retransmits: int
    last_ack_recv_ms: int
    owes_ack: int


class Lwip:
    """A host whose TCP is lwIP's, on a tap device of its own at the NAT, with addresses of the clients' range.

    `window`: of all its connections, bytes; `isn`: the sequence number that each of its connections begins with.
    """

    def __init__(self, lab: Lab, timestamps: bool = True, window: int = MSS, isn: int = 1_000_000) -> None:
        self.lab = lab
        number = next(_numbers) % 200
        self.addresses = {4: f"10.126.{number}.2", 6: f"fd00:64::126:{number}:2"}
        gateways = {4: f"10.126.{number}.1", 6: f"fd00:64::126:{number}:1"}
        tap = f"lwip{number}"
        argv = [str(build.host(timestamps)), tap, self.addresses[4], gateways[4], self.addresses[6], gateways[6],
                str(window), str(isn)]  # fmt: skip
        self.process = lab.run(_SPACE, argv, stdout=subprocess.PIPE)
        self._port = int(self.process.read(time.monotonic() + _START_S) or 0)  # the line is one write
        if not self._port:
            raise ProgramError(f"{self.process.what} did not begin; its standard error says why")
        with lab.enter(_SPACE), IPRoute() as ip:
            index = ip.link_lookup(ifname=tap)[0]
            ip.link("set", index=index, state="up")
            for family, length in ((4, 24), (6, 112)):
                ip.addr("add", index=index, address=gateways[family], prefixlen=length)

    def socket(self, family: int) -> LwipSocket:
        """A client's socket, not connected yet."""
        with self.lab.enter(_SPACE):
            return LwipSocket(self, family)

    def info(self, port: int) -> PcbInfo:
        """Of the connection with this local port."""
        return PcbInfo(*map(int, self._ask(f"info {port}").split()))

    def forget(self, port: int) -> None:
        """The device loses its power: the connection with this local port is gone, and its peer hears nothing."""
        self._ask(f"forget {port}")

    def door(self) -> tuple[str, int]:
        """Where its sockets come from, in the NAT's namespace."""
        return "127.0.0.1", self._port

    def _ask(self, line: str) -> str:
        with self.lab.enter(_SPACE), socket.create_connection(self.door(), 10) as asking:
            asking.sendall(line.encode() + b"\n")
            return asking.makefile().read()

    def close(self) -> None:
        """Its connections are forgotten."""
        self.process.close()


class LwipSocket(socket.socket):
    """A connection of lwIP's: a socket of the loopback, whose other end the host moves to and from lwIP.

    Bytes, FIN and RST are the connection's. Its names, keep-alives and TCP_INFO (as far as tests ask) are lwIP's.
    """

    def __init__(self, lwip: Lwip, family: int) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.lwip = lwip
        self._ip = family
        self._port = 0
        self._peer: tuple[str, int] = ("", 0)
        self._options = {socket.SO_KEEPALIVE: 0}

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if self._ip == 6 else socket.AF_INET

    def bind(self, address: Any) -> None:
        """The host has one address of each family; the port is the connection's."""
        self._port = address[1]

    def setsockopt(self, level: int, option: int, value: Any, *length: Any) -> None:
        """Keep-alives are lwIP's; it has no TCP_USER_TIMEOUT. SO_LINGER is how a socket is closed with an RST."""
        if level == socket.SOL_SOCKET and option == socket.SO_LINGER:
            super().setsockopt(level, option, value, *length)
        else:
            self._options[option] = value

    def connect(self, address: Any) -> None:
        alive = self._options[socket.SO_KEEPALIVE]
        times = (self._options.get(option, 1) * alive
                 for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT))  # fmt: skip
        super().connect(self.lwip.door())
        self.sendall(" ".join(map(str, ["dial", *address[:2], self._port, *times])).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            part = self.recv(1)  # what follows the line is the connection's
            if not part:
                raise ConnectionRefusedError(f"lwIP did not connect to {address}")
            answer += part
        self._port, self._peer = int(answer), (address[0], address[1])

    def getsockname(self) -> tuple[str, int]:
        return self.lwip.addresses[self._ip], self._port

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def info(self) -> PcbInfo:
        """What lwIP knows of the connection."""
        return self.lwip.info(self._port)

    def getsockopt(self, level: int, option: int, length: int = 0) -> Any:
        """TCP_INFO is lwIP's, in the fields of struct tcp_info that tests read."""
        if (level, option) != (socket.IPPROTO_TCP, socket.TCP_INFO):
            return super().getsockopt(level, option, length)
        info, raw = self.info(), bytearray(length)
        raw[2], raw[3] = info.retransmits, info.probes
        struct.pack_into("=I", raw, 24, info.unacked)
        struct.pack_into("=I", raw, 56, info.last_ack_recv_ms)
        return bytes(raw)
