# SPDX-License-Identifier: Apache-2.0
"""A client that speaks HTTP/2 alone, on one connection: each line it is told is a path, whose text it prints.

python -m appliance.peers.http2_client http://198.18.0.1:8080
"""

from __future__ import annotations

import sys

import httpx

with httpx.Client(base_url=sys.argv[1], http1=False, http2=True, timeout=None, trust_env=False) as client:
    for path in sys.stdin:
        print(client.get(path.strip()).text, end="", flush=True)
