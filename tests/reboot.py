# SPDX-License-Identifier: Apache-2.0
"""What a reboot does, without one: to the store, and to the network."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from appliance.lab.processes import python_environment

if TYPE_CHECKING:
    from appliance.lab import DaemonHandle, Lab

BEFORE: Final = "the boot before"


class _Executes(Protocol):
    def execute(self, statement: str, /) -> Any: ...


def age_all(database: _Executes) -> None:
    """Let all that the database has be of an earlier boot, each row on its own clock."""
    database.execute(f"DELETE FROM meta WHERE key IN ('boot', 'alive-{BEFORE}')")
    database.execute(f"UPDATE meta SET key = 'alive-{BEFORE}' WHERE key LIKE 'alive-%'")
    database.execute(f"UPDATE clocks SET boot_id = '{BEFORE}'")


def quarantined(lab: Lab, daemon: DaemonHandle, environment: Mapping[str, str] = MappingProxyType({})) -> int:
    """The exit status of the command that its unit runs before there is a network. environment: as DaemonHandle.start
    has it."""
    command = [sys.executable, "-m", "control.cli.main", "up", "--quarantine", "-c", str(daemon.config)]
    return lab.run("box", command, env=python_environment(environment)).wait(20)


def quarantines(lab: Lab) -> list[str]:
    """The tables of nftables that keep the appliance from sending resets."""
    return re.findall(r"table (inet roost-quarantine-\S+)", lab.nft("box", "list tables"))


def in_quarantine(lab: Lab) -> bool:
    return bool(quarantines(lab))


def age(database: _Executes, which: str = "TRUE") -> None:
    """Let the rows of `sleeping` for which the condition holds be of an earlier boot."""
    of = f"clock = (SELECT max(clock) FROM sleeping WHERE {which})"
    columns = "(SELECT max(clock) + 1 FROM clocks), 'the boot before', wall_offset_ms, shift_ms, timestamps_ms"
    database.execute(f"INSERT INTO clocks SELECT {columns} FROM clocks WHERE {of}")
    database.execute(f"UPDATE sleeping SET clock = (SELECT max(clock) FROM clocks) WHERE {which}")
    database.execute("UPDATE meta SET key = 'alive-the boot before' WHERE key LIKE 'alive-%'")
    database.execute("DELETE FROM meta WHERE key = 'boot'")  # by which it is known that there are none of another
