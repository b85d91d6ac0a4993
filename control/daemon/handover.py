# SPDX-License-Identifier: Apache-2.0
"""A restart keeps awake connections: the daemon that ends leaves their sockets with the service manager, the next one
takes them up. In both a bridge moves their bytes while no engine has them.

The manager keeps one descriptor (FileDescriptorStoreMax= of systemd.service(5)): an end of a socketpair, in whose queue
the connections wait. This module is the first thing that a daemon loads, since clients wait for it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from types import FrameType
from typing import TYPE_CHECKING, Final

from control.daemon.notify import notify

if TYPE_CHECKING:
    from appliance.engine import Engine
    from appliance.engine.bridge import Bridge

log = logging.getLogger("roost.daemon")

NAME: Final = "roost-awake"
FIRST_FD: Final = 3
"""Of those that a service manager passes on (sd_listen_fds(3))."""

QUEUE_BYTES: Final = 1 << 30
"""What may wait between two daemons: 1 KB a connection, and what slow readers have not taken."""


class HandOver:
    """From the daemon before, and to the next one."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Takes up what the service manager has kept; what it says of that in environment is taken out."""
        self._manager = environment.get("NOTIFY_SOCKET", "")
        self._bridge: Bridge | None = None
        self.kept = False
        """By the service manager, for this daemon."""
        self.ended = False
        """Before the daemon hears signals itself."""
        names = environment.pop("LISTEN_FDNAMES", "").split(":")
        count, whose = (environment.pop(f"LISTEN_{name}", "") for name in ("FDS", "PID"))
        if whose != str(os.getpid()) or not count.isdecimal():
            return
        for fd, name in zip(range(FIRST_FD, FIRST_FD + int(count)), names, strict=False):
            if name == NAME:
                self.kept = True
                self._take_up(fd)
            os.close(fd)
        if self.kept:
            _start(self._begun())

    def _take_up(self, fd: int) -> None:
        from appliance.engine.library import EngineError

        bridge, refused = self._begun(), 0
        try:
            refused = bridge.receive(fd)
        except EngineError as error:
            log.error("not all awake connections of the daemon before are there: %s", error)
        if refused:
            log.error("%d sockets were handed over by another version in a way that this one does not know: awake "
                      "connections among them end", refused)  # fmt: skip

    def _begun(self) -> Bridge:
        from appliance.engine.bridge import Bridge

        if self._bridge is None:
            self._bridge = Bridge()
        return self._bridge

    def end(self, number: int, frame: FrameType | None) -> None:
        """A handler of a signal: the daemon is to end when it can. An exception would not do, since Python's compiler
        forgets one that comes while it compiles a module."""
        self.ended = True

    def give(self, engine: Engine) -> None:
        """Before services are told to the engine: they listen at the sockets that were handed over."""
        if self._bridge is not None:
            engine.inherit(self._bridge)

    def give_connections(self, engine: Engine) -> None:
        """With services and rules told, before the table is compared with the store."""
        if self._bridge is not None:
            log.info("took up %d awake connections of the daemon before", engine.inherit_connections())

    def done(self) -> None:
        """The engine runs, and has what it could take."""
        if self._bridge is not None:
            if left := self._bridge.count():
                log.error("%d awake connections that were handed over could not be taken up; they end", left)
            self._bridge.close()
            self._bridge = None
        if self.kept:  # empty by now
            notify(self._manager, "FDSTOREREMOVE=1", f"FDNAME={NAME}")
            self.kept = False

    def take(self, engine: Engine) -> int:
        """Of an engine that has stopped: what is awake. How many connections."""
        bridge = self._begun()
        count = engine.hand_over(bridge)
        _start(bridge)
        return count

    def leave(self) -> None:
        """The last thing that a daemon does: what no engine has is left to the next one."""
        bridge, self._bridge = self._bridge, None
        if bridge is None:
            return
        from appliance.engine.library import EngineError

        bridge.stop()
        if self.kept:  # this daemon did not get as far as to run; the manager's room is for one of that name
            notify(self._manager, "FDSTOREREMOVE=1", f"FDNAME={NAME}")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), QUEUE_BYTES)
            try:
                bridge.send(ours.fileno())
            except EngineError as error:
                log.error("%d awake connections end: %s", bridge.count(), error)
            # FDPOLL: else the manager drops it as soon as our end is closed.
            notify(self._manager, "FDSTORE=1", "FDPOLL=0", f"FDNAME={NAME}", fds=[theirs.fileno()])
        bridge.close()


def _start(bridge: Bridge) -> None:
    from appliance.engine.library import EngineError

    try:
        bridge.start()
    except EngineError as error:
        log.warning("what awake clients say waits for the next engine: %s", error)
