# SPDX-License-Identifier: Apache-2.0
"""What the Debian package tells of what is in it (vagrant/bill.py): by the packages of this environment."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import PathDistribution, distribution
from pathlib import Path

import pytest

from control.dev import lock
from tests.mutants import ROOT
from vagrant import bill

BUNDLED = lock.parts((ROOT / "requirements.lock").read_text())["run"]


def package(directory: Path, *said: str, name: str = "thing", text: bool = True) -> PathDistribution:
    info = directory / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1", *said, "", ""]))
    files = ["METADATA"]
    if text:
        (info / "LICENSE").write_text(f"The licence of {name}.\n")
        files.append("LICENSE")
    (info / "RECORD").write_text("".join(f"{info.name}/{file},,\n" for file in files))
    return PathDistribution(info)


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_package_may_be_given_on_and_has_the_text_that_says_so(name: str) -> None:
    found = distribution(name)
    assert bill.allowed(bill.licence(found))
    assert all(text.strip() for text in bill.texts(found))


@pytest.mark.parametrize(
    ("said", "expression"),
    [
        ("License-Expression: Apache-2.0 AND MIT", "Apache-2.0 AND MIT"),
        ("License-Expression: GPL-2.0-or-later OR Apache-2.0", "GPL-2.0-or-later OR Apache-2.0"),
        ("License: Apache 2.0", "Apache-2.0"),
        ("Classifier: License :: OSI Approved :: MIT License", "MIT"),
    ],
)
def test_a_licence_is_found_wherever_it_is_said(tmp_path: Path, said: str, expression: str) -> None:
    assert bill.licence(package(tmp_path, said)) == expression


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Summary: a thing", "thing 1 says no licence"),
        ("License: UNKNOWN", "thing 1 says no licence"),
        ("License-Expression: GPL-3.0-only", "none of those that may come with ours"),
        ("License-Expression: MIT AND AGPL-3.0-only", "none of those that may come with ours"),
        ("License-Expression: (MIT OR ISC) AND GPL-2.0-only", "none of those that may come with ours"),
        ("License: Proprietary", "none of those that may come with ours"),
    ],
)
def test_what_may_not_be_given_on_is_named(tmp_path: Path, said: str, words: str) -> None:
    with pytest.raises(bill.BillError, match=words):
        bill.licence(package(tmp_path, said))


def test_a_package_without_the_text_of_its_licence_is_named(tmp_path: Path) -> None:
    with pytest.raises(bill.BillError, match="thing 1 comes without the text"):
        bill.texts(package(tmp_path, "License: MIT", text=False))


def test_the_bill_names_each_package_with_version_licence_hash_and_text(tmp_path: Path) -> None:
    library, to = tmp_path / "library", tmp_path / "doc"
    package(library, "License-Expression: Apache-2.0 AND (Apache-2.0 OR GPL-2.0-only)", name="roost")
    package(library, "License: MIT", name="A.thing")
    os_package = "base-files"
    report = tmp_path / "report.json"
    archive = {"archive_info": {"hash": f"sha256={'a' * 64}"}}
    report.write_text(json.dumps({"install": [{"metadata": {"name": "A_Thing"}, "download_info": archive}]}))
    bill.main(str(library), str(report), f"{os_package} (>= 1), none-such", str(to))
    told = json.loads((to / "sbom.json").read_text())
    ours = told["metadata"]["component"]
    thing, known, unknown = told["components"]
    assert (ours["name"], ours["version"]) == ("roost", "1")
    assert thing["purl"] == "pkg:pypi/a-thing@1"
    assert thing["licenses"] == [{"expression": "MIT"}]
    assert thing["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert known["name"] == os_package
    assert ("version" in known) == (shutil.which("dpkg-query") is not None)
    assert (unknown["name"], "version" in unknown) == ("none-such", False)
    assert told["dependencies"][0]["dependsOn"] == [each["bom-ref"] for each in told["components"]]
    text = (to / "copyright").read_text()
    assert text.index("The licence of roost.") < text.index("A.thing 1: MIT") < text.index("The licence of A.thing.")
    assert os.fspath(tmp_path) not in text + (to / "sbom.json").read_text()
    report.write_text('{"install": []}')
    with pytest.raises(bill.BillError, match="a-thing is in the package"):
        bill.main(str(library), str(report), os_package, str(to))
