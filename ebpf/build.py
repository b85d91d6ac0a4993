"""Compile every *.bpf.c of ebpf/ and of the lab's simulator, one object for each program file.

    python ebpf/build.py [--out DIR] [TREE]...      default: into build/bpf below the checkout, both trees

An object replaces its predecessor in one rename, so a daemon that starts meanwhile loads the old one or the new one,
never half of one. Objects whose source is gone are removed: the engine must not load a program without a source.
ROOST_CLANG is the compiler, `clang` unless it is given.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREES = ("ebpf", "appliance/lab/simulator")


def compiler_command(source: Path, target: Path) -> list[str]:
    """The clang call for one program.

    The multiarch directory holds asm/types.h, which -target bpf does not know. v3 is the first instruction set with
    32-bit atomics that return a value (kernel 5.12); clang 14 would choose v2.
    """
    return [
        os.environ.get("ROOST_CLANG", "clang"),
        "-O2",
        "-g",
        "-target",
        "bpf",
        "-mcpu=v3",
        *(["-DROOST_LOADS_IN_ORDER"] if os.uname().machine == "x86_64" else []),
        "-Wall",
        *(["-Werror"] if os.environ.get("ROOST_WERROR") == "1" else []),  # see cext/build_engine.py
        "-fno-crash-diagnostics",
        f"-I/usr/include/{os.uname().machine}-linux-gnu",
        f"-I{ROOT}",
        "-c",
        str(source),
        "-o",
        str(target),
    ]


def build(out: Path, trees: Sequence[str] = TREES) -> int:
    """Compile every program into `out`; the number of programs that failed to compile (their errors are on stderr)."""
    out.mkdir(parents=True, exist_ok=True)
    sources = sorted(path for tree in trees for path in (ROOT / tree).rglob("*.bpf.c"))
    failed = 0
    for source in sources:
        target = out / f"{source.name.removesuffix('.c')}.o"
        fresh = target.with_suffix(".o.new")
        if subprocess.run(compiler_command(source, fresh), check=False).returncode == 0:
            fresh.replace(target)
        else:
            fresh.unlink(missing_ok=True)
            failed += 1
    wanted = {f"{source.name.removesuffix('.c')}.o" for source in sources}
    for stale in out.glob("*.bpf.o"):
        if stale.name not in wanted:
            stale.unlink()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the BPF programs of Roost.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bpf", help="directory for the objects")
    parser.add_argument("trees", nargs="*", default=TREES, metavar="TREE", help="directories of the checkout")
    chosen = parser.parse_args()
    failed = build(chosen.out, chosen.trees)
    if failed:
        print(f"{failed} BPF program(s) did not compile", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
