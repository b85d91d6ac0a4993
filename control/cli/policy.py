# SPDX-License-Identifier: Apache-2.0
"""`roost policy`: the rules, their past, and what they give to whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from control.cli import completing, recommend
from control.cli.client import Client, connection_path, daemon_options, json_option, print_json
from control.cli.rule import CONDITIONS, WHOSE, content_text, value_text, values_text
from control.cli.table import local_time, show_table
from control.client.calls import login


@click.group("policy")
def command() -> None:
    """Rules: which clients have which values of the policy, by network and service. docs/policy.md tells more.

    \b
    Example:
      roost policy set cellular --network 10.64.0.0/10 probe_interval=20m --why "the NAT forgets after 30 min"
      roost policy explain 10.64.3.7 --service telemetry
      roost policy rollback 3
    """


def _change_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--seen", type=click.IntRange(0), metavar="VERSION",
                     help="The version that you looked at: refused if another has changed the rules since."),
        click.option("--why", default="", metavar="TEXT", help="The reason, for the history."),
    ):  # fmt: skip
        function = option(function)
    return function


def _edit(why: str, seen: int | None) -> dict[str, Any]:
    """Who changes rules, why, and of what."""
    return {"who": login(), "why": why, "seen": seen}


def _rule_path(name: str) -> str:
    return f"/v1/policy/rules/{quote(name, safe='')}"


# -- looking ----------------------------------------------------------------------------------------------------------


@command.command("list")
@daemon_options
@json_option
def list_(daemon: Client, as_json: bool) -> None:
    """The rules, and what is wrong with them. What --json prints is a file for `roost policy try`.

    \b
    Example:
      roost policy list
      roost policy list --json > rules.json
    """
    told = daemon.get("/v1/policy")
    if as_json:
        print_json(told)
        return
    _show_rules(told)
    if not told["about"]:
        click.echo("no rules: the values of the configuration are in force")


def _show_rules(told: Mapping[str, Any]) -> None:
    rules, about = {rule["name"]: rule for rule in told["rule"]}, told["about"]
    if about:
        rows = (_row(name, rules.get(name, {}), about[name]) for name in about)
        titles = ("rule", *WHOSE, "order", "gives", "version", "by")
        show_table(titles, rows, right=("order", "version"))
        click.echo(f"version {told['version']}")
    for sentence in dict.fromkeys(problem for one in about.values() for problem in one["problems"]):
        click.echo(f"! {sentence}")
    if told["error"]:
        click.echo(f"! {told['error']}")


def _row(name: str, rule: Mapping[str, Any], about: Mapping[str, Any]) -> Sequence[str]:
    conditions = (rule.get(key, "all") for key in WHOSE)
    return (name, *conditions, str(rule.get("order", 0)), values_text(rule), str(about["version"]), about["who"])


@command.command("show")
@click.argument("name", metavar="NAME")
@daemon_options
@json_option
def show(name: str, daemon: Client, as_json: bool) -> None:
    """One rule, and its last changes.

    \b
    Example:
      roost policy show cellular
    """
    told = daemon.get(_rule_path(name))
    if as_json:
        print_json(told)
        return
    _show_rules(told)
    _show_changes(told["history"])


@command.command("history")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--limit", type=click.IntRange(0, 100_000), default=100, show_default=True, help="The last changes.")
@click.option(
    "--before", type=click.IntRange(1), metavar="VERSION", help="Only those of earlier versions than this one."
)
@daemon_options
@json_option
def history(name: str | None, limit: int, before: int | None, daemon: Client, as_json: bool) -> None:
    """The changes, the newest last: of one rule, or of all.

    \b
    Example:
      roost policy history
      roost policy history cellular --limit 5
      roost policy history --before 130
    """
    rows = daemon.get("/v1/policy/history", limit=limit, rule=name, before=before)
    if as_json:
        print_json(rows)
    else:
        _show_changes(rows)


def _show_changes(rows: Iterable[Mapping[str, Any]]) -> None:
    titles = ("version", "at", "by", "rule", "from then on", "why")
    show_table(titles, ((str(row["version"]), local_time(row["at_ms"]), row["who"], row["name"],
                         content_text(row["rule"]), row["why"]) for row in rows), right=("version",))  # fmt: skip


@command.command("explain")
@click.argument("client", metavar="CLIENT", shell_complete=completing.connections)
@click.option("--service", metavar="NAME", help="CLIENT is an address, of a client that would connect to this service.")
@click.option("--server", metavar="ADDRESS", default="", help="... and mean this one of its servers.")
@daemon_options
@json_option
def explain(client: str, service: str | None, server: str, daemon: Client, as_json: bool) -> None:
    """Every value that is in force for a client, and what gave it: CLIENT is a connection's number,
    client-address:port, or name.domain; with --service the address of any client.

    \b
    Example:
      roost policy explain 4711
      roost policy explain 192.0.2.7 --service telemetry
    """
    if service is None:
        if server:
            raise click.UsageError("--server goes with --service: a connection has its server")
        told = daemon.get(f"{connection_path(client)}/policy")
    else:
        told = daemon.get("/v1/policy/explain", client=client, service=service, server=server)
    if as_json:
        print_json(told)
        return
    number = f"{told['id']} " if told.get("id") else ""
    state = f": {told['state']}" if "state" in told else ""
    click.echo(f"{number}{told['client']}, service {told['service']}{state}; rules of version {told['version']}")
    show_table(
        ("key", "value", "from"), ((row["key"], value_text(row["value"]), row["source"]) for row in told["values"])
    )
    if told["error"]:
        click.echo(f"! {told['error']}")


# -- one connection ---------------------------------------------------------------------------------------------------


@command.command("give")
@click.argument("client", metavar="CLIENT", shell_complete=completing.connections)
@click.argument("words", nargs=-1, required=True, metavar="key=value...")
@click.option("--why", default="", metavar="TEXT", help="The reason, for the log.")
@daemon_options
@json_option
def give(client: str, words: tuple[str, ...], why: str, daemon: Client, as_json: bool) -> None:
    """Let one connection have values of its own, asleep or awake: active_quiet, standby_quiet, idle_quiet,
    probe_interval. They end with the connection.

    \b
    Example:
      roost policy give 4711 idle_quiet=never --why "watched until Friday"
      roost policy give 192.0.2.7:40123 probe_interval=5m
    """
    _give(client, _pairs(words), why, daemon, as_json)


@command.command("take")
@click.argument("client", metavar="CLIENT", shell_complete=completing.connections)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--why", default="", metavar="TEXT", help="The reason, for the log.")
@daemon_options
@json_option
def take(client: str, keys: tuple[str, ...], why: str, daemon: Client, as_json: bool) -> None:
    """Take values away that one connection has of its own, by command or in band: its rules and its service say again
    what they are.

    \b
    Example:
      roost policy take 4711 idle_quiet
    """
    _give(client, dict.fromkeys(keys), why, daemon, as_json)


def _give(client: str, values: Mapping[str, str | None], why: str, daemon: Client, as_json: bool) -> None:
    edit = {"who": login(), "why": why, "values": values}
    told = daemon.send("PUT", f"{connection_path(client)}/policy", edit)
    if as_json:
        print_json(told)
        return
    number = f"{told['id']} " if told["id"] else ""
    given = (
        f"{key}={value_text(one)}" if one is not None else f"{key} of its policy" for key, one in told["values"].items()
    )
    click.echo(f"{number}{told['client']}, {told['state']}: {', '.join(given)}")


# -- changing ---------------------------------------------------------------------------------------------------------


@command.command("set")
@click.argument("words", nargs=-1, metavar="NAME key=value...")
@click.option(
    "--client",
    metavar="PATTERN",
    help="For those with such a name: `*` is any text, `?` one character. Not given: all.",
)
@click.option("--tag", metavar="TAG", shell_complete=completing.tags,
              help="For those whose name has it. Not given: all.")  # fmt: skip
@click.option("--network", metavar="NETWORK", help="For clients in it: 192.0.2.0/24, 2001:db8::/32. Not given: all.")
@click.option("--service", metavar="NAME", help="For clients of it. Not given: of all services.")
@click.option(
    "--server", metavar="ADDRESS", help="For those that connect to it, where a service has several addresses."
)
@click.option("--order", type=int, metavar="NUMBER",
              help="Of rules for the same clients the larger one wins. Not given: 0.")  # fmt: skip
@click.option("--file", "path", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="The rules of a file, in place of one: as `roost policy try` takes it.")  # fmt: skip
@_change_options
@daemon_options
@json_option
def set_(words: tuple[str, ...], path: str | None, why: str, seen: int | None, daemon: Client, as_json: bool,
         **conditions: str | int | None) -> None:  # fmt: skip
    """Let a rule be this, whatever it was: its conditions, and values by their keys of [policy]
    (docs/configuration.md).

    \b
    Example:
      roost policy set cellular --network 10.64.0.0/10 probe_interval=20m priority=low --why "ticket 4711"
      roost policy set winter --tag winter --order 2 idle_quiet=1m
      roost policy set cellars --client "meter-*-cellar" probe_interval=1h
      roost policy set vip --network 192.0.2.7/32 --service web active_quiet=never
      roost policy set archive --service web --server 10.1.0.5 priority=low
      roost policy set --file rules.toml
    """
    given = {key: value for key, value in conditions.items() if value is not None}
    if path is not None:
        if words or given:
            raise click.UsageError("with --file the rules stand in the file")
        told = daemon.send("PUT", "/v1/policy/rules", {**_edit(why, seen), "file": _read(path)})
    else:
        if not words:
            raise click.UsageError("roost policy set takes a NAME and key=value, or --file")
        name, *pairs = words
        rule = {**given, **_pairs(pairs)}
        told = daemon.send("PUT", _rule_path(name), {**_edit(why, seen), "rule": rule})
    _say(told, as_json)


def _pairs(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f'"{word}" is no key=value')
        if key in found or key in ("name", *CONDITIONS):
            raise click.UsageError(f"{key} is given twice" if key in found else f"write --{key} {value}")
        found[key] = value
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: cannot read it: {error}") from None


@command.command("remove")
@click.argument("name", metavar="NAME")
@_change_options
@daemon_options
@json_option
def remove(name: str, why: str, seen: int | None, daemon: Client, as_json: bool) -> None:
    """Let there be no such rule.

    \b
    Example:
      roost policy remove cellular --why "moved to the new NAT"
    """
    _say(daemon.send("DELETE", _rule_path(name), _edit(why, seen)), as_json)


@command.command("rollback")
@click.argument("version", metavar="VERSION", type=click.IntRange(0))
@_change_options
@daemon_options
@json_option
def rollback(version: int, why: str, seen: int | None, daemon: Client, as_json: bool) -> None:
    """Let all rules be what they were at VERSION (0: none), which makes a version of its own.

    \b
    Example:
      roost policy history
      roost policy rollback 3
    """
    _say(daemon.send("POST", "/v1/policy/rollback", {**_edit(why, seen), "version": version}), as_json)


def _say(told: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    for change in told["changed"]:
        was = f" (it was {content_text(change['before'])})" if change["before"] else ""
        click.echo(f"{change['name']}: {content_text(change['rule'])}{was}")
    click.echo(f"version {told['version']}" if told["changed"] else f"nothing changes: version {told['version']} stays")


@command.command("try")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@daemon_options
@json_option
def try_(path: str, daemon: Client, as_json: bool) -> None:
    """What the rules of a file would change, and for how many connections; nothing is changed. FILE has [[rule]]
    tables, or is what `roost policy list --json` prints; rules that it does not name stay. Connections that sleep
    without a slot are not counted.

    \b
    Example:
      roost policy try rules.toml
    """
    told = daemon.send("POST", "/v1/policy/try", {"file": _read(path)})
    if as_json:
        print_json(told)
        return
    for rule in told["rules"]:
        names = f", for {rule['names']:,} names" if "names" in rule else ""
        click.echo(f"{rule['name']}: {'as it is' if rule['change'] == 'same' else rule['change']}{names}")
    click.echo(f"{told['changed']:,} connections would have other values than now; {told['lose']:,} of them those of "
               "their service alone")  # fmt: skip
    if told["without_slot"]:
        click.echo(f"{told['without_slot']:,} more sleep without a slot, and are not counted")
    if told["policies"]:
        titles = ("service", "networks", "connections", "change", "values", "rules")
        show_table(titles, map(_tried, told["policies"]), right=("connections", "change"))


def _tried(row: Mapping[str, Any]) -> Sequence[str]:
    more = [f"and {row['more_networks']:,} more"] if row["more_networks"] else []
    networks = " ".join([*row["networks"], *more])
    counts = (f"{row['connections']:,}", f"{row['changed']:,}")
    return row["service"], networks, *counts, values_text(row["values"]), " ".join(row["rules"])


command.add_command(recommend.command)
