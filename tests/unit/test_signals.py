# SPDX-License-Identifier: Apache-2.0
"""control/core/signals.py"""

from __future__ import annotations

import subprocess
import sys

LOOP = """
import asyncio, os, signal
from control.core.signals import on_signal
loop, seen = asyncio.new_event_loop(), []
on_signal(loop, signal.SIGUSR2, seen.append, "seen")
for _ in range(100_000):
    loop.call_soon_threadsafe(int)
os.kill(os.getpid(), signal.SIGUSR2)
loop.run_until_complete(asyncio.sleep(0))
loop.close()
os.kill(os.getpid(), signal.SIGUSR2)
print(seen)
"""


def test_no_signal_is_lost_while_other_threads_wake_the_loop_faster_than_it_turns() -> None:
    done = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("['seen']\n", "")
