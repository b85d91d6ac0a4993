# SPDX-License-Identifier: Apache-2.0
"""`roost api`."""

from __future__ import annotations

import json
import os

import click

from control.cli.client import config_of, config_option
from control.cli.logs import log_to_stderr
from control.core.access import LOG


@click.command("api")
@config_option("The daemon's configuration (docs/configuration.md, [api])")
@click.option("--openapi", is_flag=True, help="Print what the API serves (OpenAPI 3.1, JSON), and end.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def command(config_path: str | None, openapi: bool, verbose: bool) -> None:
    """Serve HTTP for operators and servers, in the foreground. `roost up` does it by itself where [api] listen says so.

    \b
    Examples:
      sudo ./roost api -c roost.toml
      ./roost api --openapi >openapi.json
    """
    if openapi:
        from control.api.document import document

        click.echo(json.dumps(document(), indent=1))
        return
    from control.api.process import run
    from control.config import load

    config = load(config_of(config_path)).with_log(verbose, os.environ.get(LOG, ""))
    log_to_stderr(config.log)
    run(config)
