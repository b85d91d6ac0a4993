# SPDX-License-Identifier: Apache-2.0
"""Tells the engine which VLANs this machine is in: it looks into no frame of another."""

from __future__ import annotations

import logging

from appliance.box.vlans import Vlan, vlans
from appliance.engine import Engine, EngineError

log = logging.getLogger("roost.daemon")


class Vlans:
    """Of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told: dict[Vlan, int] = {}
        self._problem = ""

    def look(self) -> None:
        """Tell what has changed: VLAN devices come and go. What keeps it from that is logged, and it is tried again."""
        try:
            self._look()
            self._problem = ""
        except (OSError, EngineError) as error:
            if str(error) != self._problem:
                log.error("in which VLANs clients are heard stays what it was: %s", error)
            self._problem = str(error)

    def _look(self) -> None:
        found = vlans()
        for vlan in self._told.keys() - found.keys():
            self._engine.vlan(*vlan, 0)
            del self._told[vlan]
        for vlan, device in found.items():
            if self._told.get(vlan) != device:
                self._engine.vlan(*vlan, device)
                self._told[vlan] = device
