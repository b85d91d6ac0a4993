# SPDX-License-Identifier: Apache-2.0
"""A WebSocket and a gRPC stream, by the libraries of PyPI: `appliance.peers.room`, its server and its visitors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from appliance.lab.lab import Lab
from appliance.lab.processes import python_environment
from appliance.lab.programs.program import Dialogue, Endpoint, ServerProgram

Kind = Literal["websocket", "grpc"]


class Room(ServerProgram):
    """It answers each line with `VISITOR LINE: TEXT`, both counted from 1."""

    def __init__(self, lab: Lab, space: str, listen: Sequence[Endpoint], kind: Kind) -> None:
        self._lab, self._space, self._here, self._kind = lab, space, listen[0], kind
        argv = _program("serve", kind, *(str(word) for one in listen for word in one))
        super().__init__(lab, space, argv, "the room is open", env=python_environment())

    def session(self, space: str, to: Endpoint) -> Dialogue:
        """A visitor that has been heard once."""
        argv = _program("visit", self._kind, to[0], str(to[1]))
        visitor = Dialogue(self._lab, space, argv, env=python_environment())
        visitor.ask("hello", " 1: hello\n")
        return visitor

    def tell(self, text: str) -> None:
        """To all visitors, by one more beside the server: `all: TEXT`."""
        visitor = self.session(self._space, self._here)
        visitor.ask(f"all {text}", " 2: told\n")
        visitor.close()


def _program(*words: str) -> list[str]:
    return [sys.executable, "-m", "appliance.peers.room", *words]
