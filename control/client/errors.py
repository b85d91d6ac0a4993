# SPDX-License-Identifier: Apache-2.0
"""Why something was not done."""

from __future__ import annotations


class RoostError(Exception):
    """What was asked for was refused, or failed; its text is the API's sentence.

    status: of HTTP; None: there was no answer (AwayError). retry_after: seconds after which another attempt is worth
    it; None: it was not said.
    """

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class AwayError(RoostError):
    """Nobody answers, or not to the end; a change that was asked for may have been made all the same. cause: what the
    system said of it; TimeoutError: nothing came in time."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__(message)
        self.cause = cause
