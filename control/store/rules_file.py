# SPDX-License-Identifier: Apache-2.0
"""The rules as the database had them last, in a file beside it: a daemon that starts while its database is away has
them in force, and serves nobody whom they refuse."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from control.store.policies import RuleRow

log = logging.getLogger("roost.policy")

BYTES_MAX: Final = 64 << 20
"""Of the file: more than as many rules as there may be take."""


@dataclass(frozen=True, slots=True)
class KeptRules:
    """database: whose they are. groups: read_groups. format: a file with another one is of another version of Roost."""

    database: str
    version: int
    rules: tuple[RuleRow, ...]
    groups: tuple[tuple[frozenset[str], int], ...]
    format: Literal[1] = 1


_FORM: Final = TypeAdapter(KeptRules)


class RulesFile:
    """database: whose rules they are; those of another one are not read. By one caller at a time."""

    def __init__(self, path: Path, database: str) -> None:
        self.path = path
        self._database = database

    def write(self, version: int, rules: Iterable[RuleRow], groups: Mapping[frozenset[str], int]) -> None:
        """All of it, for its owner alone, or nothing, which the log tells. Before the first version there is no
        file."""
        kept = KeptRules(self._database, version, tuple(rules), tuple(groups.items()))
        fresh = self.path.with_name(f"{self.path.name}.new")
        try:
            if not version:
                self.path.unlink(missing_ok=True)
                return
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(_FORM.dump_json(kept))
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(self.path)
        except OSError as error:
            log.warning(
                "policy: %s cannot be written: %s; if the daemon starts while the database is away, the rules of "
                "version %d are not in force",
                self.path, error.strerror, version,
            )  # fmt: skip

    def read(self) -> KeptRules | None:
        """None: there is none, or none that can be used, which the log tells."""
        try:
            with self.path.open("rb") as file:
                text = file.read(BYTES_MAX + 1)
            if len(text) > BYTES_MAX:
                raise ValueError("it is larger than rules can be")
            kept = _FORM.validate_json(text)
            if kept.database != self._database:
                raise ValueError(f"it is of the database {kept.database}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            wrong = isinstance(error, ValidationError)
            why = "it is not as this version of Roost writes it" if wrong else error
            log.warning("policy: %s is left alone: %s", self.path, why)
            return None
        return kept
