# SPDX-License-Identifier: Apache-2.0
"""Attach without a password at an address that clients reach: each could reach every other one."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from appliance.box.owners import owners
from appliance.lab import DaemonError, Lab, wait_until
from tests.lab.fixtures import ip
from tests.lab.test_errors import running
from tests.lab.test_proxy import PORT, hashed

LATE = "198.18.0.99"


def config_of(lab: Lab, listen: str, **attach: Any) -> dict[str, Any]:
    config: dict[str, Any] = lab.config(PORT)
    where = {"wan": lab.address("box", "wan0"), "wan6": f"[{lab.address('box', 'wan0', 6)}]"}
    config["attach"] = {"listen": [listen.format(**where)], **attach}
    return config


@pytest.mark.parametrize("listen", ["{wan}:3128", "{wan6}:3128", "0.0.0.0:3128", "[::]:3128"])
def test_it_is_refused_unless_it_is_said_twice(empty_lab: Lab, listen: str) -> None:
    handle = empty_lab.daemon(config_of(empty_lab, listen), start=False)
    with pytest.raises(DaemonError, match=r"each client would reach every other: .* at_clients = true"):
        handle.start()
    said: tuple[dict[str, Any], ...] = (
        {"at_clients": True},
        {"auth": "password", "users": {"billing": hashed(b"open sesame")}},
    )
    for more in said:
        with running(empty_lab, config_of(empty_lab, listen, **more)) as daemon:
            assert len(daemon.status()["attach"]) == 1


def test_an_address_that_comes_later_on_their_interface_waits_for_a_word(empty_lab: Lab) -> None:
    with running(empty_lab, config_of(empty_lab, f"{LATE}:3128")) as daemon:
        before = daemon.status()["attach"]
        ip(empty_lab, "box", "address", "add", f"{LATE}/32", "dev", "wan0")
        try:
            wait_until(lambda: "which clients on wan0 reach, too" in str(daemon.status()["waiting"]), 10, "it says why")
            assert daemon.status()["attach"] == before
        finally:
            ip(empty_lab, "box", "address", "del", f"{LATE}/32", "dev", "wan0")


@pytest.mark.parametrize("made", ["link wan0 type macvlan", "type bridge"])
def test_it_is_refused_on_what_frames_come_to_by_the_clients_interface(empty_lab: Lab, made: str) -> None:
    ip(empty_lab, "box", "link", "add", "name", "above", *made.split())
    try:
        if made == "type bridge":
            ip(empty_lab, "box", "link", "set", "wan0", "master", "above")
        ip(empty_lab, "box", "address", "add", f"{LATE}/32", "dev", "above")
        with pytest.raises(DaemonError, match=f"{LATE}:3128, which clients on wan0 reach, too"):
            empty_lab.daemon(config_of(empty_lab, f"{LATE}:3128"), start=False).start()
    finally:
        ip(empty_lab, "box", "link", "del", "above")


def test_the_interface_of_each_address_is_found_without_netlink(empty_lab: Lab) -> None:
    ip(empty_lab, "box", "address", "add", f"{LATE}/32", "dev", "wan0", "label", "wan0:late")
    try:
        with empty_lab.enter("box"):
            said = subprocess.run(["ip", "-j", "address"], capture_output=True, check=True).stdout
            found = owners()
    finally:
        ip(empty_lab, "box", "address", "del", f"{LATE}/32", "dev", "wan0")
    there = {one["local"]: link["ifname"] for link in json.loads(said) for one in link["addr_info"]}
    assert found == there
    assert found[LATE] == "wan0"
