# SPDX-License-Identifier: Apache-2.0
"""OpenSSH: its server, waiting at a port or handed a connection, and its client."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from appliance.lab.lab import Lab, endpoint
from appliance.lab.processes import Process
from appliance.lab.programs.program import Dialogue, Endpoint, ServerProgram, directory, environment, run

_CONFIG = """\
HostKey {home}/host
AuthorizedKeysFile {home}/user.pub
StrictModes no
PermitRootLogin yes
PermitUserRC no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
PidFile none
"""
# sshd refuses locked accounts, and root's often is: here it reads accounts of its own. It starts itself
# anew for each connection, and insists on an absolute path.
_SSHD = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/shadow && exec /usr/sbin/sshd "$@"']
_SHADOW = "root:*:20000:0:99999:7:::\n"


class Keys:
    """Keys and configuration of a server and its one user, root."""

    def __init__(self, lab: Lab) -> None:
        self.home = directory(lab, "ssh")
        for name in ("host", "user"):
            run(lab, ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "roost-lab", "-f", str(self.home / name)])
        (self.home / "known").write_text("server.lab " + (self.home / "host.pub").read_text())
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's empty room; the machine's service makes the same

    def server(self, *options: str, config: Sequence[str] = ()) -> list[str]:
        """The server's command line, with more lines of configuration; it logs to its standard error."""
        path = self.home / "sshd_config"
        path.write_text(_CONFIG.format(home=self.home) + "".join(f"{line}\n" for line in config))
        shadow = self.home / "shadow"
        shadow.write_text(_SHADOW)
        return [*_SSHD, str(shadow), "-e", "-f", str(path), *options]

    def client(self, *more: str) -> list[str]:
        """The client's command line; it takes nothing from its own user's configuration."""
        options = {"UserKnownHostsFile": str(self.home / "known"), "HostKeyAlias": "server.lab", "BatchMode": "yes",
                   "IdentitiesOnly": "yes", "IdentityFile": str(self.home / "user"), "LogLevel": "ERROR"}  # fmt: skip
        return ["ssh", "-F", "none", *(word for k, v in options.items() for word in ("-o", f"{k}={v}")), *more]


def visit(lab: Lab, space: str, keys: Keys, to: Endpoint, command: str, proxy: str | None = None) -> tuple[int, str]:
    """Run a command by ssh; its exit code (255: ssh's own) and what was printed. proxy: nc's options for one."""
    # nc makes the connection and hands it over: as a relay it would be killed with the farewell still in its hands.
    through = ["-o", "ProxyUseFdpass=yes", "-o", f"ProxyCommand=nc -F {proxy} %h %p"] if proxy else []
    argv = keys.client("-T", "-o", "ConnectTimeout=15", *through, "-p", str(to[1]), f"root@{to[0]}", command)
    process = lab.run(space, argv, env=environment(lab), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT)  # fmt: skip
    said, _ = process.popen.communicate(timeout=30)
    return process.popen.returncode, said.decode(errors="replace")


class OpenSsh(ServerProgram):
    """sshd at some endpoints. Both ends probe a quiet peer as the sysctls of their namespaces say."""

    def __init__(self, lab: Lab, space: str, listen: Sequence[Endpoint]) -> None:
        self._lab, self.keys = lab, Keys(lab)
        argv = self.keys.server("-D", config=[f"ListenAddress {endpoint(*one)}" for one in listen])
        super().__init__(lab, space, argv, "Server listening on")

    def session(self, space: str, to: Endpoint) -> Dialogue:
        """A shell on the server, which is told lines; it has said that it is there when this returns."""
        shell = Dialogue(self._lab, space, self.keys.client("-T", "-p", str(to[1]), f"root@{to[0]}", "exec sh"))
        shell.ask("echo shell is there", "shell is there\n")
        return shell


class CallingHome:
    """A device behind a firewall that calls home (RFC 8071): it connects out, and serves SSH on that connection to
    what speaks there. As with inetd, an sshd is started for each visit, once something has come to be read; the
    connection stays when it ends.
    """

    def __init__(self, lab: Lab, space: str, home: Endpoint, keys: Keys) -> None:
        self._lab, self._space = lab, space
        self._argv = keys.server("-i")
        with lab.enter(space):
            self.socket = socket.create_connection(home, 10)
        self.socket.settimeout(None)
        self.address: Endpoint = self.socket.getsockname()[:2]
        self.visits = 0
        self._sshd: Process | None = None
        self._leave, self._left = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="calling home", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(self._leave, select.POLLIN)
        with (self._lab.workspace / "calling-home.log").open("ab") as log:
            while self._leave not in dict(poll.poll()):
                with suppress(ConnectionError):
                    if self.socket.recv(1, socket.MSG_PEEK):
                        self.visits += 1
                        here = self.socket.fileno()
                        self._sshd = self._lab.run_tree(self._space, self._argv, stdin=here, stdout=here, stderr=log)
                        self._sshd.wait()
                        continue
                return

    def close(self) -> None:
        """End the visit, if there is one."""
        if self._left < 0:
            return
        os.close(self._left)
        self._left = -1
        if self._sshd is not None:
            self._sshd.kill()
        self._thread.join()
        os.close(self._leave)
        self.socket.close()
