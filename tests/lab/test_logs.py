# SPDX-License-Identifier: Apache-2.0
"""What a daemon with everything in its log says in its life: JSON alone, no payload, and nothing to be known by."""

from __future__ import annotations

import json
import socket
from contextlib import closing

from appliance.agent.roost_agent import token_digest
from appliance.lab import Lab, endpoint, wait_until
from tests.lab.api_lab import ApiLab

AGENTS = 7100
PAYLOAD, AGENTS_TOKEN, WRONG, PASSWORD = b"MARK-payload", "MARK-agent", "MARK-wrong-token", "TUFSSy1wYXNzd29yZA"


def introduced(box: ApiLab, line: bytes) -> tuple[str, bytes]:
    """A connection to the service for agents says this: its address, and the answer."""
    with box.lab.enter("wan"):
        sock = socket.create_connection((box.lab.address("box", "wan0"), AGENTS), 5)
    with closing(sock):
        sock.sendall(line)
        try:
            return endpoint(*sock.getsockname()[:2]), sock.recv(100)
        except ConnectionResetError:
            return endpoint(*sock.getsockname()[:2]), b""


def live(box: ApiLab) -> tuple[str, int, list[str]]:
    """Clients, agents and askers come and go; the client that was steered, its number, and who was turned away."""
    client, address = box.client()
    number = box.ask("operator", "GET", f"/v1/connections/{address}")[1]["id"]
    client.sendall(PAYLOAD)
    assert box.ask("operator", "POST", f"/v1/connections/{address}/sleep")[0] == 200
    box.woken(client)
    assert box.ask("operator", "PUT", f"/v1/connections/{address}/policy", {"values": {"idle_quiet": "5m"}})[0] == 200
    assert box.ask("viewer", "POST", f"/v1/connections/{address}/wake")[0] == 403
    assert box.ask(f"roost_abcdefgh_{WRONG:x<43}", "GET", "/v1/status")[0] == 401
    hello = {"roost-agent": 1, "token": AGENTS_TOKEN, "clients": {"camera": {}}}
    assert b"welcome" in introduced(box, json.dumps(hello).encode() + b"\n")[1]
    turned_away = [introduced(box, line)[0] for line in (
        json.dumps({**hello, "token": WRONG}).encode() + b"\n",
        json.dumps({**hello, "clients": {"door": {}}}).encode() + b"\n",
        PAYLOAD + b"\n",
    )]  # fmt: skip
    with box.lab.enter("lan"), socket.create_connection((box.host, 3128), 5) as server:
        server.sendall(b"CONNECT %s HTTP/1.1\r\nProxy-Authorization: Basic %s\r\nX: %s\r\n\r\n"
                       % (address.encode(), PASSWORD.encode(), PAYLOAD))  # fmt: skip
        server.settimeout(5)
        assert server.recv(100).startswith(b"HTTP/1.1 ")
    return address, number, turned_away


def test_the_log_is_json_and_has_no_payload_and_no_token(nat_free_lab: Lab) -> None:
    box = ApiLab(nat_free_lab)
    listen = endpoint(nat_free_lab.address("box", "wan0"), AGENTS)
    box.config["service"].append({"name": "agents", "listen": listen, "kind": "agents"})
    box.config["agent"] = [{"name": "site", "token": token_digest(AGENTS_TOKEN), "clients": ["camera*"]}]
    box.config["log"] = {"format": "json"}
    box.options = ("-v",)
    with box:
        box.wait_for_api()
        address, number, turned_away = live(box)
        wait_until(lambda: box.daemon.log.read_text().count("turned away") == len(turned_away), 5, "it is said")
        box.daemon.terminate()
        text = box.daemon.log.read_text()
        texts = list(box.texts.values())
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"at", "level", "part", "message"} <= set(line) for line in lines)
    assert {"roost.daemon", "roost.agents", "roost.policy", "roost.api"} <= {line["part"] for line in lines}
    assert "debug" in {line["level"] for line in lines if line["part"] == "roost.api"}, "the API's process, too"
    away = [line for line in lines if "turned away" in line["message"]]
    assert [line["client"] for line in away] == turned_away
    assert len({line["connection"] for line in away}) == len(away)
    steered = [line for line in lines if "by command of" in line["message"]]
    assert [(line["connection"], line["client"]) for line in steered] == [(number, address)]
    assert [line["agent"] for line in lines if "speaks for" in line["message"]] == ["site"]
    for mark in ("MARK", PASSWORD, "hello", token_digest(WRONG), token_digest(AGENTS_TOKEN), *texts):
        assert mark not in text
