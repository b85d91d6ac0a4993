# SPDX-License-Identifier: Apache-2.0
"""What docs/configuration.md says besides the keys."""

from __future__ import annotations

from typing import Final

from appliance.frontends.passwords import HASH_COMMAND

INTRODUCTION: Final = """\
One TOML file, given to `roost up -c FILE`. On SIGHUP it is read again: the keys of `[policy]` and those of
`[[service]]` but `listen`, `transparent` and `source` take effect at once; a change of any other key is
reported and waits for a restart (sleeping clients do not notice a restart). Intervals, probes, what follows a server's
close and priorities hold for every connection that there is within two seconds, awake, asleep or born asleep. With
`sleep_keepalive = "answer"` in place of `"none"` those that sleep without a slot get one when they wake.

A *duration* is a number of seconds (`2.5`) or text: `"250ms"`, `"90s"`, `"5m"`, `"1h30m"`, `"2d"`.
`0` and `"never"` switch it off.
"""

EXAMPLE: Final = """\
instance = "main"

[network]
interfaces = ["eth0"]

[policy]
active_quiet = "30s"      # the server link is closed
standby_quiet = "1m"      # the socket leaves the kernel
idle_quiet = "1h"         # the record goes to the database
probe_interval = "20m"    # for networks that forget quiet connections

[attach]
listen = ["10.0.0.1:3128"]

[[service]]
name = "telemetry"
listen = "0.0.0.0:7000"
server = "10.0.0.5:7000"

[[service]]
name = "updates"
listen = "[::]:7001"
server = "10.0.0.6:7001"
idle_quiet = "never"      # always awake within microseconds
"""

HEALTH_EXAMPLE: Final = """\
[[service]]
name = "telemetry"
listen = "0.0.0.0:7000"
servers = ["10.0.0.5:7000", "10.0.0.6:7000"]

[service.health]          # of the service above
check = "http"
path = "/alive"
"""

HEALTH_NOTE: Final = """\
A link that a server refuses goes to the next one at once; one that does not answer leaves each of the others its
share of `connect_timeout`. What a client says meanwhile waits in its connection and is not lost. A server that is
down keeps the links it has, and so does one that leaves the list at a SIGHUP. Servers are up when the daemon starts.
`roost status` shows them.
"""

CHAPTERS: Final = f"""\
## Sleep without keep-alives

With `sleep_keepalive = "none"` a connection that goes to SLEEP leaves the table of inactive connections:
what is left of it in memory is a fingerprint in a filter (`[table] filter`), the rest is its row in the
database. It is for clients that say nothing for hours, keep-alives included, behind networks that do not
mind.

Nothing else changes for them. Whatever such a client sends, a keep-alive too, is looked up in the
database, and the connection has its slot back; it leaves it again after `idle_quiet` without a word. What
the database costs, some milliseconds, a client that wakes from SLEEP pays anyway. The appliance sends no
keep-alives of its own to them: a client that asked to be probed (in band) keeps its slot. While the
database cannot be read they can neither be woken nor answered. The first packet of one stranger in 430 is
looked up, too, and goes on to where it was going.

```toml
[table]
filter = 10_000_000

[[service]]
name = "meters"
listen = "0.0.0.0:7002"
server = "10.0.0.7:7002"
sleep_keepalive = "none"
```

## Users of attach

With `auth = "password"` a server names itself by `Proxy-Authorization: Basic` or by RFC 1929; neither is
encrypted. The configuration knows passwords by their hash alone, which this command makes:

```sh
{HASH_COMMAND}```

```toml
[attach]
listen = ["10.0.0.1:3128"]
auth = "password"

[attach.users]
billing = "$scrypt$ln=15,r=8,p=1$..."
```

## Names of clients

`roost name ID thermostat-17` gives a connection a name, by which servers reach it as `thermostat-17.roost`
(`domain`), whatever its address:

```sh
curl --proxytunnel --proxy http://billing:PASSWORD@10.0.0.1:3128 http://thermostat-17.roost/status
curl --socks5-hostname billing:PASSWORD@10.0.0.1:3128 http://thermostat-17.roost/status
```

A name stands for one connection, so the port that a server asks for with it means nothing, unless the client
is dialled (`[absent]`). Given again it moves to the new connection; given to a connection that has one it
replaces that one. It outlives its connection: a server that asks for it then is told that the client is not
connected, or whatever the steps of `[absent]` come to. Upper and lower case are the same. Names are never
looked up in the DNS, and nothing is reached but clients: the appliance's own addresses and `localhost` are
refused (403, or SOCKS5 reply 2). Agents bring names of their own, see [agents.md](agents.md).

## The store

A connection counts as SLEEP only when its row is committed (SQLite: WAL, `synchronous=FULL` for transactions
that carry such rows, `NORMAL` for history alone). When the database cannot be written (locked, corrupt, disk
full), connections stay IDLE, `roost status` shows `store: error` with the reason, and writing is tried again
with back-off; the data path goes on. History waits in memory meanwhile, up to a bound; what does not fit is
dropped, counted, and said. Services are known by their name: they may be reordered, and sleeping connections
keep theirs.

PostgreSQL needs psycopg (`pip install 'roost[postgresql]'`; a checkout has it) and a database of its own for each
instance, in which the user may make tables: `CREATE DATABASE roost OWNER roost`. Whatever the server's default is,
`synchronous_commit` is on for what Roost writes. A lock is waited for as long as with SQLite, 2 s, then the batch is
tried again. A machine that is silent is given up after 3 s when connecting and 5 s later on, unless libpq's
parameters in the URL say otherwise (`?connect_timeout=10&tcp_user_timeout=30000`). While it is away, connections stay
IDLE, and one that wakes from SLEEP is held for 5 s.

## What the daemon sets on the machine

In its network namespace, at each start, and said in its log; the settings stay when it ends:

- `net.ipv4.tcp_tw_reuse = 1`: links to a server leave ports in TIME-WAIT, all towards one address; some
  hundred links a second would use them up (RFC 6191; the kernel reuses them only where both ends use
  timestamps).
- `net.ipv4.tcp_ecn = 0`: a socket that is rebuilt cannot be told that ECN was agreed on, so it is not agreed
  on.
- `net.ipv4.ip_local_reserved_ports`: the ports of `listen` that lie in the range of outgoing ones are added,
  so that no link can take them while the daemon is away.
"""
"""What follows the sections."""
