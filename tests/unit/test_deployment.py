# SPDX-License-Identifier: Apache-2.0
"""`roost doctor -c FILE`: what a configuration needs of a network and a machine, with the command that mends it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from appliance.box import deployment, kernel_probe, mounts
from appliance.box import network as network_of
from appliance.box.deployment import Plan, Planned
from appliance.box.doctor import Need, Outcome
from appliance.box.network import Link, Network, Route
from appliance.box.taken import is_taken
from control.cli.doctor import plan_of
from control.config import parse

SERVER = ("10.3.0.2", 22)
PLAN = Plan(("wan0",), (), (), "auto", (Planned("ssh", ("198.18.0.1", 22), (SERVER,), persistent=True),),
            (("10.3.0.1", 3128),), Path("/sys/fs/bpf/roost/main"), Path("/run/roost.sock"),
            Path("/var/lib/roost.db"), 100, 2, 512)  # fmt: skip
ROUTER = replace(PLAN, lan=("lan0",), services=(Planned("ssh", SERVER, transparent=True),), attach=())
LINKS = {"lo": Link("lo", True, None, frozenset(), ("127.0.0.1/8",)),
         "wan0": Link("wan0", True, True, frozenset({"rx-checksum"}), ("198.18.0.1/24", "fe80::1/64")),
         "lan0": Link("lan0", True, True, frozenset(), ("10.3.0.1/24",))}  # fmt: skip
FORWARDS = {"ipv4/ip_forward": 1}
WAYS = {SERVER[0]: "lan0"}
DEFAULT = Route(4, "wan0", "default", True)


def network(
    links: Mapping[str, Link] = LINKS,
    ways: Mapping[str, str] = WAYS,
    routes: Sequence[Route] = (DEFAULT,),
    sysctls: Mapping[str, int] = MappingProxyType({}),
) -> Network:
    return Network(links, routes, sysctls, ways.get)


def look(plan: Plan, net: Network) -> list[Outcome]:
    return [*deployment.check_interfaces(plan, net), *deployment.check_clients(plan, net),
            *deployment.check_firewall(net), *deployment.check_births(plan, net),
            *deployment.check_services(plan, net), *deployment.check_router(plan, net),
            *deployment.check_local_connect(plan, net)]  # fmt: skip


def missing(plan: Plan, net: Network) -> dict[str, tuple[Need, str]]:
    """Name, need, and the fix."""
    return {one.name: (one.need, one.fix) for one in look(plan, net) if not one.present}


def changed(name: str, **changes: Any) -> Network:
    return network({**LINKS, name: replace(LINKS[name], **changes)})


def test_nothing_is_missing_where_nothing_is() -> None:
    assert missing(PLAN, network()) == {}
    assert missing(ROUTER, network(sysctls=FORWARDS)) == {}
    assert all(one.detail for one in look(PLAN, network()))


def test_an_interface_that_is_down_or_not_there_is_named() -> None:
    assert missing(PLAN, changed("wan0", up=False)) == {"wan0": (Need.REQUIRED, "ip link set wan0 up")}
    need, fix = missing(replace(PLAN, clients=("wan7",)), network())["wan7"]
    assert (need, "`ip link` lists those there are" in fix) == (Need.REQUIRED, True)
    assert "[network] interfaces" in missing(replace(PLAN, clients=()), network())


def test_native_xdp_is_required_only_where_it_is_asked_for() -> None:
    none = changed("wan0", xdp=False)
    assert missing(PLAN, none)["wan0: native XDP"][0] is Need.ADVISED
    assert missing(replace(PLAN, xdp_mode="native"), none)["wan0: native XDP"][0] is Need.REQUIRED
    assert missing(replace(PLAN, xdp_mode="generic"), none) == {}
    assert missing(PLAN, changed("wan0", xdp=None)) == {}


def test_a_card_that_merges_frames_is_told_with_the_command() -> None:
    (found,) = missing(PLAN, changed("wan0", offloads=frozenset({"rx-lro", "rx-gro-hw", "rx-gro"}))).values()
    assert found[1].startswith("ethtool -K wan0 rx-lro off rx-gro-hw off")


def test_a_card_that_takes_vlan_tags_out_before_xdp_is_told_with_the_command() -> None:
    """Without its tag a frame of any VLAN is taken for an untagged one, by native and generic XDP (on veth)."""
    tags = {"offloads": frozenset({"rx-vlan-hw-parse"}), "vlans": ("wan0.7", "wan0.8")}
    ((name, (need, fix)),) = missing(PLAN, changed("wan0", **tags)).items()
    assert (name, need) == ("wan0: VLAN tags", Need.ADVISED)
    assert fix.startswith("ethtool -K wan0 rx-vlan-offload off ")
    (told,) = [one.detail for one in look(PLAN, changed("wan0", **tags)) if not one.present]
    assert "behind wan0.7, wan0.8" in told
    for fine in ({**tags, "vlans": ()}, {**tags, "offloads": frozenset()}):
        assert missing(PLAN, changed("wan0", **fine)) == {}
    assert list(missing(replace(PLAN, xdp_mode="generic"), changed("wan0", **tags))) == ["wan0: VLAN tags"]
    assert list(missing(PLAN, changed("wan0", **tags, xdp=False))) == ["wan0: native XDP", "wan0: VLAN tags"]
    assert missing(PLAN, changed("lan0", **tags)) == {}, "no clients are there"


def test_vlan_devices_are_found_by_what_they_are_on() -> None:
    def link(index: int, name: str, on: int, kind: str, **more: int) -> ifinfmsg:
        message = ifinfmsg()
        message["index"] = index
        attributes = [("IFLA_IFNAME", name), ("IFLA_LINK", on), *more.items()]
        message["attrs"] = [*attributes, ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", kind)]})]
        message.encode()
        decoded = ifinfmsg(message.data)
        decoded.decode()
        return decoded

    links = [link(2, "wan0", 9, "veth"), link(3, "wan0.7", 2, "vlan"), link(4, "wan0.8", 2, "vlan"),
             link(5, "moved", 2, "vlan", IFLA_LINK_NETNSID=0)]  # fmt: skip
    assert network_of._vlans(links) == {2: ["wan0.7", "wan0.8"]}


def test_clients_that_no_route_leads_to_are_told_by_those_that_one_does() -> None:
    near = (Route(4, "wan0", "198.18.0.0/24", False), Route(4, "wan0", "10.10.0.0/24", False))
    lan = (Route(4, "lan0", "10.3.0.0/24", False), Route(6, "wan0", "default", True))
    (none,) = [one for one in look(PLAN, network(routes=(*near, *lan))) if not one.present]
    assert none.detail == "no default route by wan0: only clients of 198.18.0.0/24, 10.10.0.0/24 can be answered"
    (other,) = [
        one for one in look(PLAN, network(routes=(*near, *lan, Route(4, "lan0", "default", True)))) if not one.present
    ]
    assert other.detail == (
        "the default route is by lan0, and clients are heard on wan0 alone: "
        "good for clients of 198.18.0.0/24, 10.10.0.0/24"
    )
    assert missing(PLAN, network(routes=(Route(4, "wan0", "default", False),))) == {}, "a tunnel has no gateway"
    many = [Route(4, "wan0", f"10.{n}.0.0/16", True) for n in range(20)]
    (few,) = [one for one in look(PLAN, network(routes=many)) if not one.present]
    assert "10.4.0.0/16 and 15 more can be answered" in few.detail
    (nowhere,) = [one for one in look(PLAN, network(routes=())) if not one.present]
    assert "only clients of no network at all can be answered" in nowhere.detail


def test_a_strict_filter_of_sources_matters_where_there_are_several_ways() -> None:
    strict = {"ipv4/conf/wan0/rp_filter": 1}
    assert missing(PLAN, network(sysctls=strict)) == {}
    two = (DEFAULT, Route(4, "lan0", "10.4.0.0/16", True))
    assert missing(PLAN, network(routes=two, sysctls=strict)) == {
        "wan0: rp_filter": (Need.ADVISED, "sysctl -w net.ipv4.conf.wan0.rp_filter=2")
    }
    assert set(missing(PLAN, network(routes=two[1:], sysctls=strict))) == {"IPv4 way back", "wan0: rp_filter"}
    assert missing(PLAN, network(routes=two, sysctls={**strict, "ipv4/conf/all/rp_filter": 2})) == {}


@pytest.mark.parametrize("loose", [0, 1])
def test_connection_tracking_that_takes_up_none_in_its_midst_is_told(loose: int) -> None:
    advised = (Need.ADVISED, "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1")
    found = missing(PLAN, network(sysctls={"netfilter/nf_conntrack_tcp_loose": loose}))
    assert found == ({} if loose else {"connection tracking": advised})


def test_a_server_without_a_route_and_one_that_is_not_heard_are_told() -> None:
    assert missing(PLAN, network(ways={})) == {
        "server 10.3.0.2:22": (Need.REQUIRED, "ip route add 10.3.0.2 via GATEWAY")
    }
    heard_elsewhere = replace(PLAN, servers_heard=("wan0",))
    assert missing(heard_elsewhere, network())["the server is heard"][1].startswith('add "lan0" to')
    assert missing(replace(heard_elsewhere, services=(replace(PLAN.services[0], persistent=False),)), network()) == {}


def test_a_server_by_name_is_looked_at_by_its_addresses() -> None:
    named = replace(PLAN, services=(replace(PLAN.services[0], servers=(("db.example", 22),)),))
    known = {"db.example": ["10.3.0.2", "10.3.0.9"]}
    assert set(missing(named, replace(network(), addresses_of=known.__getitem__))) == {"server 10.3.0.9:22"}
    unknown = missing(named, replace(network(), addresses_of=lambda _: []))
    assert {name: need for name, (need, _) in unknown.items()} == {"server db.example:22": Need.REQUIRED}


def test_an_address_that_no_interface_has_is_told_and_so_are_clients_of_the_loopback() -> None:
    assert set(missing(PLAN, changed("wan0", addresses=()))) == {"listen 198.18.0.1:22"}
    assert set(missing(PLAN, changed("lan0", addresses=()))) == {"10.3.0.1:3128"}
    local = replace(PLAN, services=(replace(PLAN.services[0], listen=("127.0.0.1", 22)),))
    assert set(missing(local, network())) == {"clients are heard"}


def test_an_xdp_program_of_another_is_told_with_the_command_wherever_ours_is_to_be() -> None:
    said = "another XDP program is attached to it: program 7; detach it: ip link set dev it xdpdrv off"
    heard = replace(PLAN, servers_heard=("lan0",))
    for name, plan in (("wan0", PLAN), ("lan0", PLAN), ("lan0", ROUTER), ("lan0", heard)):
        net = replace(network(sysctls=FORWARDS), foreign_xdp={name: said}.get)
        ((what, found),) = missing(plan, net).items()
        assert what == f"{name}: no other XDP program"
        assert found == (Need.REQUIRED, "detach it: ip link set dev it xdpdrv off")


def test_a_port_that_another_program_has_is_told(tmp_path: Path) -> None:
    net = replace(network(), taken=lambda listen, transparent: listen[1] in (22, 3128) and not transparent)
    assert list(missing(PLAN, net)) == ["port 198.18.0.1:22", "port 10.3.0.1:3128"]
    control = tmp_path / "control.sock"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listen: tuple[str, int] = listener.getsockname()
        assert is_taken(listen, False, control)
        assert is_taken(("0.0.0.0", listen[1]), False, control)
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(str(control))
            daemon.listen()
            assert not is_taken(listen, False, control), "the daemon of this instance has it"
    assert not is_taken(listen, False, control), "it is free"
    assert not is_taken(("198.51.100.1", listen[1]), False, control), "an address that is not here is told otherwise"


def test_programs_that_connect_to_clients_need_cgroups_of_version_2_and_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise OSError(22, "Invalid argument")

    plan = replace(PLAN, local_connect=True)
    monkeypatch.setattr(mounts, "cgroup2", lambda: "/sys/fs/cgroup")
    monkeypatch.setattr(kernel_probe, "connect_program", lambda: None)
    assert missing(plan, network()) == {}
    monkeypatch.setattr(mounts, "cgroup2", lambda: None)
    monkeypatch.setattr(kernel_probe, "connect_program", refuse)
    assert missing(plan, changed("lo", up=False)) == {
        "cgroup version 2": (Need.REQUIRED, "mount -t cgroup2 none /sys/fs/cgroup"),
        "programs at connect()": (Need.REQUIRED, "a kernel with CONFIG_CGROUP_BPF, or [attach] local_connect = false"),
        "the loopback interface": (Need.REQUIRED, "ip link set lo up"),
    }
    assert missing(PLAN, network()) == {}, "others do not"


def test_a_router_must_forward_and_know_its_servers_side() -> None:
    assert missing(ROUTER, network()) == {
        "IPv4 forwarding": (Need.REQUIRED, "sysctl -w net.ipv4.ip_forward=1, and a line in /etc/sysctl.d")
    }
    elsewhere = network(ways={SERVER[0]: "wan0"}, sysctls=FORWARDS)
    assert missing(ROUTER, elsewhere) == {"the router steers it": (Need.REQUIRED, 'add "wan0" to [router] lan')}


@pytest.mark.parametrize(("address", "reached"), [("198.18.0.1", True), ("0.0.0.0", True), ("::", True),
                                                  ("10.3.0.1", False), ("127.0.0.1", False)])  # fmt: skip
def test_attach_without_a_password_must_be_away_from_clients(address: str, reached: bool) -> None:
    plan = replace(PLAN, attach=((address, 3128),), attach_open=True)
    told = [one for one in look(plan, network()) if "away from clients" in one.name]
    assert [(one.need, one.present) for one in told] == [(Need.REQUIRED, not reached)]
    assert ("which clients on wan0 reach, too" in told[0].detail) == reached
    assert not [one for one in look(PLAN, network()) if "away from clients" in one.name], "it asks for one"


def test_clients_are_born_asleep_only_where_the_kernel_says_the_way_to_them() -> None:
    services = (Planned("ssh", ("198.18.0.1", 22), (SERVER,), born=True), Planned("mail", ("fd00::1", 25), (SERVER,)))
    plan = replace(PLAN, services=services)
    assert [one for one in look(plan, network()) if "births" in one.name and not one.present] == [
        Outcome("clients", "wan0: IPv4 births", Need.ADVISED, False,
                "it is 0: no client is born asleep, each takes a socket to begin with",
                "sysctl -w net.ipv4.conf.wan0.forwarding=1")
    ]  # fmt: skip
    forwards = network(sysctls={"ipv4/conf/wan0/forwarding": 1})
    assert [one.present for one in look(plan, forwards) if "births" in one.name] == [True]


def test_pins_that_are_on_no_bpffs_or_end_with_this_process_are_told_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(kind: str, private: bool) -> tuple[bool, str]:
        monkeypatch.setattr(mounts, "kind_of", lambda _: "bpf" if kind == "read-only" else kind)
        monkeypatch.setattr(mounts, "ends_with_this_process", lambda _: private)
        right = os.F_OK if kind == "read-only" else os.W_OK | os.X_OK
        monkeypatch.setattr(os, "access", lambda path, mode: path == Path("/sys/fs/bpf") and mode in (os.F_OK, right))
        told = next(deployment.check_pins(Path("/sys/fs/bpf/roost/main")))
        return told.present, told.fix

    assert check("bpf", False)[0]
    for kind, private, fix in (("bpf", True, "nsenter --net="), ("ext4", False, "mount -t bpf -o mode=700 bpffs "),
                               ("read-only", False, "mount -o remount,rw /sys/fs/bpf")):  # fmt: skip
        present, told = check(kind, private)
        assert not present
        assert fix in told


def test_a_bpffs_in_which_others_may_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could make the directory of the pins, and no daemon would start."""
    monkeypatch.setattr(mounts, "kind_of", lambda _: "bpf")
    monkeypatch.setattr(mounts, "ends_with_this_process", lambda _: False)
    for mode, present in ((0o700, True), (0o1777, False), (0o770, False)):
        tmp_path.chmod(mode)
        _, told = deployment.check_pins(tmp_path / "roost" / "main")
        assert (told.present, told.need) == (present, Need.ADVISED)
        assert present or told.fix == f"chmod 0700 {tmp_path}"


