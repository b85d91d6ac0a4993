# SPDX-License-Identifier: Apache-2.0
"""What a compiler warns of ends the build of a checkout and of nothing else (cext/build_engine.py, ebpf/build.py)."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path

import pytest

from tests.mutants import ROOT

WARNED_OF = "int f(void);\nint f(void)\n{\n    int unused = 0;\n    return 0;\n}\n"


def compiles(argv: list[str]) -> bool:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "unused variable" in done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("told", ["1", "0", None])
def test_a_warning_is_an_error_only_where_the_launcher_says_so(
    told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "warned.c", tmp_path / "warned.o"
    source.write_text(WARNED_OF)
    if told is None:
        monkeypatch.delenv("ROOST_WERROR", raising=False)
    else:
        monkeypatch.setenv("ROOST_WERROR", told)
    engine = runpy.run_path(str(ROOT / "cext" / "build_engine.py"))["BUILD"]["extra_compile_args"]
    program = runpy.run_path(str(ROOT / "ebpf" / "build.py"))["compiler_command"](source, target)
    assert compiles([os.environ.get("CC", "cc"), *engine, "-c", str(source), "-o", str(target)]) is (told != "1")
    assert compiles(program) is (told != "1")
