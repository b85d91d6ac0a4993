# SPDX-License-Identifier: Apache-2.0
"""A lab that stands, with the appliance at work in it, until it is taken down (`roost lab up`, `roost lab down`).

    python -m appliance.lab.standing MODE NAME [TABLE.KEY=VALUE...]

holds it, with these settings over its configuration (settings.py): prints one line of JSON once everything answers (the
description, or {"error": sentence}), starts the daemon anew at SIGUSR1, and takes all away at SIGTERM. The namespaces
have names, NAME-wan and so on (names.py), and /run/NAME-lab leads to the working directory with the daemon's
configuration (roost.toml), log and control socket, and the description (lab.json). That link also names the lab's
process: when that is gone, `take_down` does what it can no longer do.

    mode    clients connect to                     servers reach clients by
    router  the server's own address               their address, at any attach port; the proxy
    proxy   the appliance's, from behind a NAT     the proxy: CONNECT and SOCKS5
    host    the same, the server on its loopback   the proxy, on its loopback

Agents and clients that they let connect have services in every mode; the token of the agents is in agent.token.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from appliance.agent import roost_agent
from appliance.lab import leftovers, names
from appliance.lab.daemon import DaemonError, DaemonHandle
from appliance.lab.interrupts import interrupts
from appliance.lab.lab import Lab, endpoint, wait_until
from appliance.lab.settings import apply

MODES: Final = ("router", "proxy", "host")
LINE_PORT, SESSION_PORT, WEB_PORT, ATTACH_PORT, CLIENT_PORT = 8000, 8001, 8080, 3128, 9000
AGENTS_PORT, CHECK_IN_PORT = 7100, 7200
CLIENT: Final = "thermostat"
TOKEN_FILE: Final = "agent.token"
LOOPBACK: Final = "127.0.0.1"
POLICY: Final = {"active_quiet": "1s", "standby_quiet": "2s", "idle_quiet": "4s"}
PAGE: Final = "Hello from the lab's server.\n"
_RUN: Final = Path("/run")
_PATIENCE_S: Final = 90.0


class StandingError(Exception):
    """The lab cannot be put up or taken down, and why."""


def link_of(name: str) -> Path:
    """Leads to the working directory of the lab with this name."""
    return _RUN / f"{name}-lab"


def owner_of(name: str) -> int | None:
    """The process that holds the lab; None when there is none, or when it died."""
    with suppress(OSError):
        return leftovers.owner(link_of(name).readlink().name)
    return None


def description(name: str) -> dict[str, Any] | None:
    """What is standing under this name; None while nothing is, or not yet."""
    if owner_of(name) is None:
        return None
    try:
        found: dict[str, Any] = json.loads((link_of(name) / "lab.json").read_text())
    except FileNotFoundError:
        return None
    return found


def take_down(name: str) -> bool:
    """End the lab and every program in its namespaces, also when the process that held it is gone. False when there was
    none."""
    if not link_of(name).is_symlink():
        return False
    with suppress(OSError):
        end_owner(name)
    names.take(name)
    link_of(name).unlink(missing_ok=True)
    leftovers.reap()
    return True


def restart(name: str) -> bool:
    """End the lab's daemon in order, and start it again with the configuration as it is now. False when no lab is
    standing; StandingError when the daemon does not start."""
    before = description(name)
    if before is None:
        return False
    os.kill(before["pid"], signal.SIGUSR1)

    def again() -> bool:
        now = description(name)
        if now is None:
            raise StandingError("the lab ended meanwhile")
        return bool(now["starts"] > before["starts"])

    wait_until(again, _PATIENCE_S, "the daemon starts again")
    now = description(name) or before
    if now["problem"]:
        raise StandingError(now["problem"])
    return True


def end_owner(name: str) -> None:
    """SIGTERM to the process that holds the lab, which takes everything away; wait for its end."""
    link = link_of(name).readlink().name
    pid = leftovers.owner(link)
    if pid is None:
        return
    descriptor = os.pidfd_open(pid)
    try:
        if leftovers.owner(link) == pid:  # still: the id is no other's
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            wait_until(lambda: leftovers.owner(link) is None, _PATIENCE_S, f"the lab's process {pid} ends")
    finally:
        os.close(descriptor)


def _claim(lab: Lab, name: str) -> None:
    """Make the link, and take away what a lab of this name left whose process died."""
    if owner_of(name) is None:
        take_down(name)
    others = names.in_use(name)
    if others and not link_of(name).is_symlink():
        raise StandingError(f"there are network namespaces of these names already (ip netns): {', '.join(others)}")
    try:
        link_of(name).symlink_to(lab.workspace)
    except FileExistsError:
        raise StandingError(f"another lab with the name {name} is being put up") from None
    for space, given in names.names(name).items():
        names.give(lab.space(space), given)


def _servers(lab: Lab, mode: str) -> str:
    """The application: one that answers lines, and one that serves a page. The address of both."""
    space, address = ("box", LOOPBACK) if mode == "host" else ("lan", lab.address("lan", "eth0"))
    listens = [word for port in (LINE_PORT, SESSION_PORT) for word in ("--listen", address, str(port))]
    lab.peer(space, "server", *listens).request("ready")
    pages = lab.workspace / "pages"
    pages.mkdir()
    (pages / "index.html").write_text(PAGE)
    web = [sys.executable, "-m", "http.server", "--bind", address, "--directory", str(pages), str(WEB_PORT)]
    with (lab.workspace / "web.log").open("wb") as log:
        lab.run(space, web, stdout=log, stderr=log)
    return address


def _config(lab: Lab, mode: str, server: str, settings: Sequence[str]) -> dict[str, Any]:
    """The daemon's configuration, with the settings that were asked for."""
    services = []
    ports = {"line": LINE_PORT, "session": SESSION_PORT, "web": WEB_PORT}
    if mode == "host":
        del ports["session"]  # the server's leg has no interface that it is heard on
    for service, port in ports.items():
        where: dict[str, Any]
        if mode == "router":
            where = {"listen": endpoint(server, port), "transparent": True}
        else:
            where = {"listen": endpoint(lab.address("box", "wan0"), port), "servers": [endpoint(server, port)]}
        if service == "session":
            where["interface"] = "persistent"
        services.append({"name": service, **where})
    for service, port, kind in (("agents", AGENTS_PORT, "agents"), ("check-in", CHECK_IN_PORT, "held")):
        services.append({"name": service, "listen": endpoint(lab.address("box", "wan0"), port), "kind": kind})
    attach = LOOPBACK if mode == "host" else lab.address("box", "lan0")
    router = {"lan": ["lan0"], "attach_ports": [CLIENT_PORT]} if mode == "router" else {}
    config = {"policy": dict(POLICY), "service": services, "router": router,
              "table": {"ipv4": 10_000, "ipv6": 1000, "idle": 10_000},
              "attach": {"listen": [endpoint(attach, ATTACH_PORT)]},
              "agent": [{"name": "lab", "token": roost_agent.token_digest(_token(lab)), "clients": ["*"]}]}  # fmt: skip
    apply(config, settings)
    return config


