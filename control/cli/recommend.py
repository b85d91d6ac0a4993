# SPDX-License-Identifier: Apache-2.0
"""`roost policy recommend`: what a report recommends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.client.calls import login

if TYPE_CHECKING:
    from control.cli.recommended import About, Recommended


@click.command("recommend")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--apply", "does_apply", is_flag=True, help="Let the rules be so.")
@daemon_options
@json_option
def command(path: Path, does_apply: bool, daemon: Client, as_json: bool) -> None:
    """What a report recommends, for how many connections, and what it should save; nothing is changed without --apply.

    FILE is recommendations.json of `roost report`, or experiments.json: by these some clients will be lost, so that
    their network's time-out is known. With --apply it is a version of the rules, marked with its report.

    \b
    Example:
      roost policy recommend november/recommendations.json
      roost policy recommend november/recommendations.json --apply
      roost policy rollback 7
    """
    found = _read(path)
    now = daemon.get("/v1/policy")
    rules = json.dumps({"rule": found.rule})
    changed = _changed(found, now)
    if does_apply and changed:
        raise click.ClickException("; ".join(changed))
    tried = daemon.send("POST", "/v1/policy/try", {"file": rules}) if found.rule else None
    applied = None
    if does_apply and found.rule:
        edit = {"who": login(), "why": found.why(), "seen": now["version"], "file": rules}
        applied = daemon.send("PUT", "/v1/policy/rules", edit)
    if as_json:
        told = {"about": found.model_dump(mode="json")["about"], "changed": changed, "try": tried, "applied": applied}
        print_json(told)
        return
    click.echo(f"report of {found.report}")
    for name, about in found.about.items():
        _say(name, about)
    for sentence in changed:
        click.echo(f"! {sentence}")
    if tried is None:
        click.echo("there is no rule to change")
        return
    click.echo(f"{tried['changed']:,} connections {'had' if applied else 'would have'} other values than before")
    if applied is not None:
        click.echo(f"version {applied['version']}; roost policy rollback {now['version']} takes it back"
                   if applied["changed"] else f"nothing changes: version {applied['version']} stays")  # fmt: skip


def _read(path: Path) -> Recommended:
    from pydantic import ValidationError

    from control.cli.recommended import Recommended

    try:
        return Recommended.model_validate_json(path.read_bytes())
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise click.ClickException(f"{path} is not what `roost report` writes: {where}{': ' if where else ''}"
                                   f"{first['msg']}") from None  # fmt: skip


def _changed(found: Recommended, now: Mapping[str, Any]) -> list[str]:
    """Which of these rules are not what they were when the report's data was exported; sentences."""
    told = []
    for name in (str(rule.get("name")) for rule in found.rule):
        is_new = name in found.about and found.about[name].new
        there = now["about"].get(name)
        if there is None and not is_new:
            told.append(f"rule {name} was removed since the export: the report is about what is not there any more")
        elif there is not None and (is_new or there["version"] > found.version):
            by = f"{there['who']} in version {there['version']}"
            told.append(f"rule {name} was changed since the export, by {by}: make a report of newer data, or change it "
                        "by roost policy set")  # fmt: skip
    return told


def _say(name: str, about: About) -> None:
    click.echo(f"{name}: {about.why}")
    if about.recommended_s is not None:
        click.echo(f"  probed after {about.recommended_s:,} s and not {about.interval_s or 0:,} s: "
                   f"{about.probes_a_day_then or 0:,} probes a day, now {about.probes_a_day or 0:,} "
                   f"({_bytes(about.bytes_saved_a_day or 0)}); lost by the time-out a day: "
                   f"{about.lost_a_day_then or 0}, now {about.lost_a_day or 0:g}")  # fmt: skip
    if about.by_hand is not None:
        click.echo(f"  by hand: {about.by_hand}")


def _bytes(saved: int) -> str:
    return f"{abs(saved):,} bytes {'saved' if saved >= 0 else 'more'}"
