# SPDX-License-Identifier: Apache-2.0
"""A contract for import-linter: no circle of files, packages that import their own parts and back included."""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application.contract_utils import AlertLevel, remove_ignored_imports_and_report

from control.dev.c_layers import circles


class AcyclicFiles(Contract):
    """It looks at all root packages. ignore_imports: as in import-linter's own contracts."""

    type_name = "acyclic_files"

    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        ignored: Any = self.ignore_imports
        remove_ignored_imports_and_report(graph=graph, ignore_imports=ignored, unmatched_alerting=AlertLevel.ERROR)
        used = {one: graph.find_modules_directly_imported_by(one) for one in sorted(graph.modules)}
        found = sorted(one for circle in circles(used) for one in circle)
        imports = {one: sorted(used[one] & set(found)) for one in found}
        return ContractCheck(kept=not found, metadata={"imports": imports})

    def render_broken_contract(self, check: ContractCheck) -> None:
        imports: dict[str, Any] = check.metadata["imports"]
        for one, others in imports.items():
            output.print_error(f"{one} imports {', '.join(others)}", bold=False)
