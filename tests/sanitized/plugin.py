# SPDX-License-Identifier: Apache-2.0
"""Gives a pytest the extensions in ROOST_SANITIZED: pytest -p tests.sanitized.plugin, before any other imports them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import groupby, islice
from pathlib import Path
from types import ModuleType

import pytest

from tests.sanitized import EXTENSIONS, extension_file


class Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in EXTENSIONS:
            return None
        return spec_from_file_location(name, extension_file(Path(os.environ["ROOST_SANITIZED"]), name))


del os.environ["LD_PRELOAD"]  # it is loaded; what the tests start does without
assert not EXTENSIONS.keys() & sys.modules.keys()
sys.meta_path.insert(0, Finder())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--of-each", type=int, metavar="N", help="only the first N tests of each file")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What runs alone is about time, and this engine takes longer; it takes more memory, too, and keeps what is freed.
    chosen = [item for item in items if not {mark.name for mark in item.iter_markers()} & {"alone", "memory"}]
    if (most := config.getoption("--of-each")) is not None:
        chosen = [item for _, of_file in groupby(chosen, lambda item: item.path) for item in islice(of_file, most)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
