# SPDX-License-Identifier: Apache-2.0
"""`roost api`."""

from __future__ import annotations

import os

import click

from control.cli.logs import log_to_stderr
from control.core.access import LOG


@click.command("api")
@click.option("-c", "--config", "config_path", metavar="FILE", envvar="ROOST_CONFIG", required=True,
              help="The daemon's configuration (docs/configuration.md, [api]), or set ROOST_CONFIG.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def command(config_path: str, verbose: bool) -> None:
    """Serve HTTP for operators and servers, in the foreground. `roost up` does it by itself where [api] listen says so.

    \b
    Example:
      sudo ./roost api -c roost.toml
    """
    from control.api.process import run
    from control.config import load

    config = load(config_path).with_log(verbose, os.environ.get(LOG, ""))
    log_to_stderr(config.log)
    run(config)
