# SPDX-License-Identifier: Apache-2.0
"""The kernel that Debian brings, 6.1 in Debian 12, takes every BPF object: its verifier knows less of a number than
that of the kernel that the tests run on. qemu boots it for that alone, some seconds long, with one process. And this
machine's kernel takes what Debian 13's clang makes of them.
(What a whole booted machine does: tests/bench/test_boot.py.)"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

import pytest

from appliance.lab import leftovers
from ebpf.build import build
from tests.mutants import ROOT

CLANG: Final = "clang-19"

KEPT: Final = ROOT / "build" / "kernel"
"""What apt downloads, the whole checkout long."""

DIRECTORY, EXECUTABLE = 0o40755, 0o100755
OBJECTS: Final = sorted((ROOT / "build" / "bpf").glob("*.bpf.o"))


def output_of(*argv: str | Path, **options: object) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, **options).stdout  # type: ignore[call-overload, no-any-return]


def kernel() -> Path:
    """Of the newest package that this machine's apt knows; where it can fetch none, of one that it fetched before."""
    if platform.machine() != "x86_64":
        pytest.skip(f"qemu for {platform.machine()} is not among the packages that Roost installs")
    try:
        depends = output_of("apt-cache", "depends", "linux-image-cloud-amd64")
        named = re.search(r"Depends: (linux-image-\S+)", depends)
        package = str(named[1]) if named else "linux-image-cloud-amd64"
        found = KEPT / package.replace("linux-image", "vmlinuz")
        if not found.exists():
            fetch(package, found)
    except (OSError, subprocess.CalledProcessError) as error:
        if not (kept := sorted(KEPT.glob("vmlinuz-*"))):
            pytest.skip(f"apt fetches no kernel now: {getattr(error, 'stderr', error)}")
        return kept[-1]
    return found


def fetch(package: str, to: Path) -> None:
    """Raises OSError, CalledProcessError."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=KEPT) as directory:
        output_of("apt-get", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "download", package,
                  cwd=directory)  # fmt: skip
        (file,) = Path(directory).glob("*.deb")
        output_of("dpkg-deb", "--extract", file, directory)
        (Path(directory) / "boot" / to.name).rename(to)


def needed(program: Path) -> Iterator[Path]:
    """A program and its libraries."""
    yield program
    yield from (Path(path) for path in re.findall(r"(/\S+) \(0x", output_of("ldd", program)))


def file_system(files: Mapping[str, bytes]) -> bytes:
    """As the kernel wants it: cpio, newc (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    above = [str(parent) for path in files for parent in list(Path(path).parents)[-2::-1]]
    entries = dict.fromkeys(["sys", "dev", *above], (DIRECTORY, b""))
    entries |= {path: (EXECUTABLE, data) for path, data in files.items()}
    made = bytearray()
    for path, (mode, data) in [*entries.items(), ("TRAILER!!!", (0, b""))]:
        name = path.encode() + b"\0"
        numbers = (len(made), mode, 1, 0, 0, 0, len(data), 0, 0, 0, 0, len(name), 0)
        for part in (b"070701" + b"".join(b"%08x" % number for number in numbers) + name, data):
            made += part + bytes(-len(part) % 4)
    return bytes(made)


def test_its_verifier_takes_every_object(tmp_path: Path) -> None:
    assert OBJECTS
    image, init = kernel(), tmp_path / "init"
    output_of("gcc", "-O1", "-Wall", "-Werror", "-o", init, Path(__file__).with_name("oldest_kernel.c"), "-lbpf")
    files = {str(path)[1:]: path.read_bytes() for path in needed(init)}
    files["init"] = files.pop(str(init)[1:])
    files |= {path.name: path.read_bytes() for path in OBJECTS}
    (tmp_path / "initrd").write_bytes(file_system(files))
    told = output_of("qemu-system-x86_64", "-nodefaults", "-nographic", "-serial", "stdio", "-no-reboot", "-m", "768",
                     "-cpu", "max", "-kernel", image, "-initrd", tmp_path / "initrd",
                     "-append", "console=ttyS0 quiet panic=-1", timeout=120, stdin=subprocess.DEVNULL)  # fmt: skip
    assert "that is all" in told, told
    taken = re.findall(r"^(\S+\.bpf\.o): 0\r?$", told, re.MULTILINE)
    assert sorted(taken) == [path.name for path in OBJECTS], told


def test_what_debian_13s_clang_makes_is_taken(tmp_path: Path) -> None:
    """clang 14 unrolled loops that clang 19 keeps: of one of them the verifier saw no end."""
    assert shutil.which(CLANG), f"{CLANG} is missing: ./roost doctor"
    with patch.dict(os.environ, {"ROOST_CLANG": CLANG}):
        assert build(tmp_path) == 0
    pins = leftovers.BPFFS / f"roost-clang-{os.getpid()}"
    objects = sorted(tmp_path.glob("*.bpf.o"))
    assert [path.name for path in objects] == [path.name for path in OBJECTS]
    shutil.rmtree(pins, ignore_errors=True)  # of a process that was killed
    pins.mkdir()
    try:
        for path in objects:
            done = subprocess.run(["bpftool", "prog", "loadall", path, pins / path.name.partition(".")[0]],
                                  capture_output=True, text=True, check=False)  # fmt: skip
            assert done.returncode == 0, f"{path.name}: {done.stderr[-3000:]}"
    finally:
        shutil.rmtree(pins)
