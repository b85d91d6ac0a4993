# SPDX-License-Identifier: Apache-2.0
"""What a quarantine's rules are; tests/lab/test_reboot.py shows what they do."""

from __future__ import annotations

from typing import Any

from control.config import Config
from control.daemon import quarantine


def rules_of(*services: dict[str, Any], **config: Any) -> list[str]:
    given = Config.model_validate({"network": {"interfaces": ["wan0"]}, "service": services, **config})
    return [line.split("-main ", 1)[1] for line in quarantine.rules(given).splitlines() if line.startswith("add rule")]


def test_resets_from_and_to_the_ports_of_the_configuration_are_dropped() -> None:
    one = {"name": "one", "listen": "198.18.0.1:8000", "server": "10.3.0.2:81"}
    two = {"name": "two", "listen": "[fd00:18::1]:8000", "servers": ["[fd00:3::2]:82", "box.test:83"]}
    assert rules_of(one, two) == [
        "output tcp sport { 8000 } tcp flags & (rst | ack) == rst counter drop",
        "output tcp sport { 8000 } tcp flags & rst == rst tcp sequence 0 counter drop",
        "output tcp dport { 81, 82, 83 } tcp flags & (rst | ack) == rst counter drop",
        "output tcp dport { 81, 82, 83 } tcp flags & rst == rst tcp sequence 0 counter drop",
    ]


def test_nothing_of_transparent_services_is_routed() -> None:
    here = {"name": "here", "listen": "10.3.0.2:8000", "transparent": True}
    all_ = {"name": "all", "listen": "0.0.0.0:22", "transparent": True}
    found = rules_of(here, all_, router={"lan": ["lan0", "lan1"]})
    assert found[-4:] == [
        'forward oifname { "lan0", "lan1" } ip daddr 10.3.0.2 tcp dport 8000 counter drop',
        'forward iifname { "lan0", "lan1" } ip saddr 10.3.0.2 tcp sport 8000 counter drop',
        'forward oifname { "lan0", "lan1" } tcp dport 22 counter drop',
        'forward iifname { "lan0", "lan1" } tcp sport 22 counter drop',
    ]
    assert found[2].startswith("output tcp dport { 22, 8000 } "), "a server's leg, too"


def test_a_configuration_without_services_drops_nothing() -> None:
    assert rules_of() == []
