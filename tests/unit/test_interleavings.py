# SPDX-License-Identifier: Apache-2.0
"""Freezing, sleeping and thawing against packets, in every order there is (tests/interleave)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interleave.explore import build, explore, scenarios

# Beside tests that run alone it gets the processor that they leave, and none where busy processes run beside those.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model"))


def test_every_interleaving_keeps_every_connection(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explored = explore(model)
    assert [one.name for one in explored] == scenarios(model)
    with capsys.disabled():
        print(f" {sum(one.schedules for one in explored)} schedules of {len(explored)} scenarios ", end="")


@pytest.mark.soak
@pytest.mark.timeout(7200)  # others go before
def test_every_interleaving_with_one_more_preemption_keeps_every_connection(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explored = explore(model, deeper=True)
    with capsys.disabled():
        print(f" {sum(one.schedules for one in explored)} schedules of {len(explored)} scenarios ", end="")
