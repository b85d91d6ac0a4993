# SPDX-License-Identifier: Apache-2.0
"""What one configuration needs of this machine and its network, as doctor.py says what every appliance needs.

Run where the daemon is to run, in its network namespace: what is missing is missing there. Nothing is changed.

    required   connections cannot be linked, fall asleep, or be found again after a restart
    advised    it works, but worse, or not for every client
"""

from __future__ import annotations

import ipaddress
import os
import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from appliance.box import kernel_probe, mounts, network
from appliance.box.doctor import Need, Outcome, outcome
from appliance.box.network import Link, Network
from appliance.box.owners import heard_by_clients
from appliance.box.taken import WAY_OUT, is_taken
from appliance.wire import ServerAddress, endpoint_text

MINIMUM_FREE_MB: Final = 256
"""Room for the rows of a million sleepers, and some history."""

MERGING: Final = ("rx-lro", "rx-gro-hw")
"""Offloads by which a card merges frames to some that are longer than XDP's."""

TAKES_TAGS_OUT: Final = "rx-vlan-hw-parse"
"""The offload (rx-vlan-offload of `ethtool -k`) by which XDP gets a frame without its VLAN tag, and takes those of
every VLAN for untagged ones. An answer goes out without a tag, too; of generic XDP, with that of the frame."""

SHOWN: Final = 5
"""Networks of a list."""

STRICT: Final = 1  # of rp_filter, RFC 3704
_EPOCH: Final = 1_700_000_000  # 2023: a clock before that was never set


