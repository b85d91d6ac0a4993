# SPDX-License-Identifier: Apache-2.0
"""The BPF programs as they are built for processors that do not keep loads in order, as those of arm64: this machine's
kernel takes them, and they do what the others do. That they keep loads in order where it matters is what
tests/unit/test_interleavings_reordered.py looks at."""

from __future__ import annotations

import itertools
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance.lab import Lab
from control.core.states import State
from tests.lab.engine_lab import EngineLab, tcp_info
from tests.mutants import ROOT

IN_ORDER: Final = "-DROOST_LOADS_IN_ORDER"


@pytest.fixture
def box(nat_free_lab: Lab, tmp_path: Path) -> Iterator[EngineLab]:
    builder = runpy.run_path(str(ROOT / "ebpf" / "build.py"))
    ours = builder["compiler_command"]
    theirs = [word for word in ours(Path("a"), Path("b")) if word != IN_ORDER]
    builder["build"].__globals__["compiler_command"] = lambda source, target: [
        *theirs[:-3], str(source), "-o", str(target)
    ]  # fmt: skip
    assert builder["build"](tmp_path, ("ebpf",)) == 0
    with EngineLab(nat_free_lab, bpf_dir=str(tmp_path)) as box:
        yield box


def test_clients_connect_sleep_are_kept_alive_and_wake(box: EngineLab) -> None:
    kinds = list(itertools.product((4, 6), (State.IDLE, State.SLEEP)))
    pairs = [box.connect(family, keepalives=True) for family, _ in kinds]
    for pair, (_, state) in zip(pairs, kinds, strict=True):
        box.to(pair, state)
    time.sleep(2.5)
    assert all(tcp_info(pair.client).last_ack_recv_ms < 1600 for pair in pairs)
    assert box.stat("keepalives_answered") >= len(pairs)
    for pair in pairs:
        box.wake_and_answer(pair)
        assert tcp_info(pair.client).retransmits == 0
