"""roost lint: the static checks, each tool's verdict on a line, its output when it objects."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from appliance.paths import checkout

PYTHON_TREES = ("appliance", "control", "cext", "spark", "tests", "examples", "ebpf", "vagrant", "setup.py")
C_TREES = ("ebpf", "cext", "appliance", "tests")
SHELL_SCRIPTS = (
    "roost",
    ".ci/run",
    *(f"vagrant/{name}.sh" for name in ("install", "rootfs", "package", "alive")),
    *(f"vagrant/{name}.sh" for name in ("appliance", "nat", "server", "client", "network", "service", "need", "scene")),
    "vagrant/debian/postinst",
    "vagrant/debian/prerm",
    "vagrant/debian/postrm",
)
GENERATED = frozenset({"cext/_engine.c", "appliance/lab/simulator/_simulator.c", "tests/inner/_inner.c"})
HOSTED = ("tests/fuzz/", "tests/interleave/")  # programs of ebpf/ compiled for the host


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool and its whole call; `package` is the Debian package it comes in, or None for one of the environment."""

    name: str
    argv: tuple[str, ...]
    package: str | None


def c_sources(root: Path, *suffixes: str) -> list[str]:
    """The C files below the C trees, relative to the checkout, without generated ones."""
    found = (path for tree in C_TREES for path in sorted((root / tree).rglob("*")) if path.suffix in suffixes)
    return [name for name in (str(path.relative_to(root)) for path in found) if name not in GENERATED]


def tools(root: Path) -> list[Tool]:
    """Every tool with its arguments."""
    python = sys.executable
    typed = [tree for tree in PYTHON_TREES if tree not in ("ebpf", "setup.py")]
    formatted = c_sources(root, ".c", ".h")
    compiled = c_sources(root, ".c")
    programs = [name for name in compiled if name.endswith(".bpf.c") or name.startswith(HOSTED)]
    ordinary = [name for name in compiled if name not in programs]
    # Only findings that are bugs end the run; cppcheck's style opinions are clang-format's and the reader's affair.
    cppcheck = (
        "cppcheck",
        "--quiet",
        "--enable=warning,performance,portability",
        "--inline-suppr",
        "--error-exitcode=1",
        "--std=c11",
        "--suppress=missingIncludeSystem",
        "--suppress=missingInclude",
        "--suppress=arithOperationsOnVoidPointer",  # GNU C, as in all of the kernel's own BPF code
        "--suppress=normalCheckLevelMaxBranches",  # Debian 13's remark on how deep it looked, not on the code
        "-DLIBBPF_OPTS(type,name,...)=struct type name={0}",
        "--template=gcc",
        "-I.",
        "--max-configs=4",
    )
    # SEC() and the map macros of libbpf are attributes and anonymous types that a C parser has no use for.
    bpf_macros = ("-DSEC(x)=", "-D__always_inline=inline", "-D__uint(n,v)=int(*n)[v]", "-D__type(n,v)=v*n")
    return [
        Tool("ruff check", (python, "-m", "ruff", "check", "--quiet", *PYTHON_TREES), None),
        Tool("ruff format", (python, "-m", "ruff", "format", "--check", "--quiet", "--diff", *PYTHON_TREES), None),
        Tool("mypy --strict", (python, "-m", "mypy", "--strict", "--no-error-summary", *typed), None),
        Tool("import-linter", (str(Path(python).with_name("lint-imports")), "--no-cache", "--no-logo"), None),
        Tool("clang-format", ("clang-format", "--dry-run", "-Werror", *formatted), "clang-format"),
        Tool("cppcheck", (*cppcheck, *ordinary), "cppcheck"),
        Tool("cppcheck (BPF)", (*cppcheck, *bpf_macros, *programs), "cppcheck"),
        Tool("C floors", (python, "-m", "control.dev.c_layers"), None),
        Tool("states", (python, "-m", "control.dev.diagram"), None),
        Tool("lock", (python, "-m", "control.dev.lock"), None),
        Tool("shellcheck", ("shellcheck", *SHELL_SCRIPTS), "shellcheck"),
    ]


def run_tool(tool: Tool, root: Path) -> tuple[bool, str, float]:
    """(passed, its output, seconds); a tool that is not installed has not passed."""
    began = time.monotonic()
    if tool.package is not None and shutil.which(tool.argv[0]) is None:
        return False, f"{tool.argv[0]} is not installed. Run: apt-get install {tool.package}\n", 0.0
    # Without PYTHONPATH: mypy would take our packages, found there, for installed ones without annotations. They are
    # found in the checkout, where each tool runs, and which PYTHONSAFEPATH (of ./roost) would leave out.
    environment = {name: one for name, one in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        tool.argv,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode == 0, done.stdout, time.monotonic() - began


def lint(root: Path, only: Sequence[str] = ()) -> bool:
    """Run the tools (those whose name begins with one of `only`), print each verdict; whether all passed."""
    chosen = [tool for tool in tools(root) if not only or tool.name.startswith(tuple(only))]
    if not chosen:
        raise click.UsageError(f"No such tool: {', '.join(only)}. There are: {', '.join(t.name for t in tools(root))}.")
    passed = True
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        verdicts = pool.map(partial(run_tool, root=root), chosen)
        for tool, (good, output, took_s) in zip(chosen, verdicts, strict=True):
            passed = passed and good
            verdict = click.style("ok", fg="green") if good else click.style("failed", fg="red")
            click.echo(f"lint  {tool.name:<16} {verdict}  {took_s:.1f} s")
            if not good:
                click.echo(output.rstrip())
    return passed


def require_checkout(purpose: str) -> Path:
    """The source tree, or a sentence for people who have only the installed package."""
    root = checkout()
    if root is None:
        raise click.ClickException(f"{purpose} needs the source tree: run ./roost in a checkout of Roost.")
    return root


def reformat(root: Path) -> None:
    """Let the formatters rewrite the sources, before they are checked."""
    python = [sys.executable, "-m", "ruff"]
    subprocess.run([*python, "check", "--fix-only", "--quiet", *PYTHON_TREES], cwd=root, check=True)
    subprocess.run([*python, "format", "--quiet", *PYTHON_TREES], cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "control.dev.c_layers", "--write"], cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "control.dev.diagram", "--write"], cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "control.dev.monitoring"], cwd=root, check=True)
    subprocess.run(["clang-format", "-i", *c_sources(root, ".c", ".h")], cwd=root, check=True)


@click.command()
@click.option("--fix", is_flag=True, help="First let ruff and clang-format mend what they can.")
@click.argument("only", nargs=-1, metavar="[TOOL]...")
def command(fix: bool, only: tuple[str, ...]) -> None:
    """Check the sources: ruff, mypy, import-linter, clang-format, cppcheck, shellcheck; and requirements.lock.

    Changes nothing without --fix.

    \b
    Examples:
      ./roost lint
      ./roost lint ruff mypy
    """
    root = require_checkout("Linting")
    if fix:
        reformat(root)
    sys.exit(0 if lint(root, only) else 1)
