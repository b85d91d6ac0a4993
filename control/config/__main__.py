# SPDX-License-Identifier: Apache-2.0
"""Brings the tables of docs/configuration.md up to date."""

from __future__ import annotations

from pathlib import Path

from control.config.reference import with_keys

path = Path(__file__).parents[2] / "docs" / "configuration.md"
path.write_text(with_keys(path.read_text(encoding="utf-8")), encoding="utf-8")
