# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that drive an engine (tests/lab, tests/security): one lab a module, a fresh engine a test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.lab import Lab
from tests.lab.engine_lab import EngineLab


@pytest.fixture(scope="module")
def nat_free_lab() -> Iterator[Lab]:
    with Lab(clients=100, nat=False) as lab:
        yield lab


@pytest.fixture
def box(nat_free_lab: Lab, request: pytest.FixtureRequest) -> Iterator[EngineLab]:
    """An engine in the module's lab; `@pytest.mark.engine(...)` gives EngineLab's arguments."""
    mark = request.node.get_closest_marker("engine")
    arguments: dict[str, Any] = dict(mark.kwargs) if mark else {}
    with EngineLab(nat_free_lab, **arguments) as box:
        yield box


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine(**arguments): arguments of EngineLab for the fixture `box`")
    config.addinivalue_line("markers", "appliance(fixture): the fixture whose appliance the fixture `ward` is about")
