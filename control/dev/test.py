"""roost test: lint, then every test in one pytest run, layer by layer (tests/conftest.py orders and counts them)."""

import os
import subprocess
import sys

import click

from control.dev.lint import lint, require_checkout


@click.command()
@click.option("--all", "soak", is_flag=True, help="Also the soaks: tests that take minutes.")
@click.option("-k", "expression", metavar="EXPR", help="Only tests whose name matches, as pytest's -k.")
@click.option("--no-lint", is_flag=True, help="Skip the static checks.")
@click.option("-x", "first_failure", is_flag=True, help="Stop at the first failure.")
@click.option("-v", "verbose", is_flag=True, help="Name each test as it runs.")
@click.argument("paths", nargs=-1, type=click.Path())
def command(
    soak: bool, expression: str | None, no_lint: bool, first_failure: bool, verbose: bool, paths: tuple[str, ...]
) -> None:
    """Lint the sources, then run the tests: unit, lab, security, bench. All but the unit tests need root.

    The last line is pytest's. The exit code is 0 only when lint and every test passed.

    \b
    Examples:
      sudo ./roost test
      sudo ./roost test --no-lint -k wake tests/lab
    """
    root = require_checkout("Testing")
    here = [os.path.relpath(path, root) if os.path.exists(path.partition("::")[0]) else path for path in paths]  # noqa: PTH110
    linted = "skipped" if no_lint else "passed" if lint(root) else "failed"
    if os.geteuid() != 0:
        click.echo("Not root: the lab, security and bench tests will be skipped. All of them: sudo ./roost test")
    sys.stdout.flush()
    argv = [sys.executable, "-P", "-m", "pytest", *(["--soak"] if soak else []), *(["-x"] if first_failure else [])]
    argv += ["-v"] if verbose else []
    argv += ["-k", expression] if expression else []
    done = subprocess.run(
        [*argv, *here], cwd=root, check=False, env={**os.environ, "PYTHONPATH": str(root), "ROOST_LINT": linted}
    )
    sys.exit(done.returncode or (1 if linted == "failed" else 0))