def test_a_database_in_a_volatile_or_open_place_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "kind_of", lambda _: "ext4")
    database = tmp_path / "below" / "roost.db"
    assert not [one.name for one in deployment.check_database(database) if not one.present]
    monkeypatch.setattr(mounts, "kind_of", lambda _: "tmpfs")
    (volatile,) = [one for one in deployment.check_database(database) if not one.present]
    assert (volatile.need, "do not survive a reboot" in volatile.detail) == (Need.REQUIRED, True)
    monkeypatch.setattr(mounts, "kind_of", lambda _: "ext4")
    database.parent.mkdir(mode=0o700)
    assert all(one.present for one in deployment.check_database(database))
    database.parent.chmod(0o777)
    (opened,) = [one for one in deployment.check_database(database) if not one.present]
    assert opened.fix == f"chmod 0700 {database.parent}"
    monkeypatch.setattr(deployment, "MINIMUM_FREE_MB", 1 << 40)
    assert "room for rows" in [one.name for one in deployment.check_database(database) if not one.present]


def test_a_clock_that_was_never_set_or_is_not_kept_is_told() -> None:
    assert deployment.check_clock(True, 1_800_000_000).present
    assert "nothing keeps it right" in deployment.check_clock(False, 1_800_000_000).detail
    assert "never set" in deployment.check_clock(True, 86_400).detail


