# SPDX-License-Identifier: Apache-2.0
"""A really booted machine as the appliance, rebooted in order, without power, and with a clock that is wrong.

Method. As `bench boot`, with keep-alive probes every PROBE_S seconds. The machine is

    rebooted    in order, by `systemctl reboot`
    cut         off its power, and booted again
    behind      the same, and its clock is an hour late from then on
    ahead       the same once more, and it is an hour early

each time when all are where they go when they are left alone. In a reboot none is lost, those that were awake among
them; in a power cut only those in SLEEP count, and `cut_forgotten` are the others, which have no row.
"""

from __future__ import annotations

from appliance.lab.machine import Machine
from tests.bench.boot import booted
from tests.bench.figures import Report

PROBE_S = 30.0


def cut(machine: Machine, ahead_s: int = 0) -> None:
    machine.cut_power()
    machine.power_on(ahead_s)


def run(connections: int = 150, root: str | None = None, probe_s: float = PROBE_S) -> Report:
    """Reboot it, in order and otherwise."""
    report = Report(
        "reboot", f"{connections:,} clients, kept alive every {probe_s:g} s; a reboot, and three power cuts"
    )
    with booted(report, connections, root, probe_s) as (_, fleet):
        _ = (fleet.suffer("reboot", Machine.reboot) and fleet.suffer("cut", cut, ("idle", "awake"))
             and fleet.suffer("behind", lambda machine: cut(machine, -3600))
             and fleet.suffer("ahead", lambda machine: cut(machine, 3600)))  # fmt: skip
    return report
