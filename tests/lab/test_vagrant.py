# SPDX-License-Identifier: Apache-2.0
"""The scripts of the Vagrantfile's machines, in namespaces of the lab that have links and nothing else: a client
reaches the server through them, sleeps, and is asked; and none changes anything when it runs again.

Of appliance.sh it is the network, and the configuration; installing is tests/bench/boot.py's, and all of it, twice,
tests/lab/test_tutorial.py's, in a booted machine.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from appliance.lab.processes import ROOT
from appliance.lab.programs import Dialogue
from appliance.lab.standing import PAGE

SPACES: Final = {"server": "lan", "nat": "nat", "client": "wan", "appliance": "box"}
RENAMED: Final = {"server": "lan", "client": "home"}
"""What the lab calls eth0."""

SETUP: Final = """
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
for place in etc srv usr/local; do
    mkdir -p $DIR/$place/upper $DIR/$place/work
    mount -t overlay overlay -o lowerdir=/$place,upperdir=$DIR/$place/upper,workdir=$DIR/$place/work /$place
done
nft flush ruleset
ip neigh flush nud permanent
for link in $(ip -o link show type veth | sed 's/^[0-9]*: //; s/@.*//'); do
    ip address flush dev $link scope global
done
for family in -4 -6; do ip $family route flush table main; done
sysctl -q -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
exec bash -e -o pipefail
"""
STATE: Final = """
ip -o address; ip -4 route; ip -6 route | sed 's/ expires [0-9]*sec//'; nft list ruleset
sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding
ps -eo pid,args | grep -E '[a]ppliance.peers|[h]ttp.server' || :
find $DIR -path '*/upper/*' -type f | sort | while read -r file; do stat -c '%n %a' $file; sha256sum <$file; done
"""
DONE: Final = "it is done\n"


def command_of(role: str) -> str:
    """The script with its arguments, as in the Vagrantfile's table; of the first client."""
    (found,) = re.findall(rf'"({role}\.sh [^"]*)"', (ROOT / "Vagrantfile").read_text())
    return f"{ROOT}/vagrant/{found}".replace("#{2 + i}", "2")


class Machine:
    """A role's namespace, with directories of its own where the scripts write."""

    def __init__(self, lab: Lab, role: str) -> None:
        own = lab.workspace / role
        own.mkdir()
        begin = ["unshare", "--mount", "bash", "-e", "-c", SETUP.replace("$DIR", str(own))]
        self.terminal = Dialogue(lab, SPACES[role], begin, tree=True)
        self.state_of = STATE.replace("$DIR", str(own))
        self.command = command_of(role)
        if role in RENAMED:  # by its MAC address, as in a virtual machine
            mac = self.run("ip -o link show eth0 | sed 's/.*ether //; s/ .*//'").strip().upper()
            self.command = self.command.replace(f" {RENAMED[role]} ", f" {RENAMED[role]}={mac} ")
        if role == "appliance":
            script = (ROOT / "vagrant" / "appliance.sh").read_text()
            (network,) = re.findall(r'^"\$here/network\.sh" (.*)$', script, flags=re.M)
            words = self.command.split()[1:]
            arguments = re.sub(r'"\$(\d)"', lambda match: words[int(match[1]) - 1], network)
            forward = "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"
            self.command = f"{ROOT}/vagrant/network.sh {arguments}; {forward}; {ROOT}/vagrant/scene.sh"

    def run(self, line: str) -> str:
        return self.terminal.ask(f"{line}\necho {DONE}", DONE).removesuffix(DONE)

    def set_up(self) -> str:
        """Run the script; the state of the machine then."""
        self.run(self.command)
        return self.run(self.state_of)


