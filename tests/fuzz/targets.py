# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets: what each is compiled of, and how it is run.

A target is one executable, made with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer. The programs
of ebpf/ read fields where the frame has them, aligned or not, as BPF may; the alignment check is off for that reason.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.seeds import SEEDS
from tests.mutants import ROOT, is_made_from

SANITIZERS = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all")
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare", "-Werror")


@dataclass(frozen=True, slots=True)
class Target:
    """`sources` are relative to a checkout; `max_length` is the longest input, bytes; `runs`: the inputs of a short
    run, some 2 to 5 s of one processor.

    `optimise`: the XDP program's unrolled loops, with every check of UndefinedBehaviorSanitizer in them, keep clang 14
    busy for more than ten minutes when it optimises.
    """

    name: str
    sources: tuple[str, ...]
    max_length: int
    runs: int
    libraries: tuple[str, ...] = ()
    optimise: str = "-O1"


_TABLE = tuple(
    f"cext/{name}.c"
    for name in ("base/hash", "table/table", "table/connected", "table/endpoints", "table/interned", "table/filter")
)
_WORLD = ("tests/fuzz/world.c", "tests/fuzz/host/kernel.c", *_TABLE)
_ALL = (
    Target("xdp", ("tests/fuzz/fuzz_xdp.c", "cext/socket/segment.c", *_WORLD), 512, 2_000, optimise="-O0"),
    Target("tc", ("tests/fuzz/fuzz_tc.c", *_WORLD), 512, 8_000),
    Target("segment", ("tests/fuzz/fuzz_segment.c", "cext/socket/segment.c", *_WORLD), 256, 30_000),
    Target("inband", ("tests/fuzz/fuzz_inband.c", "cext/inband/inband.c"), 2048, 40_000, ("-lz",)),
    Target("proxy", ("tests/fuzz/fuzz_proxy.c", "cext/socket/proxy_header.c", *_TABLE), 64, 500_000),
)
TARGETS = {target.name: target for target in _ALL}


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that broke a claim or that a sanitizer objected to, and what was said about it."""

    target: str
    data: bytes
    said: str

    def __str__(self) -> str:
        return (
            f"{self.said}\n{self.target}: this input of {len(self.data)} bytes did it. To see it again:\n"
            f"    python -m tests.fuzz {self.target} --replay {self.data.hex() or '-'}"
        )


def build(target: Target, out: Path, root: Path = ROOT, changed: str | None = None, made: Path | None = None, *,
          in_order: bool = True) -> Path:  # fmt: skip
    """Compile a target from the checkout at `root` into the directory `out`; the executable's path.

    in_order: the programs of ebpf/ are those for a processor that keeps loads in order (x86); else those for others.
    With `changed`, the one file there that differs from this checkout's, of which the directory `made` has the objects.
    """
    executable = out / f"fuzz-{target.name}"
    compiler = [
        "clang",
        "-std=gnu11",
        "-g",
        target.optimise,
        *(["-DROOST_LOADS_IN_ORDER"] if in_order else []),
        *SANITIZERS,
        *(WARNINGS if root == ROOT else ("-w",)),  # a planted bug may leave a variable unused
        f"-I{root / 'tests/fuzz/host'}",
        f"-I{root}",
    ]
    objects = []
    for source in target.sources:
        name = f"{Path(source).stem}.o"
        if changed and made and not is_made_from(made / name, changed):
            objects.append(str(made / name))
        else:
            objects.append(str(out / name))
            _call([*compiler, "-MMD", "-c", str(root / source), "-o", objects[-1]], target)
    _call([*compiler, *objects, *target.libraries, "-o", str(executable)], target)
    return executable


def _call(command: Sequence[str], target: Target) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"fuzz target {target.name} does not compile:\n{done.stderr}")


def _said(log: str) -> str:
    """The lines of libFuzzer's log that say what went wrong, without its progress and shadow memory."""
    lines = log.splitlines()
    marks = ("CLAIM BROKEN", "runtime error", "ERROR: ", "host: ")
    first = next((i for i, line in enumerate(lines) if any(mark in line for mark in marks)), max(0, len(lines) - 20))
    return "\n".join(lines[first : first + 20])


def run(
    executable: Path, target: Target, work: Path, *, seconds: float | None = None, runs: int = -1
) -> tuple[Finding | None, str]:
    """Fuzz for `seconds`, or for as many inputs as `runs` says: from the seeds and from what `work/corpus` has kept.

    Returns the first finding, and libFuzzer's log. Raises RuntimeError when the target could not run at all.
    """
    corpus, seeds, findings = work / "corpus", work / "seeds", work / "findings"
    for directory in (corpus, seeds, findings):
        directory.mkdir(parents=True, exist_ok=True)
    for name, data in SEEDS[target.name].items():
        (seeds / name).write_bytes(data)
    command = [str(executable), f"-runs={runs}", "-print_final_stats=1"]
    command += [] if seconds is None else [f"-max_total_time={max(1, round(seconds))}"]
    command += [f"-max_len={target.max_length}", "-timeout=60", f"-artifact_prefix={findings}/", "-reload=0"]
    environment = {**os.environ, "ASAN_OPTIONS": "abort_on_error=0:symbolize=1:detect_leaks=1"}
    done = subprocess.run(
        [*command, str(corpus), str(seeds)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=environment,
    )
    found = sorted(findings.iterdir())
    if found:
        return Finding(target.name, found[0].read_bytes(), _said(done.stderr)), done.stderr
    if done.returncode:
        raise RuntimeError(f"fuzz target {target.name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return None, done.stderr


def replay(executable: Path, data: bytes, work: Path) -> subprocess.CompletedProcess[str]:
    """Run a target once with one input; its output says what is wrong with it, the exit code whether anything is."""
    path = work / "replayed"
    path.write_bytes(data)
    return subprocess.run([str(executable), str(path)], capture_output=True, text=True, errors="replace", check=False)
