# SPDX-License-Identifier: Apache-2.0
"""The lab: a whole network with clients, NAT, appliance and server, in namespaces of this machine.

with Lab(clients=2000) as lab:
    lab.server(8000)
    lab.daemon(lab.config(policy={"active_quiet": "1s"}))
    swarm = lab.swarm()
    swarm.connect(2000, (lab.address("box", "wan0"), 8000))
"""

from appliance.lab.daemon import DaemonError, DaemonHandle
from appliance.lab.groups import ChaosPair, ChaosResult, Connected, Hearing, Said, SwarmGroup, SwarmStats
from appliance.lab.lab import Lab, endpoint, wait_until
from appliance.lab.namespaces import Namespace
from appliance.lab.processes import Peer, PeerError, Process

__all__ = [
    "ChaosPair", "ChaosResult", "Connected", "DaemonError", "DaemonHandle", "Hearing", "Lab", "Namespace", "Peer",
    "PeerError", "Process", "Said", "SwarmGroup", "SwarmStats", "endpoint", "wait_until",
]  # fmt: skip