class Scene:
    def __init__(self, lab: Lab) -> None:
        self.machines = {role: Machine(lab, role) for role in SPACES}
        self.states = {role: machine.set_up() for role, machine in self.machines.items()}
        config = tomllib.loads(self.machines["appliance"].run("cat /etc/roost/roost.toml"))
        del config["instance"]
        config["policy"] = dict.fromkeys(config["policy"], "300ms")
        self.daemon: DaemonHandle = lab.daemon(config)

    def asleep(self) -> list[dict[str, Any]]:
        return self.daemon.connections(state="SLEEP")


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Lab(clients=1) as lab:
        yield Scene(lab)


def test_the_client_connects_through_the_nat_sleeps_and_is_asked_by_name(scene: Scene) -> None:
    wait_until(lambda: len(scene.asleep()) == 1, 30, "the client has connected and sleeps")
    (row,) = scene.asleep()
    assert row["service"] == "line"
    assert str(row["client"]).startswith("198.19.0.1:")
    assert scene.daemon.http("PUT", f"/v1/connections/{row['id']}/name", json={"name": "thermostat"}).is_success
    ask = "echo ASK temperature | curl -s -p -x http://10.3.0.1:3128 telnet://thermostat.roost:9000"
    assert scene.machines["server"].run(ask) == "TELL c000000 temperature\n"


def test_the_server_is_reached_by_the_appliances_address_and_by_its_own(scene: Scene) -> None:
    client = scene.machines["client"]
    assert client.run("curl -s http://198.18.0.1:8080/") == PAGE
    for address, port in (("198.18.0.1", 8001), ("10.3.0.2", 8000)):
        talk = f"exec 3<>/dev/tcp/{address}/{port}; echo ECHO one >&3; head -n 1 <&3; exec 3>&-"
        assert client.run(f"( {talk} )") == "ECHO one\n"


def test_the_servers_network_is_reached_by_ipv6(scene: Scene) -> None:
    """None listens there: the server's own kernel says so."""
    refused = scene.machines["client"].run("( exec 3<>/dev/tcp/fd00:3::2/9 ) 2>&1 || true")
    assert "Connection refused" in refused


def test_an_agent_with_the_token_of_the_scene_speaks_for_a_client(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "picture").write_text("A picture.\n")
    (tmp_path / "token").write_text(scene.machines["appliance"].run("cat /etc/roost/agent.token"))
    client = scene.machines["client"]
    assert scene.machines["appliance"].run("stat -c %a /etc/roost/agent.token") == "600\n"
    began = client.run(f"""
        python3 -m http.server --bind 127.0.0.1 --directory {tmp_path} 8000 >{tmp_path}/camera.log 2>&1 &
        echo $!
        python3 {ROOT}/appliance/agent/roost_agent.py --appliance 198.18.0.1:7100 --token-file {tmp_path}/token \
            --accepting camera=8000 2>{tmp_path}/agent.log &
        echo $!
    """)
    try:
        wait_until(lambda: bool(scene.daemon.get("/v1/agents")), 30, "the agent speaks for the camera")
        ask = "curl -s -p -x http://10.3.0.1:3128 http://camera.roost/picture"
        assert scene.machines["server"].run(ask) == "A picture.\n"
    finally:
        client.run(f"kill {' '.join(began.split())}")


def test_a_client_whose_connection_ended_connects_again(scene: Scene) -> None:
    wait_until(lambda: len(scene.asleep()) == 1, 30, "the client sleeps")
    (row,) = scene.asleep()
    scene.daemon.act(row["id"], "close")
    wait_until(lambda: [each["id"] for each in scene.asleep()] not in ([], [row["id"]]), 30, "it has come again")


@pytest.mark.parametrize("role", SPACES)
def test_a_script_that_runs_again_changes_nothing(scene: Scene, role: str) -> None:
    machine = scene.machines[role]
    before = machine.run(machine.state_of)
    assert "10.3.0." in before
    assert ("snat to 198.19.0.1" in before) == (role == "nat")
    assert ("appliance.peers" in before) == (role in ("server", "client"))
    assert machine.set_up() == before
