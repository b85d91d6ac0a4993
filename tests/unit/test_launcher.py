"""./roost, the launcher: what it decides from stamps, and what it says when it cannot go on.

Each test runs the real script in a small checkout of its own, whose environment, build scripts and command are stubs
that write down what was asked of them; the packages step is answered by a dpkg-query of the test's.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from appliance.paths import checkout

ROOT = checkout()
assert ROOT is not None, "the launcher is part of a checkout"
LAUNCHER = ROOT / "roost"

PYTHON = """#!/bin/sh
# Stands in for .venv/bin/python.
[ -n "$PYTHONSAFEPATH" ] || echo "believes $PWD" >>"$ROOST_TEST_CALLS"
case "$*" in
    *ebpf/build.py*) echo bpf >>"$ROOST_TEST_CALLS"; mkdir -p "$ROOST_TEST_ROOT/build/bpf"
        [ ! -e "$ROOST_TEST_ROOT/break-bpf" ] || { cat "$ROOST_TEST_ROOT/break-bpf" >&2; exit 1; }
        sleep "${ROOST_TEST_SLEEP:-0}"
        : >"$ROOST_TEST_ROOT/build/bpf/one.bpf.o" ;;
    *build_ext*)
        [ ! -e "$ROOST_TEST_ROOT/warn" ] || [ "$ROOST_WERROR" != 1 ] || { cat "$ROOST_TEST_ROOT/warn" >&2; exit 1; }
        echo extension >>"$ROOST_TEST_CALLS"; : >"$ROOST_TEST_ROOT/cext/_engine.so" ;;
    *"pip install"*/requirements.lock) echo pip >>"$ROOST_TEST_CALLS" ;;
    *control.cli.main*) shift 3; printf 'ran <%s> in %s with %s\\n' "$*" "$PWD" "$PYTHONPATH" ;;
    *) exit 0 ;;
esac
"""


class Checkout:
    """A checkout in a directory with a space in its name."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "my roost"
        self.calls_file = base / "calls"
        self.bin = base / "bin"
        for directory in ("ebpf/shared", "ebpf/xdp", "cext", "vagrant", ".venv/bin"):
            (self.root / directory).mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(LAUNCHER, self.root / "roost")
        self.write("vagrant/packages.txt", "# packages\nclang build\ngcc build # the compiler\n")
        self.write("requirements.lock", "click==8\n")
        self.write("ebpf/xdp/one.bpf.c", "int one;\n")
        self.write("ebpf/build.py", "")
        self.write("cext/engine.c", "int engine;\n")
        self.write("cext/build_engine.py", "")
        self.write("setup.py", "")
        self.script(self.root / ".venv/bin/python", PYTHON)
        self.script(self.bin / "dpkg-query", "#!/bin/sh\nprintf 'ii clang\\nii gcc\\n'\n")
        # The real bpffs is none of these tests' business.
        self.script(self.bin / "mount", '#!/bin/sh\necho "$*" >>"$ROOST_TEST_ROOT/../mounts"\nexit 1\n')

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    @staticmethod
    def script(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "ROOST_TEST_CALLS": str(self.calls_file),
            "ROOST_TEST_ROOT": str(self.root),
            "ROOST_POLICY": str(self.base / "policy-rc.d"),
            "ROOST_UNITS": str(self.base / "units"),
        }

    def run(self, *args: str, cwd: Path | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "roost"), *args],
            cwd=cwd or self.base,
            env={**self.environment, **extra},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self) -> list[str]:
        """The steps that ran since the last call."""
        done = self.calls_file.read_text().split() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return done


@pytest.fixture
def tree(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_while_a_shell_completes_nothing_is_set_up(tree: Checkout) -> None:
    done = tree.run("sta", _ROOST_COMPLETE="bash_complete")
    assert (done.returncode, done.stdout, done.stderr, tree.calls()) == (0, "", "", [])
    tree.run("status")
    assert tree.run(_ROOST_COMPLETE="bash_complete").stdout == f"ran <> in {tree.base} with {tree.root}\n"


def test_the_first_start_builds_everything_and_then_runs_the_command(tree: Checkout) -> None:
    done = tree.run("status", "--json")
    assert done.returncode == 0, done.stderr
    assert tree.calls() == ["pip", "bpf", "extension"]
    assert done.stdout == f"ran <status --json> in {tree.base} with {tree.root}\n"
    assert "[3/4] compiling the BPF programs" in done.stderr


def test_the_second_start_builds_nothing_and_says_nothing(tree: Checkout) -> None:
    tree.run()
    tree.calls()
    done = tree.run("status", cwd=tree.root / "ebpf")
    assert (done.returncode, done.stderr) == (0, "")
    assert tree.calls() == []


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        ("ebpf/xdp/one.bpf.c", ["bpf"]),
        ("ebpf/shared/record.h", ["bpf", "extension"]),
        ("cext/engine.c", ["extension"]),
        ("requirements.lock", ["pip", "extension"]),
    ],
)
def test_a_changed_source_is_built_again(tree: Checkout, changed: str, steps: list[str]) -> None:
    tree.run()
    tree.calls()
    tree.write(changed, "changed\n")
    assert tree.run().returncode == 0
    assert tree.calls() == steps


