# SPDX-License-Identifier: Apache-2.0
"""`roost demo`: story.py is what happens, outcome.py what it proves, screen.py how it looks, slab.py a kernel socket's
price."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from control.cli.client import json_option, print_json

if TYPE_CHECKING:
    from control.dev.demo.outcome import Outcome
    from control.dev.demo.story import Plan, View


@click.command("demo")
@click.option("--clients", type=click.IntRange(10, 1_000_000), default=25_000, show_default=True,
              help="How many real clients.")  # fmt: skip
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Also draw what the terminal shows in the end, as an SVG image.")  # fmt: skip
@json_option
def command(clients: int, picture: Path | None, as_json: bool) -> None:
    """Real clients fall asleep, are reached, and survive a crash of the daemon; all of it on this machine.

    The clients are kernel sockets behind a NAT, in network namespaces that are gone when the demo ends. It needs root,
    and less than 2 minutes. It fails (exit status 1) when a single client is lost, or not reached.

    \b
    Example:
      sudo ./roost demo
      sudo ./roost demo --clients 2000 --json | jq .memory
      sudo ./roost demo --picture docs/demo.svg
    """
    from appliance.paths import BPFFS, bpffs_is_mounted

    if os.geteuid() != 0:
        raise click.ClickException("the demo needs root, for its network namespaces. Run: sudo ./roost demo")
    if not bpffs_is_mounted():
        raise click.ClickException(f"no bpffs is mounted on {BPFFS}. Run: mount -t bpf -o mode=700 bpffs {BPFFS}")
    from control.dev.demo.story import Plan

    try:
        outcome = _run(Plan(clients=clients), as_json)
    except KeyboardInterrupt:
        click.echo("Ended early; nothing is left behind.", err=True)
        sys.exit(130)
    if as_json:
        print_json(outcome.as_dict())
    else:
        from rich.console import Console

        from control.dev.demo.screen import show_summary

        show_summary(outcome, Console(highlight=False))
    if picture is not None:
        from control.dev.demo.screen import draw

        draw(outcome, picture)
    for check in outcome.checks:
        if not check.ok:
            click.echo(f"failed: {check.claim}: expected {check.expected}, measured {check.measured}", err=True)
    sys.exit(0 if outcome.ok else 1)


def _run(plan: Plan, as_json: bool) -> Outcome:
    from rich.console import Console

    from control.dev.demo.screen import LineView, LiveView
    from control.dev.demo.story import View

    console = Console(highlight=False)
    if as_json:
        return _in_a_lab(plan, View())
    if not console.is_terminal:
        return _in_a_lab(plan, LineView(console))
    with LiveView(console, plan.clients) as view:
        return _in_a_lab(plan, view)


def _in_a_lab(plan: Plan, view: View) -> Outcome:
    from appliance.lab import Lab
    from appliance.lab.interrupts import interrupts
    from control.dev.demo.story import Story

    lab = Lab(clients=plan.clients)
    with interrupts() as signals:
        with signals.held():
            lab.__enter__()
        try:
            signals.check()
            return Story(lab, plan, view).run()
        finally:
            with signals.held():
                lab.__exit__(*sys.exc_info())
