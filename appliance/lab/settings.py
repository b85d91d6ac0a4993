# SPDX-License-Identifier: Apache-2.0
"""Settings that differ from a lab's own configuration: `TABLE.KEY=VALUE`, as `roost lab up --set` takes them.

policy.on_second_server=wait        a value is TOML (5, true, ["a", "b"]), or text without its quotes
service.web.health.interval=500ms   a table of a list of tables is meant by its `name`
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any


class SettingError(ValueError):
    """A setting that cannot be made, and why."""


def apply(config: dict[str, Any], settings: Iterable[str]) -> None:
    """Make each of the settings in a configuration, over what stands there. What keys there are is the daemon's to
    know."""
    for setting in settings:
        path, equals, value = setting.partition("=")
        *tables, key = path.split(".")
        if not (equals and tables and all((*tables, key))):
            raise SettingError(f"{setting!r} is not TABLE.KEY=VALUE")
        _table(config, tables, setting)[key] = _value(value)


def _table(config: dict[str, Any], path: list[str], setting: str) -> dict[str, Any]:
    """The table at a path, made where there is none."""
    found: Any = config
    for index, name in enumerate(path):
        if isinstance(found, list):
            named = {table["name"]: table for table in found}
            if name not in named:
                raise SettingError(f"{setting!r}: no {path[index - 1]} {name!r} here, but {', '.join(named)}")
            found = named[name]
        elif isinstance(found, dict):
            found = found.setdefault(name, {})
    if not isinstance(found, dict):
        raise SettingError(f"{setting!r}: {'.'.join(path)} is no table")
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