@dataclass(frozen=True, slots=True)
class Planned:
    """A service; servers by address or name. None: a link goes where the client connected to, or to the daemon."""

    name: str
    listen: ServerAddress
    servers: tuple[ServerAddress, ...] = ()
    transparent: bool = False
    persistent: bool = False
    born: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration, as far as the machine matters: the interfaces towards clients and, of a router, servers; those
    that servers' legs are heard on besides; where servers ask for clients. database: the file; None: it is a server.
    max_awake: 0: as many as there are descriptors for, each taking so many; spare: those for all else. local_connect:
    programs on this machine reach clients by connect(). attach_open: attach asks for no password, and nobody has said
    that it may be where clients are."""

    clients: tuple[str, ...]
    lan: tuple[str, ...]
    servers_heard: tuple[str, ...]
    xdp_mode: str
    services: tuple[Planned, ...]
    attach: tuple[ServerAddress, ...]
    pin_dir: Path
    control_socket: Path
    database: Path | None
    max_awake: int
    descriptors_each: int
    descriptors_spare: int
    local_connect: bool = False
    attach_open: bool = False

    @property
    def interfaces(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.clients, *self.lan, *self.servers_heard)))

    @property
    def families(self) -> list[int]:
        """The IP versions that clients come by."""
        return sorted({ipaddress.ip_address(one.listen[0]).version for one in self.services})


def examine(plan: Plan) -> list[Outcome]:
    """Every check, in the order in which a person would mend them."""
    net = replace(
        network.read(plan.interfaces),
        foreign_xdp=lambda name: _foreign_xdp(name, plan.pin_dir),
        taken=lambda listen, transparent: is_taken(listen, transparent, plan.control_socket),
    )
    return [
        *check_interfaces(plan, net),
        *check_clients(plan, net),
        *check_firewall(net),
        *check_births(plan, net),
        *check_services(plan, net),
        *check_router(plan, net),
        *check_local_connect(plan, net),
        *check_pins(plan.pin_dir),
        *(check_database(plan.database) if plan.database else ()),
        *check_machine(plan),
    ]


def _foreign_xdp(name: str, pin_dir: Path) -> str | None:
    try:
        from appliance.engine import foreign_xdp  # doctor runs without it, too
    except ImportError:
        return None
    return foreign_xdp(name, str(pin_dir))


def check_interfaces(plan: Plan, net: Network) -> Iterator[Outcome]:
    """Those that the configuration names: there, up, and good for XDP."""
    named = None if plan.clients else "none is named: nothing can be kept asleep"
    fix = '[network] interfaces = ["eth0"]: each by which packets of clients come'
    yield outcome("interfaces", "[network] interfaces", Need.REQUIRED, named, fix, ", ".join(plan.clients))
    for name in plan.interfaces:
        link = net.links.get(name)
        absent = "there is no such interface" if link is None else None if link.up else "it is down"
        fix = (
            f"ip link set {name} up"
            if link
            else f"`ip link` lists those there are; bring {name} about, or name another"
        )
        yield outcome("interfaces", name, Need.REQUIRED, absent, fix, "up")
        if link is None:
            continue
        if name != "lo" or name in plan.clients:
            yield _free(name, net)
        if name in plan.clients or plan.xdp_mode == "native":
            yield _xdp(name, link.xdp, plan.xdp_mode)
        merging = [feature for feature in MERGING if feature in link.offloads]
        problem = f"{' and '.join(merging)} on: frames that the card merges are too long for XDP" if merging else None
        fix = f"ethtool -K {name} {' '.join(f'{one} off' for one in merging)}   (some drivers do it by themselves)"
        yield outcome("interfaces", f"{name}: frames as sent", Need.ADVISED, problem, fix, "no merging offload")
        if link.vlans and name in plan.clients:
            yield _tags(link)


def _tags(link: Link) -> Outcome:
    on = TAKES_TAGS_OUT in link.offloads
    lost = f"answers to sleepers behind {', '.join(link.vlans)} may leave without a tag"
    any_vlan = "XDP sees no VLAN tags, so what comes in any VLAN is taken for untagged"
    problem = f"rx-vlan-offload is on: {any_vlan}, and {lost}" if on else None
    fix = f"ethtool -K {link.name} rx-vlan-offload off   (veth: tx-vlan-offload off at its other end)"
    return outcome("interfaces", f"{link.name}: VLAN tags", Need.ADVISED, problem, fix, "left in the frames")


def _free(name: str, net: Network) -> Outcome:
    said = net.foreign_xdp(name)
    problem, _, fix = (said or "").partition("; ")
    found = "not known: the engine is not built" if said is None else "none but ours"
    return outcome("interfaces", f"{name}: no other XDP program", Need.REQUIRED, problem or None, fix, found)


def _port(group: str, listen: ServerAddress, net: Network, transparent: bool = False) -> Outcome:
    problem = "another program has it" if net.taken(listen, transparent) else None
    return outcome(group, f"port {endpoint_text(listen)}", Need.REQUIRED, problem, WAY_OUT, "free, or ours")


def _xdp(name: str, native: bool | None, mode: str) -> Outcome:
    what = f"{name}: native XDP"
    if native is None:
        return Outcome("interfaces", what, Need.ADVISED, True, "the kernel does not tell before Linux 6.3")
    wanted = None if native or mode == "generic" else "the driver has none"
    fix = (
        'xdp_mode = "auto" or "generic", which is slower'
        if mode == "native"
        else "generic XDP is used, which is slower"
    )
    found = "the driver has it" if native else "generic was asked for"
    return outcome("interfaces", what, Need.REQUIRED if mode == "native" else Need.ADVISED, wanted, fix, found)


def check_clients(plan: Plan, net: Network) -> Iterator[Outcome]:
    """The way back to the clients."""
    for version in plan.families:
        routes = [route for route in net.routes if route.version == version]
        by = sorted({route.interface for route in routes if route.to == "default"})
        here = [name for name in by if name in plan.clients]
        near = list(dict.fromkeys(route.to for route in routes if route.interface in plan.clients))
        beyond = f"clients of {', '.join(near[:SHOWN]) or 'no network at all'}"
        beyond += f" and {len(near) - SHOWN} more" if len(near) > SHOWN else ""
        clients = " or ".join(plan.clients)
        problem = None if here else f"no default route by {clients}: only {beyond} can be answered"
        if by and not here:
            problem = (
                f"the default route is by {', '.join(by)}, and clients are heard on {clients} alone: good for {beyond}"
            )
        fix = f"ip{' -6' if version == 6 else ''} route add default via GATEWAY dev {(plan.clients or ('DEVICE',))[0]}"
        found = f"by the default route, {', '.join(here)}"
        yield outcome("clients", f"IPv{version} way back", Need.ADVISED, problem, fix, found)
        if version == 6:
            continue
        gateways = {route.interface for route in routes if route.by_gateway}
        for name in plan.clients:
            strict = max(net.setting("ipv4/conf/all/rp_filter"), net.setting(f"ipv4/conf/{name}/rp_filter")) == STRICT
            problem = (
                "it is 1: clients whose way back is by another interface are dropped"
                if strict and gateways - {name}
                else None
            )
            fix = f"sysctl -w net.ipv4.conf.{name}.rp_filter=2"
            yield outcome(
                "clients", f"{name}: rp_filter", Need.ADVISED, problem, fix, "strict" if strict else "not strict"
            )


def check_firewall(net: Network) -> Iterator[Outcome]:
    """Connection tracking knows nothing of those that XDP answers for."""
    name = "netfilter/nf_conntrack_tcp_loose"
    if name in net.sysctls:
        key = f"net.{name.replace('/', '.')}"
        off = None if net.setting(name) else "it is 0: a firewall that drops what is invalid drops what wakes"
        yield outcome("clients", "connection tracking", Need.ADVISED, off, f"sysctl -w {key}=1", f"{key} = 1")


def check_births(plan: Plan, net: Network) -> Iterator[Outcome]:
    """XDP answers a handshake by the way that the kernel's routing table says: that is told only where it forwards."""
    families = {ipaddress.ip_address(one.listen[0]).version for one in plan.services if one.born}
    for version in sorted(families):
        for name in plan.clients:
            key = f"ipv{version}/conf/{name}/forwarding"
            off = None if net.setting(key) else "it is 0: no client is born asleep, each takes a socket to begin with"
            key = f"net.{key.replace('/', '.')}"
            yield outcome(
                "clients", f"{name}: IPv{version} births", Need.ADVISED, off, f"sysctl -w {key}=1", f"{key} = 1"
            )