def test_descriptors_must_do_for_all_that_may_be_awake() -> None:
    assert deployment.check_descriptors(PLAN, 712).present
    few = deployment.check_descriptors(PLAN, 711)
    assert (few.present, few.need, "LimitNOFILE=712" in few.fix) == (False, Need.REQUIRED, True)
    assert deployment.check_descriptors(PLAN, None).present


def test_a_configuration_becomes_a_plan() -> None:
    plan = plan_of(
        parse("""
        [paths]
        database = "postgresql://roost@db/roost"
        [network]
        interfaces = ["wan0"]
        [router]
        lan = ["lan0"]
        [table]
        max_awake = 5
        [[service]]
        name = "ssh"
        listen = "10.3.0.2:22"
        transparent = true
        interface = "persistent"
        [[service]]
        name = "web"
        listen = "[::]:80"
        servers = ["10.3.0.2:80", "web.example:80"]
    """)
    )
    assert plan.interfaces == ("wan0", "lan0")
    assert plan.families == [4, 6]
    assert plan.services == (
        Planned("ssh", ("10.3.0.2", 22), (), transparent=True, persistent=True),
        Planned("web", ("::", 80), (("10.3.0.2", 80), ("web.example", 80))),
    )
    assert (plan.database, plan.max_awake, plan.pin_dir) == (None, 5, Path("/sys/fs/bpf/roost/main"))
