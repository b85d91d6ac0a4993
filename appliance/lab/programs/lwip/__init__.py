# SPDX-License-Identifier: Apache-2.0
"""lwIP, the TCP of many small devices, as clients of the lab: Debian's sources on a tap device behind the NAT.

    lwip = Lwip(lab, timestamps=True, window=1460)
    client = lwip.socket(family=4)
    client.connect(("198.18.0.1", 8000))

A client is a socket as any other to whoever has it; what the appliance sees of it is lwIP's.
"""

from appliance.lab.programs.lwip.stack import MSS, Lwip, LwipSocket

__all__ = ["MSS", "Lwip", "LwipSocket"]
