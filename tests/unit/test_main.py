"""The `roost` command itself: what it imports, lists and says when something goes wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.paths import checkout
from control.cli import main

ROOT = checkout()
assert ROOT is not None


def test_every_command_in_the_list_has_its_file() -> None:
    control = Path(main.__file__).parent.parent
    assert set(main.OPERATOR) <= {path.stem for path in (control / "cli").iterdir()} - {"__init__", "main"}
    assert set(main.DEVELOPER) <= {path.stem for path in (control / "dev").iterdir()} - {"__init__"}


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_every_command_loads_and_explains_itself_with_help(name: str) -> None:
    result = CliRunner().invoke(main.cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage:")


def test_help_imports_no_command_and_no_heavy_library() -> None:
    script = (
        "import sys; from control.cli import main\n"
        "try: main.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'sqlalchemy', 'fastapi', 'pydantic', 'pyroute2', 'cffi'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_known_error_becomes_a_sentence_with_a_fix() -> None:
    assert main.explain(PermissionError("not yours")) == "Error: not yours\nRun it as root: sudo ./roost ..."


def test_a_defect_of_ours_keeps_its_traceback() -> None:
    assert main.explain(KeyError("oops")) is None


def test_every_named_error_of_ours_exists() -> None:
    """A renamed exception class must not turn its message back into a traceback unnoticed."""
    for name in main.FIXES:
        module, _, kind = name.rpartition(".")
        script = f"import {module}; assert issubclass({module}.{kind}, Exception)"
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"
