# SPDX-License-Identifier: Apache-2.0
"""mosquitto, an MQTT broker, with a subscriber and a publisher."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from appliance.lab.lab import Lab
from appliance.lab.programs.program import Dialogue, Endpoint, ServerProgram, directory, run

_HOURS = "65535"  # seconds: the longest that MQTT can say, so that no PINGREQ wakes a sleeping session


class Mosquitto(ServerProgram):
    """A broker without authentication that keeps nothing on disk."""

    def __init__(self, lab: Lab, space: str, listen: Sequence[Endpoint]) -> None:
        self._lab, self._space, self._here = lab, space, listen[0]
        self._numbers = itertools.count(1)
        config = directory(lab, "mosquitto") / "mosquitto.conf"
        lines = ["user root", "allow_anonymous true", "persistence false", "log_dest stderr", "log_type all"]
        config.write_text("\n".join([*lines, *(f"listener {port} {host}" for host, port in listen)]) + "\n")
        super().__init__(lab, space, ["/usr/sbin/mosquitto", "-c", str(config)], " running")

    def subscription(self, space: str, to: Endpoint, topic: str) -> Dialogue:
        """mosquitto_sub, which prints `TOPIC PAYLOAD`; the broker has taken its subscription when this returns."""
        name = f"subscriber-{next(self._numbers)}"
        argv = ["mosquitto_sub", "-h", to[0], "-p", str(to[1]), "-i", name, "-k", _HOURS, "-q", "1", "-v", "-t", topic]
        subscriber = Dialogue(self._lab, space, argv)
        self.wait_for_log(f"Sending SUBACK to {name}")
        return subscriber

    def publisher(self, space: str, to: Endpoint, topic: str) -> Dialogue:
        """mosquitto_pub, which publishes each line that it is told, on one connection."""
        argv = ["mosquitto_pub", "-h", to[0], "-p", str(to[1]), "-k", _HOURS, "-q", "1", "-t", topic, "-l"]
        return Dialogue(self._lab, space, argv)

    def publish(self, topic: str, payload: str) -> None:
        """mosquitto_pub, beside the broker."""
        host, port = self._here
        run(self._lab, ["mosquitto_pub", "-h", host, "-p", str(port), "-q", "1", "-t", topic, "-m", payload],
            space=self._space)  # fmt: skip
