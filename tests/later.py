# SPDX-License-Identifier: Apache-2.0
"""A later version of Roost, to upgrade to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from control.store.schema import REVISION
from tests.mutants import ROOT

MIGRATION: Final = """# One more table.

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
    op.create_table("later_{revision}", sa.Column("number", sa.Integer, primary_key=True))
"""


class Later:
    """A checkout of it, which is this one and what is changed in it. revision: of its schema."""

    def __init__(self, tree: Path, optimized: bool = False) -> None:
        """optimized: its engine, which takes half a minute more."""
        self.tree = tree
        self.revision = REVISION
        self.environment: Final = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        """In which `python -m` runs it, once it is built."""
        for part in ("appliance", "control", "cext", "ebpf", "build/bpf"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        if not optimized:
            self.change("cext/build_engine.py", '["-O2", "-flto=auto"]', '["-O0"]')

    def change(self, file: str, old: str, new: str) -> None:
        path = self.tree / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old} is not once in {file}"
        path.write_text(text.replace(old, new))

    def add_revision(self) -> None:
        """To the schema."""
        before, self.revision = self.revision, f"{int(self.revision) + 1:04}"
        self.change("control/store/schema.py", f'"{before}"', f'"{self.revision}"')
        migration = MIGRATION.format(revision=self.revision, before=before)
        (self.tree / "control/store/migrations/versions" / f"r{self.revision}_later.py").write_text(migration)

    def add_facts(self) -> None:
        """To what is handed over of a connection: at the end, as cext/handover/handed.h allows it."""
        last = "    struct roost_handed_leg leg[2]; /* the client's, the server's */\n"
        self.change("cext/handover/handed.h", last, last + "    uint64_t later[2];\n")

    def raise_version(self) -> None:
        """Of what is handed over, which neither version understands of the other then."""
        self.change("cext/handover/handed.h", "#define ROOST_HANDED_VERSION 1", "#define ROOST_HANDED_VERSION 2")

    def build(self) -> None:
        """Compile its engine."""
        environment = {name: value for name, value in os.environ.items() if name != "ROOST_WERROR"}
        subprocess.run([sys.executable, "-P", "cext/build_engine.py"], cwd=self.tree, env=environment, check=True)
