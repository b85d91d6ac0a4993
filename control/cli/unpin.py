# SPDX-License-Identifier: Apache-2.0
"""`roost unpin`: the way out, for a box that is to stop being an appliance."""

from __future__ import annotations

import json
from pathlib import Path

import click

from control.cli.client import config_of, config_option
from control.config import Config


@click.command("unpin")
@config_option("The configuration of the instance")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def command(config_path: str | None, yes: bool, as_json: bool) -> None:
    """Let every sleeping connection of an instance go, and detach from its interfaces.

    Their clients learn it the next time they speak: the kernel answers with a reset. The daemon must not be running.
    Run it where the daemon ran, or anywhere: a process there, or a name in /run/netns, leads to its network namespace.
    Its quarantine ends, too; with --yes also where nothing is pinned, in the network namespace where it is run. Of two
    machines ([standby]) the other one may have the rows of those in SLEEP: they stay in the database. What is in IDLE
    has none: `roost drain` leaves all to the other one.

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
    pinned, closed = pins.is_dir(), 0
    if yes or (pinned and click.confirm(f"Every connection asleep in {pins} will be lost. Go on?", abort=True)):
        lock = InstanceLock(config)
        try:
            there = not pinned or enter_namespace(str(pins))
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
        click.echo(json.dumps({"pin_dir": str(pins), "unpinned": pinned} | ({"closed": closed} if pinned else {})))
    elif pinned:
        said = f"; {closed} connections that slept are closed" if closed else ""
        if config.standby.address:
            said = "; the rows of those in SLEEP are the other machine's to take over"
        click.echo(f"{pins}: unpinned{said}")
    else:
        click.echo(f"{pins}: nothing is pinned")


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
