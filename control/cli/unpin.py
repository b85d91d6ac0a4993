# SPDX-License-Identifier: Apache-2.0
"""`roost unpin`: the way out, for a box that is to stop being an appliance."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import click

from control.cli.client import config_of, config_option
from control.config import Config

LEAVES_S: Final = 30.0
"""In which keepalived has seen that the daemon has ended, and taken the address away."""


@click.command("unpin")
@config_option("The configuration of the instance")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def command(config_path: str | None, yes: bool, as_json: bool) -> None:
    """Let every sleeping connection of an instance go, and detach from its interfaces.

    Their clients learn it the next time they speak: the kernel answers with a reset. The daemon must not be running.
    Run it where the daemon ran, or anywhere: a process there, or a name in /run/netns, leads to its network namespace.
    Its quarantine ends, too; with --yes also where nothing is pinned, in the network namespace where it is run. Of two
    machines ([standby]) the other one may have the rows of those in SLEEP: they stay in the database, and nobody is let
    go before the address has left this machine, or 30 s have passed. What is in IDLE has none: `roost drain` leaves all
    to the other one.

    \b
    Example:
      sudo ./roost unpin
    """
    from appliance.box.router import close_routes
    from appliance.engine import enter_namespace, unpin
    from control.config import load
    from control.daemon import quarantine
    from control.daemon.lasting import refuse_private_pins
    from control.daemon.lock import InstanceLock

    config = load(config_of(config_path))
    refuse_private_pins(config)
    pins = Path(config.pin_dir)
    pinned, closed, left = pins.is_dir(), 0, True
    if yes or (pinned and click.confirm(f"Every connection asleep in {pins} will be lost. Go on?", abort=True)):
        lock = InstanceLock(config)
        try:
            there = not pinned or enter_namespace(str(pins))
            if there and config.standby.address:
                left = _has_left(config.standby.address)
            if pinned:
                unpin(str(pins))
            if pinned and there and (config.router.lan or config.attach.local_connect):
                close_routes()
            if there:
                quarantine.end(config.instance)  # of a box that was drained there is nothing else
            if pinned:
                closed = 0 if config.standby.address else _close_sleepers(config)
        finally:
            lock.release()
    if as_json:
        done: dict[str, Any] = {"closed": closed} if pinned else {}
        if config.standby.address:
            done["address_left"] = left
        click.echo(json.dumps({"pin_dir": str(pins), "unpinned": pinned, **done}))
    elif pinned:
        said = f"; {closed} connections that slept are closed" if closed else ""
        if config.standby.address:
            said = "; the rows of those in SLEEP are the other machine's to take over"
        click.echo(f"{pins}: unpinned{said}")
    else:
        click.echo(f"{pins}: nothing is pinned")


def _has_left(address: str) -> bool:
    """Waits until this machine does not have the address: without what is pinned, or the quarantine of one that was
    drained, the kernel would reset whoever is heard at it. False: it has it still."""
    from control.daemon.standby import AWAY_S, LOOK_S, is_here

    if not is_here(address):
        return True
    click.echo(f"waiting until {address} has left this machine, for {LEAVES_S:g} s at most", err=True)
    seen = began = time.monotonic()
    while (now := time.monotonic()) < seen + AWAY_S:
        if is_here(address):
            seen = now
        if now >= began + LEAVES_S:
            click.echo(f"{address} is still here: whoever is heard before it goes is reset", err=True)
            return False
        time.sleep(LOOK_S)
    return True


def _close_sleepers(config: Config) -> int:
    """Without their rows, which would put them back at the next start."""
    from control.store.database import StoreError
    from control.store.owner import Owner
    from control.store.store import Store

    store = Store(config.database_url, lambda slept: None, owner=Owner.here(config.instance, config.pin_dir))
    if not store.exists:
        return 0
    try:
        if error := store.open():
            raise StoreError(error)
        return store.let_go()
    except StoreError as error:
        click.echo(f"The records of those that slept are still in the database: {error}", err=True)
        return 0
    finally:
        store.close()
