# SPDX-License-Identifier: Apache-2.0
"""The log of `roost bench soak`, in Markdown: what was done, what came of it, the findings, each fault, memory."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tests.bench.figures import Report, machine
from tests.bench.soak_checks import Checks, Sample
from tests.bench.soak_faults import FAULTS
from tests.bench.soak_scene import HABITS, Habit

if TYPE_CHECKING:
    from tests.bench.soak import Suffered

MEMORY_ROWS: Final = 16


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows)]
    return "\n".join(lines) + "\n"


def clock(seconds: float) -> str:
    """ "12:05": minutes and seconds since the beginning."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def spread(samples: list[Sample]) -> list[Sample]:
    """Some of them, evenly over all, the first and the last among them."""
    if len(samples) <= MEMORY_ROWS:
        return samples
    return [samples[round(at * (len(samples) - 1) / (MEMORY_ROWS - 1))] for at in range(MEMORY_ROWS)]


HEAD: Final = """# A soak

{did}. By `roost bench soak` on {day}: Linux {kernel}, {cpu} with {cores} cores, {memory_mb:,} MB. Clients, NAT router,
appliance, database and servers are all on this machine. How it is done, and what each figure means, stands in
`tests/bench/soak.py`.

## Result

{verdict}
"""
AS_THEY_CAME: Final = """As they came. A fault *lasted* until what was done was undone; then it took *well after* until
no client waited for its answer and all were connected. *Cost* are connections that ended and may, by the documentation:
awake ones where the daemon is killed or stopped, those in IDLE, too, where power is cut, those linked to a server
that is killed.
"""
MEMORY: Final = """The daemon's resident memory without the maps that it has mapped, maps and programs as the kernel
accounts them, and the appliance's kernel sockets.
"""


def written(report: Report, suffered: Sequence[Suffered], checks: Checks, started: float) -> str:
    """started: wall clock, seconds."""
    verdict = "All is as it should be." if report.passed else "Not everything is as it should be."
    head = HEAD.format(
        did=report.did, day=time.strftime("%Y-%m-%d", time.gmtime(started)), verdict=verdict, **machine()
    )
    return "\n".join([
        head,
        result(report),
        "## Findings\n",
        table(["at", "last fault", "what"], [[clock(one.at), one.fault, one.what] for one in checks.findings])
        if checks.findings else "None.\n",
        "## Faults\n",
        table(["fault", "what it does", "times", "cost"],
              [[one.name, one.what, f"{report.figures[f'faults_{one.name}'].median:g}", f"{checks.ends[one.name]:,}"]
               for one in FAULTS]),
        AS_THEY_CAME,
        table(["at", "fault", "lasted s", "well after s", "cost", "findings"],
              [[clock(one.at), one.name, f"{one.lasted_s:.1f}", f"{one.well_s:.1f}", f"{one.cost:,}", str(one.found)]
               for one in suffered]),
        "## Memory\n",
        MEMORY,
        table(["at", "daemon MB", "maps MB", "sockets", "awake"],
              [[clock(one.at), f"{one.daemon / 1e6:.1f}", f"{one.maps / 1e6:.1f}", f"{one.sockets:,}", f"{one.awake:,}"]
               for one in spread(checks.samples)]),
        "## Clients\n",
        table(["group", "share", "a question each, by day", "quiet intervals", "how"],
              [[one.name, f"{one.share:.0%}", f"{one.every_s:g} s", " / ".join(f"{quiet:g} s" for quiet in one.quiet),
                how(one)] for one in HABITS]),
    ])  # fmt: skip


def result(report: Report) -> str:
    rows = []
    for key, figure in report.figures.items():
        target = str(report.targets[key]) if key in report.targets else "0" if key in report.zeros else ""
        least_most = f"{figure.min:,} to {figure.max:,}" if figure.runs > 1 else ""
        if not key.startswith("faults_"):
            rows.append([key, f"{figure.median:,}", least_most, target, figure.unit])
    return table(["figure", "value, or median", "from, to", "target", "unit"], rows)


def how(habit: Habit) -> str:
    """A group's service, and who comes for its clients."""
    words = [f"{key} = {json.dumps(value)}" for key, value in habit.service.items()] or ["transient"]
    if habit.attach:
        words.append(f"servers come by {habit.attach}")
    if habit.leave_every_s:
        words.append("clients leave and come back")
    return ", ".join(words)
