# SPDX-License-Identifier: Apache-2.0
"""Whether what is to outlive the daemon lies where it can."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from appliance.box import mounts
from control.config import Config
from control.daemon.error import DaemonError

log = logging.getLogger("roost.daemon")

SQLITE: Final = "sqlite:///"


def refuse_private_pins(config: Config) -> None:
    """Raises DaemonError where the pins' bpffs is that of this process alone."""
    if mounts.ends_with_this_process(config.pin_dir):
        raise DaemonError(
            f"{config.pin_dir} is in a file system of this process alone: `ip netns exec` makes one, with a /sys of "
            "its own. It ends with the process, and every sleeping connection with it. Enter the network namespace "
            "alone: nsenter --net=/run/netns/NAME roost ..."
        )


def check_places(config: Config) -> None:
    """Raises DaemonError where pins or database end with this process; warns of a database that ends with the boot."""
    refuse_private_pins(config)
    if not config.database_url.startswith(SQLITE):
        return
    database = Path(config.database_url.removeprefix(SQLITE))
    if mounts.ends_with_this_process(database):
        raise DaemonError(
            f"the database {database} is in a {mounts.kind_of(database)} of this process alone: it ends with the "
            "process, and every connection in SLEEP with it; give [paths] database a place on a disk"
        )
    if (kind := mounts.kind_of(database)) in mounts.VOLATILE:
        log.warning("the database %s is in memory (%s): a reboot takes every connection in SLEEP; give [paths] "
                    "database a place on a disk", database, kind)  # fmt: skip
