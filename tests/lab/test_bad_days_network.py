# SPDX-License-Identifier: Apache-2.0
"""Bad days of the network (docs/operations.md): clients sleep, are idle and are awake meanwhile, and none notices more
than a pause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyroute2 import IPRoute

from appliance.box.router import PRIORITY
from appliance.lab import Lab
from control.daemon.engine_setup import ROUTES_S
from tests.lab.bad_day import PROBE_S, Box
from tests.lab.fixtures import ip

ANOTHER_MAC = "02:00:00:00:00:77"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=100) as lab:
        yield lab


@pytest.mark.parametrize(
    ("interface", "ifname"),
    [
        ("transient", "wan0"),
        ("persistent", "lan0"),
        pytest.param("transient", "lan0", marks=pytest.mark.soak),
        pytest.param("persistent", "wan0", marks=pytest.mark.soak),
    ],
)
def test_an_interface_that_goes_and_comes_back_with_another_index_costs_no_client(
    lab: Lab, interface: str, ifname: str
) -> None:
    with Box(lab, {"interface": interface}, router={}) as box:
        with lab.enter("box"), IPRoute() as here:
            before = here.link_lookup(ifname=ifname)[0]
        lab.remove_link("box", ifname)
        try:
            box.told("waiting", f"interface {ifname}", f"there is no interface {ifname}")
            box.pause(2 * PROBE_S)
        finally:
            lab.renew_link("box", ifname)
        with lab.enter("box"), IPRoute() as here:
            assert here.link_lookup(ifname=ifname)[0] != before
        box.over("waiting")
        box.heard(4 * PROBE_S)
        box.all_answered()
        box.history_is_whole()
        assert box.attention() == {}


def test_a_routing_rule_that_is_removed_is_made_again(lab: Lab) -> None:
    """systemd-networkd takes rules of others away when it is restarted, `ip rule flush` all of them."""
    with Box(lab, router={}) as box:
        for family in ("-4", "-6"):
            ip(lab, "box", family, "rule", "del", "pref", str(PRIORITY))
        box.pause(ROUTES_S + 2)
        box.all_answered()
        box.history_is_whole()
        assert box.logged("the rule by which connections come to this machine, or its routes, had gone")


@contextmanager
def without_route(lab: Lab) -> Iterator[None]:
    """From the box to the clients."""
    clients = "198.19.0.0/16"
    ip(lab, "box", "route", "del", clients)
    try:
        yield
    finally:
        ip(lab, "box", "route", "add", clients, "via", lab.address("nat", "outside"))


def test_a_route_to_clients_that_is_withdrawn_and_comes_back_costs_none(lab: Lab) -> None:
    with Box(lab, {"interface": "persistent"}, router={}) as box:
        with without_route(lab):
            box.told("probes_unsent", "wan0", "could not be sent")
        box.heard()
        box.all_answered()
        box.history_is_whole()


def test_a_server_that_gets_another_mac_while_its_connections_sleep_is_followed(lab: Lab) -> None:
    """The server asks for the box anew, as it must, and so the box's kernel learns."""
    with Box(lab, {"interface": "persistent"}, router={}) as box:
        ip(lab, "box", "neigh", "del", lab.address("lan", "eth0"), "dev", "lan0")
        ip(lab, "lan", "neigh", "del", lab.address("box", "lan0"), "dev", "eth0")
        ip(lab, "lan", "link", "set", "eth0", "address", ANOTHER_MAC)
        box.all_answered()
        box.history_is_whole()
        assert box.attention() == {}


def test_a_gateway_that_gets_another_mac_while_clients_sleep_costs_none(lab: Lab) -> None:
    with Box(lab) as box:
        ip(lab, "box", "neigh", "del", lab.address("nat", "outside"), "dev", "wan0")
        ip(lab, "nat", "neigh", "del", lab.address("box", "wan0"), "dev", "outside")
        ip(lab, "nat", "link", "set", "outside", "address", ANOTHER_MAC)
        box.heard()
        box.all_answered()
        box.history_is_whole()
        assert box.attention() == {}


CHECKED = {"health": {"check": "tcp", "interval": "100ms", "fall": 2, "rise": 2}}
PATIENT = {"connect_timeout": "30s", "on_server_close": "standby"}


def test_servers_that_are_away_cost_no_client(lab: Lab) -> None:
    with Box(lab, CHECKED | PATIENT) as box:
        for server in box.servers:
            server.process.kill()
        box.told("servers", 'service "sleep"', "1 of 1 servers down", "connection refused", "none is up")
        box.heard()
        answered = box.all_speak()
        box.pause(2)
        box.serve()
        answered()
        box.over("servers")
        box.history_is_whole()
        assert box.attention() == {}
