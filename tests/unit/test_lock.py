# SPDX-License-Identifier: Apache-2.0
"""requirements.lock and its hashes (control/dev/lock.py), and what ./roost and vagrant/install.sh make of them."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from control.dev import lock
from tests.mutants import ROOT
from tests.unit.test_launcher import Checkout

RIGHT, OTHER = "a" * 64, "b" * 64


def file(name: str, digest: str = RIGHT) -> dict[str, object]:
    return {"filename": name, "hashes": {"sha256": digest}}


def test_wheels_that_may_be_used_are_taken_and_a_source_only_where_there_is_none() -> None:
    tags = lock.usable_tags()

    def chosen(*names: str) -> list[str]:
        files = [file(name, f"{number}" * 64) for number, name in enumerate(names)]
        return [digest[0] for digest in lock.usable(files, Version("1.0"), tags)]

    assert chosen("a-1.0-py3-none-any.whl", "a-1.0.tar.gz") == ["0"]
    assert chosen("a-1.0.tar.gz", "a-1.1.tar.gz", "a-1.1-py3-none-any.whl") == ["0"]
    assert chosen("a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "a-1.0-cp313-cp313-manylinux2014_aarch64.whl",
                  "a-1.0-cp39-abi3-manylinux_2_17_x86_64.whl") == ["0", "1", "2"]  # fmt: skip
    for other in ("cp310-cp310-manylinux2014_x86_64", "cp313-cp313t-manylinux2014_x86_64", "cp311-cp311-win_amd64",
                  "cp311-cp311-musllinux_1_2_x86_64", "cp311-cp311-manylinux_2_39_x86_64"):  # fmt: skip
        assert chosen(f"a-1.0-{other}.whl", "a-1.0.tar.gz") == ["1"], other
    ours, theirs = "a-1.0-cp310-abi3-manylinux_2_28_x86_64.whl", "a-1.0-cp310-abi3-manylinux_2_28_aarch64.whl"
    assert chosen(ours, "a-1.0.tar.gz") == ["0", "1"], "arm64 is to have it, too"
    assert chosen(ours, theirs, "a-1.0.tar.gz") == ["0", "1"]


def test_what_has_no_hash_or_pins_nothing_is_found() -> None:
    good = f"# run: a\na==1 \\\n    --hash=sha256:{RIGHT}\n"
    assert lock.without_hashes(good) == []
    for bad in ("b==1", "b>=1", f"b>=1 \\\n    --hash=sha256:{RIGHT}", f"b==1 --hash=sha256:{RIGHT[1:]}"):
        assert lock.without_hashes(f"{good}{bad}\n") == [bad.partition(" \\")[0]]


def test_a_package_in_the_wrong_part_is_named(tmp_path: Path) -> None:
    text = (ROOT / "requirements.lock").read_text()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for name, words in (("pyarrow", "has pyarrow;"), ("click", "does not have click;")):
        (stanza,) = (each for each in lock.stanzas(text) if each[0].startswith(f"{name}=="))
        moved = text.replace("\n".join(stanza) + "\n", "")
        heading = "# run:" if name == "pyarrow" else "# develop:"
        (found,) = (each for each in lock.stanzas(text) if each[0].startswith(heading))
        moved = moved.replace(found[0], "\n".join([found[0], *stanza]))
        (tmp_path / "requirements.lock").write_text(moved)
        (said,) = lock.faults(tmp_path)
        assert words in said


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package index that has one package."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/simple/a-thing/" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"files": [file("a_thing-2-py3-none-any.whl", OTHER)]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        yield
        server.shutdown()


@pytest.mark.usefixtures("index")
def test_hashes_are_written_anew_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text(f"# run: what runs\nA.thing==2 \\\n    --hash=sha256:{RIGHT}\n\n# develop: the rest\n")
    lock.write(path)
    assert path.read_text() == (f"# run: what runs\nA.thing==2 \\\n    --hash=sha256:{OTHER}\n\n# develop: the rest\n")
    path.write_text("a-thing==3\n")
    with pytest.raises(lock.LockError, match="no file of a-thing==3"):
        lock.write(path)


@pytest.mark.parametrize(("script", "tampered"), [("roost", False), ("roost", True), ("vagrant/install.sh", True)])
def test_a_file_that_was_changed_is_not_installed(tmp_path: Path, script: str, tampered: bool) -> None:
    """By the real pip, from a directory. What comes after it has nothing to build here, and fails."""
    if script != "roost" and os.geteuid() != 0:
        pytest.skip("only root installs the appliance")
    tree = Checkout(tmp_path)
    shutil.rmtree(tree.root / ".venv")
    shutil.copy(ROOT / "vagrant" / "install.sh", tree.root / "vagrant")
    tree.write("vagrant/packages.txt", "python3 run\n")
    tree.script(tree.bin / "dpkg-query", "#!/bin/sh\nprintf 'ii python3\\ninstalled\\n'\n")
    wheel = tmp_path / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("thing.py", "")
        packed.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        packed.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("thing-1.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    tree.write("requirements.lock", f"# build: x\n# run: x\nthing==1 --hash=sha256:{OTHER if tampered else digest}\n")
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    command = [str(tree.root / script), *([] if script == "roost" else ["--root", str(tmp_path / "into")])]
    done = subprocess.run(command, env={**tree.environment, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert ("DO NOT MATCH THE HASHES" in done.stderr) == tampered, done.stderr
    assert ("is not the one that requirements.lock names" in done.stderr) == (tampered and script == "roost")
    assert any(tmp_path.rglob("thing.py")) != tampered
