# SPDX-License-Identifier: Apache-2.0
"""The benches of a booted machine, with few clients: some five minutes where qemu emulates the processor."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.bench import boot, reboot
from tests.bench.test_benches import assert_sound
from tests.mutants import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ARM64_PACKAGES: Final = {"qemu-system-arm": Path("/usr/bin/qemu-system-aarch64"),
                         "qemu-user-static": Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")}  # fmt: skip
"""Debian's, that a test of arm64 needs, and what is there when they are installed and at work."""


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_a_booted_machine_loses_none_in_an_upgrade_and_is_as_before_after_a_purge(release: str, tmp_path: Path) -> None:
    subprocess.run([ROOT / "vagrant" / "rootfs.sh", tmp_path / "root", release], check=True)
    report = boot.run(connections=51, root=str(tmp_path / "root"))
    assert_sound(report, *boot.EXPOSURE)
    assert report.figures["native_xdp"].median == 1


def test_a_booted_machine_loses_none_in_a_reboot_and_none_that_slept_in_a_power_cut() -> None:
    assert_sound(reboot.run(connections=51, probe_s=5))


@pytest.mark.timeout(5400)
def test_an_arm64_machine_does_what_others_do(tmp_path: Path) -> None:
    if absent := [package for package, there in ARM64_PACKAGES.items() if not there.exists()]:
        pytest.skip(f"an emulated arm64 needs what `apt-get install {' '.join(absent)}` brings")
    subprocess.run([ROOT / "vagrant" / "rootfs.sh", tmp_path / "root", "bookworm", "arm64"], check=True)
    report = boot.run(connections=9, root=str(tmp_path / "root"))
    assert_sound(report)
    assert report.figures["native_xdp"].median == 1
