# SPDX-License-Identifier: Apache-2.0
"""Rules from the command line to the clients: who lies in the network obeys, and so it is after a restart."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack

from appliance.lab import Lab, endpoint, wait_until
from appliance.lab.processes import python_environment
from tests.lab.test_policy_change import FOREVER, Box


def policy(box: Box, *words: str) -> str:
    """`roost policy`, as an operator types it."""
    argv = [sys.executable, "-m", "control.cli.main", "policy", *words, "--socket", str(box.daemon.control_socket)]
    done = subprocess.run(argv, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rule_for_a_network_is_obeyed_there_alone_and_outlives_the_daemon(nat_free_lab: Lab) -> None:
    with ExitStack() as stack:
        box = Box(stack, nat_free_lab, FOREVER | {"probe_interval": "never"})
        client = box.in_state("IDLE")
        ruled = client.getsockname()[0]
        name = endpoint(*client.getsockname()[:2])

        told = json.loads(policy(box, "explain", name, "--json"))["values"]
        assert {one["key"]: one["source"] for one in told}["idle_quiet"] == "[policy]"
        policy(box, "set", "elsewhere", "--network", "198.18.0.0/15", "idle_quiet=1s")
        wait_until(lambda: box.daemon.status()["policy"]["version"] == 1, 5, "it is in force")
        assert box.state(client) == "IDLE"

        policy(box, "set", "here", "--network", f"{ruled}/32", "--service", "plain", "idle_quiet=1s", "--why", "a test")
        wait_until(lambda: box.state(client) == "SLEEP", 20, "the rule is obeyed")
        told = json.loads(policy(box, "explain", name, "--json"))["values"]
        assert {one["key"]: one["source"] for one in told}["idle_quiet"] == "rule here (version 2)"

        box.daemon.kill()
        box.daemon.start()
        awake = box.in_state("IDLE")
        wait_until(lambda: box.state(awake) == "SLEEP", 20, "the rule is obeyed by the next daemon's clients")
        policy(box, "rollback", "1")
        again = box.in_state("IDLE")
        file = box.daemon.config.with_name("rules.json")
        file.write_text(json.dumps({"rule": [{"name": "here", "network": f"{ruled}/32", "idle_quiet": "1s"}]}))
        tried = json.loads(policy(box, "try", str(file), "--json"))
        assert (tried["connections"], tried["changed"]) == (3, 3)
        assert box.state(again) == "IDLE"
