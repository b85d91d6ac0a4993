# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: its server, and psql as a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from appliance.lab.lab import Lab
from appliance.lab.programs.program import Dialogue, Endpoint, ProgramError, ServerProgram, run

_USER = "postgres"  # it refuses to run as root; the package makes this user


class Postgres(ServerProgram):
    """A new, empty cluster without passwords, its endpoints at one port. It probes quiet clients every second."""

    def __init__(self, lab: Lab, space: str, listen: Sequence[Endpoint]) -> None:
        self._lab, self._space, self._here = lab, space, listen[0]
        programs, data = _programs(), lab.home(_USER) / "data"
        run(lab, [str(programs / "initdb"), "-D", str(data), "-U", _USER, "--auth=trust", "--no-sync", "--locale=C",
                  "--encoding=UTF8"], user=_USER)  # fmt: skip
        with (data / "pg_hba.conf").open("a") as access:
            access.write("host all all all trust\n")
        options = {"listen_addresses": ",".join(host for host, _ in listen), "port": str(listen[0][1]),
                   "unix_socket_directories": "", "fsync": "off", "shared_buffers": "8MB",
                   "tcp_keepalives_idle": "1", "tcp_keepalives_interval": "1"}  # fmt: skip
        argv = [str(programs / "postgres"), "-D", str(data)]
        argv += [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        super().__init__(lab, space, argv, "database system is ready to accept connections", user=_USER)

    def session(self, space: str, to: Endpoint) -> Dialogue:
        """psql, which prints one line a row. It probes a quiet server as the sysctls of its namespace say."""
        return Dialogue(self._lab, space, _client(to))

    def backends(self) -> list[str]:
        """Process ids of those that serve a session, beside the one that tells."""
        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return self.execute(query).split()

    def execute(self, statement: str) -> str:
        """What psql prints of it, beside the server."""
        return run(self._lab, [*_client(self._here), "-c", statement], space=self._space)


def _client(to: Endpoint) -> list[str]:
    return ["psql", "-X", "-q", "-A", "-t", "-h", to[0], "-p", str(to[1]), "-U", _USER, "-d", "postgres"]


def _programs() -> Path:
    """The directory of the newest server's programs: Debian keeps them off the path."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if not found:
        raise ProgramError("PostgreSQL's server is not installed: apt-get install postgresql")
    return max(found, key=lambda path: float(path.parent.name))
