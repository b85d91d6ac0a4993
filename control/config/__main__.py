# SPDX-License-Identifier: Apache-2.0
"""Prints docs/configuration.md."""

from __future__ import annotations

from control.config.reference import render_reference

print(render_reference(), end="")
