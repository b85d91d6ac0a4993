# SPDX-License-Identifier: Apache-2.0
"""Builds lwIP's host from Debian's source package, once a checkout (below build/); later calls compare a hash.

Debian's library itself will not do: it has no timestamps, one window, and a thread's interface.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from appliance.lab.processes import ROOT
from appliance.lab.programs.program import ProgramError

_HERE = Path(__file__).parent
_BUILD = ROOT / "build" / "lwip"
_WARNINGS = ("-Wall", "-Wextra", "-Werror")


def host(timestamps: bool) -> Path:
    """The program (host.c), with lwIP compiled to offer timestamps or not. ProgramError if it cannot be built."""
    _BUILD.mkdir(parents=True, exist_ok=True)
    program = _BUILD / f"lwip-host-{'timestamps' if timestamps else 'plain'}"
    stamp = program.with_suffix(".stamp")
    with (_BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        made_from = _digest()
        if not (program.exists() and stamp.exists() and stamp.read_text() == made_from):
            _compile(_sources(), program, timestamps)
            stamp.write_text(made_from)
    return program


def _digest() -> str:
    whole = hashlib.sha256()
    for path in sorted([*_HERE.rglob("*.[ch]"), Path(__file__)]):
        whole.update(path.read_bytes())
    return whole.hexdigest()


def _compile(source: Path, program: Path, timestamps: bool) -> None:
    call = ("gcc", "-Og", "-g", f"-DLWIP_TCP_TIMESTAMPS={int(timestamps)}", "-I", str(_HERE),
            "-isystem", str(source / "include"))  # fmt: skip
    ours = program.with_suffix(".o")
    parts = [source / "core", source / "core/ipv4", source / "core/ipv6"]
    theirs = [str(path) for part in parts for path in sorted(part.glob("*.c"))]
    _run([*call, *_WARNINGS, "-c", str(_HERE / "host.c"), "-o", str(ours)])
    _run([*call, "-w", *theirs, str(source / "netif/ethernet.c"), str(ours), "-o", str(program)])


def _sources() -> Path:
    """lwIP's src directory, downloaded by apt, which checks whose it is, unless an earlier call has done so.

    The machine's own list of sources may name binary packages alone, and is not touched: apt gets one of its own, with
    the same archives.
    """
    unpacked = _BUILD / "source"
    if not unpacked.exists():
        archives = _run(["apt-get", "indextargets", "--format", "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)",
                         "Created-By: Packages"])  # fmt: skip
        listed, states = _BUILD / "sources.list", _BUILD / "lists"
        listed.write_text(archives)
        (states / "partial").mkdir(parents=True, exist_ok=True)
        apt = ["apt-get", "-o", f"Dir::Etc::SourceList={listed}", "-o", "Dir::Etc::SourceParts=-",
               "-o", f"Dir::State::Lists={states}", "-o", "APT::Sandbox::User=root"]  # fmt: skip
        _run([*apt, "update"])
        _run([*apt, "source", "--download-only", "lwip"])
        [archive] = _BUILD.glob("lwip_*.orig.tar.*")
        part = _BUILD / "unpacking"
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none yet
            tar.extractall(part)
        part.rename(unpacked)
        shutil.rmtree(states)
    [source] = unpacked.glob("*/src")
    return source


def _run(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, cwd=_BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-12:])
        raise ProgramError(f"lwIP for the lab could not be built: {' '.join(argv[:3])} ... ended with\n{tail}")
    return done.stdout
