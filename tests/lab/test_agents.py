# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.lab import Lab
from tests.lab.agent_lab import WEB, AgentLab


@pytest.fixture(scope="module")
def box() -> Iterator[AgentLab]:
    with Lab(clients=20) as lab:
        yield AgentLab(lab)


def test_figure_20_a_server_reaches_an_accepting_client_through_its_agent(box: AgentLab) -> None:
    box.web_client()
    box.agent("--accepting", f"camera={WEB}")
    box.wait_for_agent("camera")
    box.to_sleep("camera")
    for _ in range(3):
        assert box.ask("camera.roost") == (0, b"thermostat: 21.5\n", "")
        box.wait(lambda: len(box.connections("agents")) == 1, "the data connection is closed")
        box.to_sleep("camera")
