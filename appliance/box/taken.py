# SPDX-License-Identifier: Apache-2.0
"""What another program has already of that which a daemon is to have: a port. The daemon itself may have it, too."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from errno import EADDRINUSE
from pathlib import Path
from typing import Final

from appliance.wire import ServerAddress

WAY_OUT: Final = "ss -ltnp shows which; or choose another port"
_LISTEN: Final = 1 << 10  # of TCP's states, include/net/tcp_states.h
_IPV6_TRANSPARENT: Final = 75  # include/uapi/linux/in6.h
_IP_TRANSPARENT: Final = 19  # include/uapi/linux/in.h
_UCRED: Final = struct.Struct("=iII")  # pid, uid, gid


def is_taken(listen: ServerAddress, transparent: bool, control_socket: Path) -> bool:
    """Whether another program than the daemon with this control socket keeps a listener from an address and port.
    Nothing is listened on for that. False, too, where it cannot be tried: without the right to, or the address."""
    six = ipaddress.ip_address(listen[0]).version == 6
    with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM) as tried:
        try:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if six:
                tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if transparent and six:
                tried.setsockopt(socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, 1)
            elif transparent:
                tried.setsockopt(socket.IPPROTO_IP, _IP_TRANSPARENT, 1)
            tried.bind(listen)
        except OSError as error:
            return error.errno == EADDRINUSE and not _listens(_daemon(control_socket), listen[1])
    return False


def _daemon(control_socket: Path) -> int:
    """Its process; 0: none listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked, suppress(OSError):
        asked.settimeout(1)
        asked.connect(str(control_socket))
        pid: int = _UCRED.unpack(asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
        return pid
    return 0


def _listens(process: int, port: int) -> bool:
    """Whether this process has a listener with this port."""
    wanted = {f"socket:[{inode}]" for inode in _listeners(port)}
    with suppress(OSError):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(descriptor) in wanted:  # noqa: PTH115
                    return True
    return False


def _listeners(port: int) -> Iterator[int]:
    from pyroute2 import DiagSocket  # 10 MB, imported where it is used

    with DiagSocket() as diag:
        diag.bind()
        for family in (socket.AF_INET, socket.AF_INET6):
            for one in diag.get_sock_stats(family=family, states=_LISTEN):
                if one["idiag_sport"] == port:
                    yield one["idiag_inode"]
