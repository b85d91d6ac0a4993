# SPDX-License-Identifier: Apache-2.0
"""The client simulator: millions of clients on one interface. simulator.py is its face, driver.c and the BPF programs
(simulator.bpf.c; reflector.bpf.c, a stand-in for the appliance) do the work."""

from appliance.lab.simulator.simulator import (
    Client,
    ClientState,
    Fault,
    Outcome,
    Simulator,
    Unfinished,
)

__all__ = ["Client", "ClientState", "Fault", "Outcome", "Simulator", "Unfinished"]
