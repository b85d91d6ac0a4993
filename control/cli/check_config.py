# SPDX-License-Identifier: Apache-2.0
"""`roost check-config`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from control.cli.client import CONFIG, json_option, print_json

if TYPE_CHECKING:
    from control.config import Config, Conflict


@click.command("check-config")
@click.argument("path", metavar="[FILE]", type=click.Path(), envvar="ROOST_CONFIG", default=CONFIG)
@json_option
def command(path: str, as_json: bool) -> None:
    """Say whether a configuration is good, and each mistake with the file, line and column where it stands. FILE: the
    one that ROOST_CONFIG names, or /etc/roost/roost.toml.

    What does not go together is looked for when each value is good by itself. What the configuration needs of this
    machine says `roost doctor -c FILE`. The exit code is 0 when it is good, 1 when there are mistakes.

    \b
    Examples:
      roost check-config roost.toml
      roost check-config --json roost.toml | jq '.mistakes[].line'
    """
    sys.exit(check_config(path, as_json))


def check_config(path: str, as_json: bool) -> int:
    """Say what is wrong with a configuration; the command's exit code."""
    from control.config import ConfigError, load

    try:
        config = load(path, cannot_run)
    except ConfigError as error:
        mistakes = [asdict(one) for one in error.mistakes]
        if as_json:
            print_json({"config": path, "good": False, "mistakes": mistakes})
        else:
            click.echo(str(error), err=True)
        return 1
    services = len(config.service)
    told = {"config": path, "good": True, "services": services, "mistakes": []}
    print_json(told) if as_json else click.echo(f"{path}: good; {services} services")
    return 0


def cannot_run(config: Config) -> Iterator[Conflict]:
    """Why no daemon can run it, though it can be read."""
    from control.store.database import StoreError, parse_url
    from control.store.reading import Reader

    if config.problem:
        yield config.problem, ()
    try:
        Reader(parse_url(config.database_url)).close_readers()  # whether there is a driver for it
    except StoreError as error:
        yield str(error), ("paths", "database")
