# SPDX-License-Identifier: Apache-2.0
"""The engine as those who change rules see it: what it refuses is an answer to an operator."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import ENOSPC

from appliance.engine import EngineError
from appliance.wire import RuleEntry, ServiceSpec
from control.core.errors import OperationError
from control.core.ports import RulesPort

log = logging.getLogger("roost.policy")


class EngineRules:
    """A RulesPort. engine: raises EngineError where that has OperationError."""

    def __init__(self, engine: RulesPort) -> None:
        self._engine = engine

    def set_rules(self, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> tuple[int, list[int]]:
        """RulesPort.set_rules."""
        with _answered():
            untold, classes = self._engine.set_rules(entries, policies)
        if untold:
            log.error(
                "policy: XDP had no memory for %d networks of rules: clients that are born asleep there have the "
                "values of their service; add memory, and reload (SIGHUP)",
                untold,
            )
        return untold, classes

    def count_rules(self, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> list[tuple[int, int]]:
        """RulesPort.count_rules."""
        with _answered():
            return self._engine.count_rules(entries, policies)

    def groups(self) -> frozenset[int]:
        """RulesPort.groups."""
        return self._engine.groups()


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        raise OperationError(507 if error.number == ENOSPC else 500, f"the engine refuses the rules: {error}") from None
