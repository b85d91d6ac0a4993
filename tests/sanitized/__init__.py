# SPDX-License-Identifier: Apache-2.0
"""The engine under AddressSanitizer and UndefinedBehaviorSanitizer, counting which of its lines run.

The engine and the tests' way into it are built a second time, outside of the checkout's folders, and a pytest of its
own runs with them (plugin.py). What is started from there, a daemon for instance, has the ordinary ones.
`-fno-sanitize=alignment`: the headers of ebpf/ read fields where a frame has them, as BPF may.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants import ROOT

SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all")
FLAGS: Final = (
    "-O0",
    "-fno-lto",
    "-g",
    "-fPIC",
    "-std=gnu11",
    "-fno-omit-frame-pointer",
    "--coverage",
    "-fprofile-update=atomic",
)
EXTENSIONS: Final = {"cext._engine": "cext/build_engine.py", "tests.inner._inner": "tests/inner/build_inner.py"}
COMPILER: Final = "gcc"  # ./roost builds with it; its sanitizers need no symbolizer
OURS: Final = re.compile(r"\b(cext|ebpf)/[\w/]*(?<!/_engine)\.[ch]:")
"""In a frame of a stack: a source of the engine's, by its name and line."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a pytest with the sanitized extensions ended: its exit code (a finding ends it by SIGABRT), what it and the
    sanitizers said, and the leaks of memory that the engine has allocated."""

    code: int
    said: str
    leaks: list[str]


def build(out: Path, root: Path = ROOT, like: Path | None = None) -> Path:
    """Build the extensions from the sources at `root` into the directory `out`, which `run` takes. `like`: another such
    directory, whose objects stand for those sources that are as they are in this checkout."""
    out.mkdir()
    for name, builder in EXTENSIONS.items():
        _build(name, ROOT / builder, out, root, like)
    return out


def _build(name: str, builder: Path, out: Path, root: Path, like: Path | None) -> None:
    target = extension_file(out, name)
    target.parent.mkdir(parents=True)
    extension = runpy.run_path(str(builder))["ffibuilder"].distutils_extension(str(out), verbose=False)
    flags = [*extension.extra_compile_args, *FLAGS, *SANITIZERS, f"-I{root}", f"-I{sysconfig.get_paths()['include']}"]
    flags += [f"-I{path}" for path in extension.include_dirs]

    def compiled(name: str) -> str:
        source, made = root / name, f"{Path(name).stem}.o"
        if like and (not source.is_relative_to(root) or _is_as_here(source, name)):  # cffi generates the others
            return str(like / made)
        _call([COMPILER, *flags, "-c", str(source), "-o", str(out / made)], f"{name} does not compile")
        return str(out / made)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, extension.sources))
    assert len(set(objects)) == len(objects), "two sources have one name"
    libraries = [f"-l{name}" for name in extension.libraries]
    _call([COMPILER, "-shared", *extension.extra_link_args, *FLAGS, *SANITIZERS, *objects, *libraries, "-o",
           str(target)], f"{name} cannot be linked")  # fmt: skip


def _is_as_here(source: Path, name: str) -> bool:
    """Whether a copy has it unchanged, or not at all."""
    return not source.exists() or source.read_bytes() == (ROOT / name).read_bytes()


def extension_file(built: Path, name: str) -> Path:
    return built / f"{name.replace('.', '/')}.abi3.so"


def _call(argv: Sequence[str], what: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what}:\n{done.stderr}")


def run(built: Path, tests: Iterable[str], *options: str, timeout_s: float = 3600, counted: bool = True) -> Run:
    """pytest on these tests with the extensions in `built`; counted: `lines_run` is to know which lines ran."""
    preload = [subprocess.check_output([COMPILER, f"-print-file-name={name}"], text=True).strip()
               for name in ("libasan.so", "libubsan.so")]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Python itself leaves memory behind, so leaks alone are no failure; the report is searched for those of the engine.
    # intercept_tls_get_addr: the sanitizers of gcc 12 take what lies before a block of TLS for a header of an old
    # glibc's where its place in a page is right by chance, and follow it ("Tracer caught signal 11").
    settings = "abort_on_error=1:exitcode=0:detect_leaks=1:print_stacktrace=1:intercept_tls_get_addr=0"
    environment |= {
        "LD_PRELOAD": ":".join(preload),
        "ROOST_SANITIZED": str(built),
        "PYTHONPATH": str(ROOT),
        "ASAN_OPTIONS": settings,
        "UBSAN_OPTIONS": settings,
    }
    if not counted:
        environment["GCOV_PREFIX"] = str(built / "uncounted")
    argv = [sys.executable, "-P", "-m", "pytest", "-p", "tests.sanitized.plugin", "-p", "no:cacheprovider", "-q", "-s"]
    done = subprocess.run([*argv, *options, *tests], cwd=ROOT, env=environment, capture_output=True, text=True,
                          errors="replace", check=False, timeout=timeout_s)  # fmt: skip
    said = done.stdout + done.stderr
    leaks = [entry for entry in re.split(r"\n(?=(?:Direct|Indirect) leak of )", said)[1:] if OURS.search(entry)]
    return Run(done.returncode, said, leaks)


def lines_run(built: Path) -> dict[str, Counter[bool]]:
    """Of each of the engine's sources, how many lines have run in all runs of `built` so far, and how many have not."""
    found: dict[str, dict[int, bool]] = {}
    reports = built / "gcov"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    counted = [str(path) for path in sorted(built.glob("*.gcda"))]
    subprocess.run(["gcov", "--json-format", *counted], cwd=reports, capture_output=True, check=True)
    for report in reports.glob("*.gcov.json.gz"):
        for file in json.loads(gzip.decompress(report.read_bytes()))["files"]:
            if OURS.search(f"{file['file']}:"):
                lines = found.setdefault(str(Path(file["file"]).relative_to(ROOT)), {})
                for line in file["lines"]:  # of a header once for each source that includes it
                    number = line["line_number"]
                    lines[number] = lines.get(number, False) or line["count"] > 0
    return {name: Counter(lines.values()) for name, lines in sorted(found.items())}
