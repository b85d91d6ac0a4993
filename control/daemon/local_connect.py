# SPDX-License-Identifier: Apache-2.0
"""Programs on this machine that reach clients by connect(): what the engine is told for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from appliance.box.mounts import cgroup2
from appliance.engine import Engine, EngineError
from appliance.wire import NEAR_ENDS, ServerAddress, ServiceSpec
from control.clients.local_addresses import LocalAddresses
from control.daemon.error import DaemonError

log = logging.getLogger("roost.daemon")

_ANY: Final = {"0.0.0.0": False, "::": True}
"""What a service listens on that listens on every address of a family, and whether that is IPv6."""


class LocalConnect:
    """Of one engine. Interfaces are heard before `open`, the loopback interface among them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._addresses = LocalAddresses()
        self._told: list[ServerAddress] = []
        self._problem = ""

    def open(self) -> None:
        """Raises DaemonError or EngineError."""
        if (cgroup := cgroup2()) is None:
            raise DaemonError("[attach] local_connect needs control groups of version 2, and none are mounted: "
                              "mount -t cgroup2 none /sys/fs/cgroup")  # fmt: skip
        self._engine.open_local_connect(cgroup)

    def look(self, specs: Iterable[ServiceSpec]) -> None:
        """Tell the engine where clients connect to, if that has changed: addresses come and go. What keeps it from that
        is told, and it is tried again."""
        try:
            self._look(specs)
            self._problem = ""
        except (OSError, EngineError) as error:
            if str(error) != self._problem:
                log.error("[attach] local_connect: where clients connect to stays what it was: %s", error)
            self._problem = str(error)

    def _look(self, specs: Iterable[ServiceSpec]) -> None:
        places = [place for spec in specs if not spec.unreachable for place in self._places(spec)]
        if places == self._told:
            return
        if len(places) > NEAR_ENDS:
            log.warning("[attach] local_connect: programs reach clients at %d of %d places where services listen, "
                        "those of the services that come first", NEAR_ENDS, len(places))  # fmt: skip
        self._engine.local_connect_at(places[:NEAR_ENDS])
        self._told = places

    def _places(self, spec: ServiceSpec) -> list[ServerAddress]:
        if spec.listen not in _ANY:
            return [(spec.listen, spec.listen_port)]
        if spec.transparent:
            return []  # a client's near end is its server's address, and this machine is not that server
        family = [text for text in self._addresses.texts() if (":" in text) == _ANY[spec.listen]]
        return [(text, spec.listen_port) for text in family]
