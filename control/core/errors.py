# SPDX-License-Identifier: Apache-2.0
"""Errors at the edge of the control plane: sentences for people, with a status for programs."""

from __future__ import annotations


class OperationError(Exception):
    """It cannot be done; status is the HTTP status that says so best."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)