def check_services(plan: Plan, net: Network) -> Iterator[Outcome]:
    """Where clients connect to, and the way to each server."""
    for service in plan.services:
        group, (address, _) = f"service {service.name}", service.listen
        where = endpoint_text(service.listen)
        if not service.transparent and not ipaddress.ip_address(address).is_unspecified:
            yield from _listens(group, where, net.owner(address), address, plan)
        yield _port(group, service.listen, net, service.transparent)
        for host, port in service.servers or ((service.listen,) if service.transparent else ()):
            addresses = net.addresses_of(host)
            if not addresses:
                fix = "see /etc/resolv.conf, or write its address; until it is known clients wait"
                yield outcome(group, f"server {host}:{port}", Need.REQUIRED, "the name has no address now", fix)
            for address in addresses:
                if not ipaddress.ip_address(address).is_unspecified:
                    yield from _reaches(group, (address, port), net, service, plan)
    for at in plan.attach:
        if not ipaddress.ip_address(at[0]).is_unspecified:
            absent = None if net.owner(at[0]) else "no interface has this address"
            fix = f"ip address add {at[0]} dev DEVICE"
            yield outcome("attach", endpoint_text(at), Need.REQUIRED, absent, fix, f"on {net.owner(at[0])}")
        yield _port("attach", at, net)
        if plan.attach_open:
            where = heard_by_clients([at], plan.clients, net.owner)
            problem = f"no password is asked for at {where}: each reaches every other" if where else None
            fix = '[attach] auth = "password", another address, or at_clients = true'
            name = f"{endpoint_text(at)} is away from clients"
            yield outcome("attach", name, Need.REQUIRED, problem, fix, "no client reaches it")


