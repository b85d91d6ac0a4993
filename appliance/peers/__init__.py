# SPDX-License-Identifier: Apache-2.0
"""Programs that run at the two ends of the lab: real clients and servers on kernel sockets, driven by JSON lines.

Each is a module to run with `python -m appliance.peers.NAME`. A command is one JSON object a line on standard input,
{"do": NAME, "token": N, ...}; its answer is one object a line on standard output, {"re": N, ...}, with "error" when it
was refused. Several commands may be under way. Every program answers `ready`, once its sockets listen. The end of the
input ends the program.
"""
