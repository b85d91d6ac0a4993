# SPDX-License-Identifier: Apache-2.0
"""python -m tests.fuzz TARGET [--seconds N] [--work DIR] [--replay HEX]

Runs a fuzz target from its seeds until the time is over or something is found; what it has learnt (its corpus) stays in
DIR for the next run. Exit code 1: a finding, which is printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import TARGETS, build, replay, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Run a fuzz target.")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=60, help="how long (default: 60)")
    parser.add_argument("--work", type=Path, help="where corpus and findings stay (default: nowhere)")
    parser.add_argument("--replay", metavar="HEX", help="run this one input; - is the empty one")
    arguments = parser.parse_args()
    target = TARGETS[arguments.target]
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        executable = build(target, Path(temporary))
        if arguments.replay is not None:
            done = replay(executable, bytes.fromhex(arguments.replay.removeprefix("-")), Path(temporary))
            print(done.stderr, end="")
            return int(done.returncode != 0)
        finding, log = run(executable, target, work, seconds=arguments.seconds)
    print(finding if finding else "\n".join(line for line in log.splitlines() if line.startswith(("stat::", "Done"))))
    return int(finding is not None)


if __name__ == "__main__":
    sys.exit(main())
