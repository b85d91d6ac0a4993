"""The `roost` command itself: what it imports, lists and says when something goes wrong."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner

from appliance.paths import checkout
from control.cli import client, main, restore, up
from control.daemon.daemon import ANEW
from tests import product

ROOT = checkout()
assert ROOT is not None


def test_every_command_in_the_list_has_its_file() -> None:
    control = Path(main.__file__).parent.parent
    own = {name: main.module_of(name).rpartition(".")[2] for name in main.COMMANDS}
    there = {path.stem for path in (control / "cli").iterdir()} - {"__init__", "main"}
    assert {own[name] for name in main.OPERATOR} <= there
    assert {own[name] for name in main.DEVELOPER} <= {path.stem for path in (control / "dev").iterdir()} - {"__init__"}


def test_a_wheel_has_nothing_that_needs_the_source_tree(tmp_path: Path) -> None:
    """The engine comes by build_ext: tests/lab/test_install.py."""
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    assert product.faults((str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")), engine=False) == []
    roost = [sys.executable, "-P", "-m", "control.cli.main"]
    done = subprocess.run([*roost, "--help"], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True,
                          text=True, check=True)  # fmt: skip
    listed = {line.split()[0] for line in done.stdout.split("Commands:")[1].splitlines() if line[:3].strip()}
    assert listed == set(main.OPERATOR)
    done = subprocess.run([*roost, "lint"], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert (done.returncode, "needs the source tree" in done.stderr) == (1, True)


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
        "heavy = {'rich', 'sqlalchemy', 'fastapi', 'pydantic', 'pyroute2', 'cffi', 'httpx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


READ_ONLY = {
    "status": [],
    "connections": [],
    "show": ["4711"],
    "explain": ["4711"],
    "standby": ["4711"],
    "idle": ["4711"],
    "sleep": ["4711"],
    "wake": ["4711"],
    "close": ["4711"],
    "policy": ["list"],
    "name": ["4711", "camera"],
    "tag": ["camera"],
    "token": ["list"],
    "agents": [],
    "attaches": [],
    "audit": [],
    "snapshots": [],
    "dialled": [],
    "events": [],
    "job": ["list"],
}
"""The operator's commands that ask the daemon, and arguments for them."""

OF_THE_ENGINE = {"restore", "up", "unpin"}
"""Those that open the engine, or its pins."""

WITHOUT_THE_ENGINE = """
import sys
{}
from pathlib import Path
for mark in ("_engine", "libbpf"):
    assert mark not in Path("/proc/self/maps").read_text(), f"{{mark}} is loaded"
loaded = [name for name in sys.modules if name.startswith(("cext._", "appliance.engine", *{!r}))]
assert not loaded, loaded
"""


