"""The layers: a test's directory decides its marker, its place in the run, and whether it needs root.

    tests/unit      no privilege, no network
    tests/lab       real clients, appliance and servers in network namespaces
    tests/security  forged, malformed and hostile packets
    tests/bench     the benches, at a size that proves they run

Cheap layers run first, so that a broken unit is seen before the minutes of the lab. `soak` marks what takes minutes by
itself; it runs only with --soak (`roost test --all`). Files run side by side in several workers (distribution.py), the
longest first; tests marked `alone`, and soaks, run after all others, one by one, and beside them those that only
compute.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.workermanage import WorkerController

from tests.distribution import Distribution
from tests.lines import LineCounter

TESTS = Path(__file__).parent
LAYERS = ("unit", "lab", "security", "bench")
PRIVILEGED = frozenset({"lab", "security", "bench"})
BEGUN_FIRST = (  # of all files: those that take longest, 60 to 240 s each on a quiet machine
    "tests/unit/spark",
    "tests/security/test_sanitized.py",
    "tests/bench/test_benches.py",
    "tests/lab/test_persistent.py",
    "tests/lab/test_flows.py",
    "tests/security/test_forged_segments.py",
    "tests/lab/test_lab_up.py",
    "tests/unit/test_export.py",
    "tests/lab/test_sessions.py",
    "tests/lab/test_sleep_filter.py",
    "tests/lab/test_persistent_daemon.py",
    "tests/lab/test_errors.py",
    "tests/lab/test_figures.py",
    "tests/lab/test_control_plane.py",
    "tests/lab/test_lwip.py",
    "tests/lab/test_restart.py",
    "tests/lab/test_in_band.py",
    "tests/lab/test_growth.py",
    "tests/lab/test_simulator_appliance.py",
    "tests/lab/test_capture.py",
)
WHOLE = ("tests/unit/spark", "tests/bench/test_report.py")  # one Java for all of them
BACKGROUND = (  # files that compute for 60 to 120 s, and ask no clock
    "tests/unit/test_interleavings.py",
    "tests/unit/test_interleavings_planted.py",
    "tests/unit/test_interleavings_reordered.py",
    "tests/security/test_fuzz.py",
)
BESIDE = (*BACKGROUND, "tests/security/test_sanitized.py")  # whose soaks wait for no machine

TOGETHER = pytest.StashKey[Path]()

# How long an example takes says how busy the machine is.
settings.register_profile("roost", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("roost")

# Started in the background of a shell script, the tests ignore SIGINT, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Here, before any test imports what is counted. An engine that sanitizers watch counts its own lines.
LINES = None if "ROOST_SANITIZED" in os.environ else LineCounter()


def layer_of(path: Path) -> str:
    """The layer of a test file; a file outside the layers' directories is an error, it would escape the order."""
    try:
        layer = path.relative_to(TESTS).parts[0]
    except ValueError:
        layer = ""
    if layer not in LAYERS:
        raise pytest.UsageError(f"{path}: tests belong into one of tests/{{{','.join(LAYERS)}}}")
    return layer


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    parser.addoption("--soak", action="store_true", help="also run the tests marked soak")
    if LINES is not None:
        pluginmanager.register(LINES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        layer = layer_of(item.path)
        item.add_marker(layer)
        if layer in PRIVILEGED and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason=f"tests/{layer} needs root"))
        if item.get_closest_marker("soak") and not config.getoption("--soak"):
            item.add_marker(pytest.mark.skip(reason="a soak: runs with 'roost test --all'"))
    items.sort(key=lambda item: (is_alone(item), LAYERS.index(layer_of(item.path))))


def is_alone(item: pytest.Item) -> bool:
    """Soaks, too: of booted machines beside each other, on two processors, none is ready in time."""
    if item.get_closest_marker("soak") is not None and not item.nodeid.startswith(BESIDE):
        return True
    return item.get_closest_marker("alone") is not None


# A worker tells pytest-xdist the names of its tests alone; how many of them do not run alone it says in a file.


def pytest_configure(config: pytest.Config) -> None:
    if config.option.numprocesses and not hasattr(config, "workerinput"):
        directory = tempfile.TemporaryDirectory(prefix="roost-test-")
        config.add_cleanup(directory.cleanup)
        config.stash[TOGETHER] = Path(directory.name) / "together"


def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["together"] = str(node.config.stash[TOGETHER])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    told = getattr(session.config, "workerinput", None)
    if told is not None:
        Path(told["together"]).write_text(str(sum(not is_alone(item) for item in session.items)))


def pytest_xdist_make_scheduler(config: pytest.Config) -> Distribution:
    # Who is not root could not take it back, and runs no test that is to run alone.
    background = BACKGROUND if os.geteuid() == 0 else ()
    return Distribution(
        config.option.numprocesses, config.stash[TOGETHER], BEGUN_FIRST, background, set_yielding, WHOLE
    )


def set_yielding(node: WorkerController, yields: bool) -> None:
    policy = os.SCHED_IDLE if yields else os.SCHED_OTHER
    for task in family(node.gateway._io.popen.pid):
        with suppress(ProcessLookupError):
            os.sched_setscheduler(task, policy, os.sched_param(0))


def family(process: int) -> Iterator[int]:
    """The threads of a process and of all that it began. What begins once the one that begins it was named inherits
    from that: if that was changed, so was the new one."""
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{process}/task").iterdir():
            yield int(task.name)
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    yield from family(int(child))


def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """A worker that died does not say why: -9 is somebody's SIGKILL."""
    if error:
        with suppress(subprocess.TimeoutExpired):
            print(f"{node.gateway.id} ended with exit status {node.gateway._io.popen.wait(10)}", file=sys.stderr)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for lint and one for each layer, before pytest's own closing line."""
    counts: dict[str, Counter[str]] = {layer: Counter() for layer in LAYERS}
    seconds: dict[str, float] = dict.fromkeys(LAYERS, 0.0)
    for verdict, reports in terminalreporter.stats.items():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            layer = Path(report.nodeid.partition("::")[0]).parts[1]
            seconds[layer] += report.duration
            if verdict:  # '' is a set-up or tear-down that went well
                counts[layer][verdict] += 1
    terminalreporter.section("layers")
    if "ROOST_LINT" in os.environ:
        terminalreporter.write_line(f"lint      {os.environ['ROOST_LINT']}")
    for layer, count in counts.items():
        if count:
            verdicts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(count.items()))
            terminalreporter.write_line(f"{layer:<9} {verdicts} in {seconds[layer]:.1f} s")