def _token(lab: Lab) -> str:
    """A new one for the lab's agents, which find it in a file."""
    token = secrets.token_urlsafe(32)
    (lab.workspace / TOKEN_FILE).write_text(token + "\n")
    return token


def _client(lab: Lab, daemon: DaemonHandle, address: str) -> None:
    """One client that connects and falls quiet; servers can ask for it by name."""
    lab.swarm().connect(1, (address, LINE_PORT))
    (row,) = daemon.connections()
    answer = daemon.http("PUT", f"/v1/connections/{row['id']}/name", json={"name": CLIENT})
    if answer.status_code != 200:
        raise StandingError(f"the client was not given its name: {answer.text}")


def _talk(address: str, port: int, *lines: str, pause_s: int = 0) -> str:
    """A shell's command: connect, and say each line once the one before is answered."""
    pause = f"; sleep {pause_s}; " if pause_s else "; "
    said = pause.join(f"echo {line} >&3; head -n 1 <&3" for line in lines)
    return f"bash -c 'exec 3<>/dev/tcp/{address}/{port}; {said}'"


def _commands(lab: Lab, name: str, mode: str, server: str) -> list[list[str]]:
    """[what to see, the command] in a good order."""
    inside = {space: f"ip netns exec {given}" for space, given in names.names(name).items()}
    front = server if mode == "router" else lab.address("box", "wan0")
    space, proxy = ("box", LOOPBACK) if mode == "host" else ("lan", lab.address("box", "lan0"))
    ask = f"echo ASK temperature | {inside[space]} curl -s"
    found = [
        ["the connections, and what became of them", f"./roost connections -c {link_of(name)}/roost.toml"],
        ["", f"./roost events -c {link_of(name)}/roost.toml --follow"],
        ["a client loads a page", f"{inside['wan']} curl -s http://{front}:{WEB_PORT}/"],
        ["a client speaks, sleeps, and speaks again 9 s later",
         f"{inside['wan']} {_talk(front, LINE_PORT, 'ECHO one', 'ECHO two', pause_s=9)}"],
        ["a server asks the proxy for the client that sleeps",
         f"{ask} -p -x http://{proxy}:{ATTACH_PORT} telnet://{CLIENT}.roost:{CLIENT_PORT}"],
        ["the same by SOCKS5",
         f"{ask} -x socks5h://{proxy}:{ATTACH_PORT} telnet://{CLIENT}.roost:{CLIENT_PORT}"],
    ]  # fmt: skip
    if mode == "router":
        client = lab.client_addresses()[0]
        found.insert(4, ["a server connects to the address of the client that sleeps",
                         f"{inside['lan']} {_talk(client, CLIENT_PORT, 'ASK temperature')}"])  # fmt: skip
    return found


