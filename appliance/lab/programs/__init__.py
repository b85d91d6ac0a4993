# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs of Debian at the lab's ends: OpenSSH, nginx, mosquitto, PostgreSQL, Redis, curl and openssl; and
libraries of PyPI: httpx (HTTP/2), websockets, grpcio.

    redis = Redis(lab, "lan", [("10.3.0.2", 6379)])
    session = redis.session("wan", ("198.18.0.1", 6379))
    session.ask("PING", "PONG")

Each server runs in a namespace of the lab with configuration, keys and data of its own, beside whatever the machine
itself runs; it is ready when its constructor returns, and ends with the lab. lwIP (.lwip) is a client's TCP rather than
a program, and compiled from Debian's sources.
"""

from appliance.lab.programs.mosquitto import Mosquitto
from appliance.lab.programs.nginx import Nginx
from appliance.lab.programs.postgres import Postgres
from appliance.lab.programs.program import Dialogue, Endpoint, ProgramError, ServerProgram
from appliance.lab.programs.redis import Redis
from appliance.lab.programs.room import Room
from appliance.lab.programs.ssh import CallingHome, Keys, OpenSsh, visit

__all__ = [
    "CallingHome", "Dialogue", "Endpoint", "Keys", "Mosquitto", "Nginx", "OpenSsh", "Postgres", "ProgramError", "Redis",
    "Room", "ServerProgram", "visit",
]  # fmt: skip
