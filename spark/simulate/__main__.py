# SPDX-License-Identifier: Apache-2.0
"""`python -m spark.simulate DIR --clients 1000 --days 7`: write the export of a simulated fleet."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from spark import session
from spark.simulate.fleet import Fleet
from spark.simulate.writing import simulate


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--clients", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--days", type=click.IntRange(1), default=7, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--memory", help="Of Java's heap, 4g for instance.")
def main(directory: Path, clients: int, days: int, seed: int, memory: str | None) -> None:
    """Write the export of a simulated fleet to DIRECTORY, which must be empty: test data and nothing else."""
    began = time.monotonic()
    try:
        fleet = Fleet(clients=clients, days=days, seed=seed, networks=min(Fleet.networks, clients))
        spark = session.start(memory=memory)
        truth = simulate(spark, directory, fleet, lambda sentence: click.echo(sentence, err=True))
    except (session.SparkError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    seconds = time.monotonic() - began
    click.echo(f"{truth['rows']:,} transitions in {seconds:,.0f} s, {truth['rows'] / seconds:,.0f} a second")


if __name__ == "__main__":
    sys.exit(main())
