# SPDX-License-Identifier: Apache-2.0
"""`roost policy recommend`: what a report recommends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.rule import content_text
from control.client.calls import login
from control.core.text import escaped

if TYPE_CHECKING:
    from control.cli.recommended import About, Recommended, Rule

OF_A_NEW_ONE: Final = ("name", "service", "network")
"""What a new rule may have beside its interval."""


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
    if found.version > now["version"]:
        raise click.ClickException(f"{path} is about version {found.version:,} of the rules, and this daemon has "
                                   f"{now['version']:,}: it is of another box, or the rules were lost")  # fmt: skip
    changed = _changed(found, now)
    if does_apply and changed:
        raise click.ClickException("; ".join(changed.values()))
    there = {rule["name"]: rule for rule in now["rule"]}
    wanted = [_wanted(rule, there.get(rule.name)) for rule in found.rule if rule.name not in changed]
    rules = json.dumps({"rule": wanted})
    tried = daemon.send("POST", "/v1/policy/try", {"file": rules}) if wanted else None
    applied = None
    if does_apply and wanted:
        edit = {"who": login(), "why": found.why(), "seen": now["version"], "file": rules}
        applied = daemon.send("PUT", "/v1/policy/rules", edit)
    if as_json:
        told = {"about": found.model_dump(mode="json")["about"], "changed": [*changed.values()],
                "rules": [{"name": rule["name"], "before": there.get(rule["name"]), "rule": rule} for rule in wanted],
                "try": tried, "applied": applied}  # fmt: skip
        print_json(told)
        return
    click.echo(f"report of {escaped(found.report)}")
    for rule in wanted:
        before = there.get(rule["name"])
        was = "new" if before is None else f"it was {content_text(before)}"
        click.echo(f"{rule['name']}: {content_text(rule)} ({was})")
        _say(found.about[rule["name"]])
    ruled = {rule.name for rule in found.rule}
    for name in (name for name in found.about if name not in ruled):
        click.echo(f"{escaped(name)}: no rule is changed")
        _say(found.about[name])
    for sentence in changed.values():
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
    from control.config import problem

    try:
        return Recommended.model_validate_json(path.read_bytes())
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise click.ClickException(f"{path} is not what `roost report` writes: {where}{': ' if where else ''}"
                                   f"{problem(first)}") from None  # fmt: skip


def _changed(found: Recommended, now: Mapping[str, Any]) -> dict[str, str]:
    """Which of these rules are not what they were when the report's data was exported; sentences, by name."""
    told = {}
    for name in (rule.name for rule in found.rule):
        is_new = found.about[name].new
        there = now["about"].get(name)
        if there is None and not is_new:
            told[name] = f"rule {name} was removed since the export: the report is about what is not there any more"
        elif there is not None and (is_new or there["version"] > found.version):
            by = f"{there['who']} in version {there['version']}"
            told[name] = (f"rule {name} was changed since the export, by {by}: make a report of newer data, or change "
                          "it by roost policy set")  # fmt: skip
    return told


def _wanted(rule: Rule, now: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the rule is to be: what it is now, with other intervals. now: None: there is none."""
    if now is None:
        wrong = [key for key in rule.others if key not in OF_A_NEW_ONE]
        if wrong or not rule.others.get("service"):
            raise click.ClickException(f"rule {rule.name} is no report's: {wrong[0]} is in it" if wrong else
                                       f"rule {rule.name} is no report's: it has no service")  # fmt: skip
        return rule.others | rule.intervals
    from control.cli.recommended import INTERVALS

    stays = {key: value for key, value in now.items() if key not in INTERVALS}
    if wrong := [key for key in stays | rule.others if stays.get(key) != rule.others.get(key)]:
        raise click.ClickException(f"rule {rule.name} has another {wrong[0]} than this daemon's, and a report changes "
                                   f"{' and '.join(INTERVALS)} alone: the file is of another box, or was changed; use "
                                   "roost policy set")  # fmt: skip
    return stays | rule.intervals


def _say(about: About) -> None:
    """What the report says of it."""
    click.echo(f"  {escaped(about.why)}")
    if about.recommended_s is not None:
        click.echo(f"  probed after {about.recommended_s:,} s and not {about.interval_s or 0:,} s: "
                   f"{about.probes_a_day_then or 0:,} probes a day, now {about.probes_a_day or 0:,} "
                   f"({_bytes(about.bytes_saved_a_day or 0)}); lost by the time-out a day: "
                   f"{about.lost_a_day_then or 0}, now {about.lost_a_day or 0:g}")  # fmt: skip
    if about.by_hand is not None:
        click.echo(f"  by hand: {escaped(about.by_hand)}")


def _bytes(saved: int) -> str:
    return f"{abs(saved):,} bytes {'saved' if saved >= 0 else 'more'}"
