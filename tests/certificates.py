# SPDX-License-Identifier: Apache-2.0
"""A certificate for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of "roost.test" and its key, as PEM files."""
    names = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=roost.test", "-addext", "subjectAltName=DNS:roost.test",
                    "-out", str(names[0]), "-keyout", str(names[1])], check=True, capture_output=True)  # fmt: skip
    return names
