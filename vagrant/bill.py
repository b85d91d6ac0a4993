# SPDX-License-Identifier: Apache-2.0
"""What a package of Roost has in it: sbom.json (CycloneDX) and copyright, for /usr/share/doc/roost.

    bill.py LIBRARY REPORT DEPENDS DIRECTORY

LIBRARY is where install.sh put the Python packages, REPORT what pip said of them, DEPENDS the Debian packages that ours
depends on, as its control file names them. Python's own library is all it needs.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

OURS: Final = "roost"

MAY_COME_WITH_OURS: Final = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "LGPL-3.0-only", "LGPL-3.0-or-later", "MIT", "MIT-0",
     "MPL-2.0", "PSF-2.0", "Zlib"}
)  # fmt: skip
"""Licences under which a package may be given on beside Apache-2.0, in one file. GPL alone may not: its terms would be
those of the whole Python process, and GPL-2.0 does not allow Apache's. LGPL and MPL stay with their own packages."""

SPDX: Final = {
    "Apache 2.0": "Apache-2.0",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: MIT License": "MIT",
}
"""Of packages that do not say it by an SPDX expression."""


HEAD: Final = """Roost, and the Python packages in /usr/lib/roost that come with it. Debian has the texts of common
licences, also those that these refer to, in /usr/share/common-licenses.
"""


class BillError(Exception):
    """A package that may not be given on, and what to do."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(package: Distribution) -> str:
    """As an SPDX expression, one that may come with ours."""
    told = package.metadata
    name = f"{told['Name']} {package.version}"
    classifiers = [each for each in told.get_all("Classifier") or [] if each.startswith("License ::")]
    said = next((told[key] for key in ("License-Expression", "License") if key in told), "")
    found = [SPDX.get(each, each) for each in ([said] if said else classifiers)]
    if not found or found == ["UNKNOWN"]:
        raise BillError(f"{name} says no licence. Take another package, or ask its authors for one.")
    expression = " OR ".join(found)
    if normal(told["Name"]) != OURS and not allowed(expression):
        raise BillError(
            f"{name} has the licence {expression!r}, which is none of those that may come with ours "
            "(MAY_COME_WITH_OURS, vagrant/bill.py). Read it, and add it there, or take another package."
        )
    return expression


def allowed(expression: str) -> bool:
    """Of A AND B both must be, of A OR B one. Brackets are for a person to read."""
    return any(all(term in MAY_COME_WITH_OURS for term in choice.split(" AND ")) for choice in expression.split(" OR "))


def texts(package: Distribution) -> list[str]:
    """Of its licence, and notices that belong to it."""
    wanted = re.compile(r"\.dist-info/(licenses/.*|(LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*)$", re.I)
    found = [Path(str(file.locate())).read_text(errors="replace")
             for file in sorted(package.files or ()) if wanted.search(file.as_posix())]  # fmt: skip
    if not found:
        raise BillError(f"{package.metadata['Name']} {package.version} comes without the text of its licence. Its "
                        "authors have it in the source: ask them to put it into the wheel.")  # fmt: skip
    return found


def copyright_of(packages: list[Distribution]) -> str:
    """Ours first."""
    parts = [HEAD]
    for package in packages:
        head = f"{package.metadata['Name']} {package.version}: {licence(package)}"
        rule = "=" * 78
        parts.append("\n\n".join([f"{rule}\n{head}\n{rule}", *(text.strip("\n") for text in texts(package))]) + "\n")
    return "\n".join(parts)


def libraries(package: Distribution) -> list[dict[str, Any]]:
    """Shared libraries of others that a wheel has in it."""
    found = []
    for file in sorted(package.files or ()):
        if ".libs/" in file.as_posix():
            digest = hashlib.sha256(Path(str(file.locate())).read_bytes()).hexdigest()
            found.append({"type": "file", "name": file.name, "hashes": [{"alg": "SHA-256", "content": digest}]})
    return found


def component(package: Distribution, hashes: dict[str, str]) -> dict[str, Any]:
    name = normal(package.metadata["Name"])
    purl = f"pkg:pypi/{name}@{package.version}"
    told = {"type": "library", "bom-ref": purl, "name": package.metadata["Name"], "version": package.version,
            "purl": purl, "licenses": [{"expression": licence(package)}]}  # fmt: skip
    if name == OURS:
        return {**told, "type": "application"}
    if name not in hashes:
        raise BillError(f"{name} is in the package, and pip's report does not say of which file. Remove what is below "
                        "the directory that install.sh installs into, and build again.")  # fmt: skip
    told["hashes"] = [{"alg": "SHA-256", "content": hashes[name]}]
    inside = libraries(package)
    return {**told, "components": inside} if inside else told


def debian(depends: str) -> list[dict[str, Any]]:
    """The packages of the field Depends, in the versions that ours was built beside."""
    found = []
    for name in sorted({each.split()[0] for each in depends.split(",")}):
        query = ["dpkg-query", "-W", "-f", "${Version}", name]
        said = subprocess.run(query, capture_output=True, text=True, check=False)
        version = said.stdout if said.returncode == 0 else ""
        told = {"type": "library", "bom-ref": f"pkg:deb/debian/{name}", "name": name, "purl": f"pkg:deb/debian/{name}"}
        found.append({**told, **({"version": version} if version else {})})
    return found


def sbom(packages: list[Distribution], hashes: dict[str, str], depends: str) -> dict[str, Any]:
    """No time and no random number: the same package has the same bill."""
    ours, *theirs = [component(package, hashes) for package in packages]
    components = [*theirs, *debian(depends)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": ours},
        "components": components,
        "dependencies": [{"ref": ours["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }


def bundled(library: Path) -> list[Distribution]:
    """Ours first, then by name."""
    found = list(distributions(path=[str(library)]))
    return sorted(found, key=lambda each: (normal(each.metadata["Name"]) != OURS, normal(each.metadata["Name"])))


def hashes_of(report: dict[str, Any]) -> dict[str, str]:
    """Of the files that pip installed, by name."""
    return {
        normal(each["metadata"]["name"]): each["download_info"]["archive_info"]["hash"].removeprefix("sha256=")
        for each in report["install"]
    }


def main(library: str, report: str, depends: str, directory: str) -> None:
    packages = bundled(Path(library))
    to = Path(directory)
    to.mkdir(parents=True, exist_ok=True)
    told = sbom(packages, hashes_of(json.loads(Path(report).read_text())), depends)
    (to / "sbom.json").write_text(json.dumps(told, indent=1) + "\n")
    (to / "copyright").write_text(copyright_of(packages))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BillError as problem:
        sys.exit(f"bill: {problem}")
