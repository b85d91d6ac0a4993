# SPDX-License-Identifier: Apache-2.0
"""`roost lab`: a network with the appliance at work in it, to try things in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import click

from control.cli.client import json_option, print_json

name_option = click.option(
    "--name",
    default="roost",
    show_default=True,
    metavar="NAME",
    help="The lab's name; its namespaces are NAME-wan, NAME-nat, NAME-box and NAME-lan.",
)


@click.group("lab")
def command() -> None:
    """A network in namespaces of this machine with clients, a NAT, the appliance and a server, to try things in (root).

    \b
    Example:
      sudo ./roost lab up --mode router
      sudo ip netns exec roost-wan curl http://10.3.0.2:8080/
      sudo ./roost lab down
    """


@command.command()
@click.option("--mode", type=click.Choice(["router", "proxy", "host"]), default="proxy", show_default=True,
              help="How clients and servers come together: see docs/flows.md.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE",
              help="A setting of the appliance, over the lab's own; may be given several times. A service is meant by "
              "its name: service.web.proxy_protocol=v1. The keys are those of docs/configuration.md.")  # fmt: skip
@name_option
@json_option
def up(mode: str, settings: tuple[str, ...], name: str, as_json: bool) -> None:
    """Put the lab up, with the appliance running, and say what is where. It stands until `roost lab down`.

    \b
    Example:
      sudo ./roost lab up --mode router --set policy.on_second_server=wait
    """
    _require_root("up")
    from appliance.lab.standing import description

    standing = description(name)
    if standing is not None:
        raise click.ClickException(
            f"a lab is up already: {name}, mode {standing['mode']}, held by process {standing['pid']}. End it with: "
            f"sudo ./roost lab down{_named(name)}"
        )
    try:
        told = _put_up(mode, name, settings)
    except KeyboardInterrupt:
        click.echo("Ended early; nothing is left behind.", err=True)
        sys.exit(130)
    if as_json:
        print_json(told)
    else:
        _show(told)


@command.command()
@name_option
def down(name: str) -> None:
    """Take the lab down, with every program in its namespaces. Nothing of it stays."""
    _require_root("down")
    from appliance.lab.standing import take_down

    click.echo(f"The lab {name} is gone." if take_down(name) else f"No lab with the name {name} is up.")


@command.command()
@name_option
def restart(name: str) -> None:
    """Start the lab's daemon anew, with its configuration as it is now: what `systemctl restart roost` does elsewhere,
    but that connections which are awake go to sleep."""
    _require_root("restart")
    from appliance.lab.standing import StandingError, restart

    try:
        if not restart(name):
            raise click.ClickException(f"no lab with the name {name} is up. Run: sudo ./roost lab up{_named(name)}")
    except StandingError as problem:
        raise click.ClickException(str(problem)) from None


def _require_root(what: str) -> None:
    if os.geteuid() != 0:
        raise click.ClickException(f"the lab needs root, for its network namespaces. Run: sudo ./roost lab {what}")


def _named(name: str) -> str:
    return "" if name == "roost" else f" --name {name}"


def _put_up(mode: str, name: str, settings: tuple[str, ...]) -> dict[str, Any]:
    """Start the process that holds the lab, and wait until it says that all is there."""
    from appliance.lab.processes import python_environment

    holder = subprocess.Popen([sys.executable, "-m", "appliance.lab.standing", mode, name, *settings],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=python_environment(),
                              start_new_session=True)  # fmt: skip
    assert holder.stdout is not None
    try:
        line = holder.stdout.readline()
    except KeyboardInterrupt:
        holder.terminate()
        holder.wait()
        raise
    if not line:
        raise click.ClickException(f"the lab ended while it was put up (exit code {holder.wait()})")
    told: dict[str, Any] = json.loads(line)
    if "error" in told:
        holder.wait()
        raise click.ClickException(f"the lab could not be put up: {told['error']}")
    return told


def _show(told: dict[str, Any]) -> None:
    click.echo(f"The lab {told['name']} is up, mode {told['mode']}.\n")
    for space, found in told["namespaces"].items():
        click.echo(f"  {space:<4} {found['name']:<12} {'  '.join(found['addresses'])}")
    click.echo("")
    for service in told["services"]:
        who = "agents" if service.get("kind") == "agents" else "clients"
        kept = f", {service['interface']}" if "interface" in service else ""
        click.echo(f"  service {service['name']:<9} {who} connect to {service['listen']}{kept}")
    click.echo(f"  attach            servers ask {told['attach']} for {told['client']}, a client that is connected\n")
    for why, text in told["try"]:
        if why:
            click.echo(f"  # {why}")
        click.echo(f"  {text.replace('| ip', '| sudo ip', 1)}" if text.startswith("echo") else f"  sudo {text}")
    click.echo(f"\nIts configuration and log: {told['config']}, {told['log']}")
    click.echo("A service of your own in it: docs/tutorial.md")
    click.echo(f"End it with: sudo ./roost lab down{_named(told['name'])}")
