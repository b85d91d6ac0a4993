# SPDX-License-Identifier: Apache-2.0
"""What the engine is told of frames that an interface has dropped."""

from __future__ import annotations

import socket

from pyroute2 import IPRoute

from appliance.lab import Lab
from tests.inner import lib

FRAMES = 5
NEIGHBOUR = "192.0.2.2"


def test_frames_that_an_interface_drops_are_counted_and_others_are_not(nat_free_lab: Lab) -> None:
    """A tunnel without an other end drops whatever it is to send."""
    with nat_free_lab.enter("box"), IPRoute() as ip:
        ip.link("add", ifname="nowhere", kind="vxlan", vxlan_id=7, vxlan_local="127.0.0.1", vxlan_port=4789)
        index = ip.link_lookup(ifname="nowhere")[0]
        try:
            ip.link("set", index=index, state="up")
            ip.addr("add", index=index, address="192.0.2.1", prefixlen=24)
            ip.neigh("add", dst=NEIGHBOUR, lladdr="02:00:00:00:00:01", ifindex=index, state="permanent")
            before = lib.roost_testing_drops(index)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for _ in range(FRAMES):
                    sender.sendto(b"x", (NEIGHBOUR, 9))
            after = lib.roost_testing_drops(index)
            counted = ip.link("get", index=index)[0].get("stats64")["tx_dropped"]
        finally:
            ip.link("del", index=index)
        assert after >= before + FRAMES
        assert counted >= after
        assert lib.roost_testing_drops(index) == 0, "there is no such interface"
