# SPDX-License-Identifier: Apache-2.0
"""`roost up`: the daemon, in the foreground."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from control.cli.check_config import cannot_run, check_config
from control.cli.client import config_of, config_option
from control.cli.logs import log_to_stderr

if TYPE_CHECKING:
    from control.daemon.handover import HandOver


@click.command("up")
@config_option("The configuration (docs/configuration.md)")
@click.option("--check", is_flag=True, help="The same as `roost check-config`.")
@click.option(
    "--take-over",
    is_flag=True,
    help="Take over a database whose owner, another instance or machine, does not run and will not come back.",
)
@click.option("--api-apart", is_flag=True, help="`roost api` is a service of its own, and not begun by this one.")
@click.option(
    "--quarantine",
    is_flag=True,
    help="Before there is a network: until a daemon has all sleeping connections in its table, this machine answers "
    "none of them by a reset. Nothing else is done, and nothing where a daemon runs.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@click.option("--json", "as_json", is_flag=True, help="With --check: say it as JSON.")
def command(config_path: str | None, check: bool, take_over: bool, api_apart: bool, quarantine: bool, verbose: bool,
            as_json: bool) -> None:  # fmt: skip
    """Run the appliance in the foreground; it logs to stderr.

    SIGTERM or ^C: what can be frozen is left asleep, and the next start finds it. SIGHUP: take over what has changed.

    \b
    Example:
      sudo ./roost up -c roost.toml
    """
    if not check and not quarantine:
        from control.daemon.handover import HandOver  # before all else: clients of the daemon before wait for it

        environment = {name: value for name, value in os.environ.items() if not name.startswith("LISTEN_")}
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        handover = HandOver()
        if handover.kept:  # else the end, before the daemon hears signals itself, would be that of all who wait for it
            signal.signal(signal.SIGTERM, handover.end)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            status = _run(config_path, take_over, api_apart, verbose, handover)
        finally:
            handover.leave()
        if status < 0:  # daemon.ANEW
            os.execve(sys.executable, [sys.executable, "-P", "-m", "control.cli.main", *sys.argv[1:]], environment)
        sys.exit(status)
    if check:
        sys.exit(check_config(config_of(config_path), as_json))
    from control.config import load

    config = load(config_of(config_path)).with_log(verbose)
    log_to_stderr(config.log)
    from control.daemon.quarantine import begin_alone

    sys.exit(begin_alone(config))


def _run(given: str | None, take_over: bool, api_apart: bool, verbose: bool, handover: HandOver) -> int:
    from control.config import load

    config_path = config_of(given)
    config = load(config_path, cannot_run).with_log(verbose)
    log_to_stderr(config.log)
    from control.daemon.daemon import run

    if handover.ended:
        return 0
    return run(config_path, config, take_over, api_apart, handover)
