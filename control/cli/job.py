# SPDX-License-Identifier: Apache-2.0
"""`roost job`: an action for many connections, so many a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.connections import wanted_options
from control.cli.escaping import terminal
from control.cli.table import local_time, show_table
from control.core.text import escaped

LOOK_S: Final = 0.3
ENDED: Final = ("done", "cancelled", "failed")


@click.group("job")
def command() -> None:
    """Put many connections into a state, or close them: by a filter, or named in a file, so many a second.

    A job goes on in the daemon, whether or not it is watched, and ends with it.
    """


@command.command("start")
@click.argument("action", type=click.Choice(["standby", "idle", "sleep", "wake", "close"]))
@wanted_options
@click.option("--everything", is_flag=True, help="All connections.")
@click.option("--from", "file", type=click.File("r"), metavar="FILE",
              help="Connections, one a line: as `roost show` takes them. `-`: what is piped in.")  # fmt: skip
@click.option("--rate", type=click.IntRange(1, 100_000), default=1000, show_default=True, metavar="N",
              help="Connections a second.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask before connections are closed.")
@click.option("--detach", is_flag=True, help="Do not wait for its end.")
@daemon_options
@json_option
def start(action: str, everything: bool, file: TextIO | None, rate: int, yes: bool, detach: bool, daemon: Client,
          as_json: bool, **wanted: str | int | None) -> None:  # fmt: skip
    """Begin a job, and watch it. ^C ends the watching, not the job.

    \b
    Examples:
      roost job start sleep --network 10.0.0.0/8
      roost job start wake --tag basement --rate 2000
      roost connections --json --silence 86400 | jq -r .client | roost job start close --from -
    """
    given = {key: value for key, value in wanted.items() if value}
    names = [line.strip() for line in file if line.strip()] if file is not None else None
    if (names is not None) + everything + bool(given) != 1:
        raise click.UsageError("say for which connections: a filter such as --network, or --from, or --everything")
    if names == []:
        raise click.UsageError("there is no connection in what --from reads")
    if action == "close" and not yes and not as_json:
        _confirm(file)
    ways = {"filter": given or None, "everything": everything, "connections": names}
    job = daemon.send("POST", "/v1/jobs", {"action": action, "rate": rate, **ways})
    if not detach:
        job = _watched(daemon, job, _say_progress if not as_json and sys.stderr.isatty() else lambda _: None)
    print_json(job) if as_json else click.echo(_sentence(job))
    if job["state"] in ("failed", "cancelled"):
        click.get_current_context().exit(1)


def _confirm(file: TextIO | None) -> None:
    if file is not None and not sys.stdin.isatty():
        raise click.UsageError("connections are closed only with --yes, where nobody can be asked")
    click.confirm("Close them? Clients and servers are told with an RST", abort=True)


@command.command("list")
@daemon_options
@json_option
def list_them(daemon: Client, as_json: bool) -> None:
    """Jobs that have not ended, and the last ones that have."""
    jobs = daemon.get("/v1/jobs")
    if as_json:
        print_json(jobs)
        return
    show_table(("number", "action", "of", "by", "asked", "state", "found", "done"), map(_shown, jobs),
               right=("number", "found", "done"))  # fmt: skip


@command.command("show")
@click.argument("number", type=click.IntRange(0))
@daemon_options
@json_option
def show(number: int, daemon: Client, as_json: bool) -> None:
    """How far a job is, and how its connections fared."""
    job = daemon.get(f"/v1/jobs/{number}")
    print_json(job) if as_json else click.echo(_sentence(job))


@command.command("cancel")
@click.argument("number", type=click.IntRange(0))
@daemon_options
@json_option
def cancel(number: int, daemon: Client, as_json: bool) -> None:
    """Let nothing more of a job begin. What was done stays."""
    job = daemon.send("DELETE", f"/v1/jobs/{number}")
    print_json(job) if as_json else click.echo(_sentence(job))


def _watched(daemon: Client, job: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The job, when it has ended."""
    try:
        while job["state"] not in ENDED:
            time.sleep(LOOK_S)
            job = daemon.get(f"/v1/jobs/{job['number']}")
            say(job)
    except KeyboardInterrupt:
        number = job["number"]
        click.echo(f"\nJob {number} goes on: roost job show {number}, roost job cancel {number}", err=True)
        raise click.exceptions.Exit(130) from None
    return job


def _say_progress(job: dict[str, Any]) -> None:
    end = "\n" if job["state"] in ENDED else ""
    said = f"\r\033[Kjob {job['number']:d}: {job['found']:,d} found, {job['done']:,d} done{end}"
    click.echo(said, file=terminal(sys.stderr), nl=False)


def _sentence(job: dict[str, Any]) -> str:
    counts = [f"{job[key]:,} {words}" for key, words in _WORDS.items() if job[key]]
    counts += [f"{count:,} refused: {why}" for why, count in job["refused"].items()]
    if job["missing"]:
        names = ", ".join(job["missing_names"]) + (", …" if job["missing"] > len(job["missing_names"]) else "")
        counts.append(f"{job['missing']:,} not found, or not one alone: {names}")
    of = f"{job['found']:,} found"
    return escaped(f"job {job['number']}, {job['action']}, {job['error'] or job['state']}: {'; '.join([of, *counts])}")


_WORDS: Final = {
    "done": "done",
    "unchanged": "were there already",
    "closed": "closed meanwhile",
    "unanswered": "not answered",
}


def _shown(job: dict[str, Any]) -> tuple[str, ...]:
    if job["connections"] is not None:
        of = f"{job['connections']:,} named"
    else:
        of = ", ".join(f"{key}={value}" for key, value in job["filter"].items()) or "everything"
    when = local_time(job["asked_at_ms"])
    return (
        str(job["number"]),
        job["action"],
        of,
        job["who"],
        when,
        job["state"],
        f"{job['found']:,}",
        f"{job['done']:,}",
    )
