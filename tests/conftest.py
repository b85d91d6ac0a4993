"""The layers: a test's directory decides its marker, its place in the run, and whether it needs root.

    tests/unit      no privilege, no network
    tests/lab       real clients, appliance and servers in network namespaces
    tests/security  forged, malformed and hostile packets
    tests/bench     the benches, at a size that proves they run

Cheap layers run first, so that a broken unit is seen before the minutes of the lab. `soak` marks what takes minutes by
itself; it runs only with --soak (`roost test --all`).
"""

import os
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LAYERS = ("unit", "lab", "security", "bench")
PRIVILEGED = frozenset({"lab", "security", "bench"})


def layer_of(path: Path) -> str:
    """The layer of a test file; a file outside the layers' directories is an error, it would escape the order."""
    try:
        layer = path.relative_to(TESTS).parts[0]
    except ValueError:
        layer = ""
    if layer not in LAYERS:
        raise pytest.UsageError(f"{path}: tests belong into one of tests/{{{','.join(LAYERS)}}}")
    return layer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run the tests marked soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LAYERS.index(layer_of(item.path)))
    for item in items:
        layer = layer_of(item.path)
        item.add_marker(layer)
        if layer in PRIVILEGED and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason=f"tests/{layer} needs root"))
        if item.get_closest_marker("soak") and not config.getoption("--soak"):
            item.add_marker(pytest.mark.skip(reason="a soak: runs with 'roost test --all'"))


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
