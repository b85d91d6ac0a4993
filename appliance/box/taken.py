# SPDX-License-Identifier: Apache-2.0
"""What another program has already of that which a daemon is to have: a port."""

from __future__ import annotations

import ipaddress
import socket
from errno import EADDRINUSE
from pathlib import Path
from typing import Final

from appliance.wire import ServerAddress

WAY_OUT: Final = "ss -ltnp shows which; or choose another port"
_IPV6_TRANSPARENT: Final = 75  # include/uapi/linux/in6.h
_IP_TRANSPARENT: Final = 19  # include/uapi/linux/in.h


def is_taken(listen: ServerAddress, transparent: bool, control_socket: Path) -> bool:
    """Whether a program keeps a listener from an address and port, and no daemon answers at this control socket, which
    may have it. Nothing is listened on for that. False, too, where it cannot be tried: without the right to, or the
    address."""
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
            return error.errno == EADDRINUSE and not _runs(control_socket)
    return False


def _runs(control_socket: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        return asked.connect_ex(str(control_socket)) == 0