def run_without_the_engine(code: str, *more: str) -> None:
    """`code` in a process of its own, which may load neither the C extension nor modules that begin as in `more`."""
    script = WITHOUT_THE_ENGINE.format(code, more)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run_command(argv: list[str], *more: str) -> None:
    code = f"""
from control.cli import main
try: main.cli.main({argv!r})
except SystemExit as end: assert {argv[0]!r} == "doctor" or not end.code, end.code"""
    run_without_the_engine(code, *more)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """The configuration of a daemon that answers everything with nothing."""

    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            many = self.path.split("?")[0] in ("/v1/agents", "/v1/dialled", "/v1/history")
            answer = b"[]" if many else b'{"quiet_s": null}\n'
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_PUT = do_GET

        def address_string(self) -> str:
            return "the test"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    path = tmp_path / "roost.toml"
    path.write_text(f"""
[paths]
control_socket = "{tmp_path}/socket"
[[service]]
name = "web"
listen = "127.0.0.1:80"
server = "127.0.0.1:81"
""")
    with ThreadingUnixStreamServer(f"{tmp_path}/socket", Nothing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield path
        server.shutdown()


def test_every_operator_command_is_asked_whether_it_needs_the_engine() -> None:
    others = {
        "api",
        "attach",
        "backup",
        "check-config",
        "completion",
        "doctor",
        "drain",
        "export",
        "report",
        "top",
        "trace",
    }
    assert set(READ_ONLY) | others | OF_THE_ENGINE == set(main.OPERATOR)


@pytest.mark.parametrize("name", list(READ_ONLY))
def test_a_command_that_asks_the_daemon_loads_neither_engine_nor_developers_code(name: str, config: Path) -> None:
    """Nor what takes long, and is of no use to it."""
    others = ("control.dev", "sqlalchemy", "pydantic", "anyio", "trio", "h2", "control.client.aio")
    run_command([name, *READ_ONLY[name], "-c", str(config), "--json"], *others)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no daemon answers at /run/roost/main.sock"),
        ('instance = "two"', "no daemon answers at /run/roost/two.sock"),
        ('instance = "two"\n[paths]\ncontrol_socket = "/run/here"', "no daemon answers at /run/here"),
        ("instance = 2", "`instance` at the top level: must be text"),
        ("paths = 2", "`paths` at the top level: must be a table"),
        ("[paths", "not TOML"),
    ],
)
def test_where_the_daemon_is_a_configuration_says_without_being_checked(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "roost.toml"
    path.write_text(content)
    done = CliRunner().invoke(main.cli, ["status", "-c", str(path)])
    assert done.exit_code == 1
    assert said in f"{done.output} {done.exception}"


def test_doctor_and_a_check_of_the_configuration_load_no_engine(config: Path) -> None:
    run_command(["doctor", "--json"], "control.dev", "sqlalchemy")
    run_command(["doctor", "--json", "-c", str(config)], "control.dev")
    run_command(["check-config", str(config)], "control.dev")  # with the database's driver: is there one?


@pytest.mark.parametrize(
    "code",
    [
        "from control.cli import attach, completing, completion, top",
        "from control.config.reference import with_keys; with_keys(open('docs/configuration.md').read())",
        "from control.store.reading import Reader",
        "from control.store.store import Store",
        "from control.export.export import Export",
        "from control.core import states",
        "from control.dev import lint",
    ],
)
def test_what_reads_alone_loads_no_engine(code: str) -> None:
    run_without_the_engine(code)


WITHOUT_JSON = {
    "api": "it serves, and logs",
    "attach": "what it prints is the client's",
    "completion": "what it prints is a shell's",
}
"""Commands that have no --json, and why."""


def leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command, or those of a group."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for inner, one in command.commands.items():
        yield from leaves(f"{name} {inner}", one)


def test_every_operators_command_prints_json_when_it_is_told_to() -> None:
    context = click.Context(main.cli)
    without = set()
    for name in main.OPERATOR:
        found = main.cli.get_command(context, name)
        assert found is not None
        options = {leaf: [opt for one in command.params for opt in one.opts] for leaf, command in leaves(name, found)}
        without |= {leaf for leaf, opts in options.items() if "--json" not in opts}
    assert without == set(WITHOUT_JSON)


def completed(config: str, *words: str) -> list[str]:
    """What a shell would offer for the last word."""
    environment = {**os.environ, "_ROOST_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("roost", *words)),
                   "COMP_CWORD": str(len(words)), "ROOST_CONFIG": config}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "control.cli.main"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_a_shell_completes_commands_options_and_what_the_daemon_knows(tmp_path: Path) -> None:
    asked, waited, over = [], list[bool](), threading.Event()

    class Some(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            rows = [{"name": "hall-1", "client": "192.0.2.7:40123"}]
            answer = [{"tag": "winter"}, {"tag": "basement"}] if "tags" in self.path else {"connections": rows}
            if "slow" in self.path:
                waited.append(over.wait(10))
            with suppress(BrokenPipeError):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

        def address_string(self) -> str:
            return "the test"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    path = tmp_path / "roost.toml"
    path.write_text(f'[paths]\ncontrol_socket = "{tmp_path}/socket"\n')
    config = str(path)
    with ThreadingUnixStreamServer(f"{tmp_path}/socket", Some) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert completed(config, "con") == ["connections"]
            assert completed(config, "policy", "ro") == ["rollback"]
            assert completed(config, "connections", "--tag", "w") == ["winter"]
            assert completed(config, "wake", "ha") == ["hall-1.roost"]
            assert completed(config, "wake", "192") == ["192.0.2.7:40123"]
            assert asked[-1] == "/v1/connections?after=first&limit=50&client=192"
            assert completed(config, "wake", "slow") == []
            assert waited == [], "the daemon is not waited for"
        finally:
            over.set()
            server.shutdown()
    assert completed(config, "wake", "ha") == []
    assert completed("/nowhere", "job", "start", "sleep", "--ev") == ["--everything"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_reads_is_printed(shell: str) -> None:
    done = CliRunner().invoke(main.cli, ["completion", shell])
    assert (done.exit_code, f"_ROOST_COMPLETE={shell}_complete" in done.output) == (0, True)


def test_a_mistyped_command_is_told_with_the_one_that_is_meant() -> None:
    done = CliRunner().invoke(main.cli, ["statsu"])
    assert "No such command 'statsu'. Did you mean 'status'?" in done.output
    assert done.exit_code == 2


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


@pytest.mark.parametrize("command", [["check-config"], ["up", "--check", "-c"], ["up", "-c"]])
def test_mistakes_are_told_with_their_lines_by_each_command(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "roost.toml"
    path.write_text("[policy]\nprobe_count = 0\n qiet = 1\n")
    argv = [sys.executable, "-m", "control.cli.main", *command, str(path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    told = done.stderr.removeprefix("Error: ") if command == ["up", "-c"] else done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    assert told.splitlines() == [
        f"{path}:2:1: `probe_count` in [policy]: Input should be greater than or equal to 1 (it is 0)",
        f"{path}:3:2: unknown key `qiet` in [policy]; did you mean `idle_quiet`?",
    ]


def test_check_config_says_json_and_finds_its_file(tmp_path: Path) -> None:
    path = tmp_path / "roost.toml"
    path.write_text('[paths]\ndatabase = "mysql://h/d"\n')
    done = CliRunner(env={"ROOST_CONFIG": str(path)}).invoke(main.cli, ["check-config", "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["config"], told["good"]) == (1, str(path), False)
    assert [(one["file"], one["line"], one["column"]) for one in told["mistakes"]] == [
        (str(path), None, None), (str(path), 2, 1)]  # fmt: skip
    assert told["mistakes"][0]["sentence"] == "there is no [[service]]; at least one is needed"
    path.write_text('[[service]]\nname = "a"\nlisten = "0.0.0.0:7000"\nserver = "10.0.0.9:7000"\n')
    done = CliRunner().invoke(main.cli, ["check-config", "--json", str(path)])
    good = {"config": str(path), "good": True, "services": 1, "mistakes": []}
    assert (done.exit_code, json.loads(done.stdout)) == (0, good)


def test_a_daemon_that_begins_anew_is_not_looked_for_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may have put a directory `control` there."""
    began: list[list[str]] = []

    def begin(_path: str, argv: list[str], _environment: dict[str, str]) -> NoReturn:
        began.append(argv)
        sys.exit(0)  # as another program takes its place

    monkeypatch.setattr(up, "_run", lambda *_: ANEW)
    monkeypatch.setattr(os, "execve", begin)
    monkeypatch.setattr(sys, "argv", ["roost", "up", "-c", "x.toml"])
    assert CliRunner().invoke(main.cli, ["up", "-c", "x.toml"]).exit_code == 0
    assert began == [[sys.executable, "-P", "-m", "control.cli.main", "up", "-c", "x.toml"]]


WITH_A_CONFIGURATION = {
    "up": ["up"],
    "up --check": ["up", "--check"],
    "up --quarantine": ["up", "--quarantine"],
    "unpin": ["unpin", "--yes"],
    "backup": ["backup", "FILE"],
    "restore": ["restore", "FILE"],
    "export": ["export", "FILE"],
    "api": ["api"],
}
"""Commands that read it, as they are run on a box. FILE: a backup, or where nothing is."""


def said_without_a_configuration(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Exit code and words, where the box's configuration is `roost.toml` beside this file."""
    monkeypatch.setattr(client, "CONFIG", str(file.with_name("roost.toml")))
    words = [str(file) if word == "FILE" else word for word in WITH_A_CONFIGURATION[name]]
    done = CliRunner().invoke(main.cli, words)
    return done.exit_code, f"{done.output} {done.exception}"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of a box whose database is PostgreSQL's, so that nothing but its configuration is in it."""
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text('[paths]\ndatabase = "postgresql://roost@h/d"\n[[service]]\nname = "a"\n'
                         'listen = "0.0.0.0:7000"\nserver = "10.0.0.9:7000"\n')  # fmt: skip
    done = CliRunner().invoke(main.cli, ["backup", str(tmp_path / "saved"), "-c", str(elsewhere)])
    assert done.exit_code == 0, done.output
    return tmp_path / "saved"


@pytest.mark.parametrize("name", WITH_A_CONFIGURATION)
def test_a_command_that_is_given_no_configuration_has_that_of_the_box(
    name: str, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = backup if name == "restore" else backup.with_name("new")
    code, said = said_without_a_configuration(name, file, monkeypatch)
    assert code == 2
    assert f"there is no {client.CONFIG}: write it" in said
    Path(client.CONFIG).write_text("[policy]\nprobe_count = 0\n")
    code, said = said_without_a_configuration(name, file, monkeypatch)
    assert code == 1
    assert f"{client.CONFIG}:2:1: `probe_count` in [policy]" in said


def test_the_configuration_of_a_backup_is_put_where_the_box_has_its_own(
    backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONFIG", str(backup.with_name("roost.toml")))
    monkeypatch.setattr(restore, "CONFIG", client.CONFIG)
    done = CliRunner().invoke(main.cli, ["restore", str(backup), "--with-config"])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    assert Path(client.CONFIG).read_text() == backup.with_name("elsewhere.toml").read_text()


@pytest.mark.parametrize(
    ("database", "said"),
    [
        ("/tmp/roost.db", "good; 1 services"),
        ("postgresql://roost@h/d", "good; 1 services"),
        ("mysql://h/d", "roost.toml:2:1: roost keeps its store in SQLite or PostgreSQL (by psycopg), not in mysql: "),
    ],
)
def test_check_config_tells_a_database_that_cannot_be_used(tmp_path: Path, database: str, said: str) -> None:
    config = tmp_path / "roost.toml"
    service = '[[service]]\nname = "a"\nlisten = "0.0.0.0:7000"\nserver = "10.0.0.9:7000"\n'
    config.write_text(f'[paths]\ndatabase = "{database}"\n{service}')
    argv = [sys.executable, "-m", "control.cli.main", "check-config", str(config)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == ("good" not in said)
