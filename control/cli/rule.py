# SPDX-License-Identifier: Apache-2.0
"""A rule of the policy, as people read and write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from control.core.text import escaped

WHOSE: Final = ("client", "tag", "network", "service", "server")
CONDITIONS: Final = (*WHOSE, "order")


def content_text(rule: Mapping[str, Any] | None) -> str:
    """Its conditions and values; None: there is none."""
    if rule is None:
        return "none"
    return " ".join([*(escaped(f"{key}={rule[key]}") for key in CONDITIONS if key in rule), values_text(rule)])


def values_text(rule: Mapping[str, Any]) -> str:
    """What it gives."""
    given = (escaped(f"{key}={value_text(value)}") for key, value in rule.items() if key not in ("name", *CONDITIONS))
    return " ".join(given)


def value_text(value: object) -> str:
    """As it may be written: durations are the only floats."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    if not isinstance(value, float):
        return str(value)
    if not value:
        return "never"
    text, left = "", value
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        whole, left = divmod(left, seconds)
        text += f"{whole:.0f}{unit}" if whole else ""
    return text + (f"{left:.3f}".rstrip("0").rstrip(".") + "s" if left else "")
