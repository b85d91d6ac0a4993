# SPDX-License-Identifier: Apache-2.0
"""OpenSSH: its server, waiting at a port or handed a connection, and its client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from appliance.lab.lab import Lab, endpoint
from appliance.lab.programs.program import Dialogue, Endpoint, Server, directory, run

_CONFIG = """\
HostKey {home}/host
AuthorizedKeysFile {home}/user.pub
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
PidFile none
"""
_SSHD = "/usr/sbin/sshd"  # it starts itself anew for each connection, and insists on an absolute path


class Keys:
    """Keys and configuration of a server and its one user, root."""

    def __init__(self, lab: Lab) -> None:
        self.home = directory(lab, "ssh")
        for name in ("host", "user"):
            run(lab, ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "roost-lab", "-f", str(self.home / name)])
        (self.home / "known").write_text("server.lab " + (self.home / "host.pub").read_text())
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's empty room; the machine's service makes the same

    def config(self, *more: str) -> Path:
        path = self.home / "sshd_config"
        path.write_text(_CONFIG.format(home=self.home) + "".join(f"{line}\n" for line in more))
        return path

    def argv(self, *more: str) -> list[str]:
        """The client, with nothing of its own user's configuration."""
        options = {"UserKnownHostsFile": str(self.home / "known"), "HostKeyAlias": "server.lab", "BatchMode": "yes",
                   "IdentitiesOnly": "yes", "IdentityFile": str(self.home / "user"), "LogLevel": "ERROR"}  # fmt: skip
        return ["ssh", "-F", "none", *(word for k, v in options.items() for word in ("-o", f"{k}={v}")), *more]


class OpenSsh(Server):
    """sshd at some endpoints. Both ends probe a quiet peer as the sysctls of their namespaces say."""

    def __init__(self, lab: Lab, space: str, listen: Sequence[Endpoint]) -> None:
        self._lab, self.keys = lab, Keys(lab)
        config = self.keys.config(*(f"ListenAddress {endpoint(*one)}" for one in listen))
        super().__init__(lab, space, [_SSHD, "-D", "-e", "-f", str(config)], "Server listening on")

    def session(self, space: str, to: Endpoint) -> Dialogue:
        """A shell on the server, which is told lines; it has said that it is there when this returns."""
        shell = Dialogue(self._lab, space, self.keys.argv("-T", "-p", str(to[1]), f"root@{to[0]}", "exec sh"))
        shell.ask("echo shell is there", "shell is there\n")
        return shell