def _listens(group: str, where: str, owner: str | None, address: str, plan: Plan) -> Iterator[Outcome]:
    absent = None if owner else "no interface has this address"
    fix = f"ip address add {address} dev {(plan.clients or ('DEVICE',))[0]}"
    yield outcome(group, f"listen {where}", Need.REQUIRED, absent, fix, f"on {owner}")
    if owner == "lo" and ipaddress.ip_address(address).is_loopback:
        problem = "clients on the loopback interface are not heard, and never sleep"
        yield outcome(group, "clients are heard", Need.REQUIRED, problem, "listen at an address of another interface")


def _reaches(group: str, server: ServerAddress, net: Network, service: Planned, plan: Plan) -> Iterator[Outcome]:
    way = net.way_to(server[0])
    absent = None if way else "there is no route to it"
    fix = f"ip route add {server[0]} via GATEWAY"
    yield outcome(group, f"server {endpoint_text(server)}", Need.REQUIRED, absent, fix, f"by {way}")
    heard = (*plan.clients, *plan.lan, *plan.servers_heard)
    by_route = service.persistent and not plan.servers_heard and way not in (*plan.interfaces, "lo")
    if way and by_route and net.foreign_xdp(way):
        yield _free(way, net)
    if way and service.transparent and way not in plan.lan:
        problem = f"it is behind {way}, which is not in [router] lan"
        yield outcome(group, "the router steers it", Need.REQUIRED, problem, f'add "{way}" to [router] lan')
    if way and service.persistent and plan.servers_heard and way not in heard:
        problem = f"its packets come by {way}, where nobody hears them: what it says to a sleeping client is lost"
        fix = f'add "{way}" to [network] server_interfaces, or leave that key out'
        yield outcome(group, "the server is heard", Need.REQUIRED, problem, fix)


def check_router(plan: Plan, net: Network) -> Iterator[Outcome]:
    if not plan.lan:
        return
    for version, name in ((4, "ipv4/ip_forward"), (6, "ipv6/conf/all/forwarding")):
        if version in plan.families:
            key = f"net.{name.replace('/', '.')}"
            off = None if net.setting(name) else f"{key} = 0: what is not managed is not routed"
            fix = f"sysctl -w {key}=1, and a line in /etc/sysctl.d"
            yield outcome("router", f"IPv{version} forwarding", Need.REQUIRED, off, fix, f"{key} = 1")
    yield _loopback("router", net)


def _loopback(group: str, net: Network) -> Outcome:
    loopback = net.links.get("lo")
    down = None if loopback and loopback.up else "it is down"
    return outcome(group, "the loopback interface", Need.REQUIRED, down, "ip link set lo up", "up")


def check_local_connect(plan: Plan, net: Network) -> Iterator[Outcome]:
    if not plan.local_connect:
        return
    where = mounts.cgroup2()
    absent = None if where else "local_connect needs it, and it is not mounted"
    fix = "mount -t cgroup2 none /sys/fs/cgroup"
    yield outcome("attach", "cgroup version 2", Need.REQUIRED, absent, fix, f"at {where}")
    refused = kernel_probe.tried(kernel_probe.connect_program)
    fix = "a kernel with CONFIG_CGROUP_BPF, or [attach] local_connect = false"
    yield outcome("attach", "programs at connect()", Need.REQUIRED, refused, fix, "works")
    yield _loopback("attach", net)


