# SPDX-License-Identifier: Apache-2.0
"""What a quarantine's rules are; tests/lab/test_reboot.py shows what they do."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from control.config import Config
from control.daemon import quarantine
from control.daemon.error import DaemonError

ONE = {"name": "one", "listen": "198.18.0.1:8000", "server": "10.3.0.2:81"}
TWO = {"name": "two", "listen": "[fd00:18::1]:8000", "servers": ["[fd00:3::2]:82", "box.test:83"]}


def rules_of(*services: dict[str, Any], **config: Any) -> list[str]:
    given = Config.model_validate({"network": {"interfaces": ["wan0"]}, "service": services, **config})
    return [line.replace(" inet roost-quarantine-main", "") for line in quarantine.rules(given).splitlines()]


def routed(*services: dict[str, Any], **config: Any) -> list[str]:
    found = (line for line in rules_of(*services, **config) if line.startswith("add rule forward "))
    return [line.removeprefix("add rule forward ").removesuffix(" counter drop") for line in found]


def test_resets_from_and_to_the_ports_of_the_configuration_are_dropped() -> None:
    found = rules_of(ONE, TWO, attach={"listen": ["10.3.0.1:3128"]})
    assert "add element ours { 3128 timeout 3600s, 8000 timeout 3600s }" in found
    assert "add element theirs { 81 timeout 3600s, 82 timeout 3600s, 83 timeout 3600s }" in found
    assert [line for line in found if line.startswith("add rule")] == [
        "add rule output tcp sport @ours tcp flags & (rst | ack) == rst counter drop",
        "add rule output tcp sport @ours tcp flags & rst == rst tcp sequence 0 counter drop",
        "add rule output tcp dport @theirs tcp flags & (rst | ack) == rst counter drop",
        "add rule output tcp dport @theirs tcp flags & rst == rst tcp sequence 0 counter drop",
    ]


def test_nothing_is_routed_where_servers_see_their_clients() -> None:
    here = {"name": "here", "listen": "10.3.0.2:8000", "transparent": True}
    assert routed(here, router={"lan": ["lan0", "lan1"]}) == [
        'oifname { "lan0", "lan1" } ip daddr 10.3.0.2 tcp dport 8000 tcp dport @theirs',
        'iifname { "lan0", "lan1" } ip saddr 10.3.0.2 tcp sport 8000 tcp sport @theirs',
    ]
    everywhere = {"name": "all", "listen": "[::]:22", "transparent": True}
    assert routed(everywhere, router={"lan": ["lan0"]}) == [
        'oifname { "lan0" } meta nfproto ipv6 tcp dport 22 tcp dport @theirs',
        'iifname { "lan0" } meta nfproto ipv6 tcp sport 22 tcp sport @theirs',
    ]
    assert routed({**ONE, "source": "client"}, router={"lan": ["lan0"]}) == [
        'oifname { "lan0" } ip daddr 10.3.0.2 tcp dport 81 tcp dport @theirs',
        'iifname { "lan0" } ip saddr 10.3.0.2 tcp sport 81 tcp sport @theirs',
    ]
    assert routed({**here, "server": "10.3.0.9:81"}, router={"lan": ["lan0"]})[1::2] == [
        'iifname { "lan0" } ip saddr 10.3.0.9 tcp sport 81 tcp sport @theirs',
        'iifname { "lan0" } ip saddr 10.3.0.2 tcp sport 8000 tcp sport @theirs',
    ]
    assert routed(ONE, TWO) == []


def test_an_nft_that_does_not_answer_ends_no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("nft", 30)

    monkeypatch.setattr(subprocess, "run", late)
    config = Config.model_validate({"network": {"interfaces": ["wan0"]}, "service": [ONE]})
    quarantine.begin(config)
    quarantine.end("main")
    with pytest.raises(DaemonError):
        quarantine._nft("")