def test_a_deleted_result_is_built_again(tree: Checkout) -> None:
    tree.run()
    tree.calls()
    (tree.root / "build/bpf/one.bpf.o").unlink()
    tree.run()
    assert tree.calls() == ["bpf"]


def test_a_failed_step_shows_its_log_stops_and_is_tried_again(tree: Checkout) -> None:
    tree.write("break-bpf", "one.bpf.c:1:1: error: expected a sentence\n")
    done = tree.run("status")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "expected a sentence" in done.stderr
    assert str(tree.root / "build/log/bpf.log") in done.stderr
    (tree.root / "break-bpf").unlink()
    assert tree.run("status").returncode == 0


def test_a_warning_ends_the_build_unless_it_is_told_to_go_on(tree: Checkout) -> None:
    tree.write("warn", "engine.c:1:5: error: unused variable 'one' [-Werror=unused-variable]\n")
    done = tree.run("status")
    assert done.returncode == 1
    assert "ROOST_WERROR=0 ./roost status" in done.stderr
    assert tree.run("status", ROOST_WERROR="0").returncode == 0


def test_doctor_runs_even_when_the_build_is_broken(tree: Checkout) -> None:
    tree.write("break-bpf", "error: broken\n")
    done = tree.run("doctor")
    assert done.returncode == 0
    assert "ran <doctor>" in done.stdout


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("write failed: No space left on device", "The disk is full"),
        ("Temporary failure resolving 'mirror'", "could not be reached"),
        ("SSL: CERTIFICATE_VERIFY_FAILED", "PIP_CERT"),
        ("cannot open: Read-only file system", "sudo ./roost status"),
        (
            "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE",
            "is not the one that requirements.lock names",
        ),
        ("ERROR: Hashes are required in --require-hashes mode", "python -m control.dev.lock --write"),
    ],
)
def test_a_known_failure_is_answered_with_what_to_do(tree: Checkout, log: str, advice: str) -> None:
    tree.write("break-bpf", log + "\n")
    done = tree.run("status")
    assert done.returncode == 1
    assert advice in done.stderr


