# SPDX-License-Identifier: Apache-2.0
"""The benches of a booted machine, with few clients: some five minutes where qemu emulates the processor."""

from __future__ import annotations

import pytest

from tests.bench import boot, reboot
from tests.bench.test_benches import assert_sound

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def test_a_booted_machine_loses_none_in_an_upgrade_and_is_as_before_after_a_purge() -> None:
    report = boot.run(connections=51)
    assert_sound(report)
    assert report.figures["native_xdp"].median == 1


def test_a_booted_machine_loses_none_in_a_reboot_and_none_that_slept_in_a_power_cut() -> None:
    assert_sound(reboot.run(connections=51, probe_s=5))
