# SPDX-License-Identifier: Apache-2.0
"""The lab: clients, a NAT, the appliance and a server on one machine, for the demo, the tests and the benches."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from appliance.lab import leftovers, topology
from appliance.lab.daemon import DaemonHandle, toml
from appliance.lab.groups import ChaosPair, SwarmGroup
from appliance.lab.namespaces import Namespace
from appliance.lab.processes import Peer, Process, Spawner, python_environment

if TYPE_CHECKING:
    from appliance.lab.simulator import Simulator

ONE_NETWORK = {what: [1_000_000, 1_000_000] for what in ("births", "handshakes", "wakes", "attaches", "agents")}
"""[limits]: all of its clients are of one network, and none is to be refused for it."""

_PORTS_AN_ADDRESS = 16_000  # of some 64,000: choosing a port stays cheap for the kernel


class Lab:
    """A network of four namespaces: wan (clients), nat, box (the appliance), lan (server); see topology.py.

    `clients` is how many are meant to come (it decides how many addresses they have, and the size of conntrack). With
    nat=False client addresses are seen as they are. Any number of labs can exist side by side; a lab whose process
    dies, however it dies, leaves no namespace, link or process, and the next lab removes its files and pins.

    A capture on an interface with GRO shows arriving frames merged, with checksums that are not whole. exact_frames
    makes every frame outside the appliance pass as it was sent, at some cost: for captures that are to be dissected.
    offloads: clients and servers leave checksums and segmenting to their interfaces, as containers do.
    """

    def __init__(self, clients: int = 1000, nat: bool = True, addresses: int | None = None,
                 exact_frames: bool = False, offloads: bool = False) -> None:  # fmt: skip
        self.nat = nat
        self.addresses = addresses or max(1, math.ceil(clients / _PORTS_AN_ADDRESS))
        if nat and clients > 60_000 * self.addresses:
            raise ValueError(f"{clients} clients do not fit behind {self.addresses} public address(es) of some 60,000 "
                             "ports each: give addresses")  # fmt: skip
        self._clients = clients
        self._exact_frames = exact_frames
        self._offloads = offloads
        self._stack = ExitStack()
        self._spaces: dict[str, Namespace] = {}
        self._daemons = 0
        self._simulators = 0

    def __enter__(self) -> Self:
        leftovers.reap()
        self.name = leftovers.new_name()
        with ExitStack() as stack:  # undone if building fails half-way
            self.workspace = leftovers.workspace(self.name)
            self.workspace.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, self.workspace)
            for name in ("wan", "nat", "box", "lan"):
                space = self._spaces[name] = Namespace(name)
                stack.callback(space.close)
            self._spawner = Spawner()
            stack.callback(self._spawner.close)
            if self.nat:
                topology.need_conntrack(self._clients * 5 // 4)
            topology.build(self._spaces, self.nat, self.addresses, self._offloads)
            if self._exact_frames:
                topology.pass_frames_unmerged(self._spaces)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # The network

    def space(self, name: str) -> Namespace:
        """The namespace "wan", "nat", "box" or "lan"."""
        return self._spaces[name]

    def enter(self, name: str) -> AbstractContextManager[None]:
        """Move the calling thread (only) into a namespace for the length of a `with` block. Sockets made there stay
        there, and can be used from anywhere."""
        return self._spaces[name].entered()

    def address(self, space: str, ifname: str, family: int = 4) -> str:
        return topology.ADDRESSES[space, ifname, family]

    def addresses_of(self, space: str) -> list[str]:
        """All IPv4 addresses of a namespace's interfaces, those towards the clients first."""
        return [address for (node, _, family), address in topology.ADDRESSES.items() if (node, family) == (space, 4)]

    def client_addresses(self, family: int = 4, count: int | None = None) -> list[str]:
        """Addresses that client sockets in "wan" can bind to; as many as the lab was made with, or `count`."""
        return [topology.client_address(index, family) for index in range(count or self.addresses)]

    def sysctl(self, space: str, key: str, value: object) -> None:
        self._spaces[space].sysctl(key, value)

    def nft(self, space: str, rules: str) -> str:
        """Feed rules to nft in a namespace, e.g. to make a client vanish."""
        return topology.nft(self._spaces[space], rules)

    def remove_link(self, space: str, ifname: str) -> None:
        """Delete an interface, and the one at the other end of its link, e.g. "wan0" in "box"."""
        topology.remove_link(self._spaces, (space, ifname))

    def renew_link(self, space: str, ifname: str) -> None:
        """Make them again, under the same names."""
        topology.renew_link(self._spaces, (space, ifname), self.nat, self._offloads)

    def unsummed_link(self) -> None:
        """From now on frames of client sockets with the mark topology.UNSUMMED leave checksums to the interfaces."""
        topology.add_unsummed_link(self._spaces)

    # Processes

    def run(self, space: str, argv: Sequence[str], **popen: Any) -> Process:
        """Start a process in a namespace. It is ended by its id when the lab closes."""
        process = self._spawner.start(self._spaces[space], argv, f"{Path(argv[0]).name} in {space}", **popen)
        self._stack.callback(process.close)
        return process

    def run_tree(self, space: str, argv: Sequence[str], user: str | None = None, **popen: Any) -> Process:
        """Start a program that forks, such as a server with its workers, as root or as `user`; it and all of them are
        ended when the lab closes."""
        what = f"{Path(argv[0]).name} in {space}"
        process = self._spawner.start_tree(self._spaces[space], argv, what, user, **popen)
        self._stack.callback(process.close)
        return process

    def home(self, user: str) -> Path:
        """A directory for a program that must be `user`, which cannot enter the workspace; removed with the lab."""
        home = leftovers.workspace(leftovers.new_name())
        home.mkdir(mode=0o700)
        self._stack.callback(shutil.rmtree, home)
        shutil.chown(home, user, user)
        return home

    def peer(self, space: str, module: str, *options: str) -> Peer:
        """Start a program of appliance.peers in a namespace."""
        process = self.run(space, [sys.executable, "-m", f"appliance.peers.{module}", *options], bufsize=0,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=python_environment())  # fmt: skip
        process.what = f"peer {module} in {space}"
        return Peer(process)

    def capture(self, space: str, ifname: str, path: Path, expression: str = "") -> Process:
        """Capture frames into a pcap file until .terminate(); returns once the capture has begun."""
        options = ["--immediate-mode", "-U", "-Z", "root", "-s", "0", "-B", "16384"]
        # -Z root: a change of user would clear the death signal, and tcpdump would outlive the lab
        process = self.run(
            space, ["tcpdump", *options, "-i", ifname, "-w", str(path), *expression.split()], stderr=subprocess.PIPE
        )
        assert process.popen.stderr is not None
        heard = b""
        while b"listening on" not in heard:
            line = process.popen.stderr.readline()
            if not line:
                raise RuntimeError(f"tcpdump did not begin on {ifname} in {space}: {heard.decode(errors='replace')}")
            heard += line
        return process

    # The two ends

    def server(self, port: int = 8000) -> Peer:
        """The LAN server (appliance.peers.server), on both families; it listens when this returns."""
        options = [word for family in (4, 6) for word in ("--listen", self.address("lan", "eth0", family), str(port))]
        peer = self.peer("lan", "server", *options)
        peer.request("ready")
        return peer

    def swarm(self, family: int = 4, addresses: Sequence[str] | None = None) -> SwarmGroup:
        """Clients to come; each process of the group is started when it is needed."""
        group = SwarmGroup(lambda: self.peer("wan", "swarm"), addresses or self.client_addresses(family))
        self._stack.callback(group.close)
        return group

    def simulator(self, clients: int, port: int = 8000, family: int = 4, server: str | None = None,
                  **options: Any) -> Simulator:  # fmt: skip
        """Simulated clients, beside the NAT: on an interface of "box" of their own (its .box_interface).

        They connect to `port` of `server`, an address of the appliance's unless given. options: addresses (that the
        clients have together), base (the first of them), timestamps, window_scale, sack (what they offer), answer_fin
        (a client that hears FIN sends its own at once), segment (bytes), to_kernel (no daemon will attach to the
        interface: the kernel answers them).
        """
        from appliance.lab.simulator import Simulator  # of the checkout alone: an installed wheel has no simulator

        self._simulators += 1  # no number, and so no client's address, is used twice
        simulator = Simulator(self._spaces["box"], self._simulators, server or self.address("box", "wan0", family),
                              port, clients, **options)  # fmt: skip
        self._stack.callback(simulator.close)
        return simulator

    def asker(self) -> Peer:
        """A server that wants to reach clients (appliance.peers.asker)."""
        return self.peer("lan", "asker")

    def chaos(self, port: int = 9000, by: str = "stream") -> ChaosPair:
        """by: what says whose a link is (appliance.peers.chaos_server); "address" needs one for each client."""
        listens = [word for family in (4, 6) for word in ("--listen", self.address("lan", "eth0", family), str(port))]
        server = self.peer("lan", "chaos", "server", *listens, "--by", by)
        server.request("ready")
        addresses = {family: self.client_addresses(family) for family in (4, 6)}
        return ChaosPair(self.peer("wan", "chaos", "client"), server, addresses, by)

    # The appliance

    def config(self, port: int = 8000, attach_port: int = 3128, policy: dict[str, Any] | None = None,
               table: dict[str, Any] | None = None, service: dict[str, Any] | None = None,
               router: dict[str, Any] | None = None) -> dict[str, Any]:  # fmt: skip
        """A configuration for this lab: one service for each family, and attach; `service` goes into both services.
        With `router` (keys of [router]; {} will do) clients connect to the server's own address."""
        services: list[dict[str, Any]] = []
        for family in (4, 6):
            server = endpoint(self.address("lan", "eth0", family), port)
            listen = endpoint(self.address("box", "wan0", family), port)
            where = {"listen": listen, "server": server} if router is None else {"listen": server, "transparent": True}
            services.append({"name": f"lab{family}", **where, **(service or {})})
        return {"policy": policy or {}, "table": table or {}, "limits": ONE_NETWORK, "service": services,
                "router": {} if router is None else {"lan": ["lan0"], **router},
                "attach": {"listen": [endpoint(self.address("box", "lan0", 4), attach_port)]}}  # fmt: skip

    def second_box(self) -> None:
        """From now on there is a second appliance, "box2"; the addresses are the first one's."""
        space = self._spaces["box2"] = Namespace("box2")
        self._stack.callback(space.close)
        topology.add_second_box(self._spaces, self.nat)

    def strangers(self) -> str:
        """From now on there are clients of another network, "strangers", at a link of their own: its interface in
        "box"."""
        space = self._spaces["strangers"] = Namespace("strangers")
        self._stack.callback(space.close)
        topology.add_strangers(self._spaces)
        return topology.STRANGERS_LINK[1][1]

    def move_addresses(self, source: str, target: str) -> None:
        """Those of one appliance to the other; source "": no other has them any more."""
        topology.move_addresses(self._spaces, source, target)

    def cut(self, space: str) -> None:
        """Its interfaces fall silent: what a loss of power looks like from outside."""
        topology.cut(self._spaces[space])

    def daemon(self, config: dict[str, Any], start: bool = True, space: str = "box") -> DaemonHandle:
        """Roost in the appliance, answering. Paths, instance and interfaces are unique unless `config` says which."""
        self._daemons += 1
        suffix = "" if self._daemons == 1 else f"-{self._daemons}"
        pid_and_more = self.name.removeprefix("roost-")
        paths = {"pin_dir": leftovers.BPFFS / f"{self.name}{suffix}",
                 "database": self.workspace / f"roost{suffix}.db",
                 "control_socket": self.workspace / f"roost{suffix}.sock",
                 **config.get("paths", {})}  # fmt: skip
        if config.get("api"):
            self.workspace.chmod(0o711)  # for its process, which is no root's
        path = self.workspace / f"roost{suffix}.toml"
        path.write_text(toml({
            **config,
            "instance": config.get("instance", f"{pid_and_more}{suffix}"[:31]),
            "paths": paths,
            "network": {"interfaces": ["wan0"], **config.get("network", {})},
        }))  # fmt: skip
        handle = DaemonHandle(partial(self.run, space), path, paths, partial(self.enter, space))
        self._stack.callback(handle.close)
        if start:
            handle.start()
        return handle


def endpoint(address: str, port: int) -> str:
    """ "192.0.2.1:80" or "[2001:db8::1]:80" """
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def wait_until(condition: Callable[[], object], timeout_s: float, what: str, every_s: float = 0.05) -> None:
    """Poll until the condition holds; TimeoutError with `what` if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(every_s)