def test_two_first_starts_at_once_build_once(tree: Checkout) -> None:
    environment = {**tree.environment, "ROOST_TEST_SLEEP": "1"}
    started = [
        subprocess.Popen(
            [str(tree.root / "roost"), "status"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [each.communicate(timeout=60) for each in started]
    assert [each.returncode for each in started] == [0, 0], ended
    assert sorted(tree.calls()) == ["bpf", "extension", "pip"]
    assert sum("waiting for another" in stderr for _, stderr in ended) == 1


def test_missing_packages_are_installed_with_one_apt_run(tree: Checkout) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    tree.script(tree.bin / "dpkg-query", "#!/bin/sh\nprintf 'ii clang\\nun gcc\\n'\n")
    tree.script(tree.bin / "dpkg", "#!/bin/sh\nexit 0\n")
    tree.script(tree.bin / "apt-get", '#!/bin/sh\nprintf "apt:%s\\n" "$(echo "$*" | tr " " _)" >>"$ROOST_TEST_CALLS"\n')
    done = tree.run("status")
    assert done.returncode == 0, done.stderr
    update, install, *_ = tree.calls()
    assert update.endswith("_update")
    assert install.endswith("_install_gcc")
    assert "installing 1 missing" in done.stderr


APT_WITH_A_SERVICE = """#!/bin/sh
case "$*" in *install*) ;; *) exit 0 ;; esac
"$ROOST_POLICY" nginx start
echo "policy:$?" >>"$ROOST_TEST_CALLS"
: >"$ROOST_UNITS/multi-user.target.wants/nginx.service"
: >"$ROOST_UNITS/timers.target.wants/nginx.timer"
"""


def test_no_service_of_an_installed_package_starts_now_or_at_the_next_boot(tree: Checkout) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    units = tree.base / "units"
    for wants in ("multi-user.target.wants", "timers.target.wants"):
        (units / wants).mkdir(parents=True)
    (units / "multi-user.target.wants" / "ssh.service").touch()  # the machine's own
    tree.script(tree.bin / "dpkg-query", "#!/bin/sh\nprintf 'ii clang\\n'\n")
    tree.script(tree.bin / "dpkg", "#!/bin/sh\nexit 0\n")
    tree.script(tree.bin / "apt-get", APT_WITH_A_SERVICE)
    tree.script(tree.bin / "systemctl", '#!/bin/sh\nfor last; do :; done; echo "$1:$last" >>"$ROOST_TEST_CALLS"\n')
    done = tree.run("status")
    assert done.returncode == 0, done.stderr
    refused, *disabled = tree.calls()[:3]
    assert refused == "policy:101"
    assert sorted(disabled) == ["disable:nginx.service", "disable:nginx.timer"]
    assert not (tree.base / "policy-rc.d").exists()


def test_a_policy_of_the_machines_own_stays(tree: Checkout) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    policy = tree.base / "policy-rc.d"
    tree.script(policy, "#!/bin/sh\nexit 101\n")
    tree.script(tree.bin / "dpkg-query", "#!/bin/sh\nprintf 'ii clang\\n'\n")
    for tool in ("dpkg", "apt-get"):
        tree.script(tree.bin / tool, "#!/bin/sh\nexit 0\n")
    assert tree.run("status").returncode == 0
    assert policy.read_text() == "#!/bin/sh\nexit 101\n"


def test_without_root_a_missing_package_is_a_sentence(tree: Checkout) -> None:
    tree.script(tree.bin / "dpkg-query", "#!/bin/sh\nprintf 'ii clang\\n'\n")
    tree.script(tree.bin / "id", "#!/bin/sh\necho 1000\n")
    done = tree.run("status")
    assert done.returncode == 1
    assert done.stderr.endswith("Run: sudo ./roost status\n")
    assert tree.calls() == []


def test_the_launcher_works_through_a_link(tree: Checkout) -> None:
    link = tree.base / "roost-link"
    link.symlink_to(tree.root / "roost")
    done = subprocess.run(
        [str(link), "status"], env=tree.environment, cwd=tree.base, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ran <status>" in done.stdout


FOREIGN = """import os
os.close(os.open(os.environ["ROOST_TEST_PROOF"], os.O_CREAT | os.O_WRONLY))
raise SystemExit(3)
"""


def put_by_another_user(tree: Checkout, *modules: str) -> tuple[Path, Path]:
    """A directory as /tmp, with modules in it; and what shows that one of them ran."""
    shared = tree.base / "shared"
    shared.mkdir(mode=0o1777)
    for module in modules:
        (shared / f"{module}.py").write_text(FOREIGN)
    return shared, tree.base / "proof"


def test_set_up_runs_no_module_of_the_directory_where_the_user_stands(tree: Checkout) -> None:
    shared, proof = put_by_another_user(tree, "venv", "pip", "compileall")
    done = tree.run("status", cwd=shared)
    assert done.returncode == 0, done.stderr
    assert tree.calls() == ["pip", "bpf", "extension"], "no Python of the environment believes the directory"
    shutil.rmtree(tree.root / ".venv")
    (tree.root / ".venv").touch()  # so that no environment is made: it takes its time
    done = tree.run("status", cwd=shared, ROOST_TEST_PROOF=str(proof))
    assert done.returncode == 1
    assert "making the Python environment" in done.stderr
    assert not proof.exists()


def test_an_installation_runs_no_module_of_the_directory_where_root_stands(tree: Checkout) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root installs")
    shared, proof = put_by_another_user(tree, "venv", "pip", "compileall")
    shutil.copy(LAUNCHER.with_name("vagrant") / "install.sh", tree.root / "vagrant" / "install.sh")
    (work := tree.base / "work").mkdir()
    (work / "venv").touch()  # as above
    tree.script(tree.bin / "mktemp", f"#!/bin/sh\necho '{work}'\n")
    tree.script(tree.bin / "apt-get", "#!/bin/sh\nexit 1\n")
    tree.script(tree.bin / "dpkg-query", "#!/bin/sh\necho installed\n")
    done = subprocess.run(
        [str(tree.root / "vagrant" / "install.sh"), "--root", str(tree.base / "dest")],
        cwd=shared,
        env={**tree.environment, "ROOST_TEST_PROOF": str(proof)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "installing the Python packages" in done.stderr
    assert not proof.exists()


def test_the_bpffs_that_it_mounts_is_roots_alone(tree: Checkout) -> None:
    """Else another user could have the names below it first."""
    if os.geteuid() != 0 or not Path("/sys/fs/bpf").is_dir():
        pytest.skip("only root mounts, where there is a place for it")
    tree.script(tree.bin / "grep", '#!/bin/sh\ncase "$*" in *" bpf "*) exit 1 ;; esac\nexec /bin/grep "$@"\n')
    assert tree.run("status").returncode == 0
    assert (tree.base / "mounts").read_text() == "-t bpf -o mode=700 bpffs /sys/fs/bpf\n"
