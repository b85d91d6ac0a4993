"""roost doctor: what this machine must offer, present or missing, with the fix."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.box.doctor import Need, Outcome, examine, is_fit, machine, outcome
from control.cli import client
from control.cli.client import config_option
from control.cli.table import console

if TYPE_CHECKING:
    from appliance.box.deployment import Plan
    from control.config import Config


@click.command()
@config_option("Check what this configuration needs, too: interfaces, routes, forwarding, database")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
@click.option("--missing", "missing_only", is_flag=True, help="Show only what is missing.")
def command(config_path: str | None, as_json: bool, missing_only: bool) -> None:
    """Check every kernel feature, limit and package that Roost needs; nothing is changed.

    Each thing is tried, not looked up. The exit code is 0 when the appliance can run here, 1 when something required
    is missing. Things marked "lab" are for demo, tests and benches; things marked "advised" make Roost work better.
    With a configuration, run it where the daemon is to run, in its network namespace; what is for the lab is left out
    where one is named.

    \b
    Example:
      sudo ./roost doctor --missing
      sudo ./roost doctor -c roost.toml
    """
    outcomes = examine_machine() if config_path is None else examine_deployment(config_path)
    fit = is_fit(outcomes)
    shown = [each for each in outcomes if not (missing_only and each.present)]
    if as_json:
        report = {
            "fit": fit,
            "lab_fit": is_fit(outcomes, Need.REQUIRED, Need.LAB),
            "machine": machine(),
            "checks": [asdict(each) for each in shown],
        }
        click.echo(json.dumps(report, indent=2))
    else:
        print_table(shown)
        click.echo(f"\n{summary(outcomes)}")
    sys.exit(0 if fit else 1)


def examine_machine() -> list[Outcome]:
    """What Roost needs of this machine, and what its configuration does, if it has one."""
    from control.config import ConfigError

    if not Path(client.CONFIG).exists():
        return examine()
    try:
        return [*examine(), *_examine_configuration(client.CONFIG)]
    except ConfigError as error:  # of a package, for one, that is to be filled in
        told = Outcome("configuration", client.CONFIG, Need.ADVISED, False, str(error), "mend it: roost check-config")
        return [*examine(), told]


def examine_deployment(path: str) -> list[Outcome]:
    """What the appliance needs of this machine, and what this configuration does."""
    needed = _examine_configuration(path)
    return [*(one for one in examine() if one.need is not Need.LAB), *needed]


def _examine_configuration(path: str) -> list[Outcome]:
    from appliance.box import deployment
    from control.api.doctor import examine as examine_api
    from control.config import load

    config = load(path)
    return [*deployment.examine(plan_of(config)), *examine_api(config), *_examine_file(path, config)]


def _examine_file(path: str, config: "Config") -> Iterator[Outcome]:
    """Nothing, where there is no password in it, nor a hash of one."""
    from control.store.database import StoreError, parse_url

    try:
        url = parse_url(config.database_url)
    except StoreError:  # no daemon runs with it, and `roost check-config` says so
        return
    if url.password or "password" in url.query or config.attach.users:
        problem = "there are passwords in it, and every user may read it" if Path(path).stat().st_mode & 0o004 else None
        yield outcome("configuration", path, Need.ADVISED, problem, f"chmod o-rwx {path}", "not for all to read")


def plan_of(config: "Config") -> "Plan":
    """A configuration, as far as the machine matters."""
    from appliance.box.deployment import Plan, Planned
    from control.config import parse_endpoint, parse_server
    from control.daemon.limits import descriptors_each, spare_descriptors

    return Plan(
        clients=config.network.interfaces,
        lan=config.router.lan,
        servers_heard=config.network.server_interfaces,
        xdp_mode=config.network.xdp_mode,
        services=tuple(
            Planned(
                service.name,
                parse_endpoint(service.listen),
                tuple(map(parse_server, service.every_server)),
                service.transparent,
                service.interface == "persistent",
                service.born != "never",
            )
            for service in config.service
        ),
        attach=tuple(map(parse_endpoint, config.attach.listen)),
        pin_dir=Path(config.pin_dir),
        control_socket=Path(config.control_socket),
        database=Path(url.removeprefix("sqlite:///")) if (url := config.database_url).startswith("sqlite:") else None,
        max_awake=config.table.max_awake,
        descriptors_each=descriptors_each(config),
        descriptors_spare=spare_descriptors(config),
        local_connect=config.attach.local_connect,
        attach_open=config.attach.auth == "none" and not config.attach.at_clients,
    )


def print_table(outcomes: list[Outcome]) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console(markup=True)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for group, members in groupby(outcomes, key=lambda each: each.group):
        table.add_row(f"[bold]{group}[/]")
        rows = list(members)
        if group == "packages" and all(each.present for each in rows):
            table.add_row("[green]ok[/]", f"{len(rows)} packages", "", "installed")
            continue
        for each in rows:
            colour = "green" if each.present else "red" if each.need is Need.REQUIRED else "yellow"
            mark = f"[{colour}]{'ok' if each.present else 'missing'}[/]"
            found = escape(each.detail) + (f"\n[bold]fix:[/] {escape(each.fix)}" if each.fix else "")
            table.add_row(mark, escape(each.name), each.need.value, found)
    out.print(table)


def summary(outcomes: list[Outcome]) -> str:
    missing = {need: [each.name for each in outcomes if each.need is need and not each.present] for need in Need}
    if missing[Need.REQUIRED]:
        return f"Roost cannot run here yet; missing: {', '.join(missing[Need.REQUIRED])}."
    if missing[Need.LAB]:
        return f"The appliance can run here; demo, tests and benches need: {', '.join(missing[Need.LAB])}."
    return "Everything that Roost needs is here."
