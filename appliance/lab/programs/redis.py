# SPDX-License-Identifier: Apache-2.0
"""Redis: its server, and redis-cli as a session."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.lab.lab import Lab
from appliance.lab.programs.program import Dialogue, Endpoint, ServerProgram, directory, run


class Redis(ServerProgram):
    """redis-server without persistence; all endpoints share one port."""

    def __init__(self, lab: Lab, space: str, listen: Sequence[Endpoint]) -> None:
        self._lab, self._space, self._here = lab, space, listen[0]
        options = {"port": str(listen[0][1]), "save": "", "dir": str(directory(lab, "redis")), "protected-mode": "no"}
        argv = ["redis-server", *(word for key, value in options.items() for word in (f"--{key}", value))]
        super().__init__(lab, space, [*argv, "--bind", *(host for host, _ in listen)], "Ready to accept connections")

    def session(self, space: str, to: Endpoint) -> Dialogue:
        """redis-cli, which prints each answer on a line. By itself it probes its server every 15 s."""
        return Dialogue(self._lab, space, _client(to))

    def clients(self) -> list[str]:
        """Its connections, as Redis tells it (`id=7 addr=192.0.2.1:1234 ... db=0 ...`), beside the one that asks."""
        lines = self.execute("CLIENT", "LIST").splitlines()
        return [line for line in lines if line and "cmd=client|list" not in line]

    def execute(self, *words: str) -> str:
        """What redis-cli prints of it, beside the server."""
        return run(self._lab, [*_client(self._here), *words], space=self._space)


def _client(to: Endpoint) -> list[str]:
    return ["redis-cli", "-h", to[0], "-p", str(to[1])]
