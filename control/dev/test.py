"""roost test: lint, then every test in one pytest run, several at a time (tests/conftest.py orders and counts them)."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import click

from control.dev.lint import lint, require_checkout

# Of the time that the tests take, a processor is busy for less than half: they wait for timers, and for each other.
WORKERS_A_PROCESSOR = 3


def files_of(paths: Sequence[str], root: Path) -> int:
    """How many files of tests there are in what pytest is given."""
    places = [root / path.partition("::")[0] for path in paths] or [root / "tests"]
    return sum(len(list(place.rglob("test_*.py"))) if place.is_dir() else 1 for place in places)


@contextmanager
def compiling(root: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """In a fresh checkout, have pytest compile the tests meanwhile: lint leaves a processor idle, and six workers that
    begin at once would each compile all of them (50 s of processor time, of 97)."""
    if any((root / "tests").rglob("*-pytest-*.pyc")):
        yield
        return
    argv = [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    with subprocess.Popen(argv, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
        try:
            yield
        except BaseException:
            one.kill()
            raise


@click.command()
@click.option("--all", "soak", is_flag=True, help="Also the soaks: tests that take minutes.")
@click.option("-k", "expression", metavar="EXPR", help="Only tests whose name matches, as pytest's -k.")
@click.option("-n", "workers", type=click.IntRange(min=0), metavar="N",
              help="Run N tests at a time, not three for each processor; 0: in one process, in order.")  # fmt: skip
@click.option("--no-lint", is_flag=True, help="Skip the static checks.")
@click.option("-x", "first_failure", is_flag=True, help="Stop at the first failure.")
@click.option("-v", "verbose", is_flag=True, help="Name each test as it runs.")
@click.argument("paths", nargs=-1, type=click.Path())
def command(
    soak: bool,
    expression: str | None,
    workers: int | None,
    no_lint: bool,
    first_failure: bool,
    verbose: bool,
    paths: tuple[str, ...],
) -> None:
    """Lint the sources, then run the tests: unit, lab, security, bench. All but the unit tests need root.

    Files run side by side. Tests that measure, or look at the whole machine, run after all others, one by one.
    Said at the end: how many of the product's lines the tests ran, by folder.
    The last line is pytest's. The exit code is 0 only when lint and every test passed.

    \b
    Examples:
      sudo ./roost test
      sudo ./roost test --no-lint -k wake tests/lab
    """
    root = require_checkout("Testing")
    for file in (path.partition("::")[0] for path in paths):
        if not Path(file).exists() and not (root / file).exists():
            raise click.UsageError(f"there is no {file}")
    here = [os.path.relpath(path, root) if os.path.exists(path.partition("::")[0]) else path for path in paths]  # noqa: PTH110
    files = files_of(here, root)
    if workers is None:
        workers = min(files, WORKERS_A_PROCESSOR * len(os.sched_getaffinity(0))) if files > 1 else 0
    environment = {**os.environ, "PYTHONPATH": str(root)}
    # Workers, daemons and peers import the same files some thousand times: they are to be compiled once.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with compiling(root, environment) if workers else nullcontext():
        linted = "skipped" if no_lint else "passed" if lint(root) else "failed"
    if os.geteuid() != 0:
        click.echo("Not root: the lab, security and bench tests will be skipped. All of them: sudo ./roost test")
    sys.stdout.flush()
    argv = [sys.executable, "-P", "-m", "pytest", *(["--soak"] if soak else []), *(["-x"] if first_failure else [])]
    argv += ["-v"] if verbose else []
    argv += ["-n", str(workers)] if workers else []
    argv += ["-k", expression] if expression else []
    environment["ROOST_LINT"] = linted
    with subprocess.Popen([*argv, *here], cwd=root, env=environment) as pytest:
        while pytest.returncode is None:
            with suppress(KeyboardInterrupt):  # pytest and its workers get it, too, and take their labs down
                pytest.wait()
    sys.exit(pytest.returncode or (1 if linted == "failed" else 0))
