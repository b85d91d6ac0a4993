# SPDX-License-Identifier: Apache-2.0
"""What a box must do with as many connections as it is made for, by the benches' own targets: some minutes each."""

from __future__ import annotations

import pytest

from tests.bench import restart, takeover, upgrade
from tests.bench.figures import Report
from tests.bench.test_benches import assert_sound

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.alone("compares figures, which other work makes worse"),
]


def held(report: Report) -> None:
    """Each target that it has."""
    assert report.targets, "it has some"
    assert_sound(report, *report.targets)


def test_a_byte_of_5_000_active_clients_waits_no_longer_than_it_may_while_the_service_is_restarted() -> None:
    held(upgrade.run(connections=5000, runs=3))


def test_a_second_machine_answers_for_1_000_000_sleepers_in_time() -> None:
    held(takeover.run(connections=1_000_000, runs=1))


def test_10_000_000_rows_are_back_in_time_after_a_reboot() -> None:
    held(restart.run(connections=10_000_000, runs=1, reboot=True))
