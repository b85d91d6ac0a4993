# SPDX-License-Identifier: Apache-2.0
"""The engine's tests once more, with an engine that AddressSanitizer and UndefinedBehaviorSanitizer watch
(tests/sanitized): a part of them with every run, all of them as a soak."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lines import by_folder
from tests.mutants import ROOT, Mutant, plant
from tests.sanitized import Run, build, lines_run, run
from tests.sanitized.mutants import MUTANTS

SOAK_S = 7200

SLOW = tuple(  # what they are about is fuzzed, by the same sanitizers
    f"tests/unit/test_{name}.py" for name in ("in_band_frames", "judge", "proxy_header", "segment")
)
LAB = tuple(
    f"tests/lab/test_{name}.py"
    for name in ("attach", "born_handshake", "command_tokens", "errors", "freeze_thaw", "growth", "in_band_engine",
                 "keepalive", "link_ends", "persistent", "relay", "replay", "restart", "router", "second_server",
                 "servers", "sleep_filter", "waiting_for_the_record", "wake_packets")
)  # fmt: skip
SECURITY = tuple(
    f"tests/security/test_{name}.py" for name in ("exotic_packets", "forged_births", "forged_segments", "limits")
)


def with_engine(*layers: str) -> list[str]:
    """The files whose tests have the engine, or parts of it, in their own process."""
    uses = {"unit": "tests.inner", "lab": "engine_lab", "security": "engine_lab"}
    return [
        str(path.relative_to(ROOT))
        for layer in layers
        for path in sorted((ROOT / "tests" / layer).glob("test_*.py"))
        if uses[layer] in path.read_text() and path != Path(__file__)
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sanitized") / "engine")


def nothing_is_found(done: Run) -> None:
    assert done.code == 0, done.said
    assert not done.leaks, "\n".join(done.leaks)
    assert " passed" in done.said


@pytest.mark.timeout(900)
def test_nothing_is_found_in_a_part_of_the_tests(built: Path, record_property: Callable[[str, object], None]) -> None:
    """All of the cheap ones, and the first of each file in the lab."""
    nothing_is_found(run(built, [file for file in with_engine("unit") if file not in SLOW]))
    nothing_is_found(run(built, (*LAB, *SECURITY), "--of-each", "1"))
    record_property("lines", by_folder(lines_run(built)))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 300)
def test_nothing_is_found_in_any_test(built: Path) -> None:
    nothing_is_found(run(built, with_engine("unit", "lab", "security"), timeout_s=SOAK_S))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, built: Path, tmp_path: Path) -> None:
    wrong = build(tmp_path / "engine", plant(mutant, tmp_path / "tree"), like=built)
    done = run(wrong, (mutant.target,), "-x", counted=False)
    assert mutant.says in done.said, done.said
    assert done.code != 0 or any(mutant.says in leak for leak in done.leaks)