def check_pins(pin_dir: Path) -> Iterator[Outcome]:
    """The pins lie on a bpffs, on one that does not end with this process, and in which others do not write."""
    name, kind = f"pins below {pin_dir}", mounts.kind_of(pin_dir)
    if mounts.ends_with_this_process(pin_dir):
        problem = "mounted for this process alone: what is pinned there ends with it, and all that sleeps"
        fix = "`ip netns exec` makes a /sys of its own; `nsenter --net=/run/netns/NAME` or NetworkNamespacePath= do not"
        yield outcome("store", name, Need.REQUIRED, problem, fix)
        return
    elsewhere = None if kind == "bpf" else f"that is on {kind}, not on a bpffs"
    fix = "mount -t bpf -o mode=700 bpffs /sys/fs/bpf"
    above = next(path for path in (pin_dir, *pin_dir.parents) if os.access(path, os.F_OK))
    if kind == "bpf" and not os.access(above, os.W_OK | os.X_OK):
        elsewhere, fix = f"{above} cannot be written to", "run as root, or: mount -o remount,rw /sys/fs/bpf"
    yield outcome("store", name, Need.REQUIRED, elsewhere, fix, "on a bpffs")
    if kind == "bpf":  # a directory of another user there keeps the daemon from starting
        opened = None if not above.stat().st_mode & 0o022 else f"others may write to {above}"
        yield outcome("store", "where they lie", Need.ADVISED, opened, f"chmod 0700 {above}", "ours alone")


def check_database(database: Path) -> Iterator[Outcome]:
    """The place of an SQLite file: writable, lasting, roomy, and nobody else's."""
    above = next(path for path in database.parents if path.exists())
    name = f"database {database}"
    problem = None if os.access(above, os.W_OK | os.X_OK) else f"{above} cannot be written to"
    yield outcome(
        "store", name, Need.REQUIRED, problem, f"run as root, or chown it: chown root {above}", "can be written"
    )
    kind = mounts.kind_of(database)
    volatile = f"{above} is {kind}: its rows do not survive a reboot" if kind in mounts.VOLATILE else None
    fix = '[paths] database = "/var/lib/roost/NAME.db", or another place on a disk'
    yield outcome("store", "it lasts", Need.REQUIRED, volatile, fix, kind)
    free_mb = shutil.disk_usage(above).free // 2**20
    little = None if free_mb >= MINIMUM_FREE_MB else f"{free_mb} MB are free"
    fix = f"make room for {MINIMUM_FREE_MB} MB: a full disk means that nothing goes to SLEEP"
    yield outcome("store", "room for rows", Need.ADVISED, little, fix, f"{free_mb:,} MB")
    if database.parent.exists():
        mode = database.parent.stat().st_mode
        opened = f"others may write to {database.parent}" if mode & 0o022 and not mode & 0o1000 else None
        yield outcome("store", "its directory", Need.REQUIRED, opened, f"chmod 0700 {database.parent}", "ours alone")


def check_machine(plan: Plan) -> Iterator[Outcome]:
    """Clock and descriptors."""
    yield check_clock(kernel_probe.clock_is_kept(), time.time())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield check_descriptors(plan, None if hard == resource.RLIM_INFINITY else hard)


def check_clock(kept: bool, now_s: float) -> Outcome:
    """The time of day, by which sleepers are put back after a reboot."""
    problem = None if kept else "nothing keeps it right (adjtimex: not synchronised)"
    if now_s < _EPOCH:
        problem = "it was never set"
    fix = "apt-get install systemd-timesyncd, or chrony: after a reboot, intervals of sleepers are counted by it"
    return outcome("machine", "clock", Need.ADVISED, problem, fix, "synchronised")


def check_descriptors(plan: Plan, hard: int | None) -> Outcome:
    """For the connections that may be awake. hard: the limit; None: there is none."""
    if hard is None:
        return Outcome("machine", "descriptors", Need.REQUIRED, True, "unlimited")
    least = plan.descriptors_each * plan.max_awake + plan.descriptors_spare
    few = None if hard >= least else f"the limit is {hard:,}, and max_awake = {plan.max_awake:,} takes {least:,}"
    fix = f"LimitNOFILE={least} in the unit (ulimit -Hn {least}), or a smaller [table] max_awake"
    room = max(hard - plan.descriptors_spare, 0) // plan.descriptors_each
    return outcome("machine", "descriptors", Need.REQUIRED, few, fix, f"{hard:,}: {room:,} connections may be awake")
