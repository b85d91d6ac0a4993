# SPDX-License-Identifier: Apache-2.0
"""What the programs at the lab's ends share: the command loop, and the set-up of a cheap TCP socket.

The programs hold up to 20,000 sockets each beside the appliance on the same two cores. So they keep plain descriptors
(a socket object costs more than all we know of a client), edge-triggered where a second epoll_ctl is saved by it, and
no per-connection object where an array does.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

Command = dict[str, Any]
IP_BIND_ADDRESS_NO_PORT: Final = 24  # linux/in.h; the port is chosen at connect(), by 4-tuple


class Loop:
    """epoll, with standard input as one of its descriptors."""

    def __init__(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.descriptors = hard
        self.epoll = select.epoll()
        self._input = b""
        self._commands: dict[str, Callable[[Command], None]] = {"ready": self.reply}
        self.running = True
        os.set_blocking(0, False)
        self.epoll.register(0, select.EPOLLIN)

    def command(self, name: str, function: Callable[[Command], None]) -> None:
        self._commands[name] = function

    def reply(self, command: Command, **fields: Any) -> None:
        sys.stdout.write(json.dumps({"re": command["token"], **fields}) + "\n")
        sys.stdout.flush()

    def read_commands(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.running = False
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            command: Command = json.loads(line)
            function = self._commands.get(command["do"])
            if function is None:
                self.reply(command, error=f"no such command: {command['do']}")
                continue
            try:
                function(command)
            except (ValueError, KeyError, OSError) as problem:
                self.reply(command, error=f"{command['do']}: {type(problem).__name__}: {problem}")


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def begin_connect(server: tuple[str, int], source: str | None, options: tuple[tuple[int, int, int], ...] = ()) -> int:
    """Start a connection; its descriptor. Raises OSError if it cannot even be started."""
    sock = socket.socket(family_of(server[0]), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        for level, option, value in options:
            sock.setsockopt(level, option, value)
        if source is not None:
            sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))
        code = sock.connect_ex(server)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        return sock.detach()
    finally:
        sock.close()


def listen(address: str, port: int) -> socket.socket:
    sock = socket.create_server((address, port), family=family_of(address), backlog=65535)
    sock.setblocking(False)
    return sock


def error_of(fd: int) -> int:
    """The pending error of a socket (SO_ERROR), as an errno."""
    sock = socket.socket(fileno=fd)
    try:
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    finally:
        sock.detach()


def mark(fd: int, number: int) -> None:
    """For packet filters (SO_MARK): in its packets, and in those that find its socket."""
    sock = socket.socket(fileno=fd)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, number)
    finally:
        sock.detach()


def tcp_info(fd: int) -> bytes:
    """struct tcp_info of linux/tcp.h, its first 104 bytes."""
    sock = socket.socket(fileno=fd)
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    finally:
        sock.detach()


def local_name(fd: int) -> str:
    """ "192.0.2.7:40123" or "[2001:db8::1]:443" """
    sock = socket.socket(fileno=fd)
    try:
        address, port = sock.getsockname()[:2]
    finally:
        sock.detach()
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def errno_name(code: int) -> str:
    return errno.errorcode.get(code, str(code))
