# SPDX-License-Identifier: Apache-2.0
"""A lab with an appliance that serves agents, and programs around it: the agent as it is installed, curl as a server,
Python's http.server and curl as clients behind the NAT.

    services: `agents` (7100), `held` (7200, clients that are told to connect), `trusting` (7300, the same for those
    that say no nonce), `telemetry` (8000, with a server of its own)
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from appliance.agent import roost_agent
from appliance.lab import Lab, wait_until
from appliance.lab.daemon import DaemonHandle
from appliance.lab.lab import endpoint
from appliance.lab.processes import Process

AGENTS, HELD, TRUSTING, TELEMETRY, WEB = 7100, 7200, 7300, 8000, 8080
TOKEN: Final = "a token of this test, 32 bytes.."
POLICY: Final = {"active_quiet": "300ms", "standby_quiet": "600ms", "idle_quiet": "1h"}
PYTHON: Final = "/usr/bin/python3"  # not the virtual environment's: the agent needs nothing of it


class AgentLab:
    """One daemon. absent: keys of [absent]; agents: keys of [agents]; held, telemetry: keys of the services."""

    def __init__(self, lab: Lab, absent: dict[str, Any] | None = None, agents: dict[str, Any] | None = None,
                 held: dict[str, Any] | None = None, telemetry: dict[str, Any] | None = None) -> None:  # fmt: skip
        self.lab = lab
        lab.server(TELEMETRY)
        config = lab.config(TELEMETRY, policy=POLICY)
        config["service"][0] |= {"name": "telemetry", **(telemetry or {})}
        config["service"] += [
            {"name": "agents", "listen": self.appliance(AGENTS), "kind": "agents"},
            {"name": "agents6", "listen": self.appliance(AGENTS, 6), "kind": "agents"},
            {"name": "held", "listen": self.appliance(HELD), "kind": "held", **(held or {})},
            {"name": "trusting", "listen": self.appliance(TRUSTING), "kind": "held", "trust_address": True},
        ]
        config["absent"] = absent or {}
        config["agents"] = agents or {}
        config["agent"] = [{"name": "site", "token": roost_agent.token_digest(TOKEN), "clients": ["camera*", "meter*"]}]
        self.daemon: DaemonHandle = lab.daemon(config)
        self.agents: list[Process] = []
        self.token_file = lab.workspace / "token"
        self.token_file.write_text(TOKEN + "\n")

    def appliance(self, port: int, family: int = 4) -> str:
        return endpoint(self.lab.address("box", "wan0", family), port)

    @property
    def proxy(self) -> str:
        return f"{self.lab.address('box', 'lan0')}:3128"

    # Clients' side

    def agent(self, *options: str, family: int = 4) -> Process:
        """roost-agent behind the NAT, as it is installed: one file, and the system's Python."""
        program = str(Path(roost_agent.__file__))
        argv = [PYTHON, "-I", program, "--appliance", self.appliance(AGENTS, family), "--token-file",
                str(self.token_file), *options]  # fmt: skip
        with (self.lab.workspace / "agent.log").open("ab") as log:
            process = self.lab.run("wan", argv, stderr=log)
        self.agents.append(process)
        return process

    def end_agents(self) -> None:
        """After each test: none of its agents stays, and nothing of their connections."""
        while self.agents:
            self.agents.pop().close()
        self.wait_for_nobody()

    def wait_for_nobody(self) -> None:
        """Until no agent is connected, and the registry has heard so."""

        def nobody() -> bool:
            return self.connections("agents") == [] and not any(row["connected"] for row in self.spoken_for().values())

        self.wait(nobody, "no agent is left")

    def log(self) -> str:
        return (self.lab.workspace / "agent.log").read_text()

    def web_client(self, port: int = WEB, files: dict[str, bytes] | None = None) -> Process:
        """An accepting client: Python's http.server."""
        folder = self.lab.workspace / f"web{port}"
        folder.mkdir()
        for name, content in (files or {"status": b"thermostat: 21.5\n"}).items():
            (folder / name).write_bytes(content)
        argv = [PYTHON, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
        process = self.lab.run("wan", argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.listens("wan", "127.0.0.1", port), 10, "the client listens")
        return process

    def listens(self, space: str, address: str, port: int) -> bool:
        with self.lab.enter(space), suppress(OSError), socket.create_connection((address, port), 1):
            return True
        return False

    def dial(self, port: int) -> socket.socket:
        with self.lab.enter("wan"):
            return socket.create_connection((self.lab.address("box", "wan0"), port), 5)

    # Servers' side

    def curl(self, *options: str) -> tuple[int, bytes, str]:
        """(exit code, body, what it complained of)."""
        process = self.start_curl(*options)
        body, said = process.popen.communicate(timeout=40)
        return process.popen.returncode, body, said.decode()

    def start_curl(self, *options: str) -> Process:
        return self.lab.run("lan", ["curl", "--silent", "--show-error", "--max-time", "30", *options],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def ask(self, target: str, *options: str) -> tuple[int, bytes, str]:
        """A server gets a page of its client by CONNECT."""
        return self.curl("--proxytunnel", "--proxy", f"http://{self.proxy}", f"http://{target}/status", *options)

    def ask_by_socks(self, target: str) -> tuple[int, bytes, str]:
        return self.curl("--socks5-hostname", self.proxy, f"http://{target}/status")

    def tunnel(self, target: str, early: bytes = b"") -> socket.socket:
        """A server's connection to its client, after the proxy's 200."""
        with self.lab.enter("lan"):
            server = socket.create_connection((self.lab.address("box", "lan0"), 3128), 5)
        server.settimeout(20)
        where = target if ":" in target else f"{target}:80"
        server.sendall(b"CONNECT %b HTTP/1.1\r\nHost: x\r\n\r\n" % where.encode() + early)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = server.recv(1)
            assert byte, head
            head += byte
        assert head.startswith(b"HTTP/1.1 200"), head
        return server

    # The appliance's side

    def spoken_for(self) -> dict[str, dict[str, Any]]:
        """GET /v1/agents, by name."""
        return {row["name"]: row for row in self.daemon.get("/v1/agents")}

    def connections(self, service: str) -> list[dict[str, Any]]:
        return [row for row in self.daemon.connections() if row["service"] == service]

    def wait_for_state(self, service: str, *states: str) -> None:
        """Until the only connection of a service is in one of these states; a new one is there a moment after its
        client's connect() has returned."""
        self.wait(lambda: len(rows := self.connections(service)) == 1 and rows[0]["state"] in states, f"{states}")

    def wait_for_agent(self, *names: str) -> None:
        self.wait(lambda: all(self.spoken_for().get(name, {}).get("connected") for name in names), f"an agent: {names}")

    def control_state(self, name: str) -> str:
        """Where the control connection of a client's agent is."""
        address = self.spoken_for()[name]["agent"]
        return next((str(row["state"]) for row in self.connections("agents") if row["client"] == address), "CLOSED")

    def to_sleep(self, name: str) -> None:
        """Let the control connection fall quiet by itself, then to SLEEP by command."""
        self.wait(lambda: self.control_state(name) == "IDLE", "the control connection is IDLE")
        self.daemon.act(self.spoken_for()[name]["agent"], "sleep")
        assert self.control_state(name) == "SLEEP"

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 15) -> None:
        try:
            wait_until(condition, timeout_s, what)
        except TimeoutError as error:
            said = f"{error}\n{self.daemon.log_tail()}\nagent:\n{self.log()}\n{self.daemon.connections()}"
            raise TimeoutError(said) from None


def took(action: Callable[[], Any]) -> float:
    """Seconds that an action takes."""
    began = time.monotonic()
    action()
    return time.monotonic() - began


__all__ = ["AGENTS", "HELD", "TELEMETRY", "TOKEN", "TRUSTING", "WEB", "AgentLab", "took"]