def _describe(lab: Lab, name: str, mode: str, config: dict[str, Any], daemon: DaemonHandle) -> dict[str, Any]:
    """What `roost lab up` tells."""
    keys = ("name", "listen", "servers", "interface", "kind")
    return {
        "name": name,
        "mode": mode,
        "pid": os.getpid(),
        "daemon_pid": daemon.pid,
        "config": str(link_of(name) / daemon.config.name),
        "log": str(link_of(name) / daemon.log.name),
        "namespaces": {
            space: {"name": given, "addresses": lab.addresses_of(space)} for space, given in names.names(name).items()
        },
        "services": [{key: service[key] for key in keys if key in service} for service in config["service"]],
        "attach": config["attach"]["listen"][0],
        "client": f"{CLIENT}.roost",
        "agent_token_file": str(link_of(name) / TOKEN_FILE),
    }


def _write(lab: Lab, told: Mapping[str, Any]) -> None:
    """The description, whole at any time."""
    new = lab.workspace / "lab.json.new"
    new.write_text(json.dumps(told))
    new.rename(lab.workspace / "lab.json")


def _restart(lab: Lab, daemon: DaemonHandle, told: dict[str, Any]) -> None:
    """Of the daemon; the description then says that it was started once more, and what was wrong with that."""
    told |= {"starts": told["starts"] + 1, "problem": ""}
    try:
        daemon.restart()
        told["daemon_pid"] = daemon.pid
    except DaemonError as problem:
        told["problem"] = str(problem)
    _write(lab, told)


def _put_up(stack: ExitStack, mode: str, name: str, settings: Sequence[str]) -> dict[str, Any]:
    """The lab and all in it; what to undo goes onto the stack."""
    if description(name) is not None:
        raise StandingError(f"a lab with the name {name} stands already")
    stack.callback(_forget, name, os.getpid())
    lab = stack.enter_context(Lab(clients=1000, nat=mode != "router"))
    _claim(lab, name)
    _keep_standard_error(lab.workspace / "lab.log")
    server = _servers(lab, mode)
    config = _config(lab, mode, server, settings)
    daemon = lab.daemon(config)
    _client(lab, daemon, server if mode == "router" else lab.address("box", "wan0"))
    told = _describe(lab, name, mode, config, daemon) | {"try": _commands(lab, name, mode, server)}
    told |= {"starts": 1, "problem": ""}
    signal.signal(signal.SIGUSR1, lambda *_: _restart(lab, daemon, told))
    _write(lab, told)
    return told


def _forget(name: str, pid: int) -> None:
    """The names and the link, when they are this process's."""
    with suppress(OSError):
        target = link_of(name).readlink()
        if leftovers.owner(target.name) == pid:
            names.take(name)
            link_of(name).unlink()


def _keep_standard_error(log: Path) -> None:
    """This process's own, and that of the programs to come, which would else hold a pipe of the process that waits for
    the lab."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)


def hold(mode: str, name: str, *settings: str) -> int:
    """Put the lab up, say so, and take it down when told to. The exit code."""
    with interrupts() as signals, ExitStack() as stack:
        try:
            with signals.held():
                told = _put_up(stack, mode, name, settings)
            signals.check()
            print(json.dumps(told), flush=True)
            os.dup2(2, 1)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            return 0
        except Exception as problem:
            print(json.dumps({"error": str(problem)}), flush=True)
            return 1
        finally:
            with signals.held():
                stack.close()


if __name__ == "__main__":
    sys.exit(hold(*sys.argv[1:]))
