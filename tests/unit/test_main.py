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
    files = {path.stem for path in Path(main.__file__).parent.glob("*.py")} - {"__init__", "main"}
    assert set(main.COMMANDS) <= files


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


@pytest.mark.parametrize(
    ("database", "said"),
    [
        ("/tmp/roost.db", "good; 1 services"),
        ("postgresql://roost@h/d", "good; 1 services"),
        ("mysql://h/d", "Error: roost keeps its store in SQLite or PostgreSQL (by psycopg), not in mysql: "),
    ],
)
def test_up_check_tells_a_database_that_cannot_be_used(tmp_path: Path, database: str, said: str) -> None:
    config = tmp_path / "roost.toml"
    service = '[[service]]\nname = "a"\nlisten = "0.0.0.0:7000"\nserver = "10.0.0.9:7000"\n'
    config.write_text(f'[paths]\ndatabase = "{database}"\n{service}')
    argv = [sys.executable, "-m", "control.cli.main", "up", "--check", "-c", str(config)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == ("good" not in said)
