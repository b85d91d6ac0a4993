# SPDX-License-Identifier: Apache-2.0
"""One engine: batches of commands in, batches of events out (cext/base/face.h). Every call releases the GIL."""

from __future__ import annotations

import ipaddress
import os
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EAGAIN, ENOENT, ENOSPC
from typing import Any, Final

from appliance.engine.bridge import Bridge
from appliance.engine.library import EngineError, checked, ffi, lib
from appliance.engine.marshal import (
    POLICY,
    QUIETS,
    c_bounds,
    c_rules,
    c_service,
    c_sought,
    events_of,
    fill_record,
    numbers_of,
    put_server,
)
from appliance.wire import (
    KA,
    KEY,
    OVERRIDES_BYTES,
    PLACES,
    REST,
    ROW,
    Bounds,
    Census,
    Command,
    EngineOptions,
    Event,
    EventType,
    Key,
    Limited,
    Obstacle,
    Obstacles,
    Op,
    Own,
    Record,
    RuleEntry,
    ServerAddress,
    ServerStatus,
    ServiceSpec,
    Silences,
    Sought,
    Tally,
    pack_address,
    transitions,
    unpack_address,
)

PAGE_POSITIONS: Final = 1 << 19
"""How many slots are looked at for a page, at most: some 10 ms."""

CENSUS_PAUSE_S: Final = 0.0002
"""Between two parts of a census: the engine's thread gets its lock, for which callers do not wait."""

_LISTED: Final = 4096
_ALL: Final = Sought()


class Engine:
    """One engine: opens or adopts the pinned objects when made.

    submit, find, list, stats and wake may be called from any thread; events from one.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._events: Any = ffi.new("struct roost_event[]", 0)
        pin_dir = ffi.new("char[]", options.pin_dir.encode())
        bpf_dir = ffi.new("char[]", options.bpf_dir.encode())
        raw = ffi.new("struct roost_options *")
        own_name = ffi.new("char[]", options.name.encode())
        raw.pin_dir, raw.bpf_dir, raw.name = pin_dir, bpf_dir, own_name
        for name in numbers_of("roost_options"):
            setattr(raw, name, int(getattr(options, name)))
        why = ffi.new("struct roost_reason *")
        self._raw = lib.roost_open(raw, why)
        if not self._raw:
            raise EngineError(ffi.string(why.text).decode(errors="replace"))

    def _call(self, function: Any, *arguments: Any) -> int:
        return checked(function, self._raw, *arguments)

    def attach(self, ifname: str, mode: str = "auto", servers: bool = False) -> str:
        """Hears inactive connections on an interface; "native", "generic" or "loopback". servers: the servers' legs of
        persistent services are heard there, not clients."""
        result = self._call(lib.roost_attach, ifname.encode(), mode.encode(), int(servers))
        return {1: "native", 2: "generic", 3: "loopback"}[result]

    def vlan(self, ifindex: int, protocol: int, number: int, device: int) -> None:
        """Frames that come by an interface with a tag of this protocol (0x8100, 0x88A8) and id are those of a VLAN
        device from now on, by its index; 0: of none, and nothing is heard in them."""
        if (result := lib.roost_vlan(self._raw, ifindex, protocol, number, device)) < 0:
            raise EngineError(f"VLAN {number}: {os.strerror(-result)}")

    def add_service(self, spec: ServiceSpec) -> None:
        """Listens for a service."""
        try:
            self._call(lib.roost_service_add, c_service(spec))
        except EngineError as error:
            raise EngineError(f"service at {spec.listen}: {error}", error.number) from None

    def close_service(self, index: int) -> bool:
        """No new clients for a service from now on; False: some that have connected could not be taken in now, and the
        service goes on."""
        result = lib.roost_service_close(self._raw, index)
        if result == -ENOENT:
            raise EngineError(f"there is no service with index {index}")
        return bool(result == 0)

    def update_service(self, spec: ServiceSpec) -> None:
        """Changes the servers and the policy of a service that is there."""
        result = lib.roost_service_update(self._raw, c_service(spec))
        if result == -ENOSPC:
            raise EngineError(
                f"the service at {spec.listen} port {spec.listen_port} keeps its servers and policy: too many servers "
                "that left it still have links; try again when those have ended"
            )
        if result < 0:
            raise EngineError(f"there is no service with index {spec.index}")

    def set_rules(self, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> tuple[int, list[int]]:
        """All rules there are, from now on; how many networks XDP had no memory for, and the class of each policy. By
        one caller at a time."""
        rules, classes = c_rules(entries, policies)
        numbers = ffi.new("uint32_t[]", len(classes))
        untold = self._call(lib.roost_rules_set, rules, len(rules), classes, len(classes), numbers)
        return untold, list(numbers)

    def count_rules(self, entries: Sequence[RuleEntry], policies: Sequence[ServiceSpec]) -> list[tuple[int, int]]:
        """What they would change: of each policy, and last of those that no rule is for, how many connections would
        have it, awake or with a slot, and how many of them have other values now."""
        rules, classes = c_rules(entries, policies)
        counts = ffi.new("uint64_t[]", 2 * (len(classes) + 1))
        self._call(lib.roost_rules_count, rules, len(rules), classes, len(classes), counts)
        found = list(counts)
        return list(zip(found[::2], found[1::2], strict=True))

    def groups(self) -> frozenset[int]:
        """The numbers of those in which a connection may be."""
        in_use = ffi.new("uint8_t[]", 256)
        lib.roost_groups_in_use(self._raw, in_use)
        return frozenset(number for number in range(1, 256) if in_use[number])

    def mark_server(self, service: int, server: ServerAddress, up: bool) -> None:
        """Lets links go to a server, or not; one that has left the service meanwhile is ignored."""
        raw = ffi.new("struct roost_server *")
        put_server(raw, server)
        lib.roost_server_mark(self._raw, service, raw, int(up))

    def servers(self, service: int) -> list[ServerStatus]:
        """The servers of a service, those that leave included."""
        raw = ffi.new("struct roost_server_status[]", PLACES)
        count = lib.roost_servers_read(self._raw, service, raw, PLACES)
        return [
            ServerStatus(
                (unpack_address(bytes(one.server.address)), one.server.port),
                bool(one.up),
                bool(one.leaving),
                one.links,
                one.linked,
                one.failed,
                one.ready,
            )
            for one in raw[0 : max(count, 0)]
        ]

    def open_router(self, attach_ports: Sequence[int] = (), wait_ms: int = 0, dial_ms: int = 0) -> None:
        """Makes this machine answer for others: call it before transparent services are added. attach_ports: where
        servers reach clients by address alone. wait_ms: how long they wait for one that is not there; dial_ms: or for
        the answer to WANTED, 0: nobody is told."""
        self._call(lib.roost_router_open, wait_ms, dial_ms)
        for port in attach_ports:
            if (result := lib.roost_router_attach_port(self._raw, port)) < 0:
                raise EngineError(os.strerror(-result))

    def steer(self, ifname: str, servers: bool) -> None:
        """Steers what arrives on an interface. servers: servers that may want clients are behind it."""
        self._call(lib.roost_router_attach, ifname.encode(), int(servers))

    def open_local_connect(self, cgroup: str) -> None:
        """Programs of this network namespace, in this cgroup and those below, reach clients by connect() to their
        address and port. Once, after `attach` to the loopback interface, and for servers."""
        self._call(lib.roost_local_connect_open, cgroup.encode())

    def local_connect_at(self, places: Sequence[ServerAddress]) -> None:
        """Where clients connect to, all such places, at most NEAR_ENDS."""
        packed = b"".join(pack_address(host) + port.to_bytes(2, "big") + bytes(2) for host, port in places)
        if (result := lib.roost_local_connect_at(self._raw, packed, len(places))) < 0:
            raise EngineError(os.strerror(-result))

    def link_ports(self, first: int, last: int) -> None:
        """Where links to the servers of persistent services take their local ports from; before start."""
        if lib.roost_link_ports(self._raw, first, last) < 0:
            raise EngineError(f"{first}-{last} is no range of ports")

    def reserve_link_port(self, port: int) -> None:
        """Keep a port from new links, until unreserve_link_ports; before start."""
        if lib.roost_link_port_reserve(self._raw, port) < 0:
            raise EngineError("out of memory")

    def unreserve_link_ports(self) -> None:
        """New links may have every port of the range again that is not asleep."""
        lib.roost_link_ports_unreserve(self._raw)

    def dial(self, service: int, client: ServerAddress, server: bytes) -> tuple[int, bytes]:
        """Begins a connection to a client from where it would find the service; server: the packed address of who wants
        it. The descriptor, the caller's, and the packed key; or -errno: EEXIST when the connection is there already."""
        where, key = ffi.new("struct roost_server *"), ffi.new("struct roost_key *")
        put_server(where, client)
        result = lib.roost_dial_client(self._raw, service, where, server, key)
        return result, bytes(ffi.buffer(key))

    def set_limits(self, bounds: Bounds) -> None:
        """Limits by source from now on; those of services come with them."""
        lib.roost_limits_set(self._raw, c_bounds(bounds))

    def within_limit(self, what: Limited, address: str) -> bool:
        """Whether one more attach, or agent, from this address is in order; it is counted, or that it was refused."""
        return bool(lib.roost_limits_take(self._raw, what - Limited.ATTACHES, pack_address(address)))

    def last_refused(self, what: Limited) -> str:
        """Which source was refused last for this limit: an IPv4 address, or a /64 of IPv6; empty: none was."""
        last = ffi.new("uint64_t[]", len(Limited))
        lib.roost_limits_last(self._raw, last)
        if not last[what]:
            return ""
        half = int(last[what]).to_bytes(8, sys.byteorder)
        mapped = half[:4] == b"\0\0\xff\xff"
        return str(ipaddress.ip_address(half[4:]) if mapped else ipaddress.ip_network((half + bytes(8), 64)))

    def start(self) -> None:
        """Starts the engine thread."""
        self._call(lib.roost_start)

    def stop_listening(self) -> None:
        """Takes no new clients from now on."""
        lib.roost_stop_listening(self._raw)

    def wake_none(self) -> None:
        """What sleeps stays asleep from now on, whatever it says: that is said again to the next daemon."""
        lib.roost_wake_none(self._raw)

    def submit(self, commands: Sequence[Command]) -> None:
        """Puts a batch of commands in; they are carried out in order. The answers are events."""
        if not commands:
            return
        raw = ffi.new("struct roost_command[]", len(commands))
        keep = []
        for place, command in zip(raw, commands, strict=True):
            place.op, place.cause, place.fd, place.error = int(command.op), command.cause, command.fd, command.error
            place.count, place.id, place.token = command.count, command.id, command.token
            if command.record is not None:
                fill_record(place.record, command.record)
                if command.record.peer is not None:
                    fill_record(place.peer, command.record.peer)
            if command.key is not None:
                packed = command.key if isinstance(command.key, bytes) else command.key.pack()
                ffi.memmove(ffi.addressof(place.record, "key"), packed, 36)
            if command.preamble:
                if len(command.preamble) > 64:
                    raise EngineError(f"a preamble of {len(command.preamble)} bytes: at most 64")
                ffi.memmove(place.preamble, command.preamble, len(command.preamble))
                place.preamble_len = len(command.preamble)
            if command.overrides:
                ffi.memmove(ffi.addressof(place, "overrides"), command.overrides, OVERRIDES_BYTES)
            if command.early:
                early = ffi.from_buffer("uint8_t[]", command.early)
                keep.append(early)
                place.early, place.early_len = early, len(command.early)
        result = lib.roost_submit(self._raw, raw, len(commands))
        if result < 0:
            raise EngineError(f"the engine did not take {len(commands)} commands: {os.strerror(-result)}")

    def submit_many(
        self, op: Op, cause: int, ids: Sequence[int] | None = None, keys: Sequence[bytes] | None = None, token: int = 0
    ) -> None:
        """The same command with the same token for many connections, by number or by packed key, without an object for
        each."""
        if (ids is None) == (keys is None):
            raise ValueError("either numbers or keys")
        count = len(ids if ids is not None else keys or ())
        raw_ids = ffi.from_buffer("uint64_t[]", array("Q", ids)) if ids is not None else ffi.NULL
        raw_keys = ffi.from_buffer("struct roost_key[]", b"".join(keys)) if keys is not None else ffi.NULL
        result = lib.roost_submit_many(self._raw, int(op), cause, token, raw_ids, raw_keys, count)
        if result < 0:
            raise EngineError(f"the engine did not take {count} commands: {os.strerror(-result)}")

    def batch(self, max_events: int = 4096, timeout_ms: int = 200, patience_ms: int = 0) -> list[Event]:
        """Waits up to timeout_ms for events, or until wake(); takes at most max_events. Once there is one it waits up
        to patience_ms for more, unless a thread waits for what it says (a command's token, a needed record).
        Transitions that are of interest to the history alone come packed, as ROWS."""
        if len(self._events) < max_events:
            self._events = ffi.new("struct roost_event[]", max_events)
        count = lib.roost_events(self._raw, self._events, max_events, timeout_ms, patience_ms)
        if not count:
            return []
        events = events_of(self._events, count)
        standing = [at for at, event in enumerate(events) if event.type == EventType.ROWS]
        if standing:
            self._take_rows(events, standing)
        return events

    def _take_rows(self, events: list[Event], standing: list[int]) -> None:
        """Gives those events the transitions that they stand for."""
        count = sum(events[at].count for at in standing)
        raw = ffi.new("struct roost_row[]", count)
        taken = lib.roost_rows(self._raw, raw, count)
        if taken != count:
            raise EngineError(f"of {count} transitions the engine gave {taken}")
        rows = bytes(ffi.buffer(raw))
        begin = 0
        for at in standing:
            end = begin + events[at].count * ROW.size
            events[at] = events[at]._replace(rows=rows[begin:end])
            begin = end

    def events(self, max_events: int = 4096, timeout_ms: int = 200, patience_ms: int = 0) -> list[Event]:
        """As `batch`, with an event for every transition: more than max_events of them, then."""
        found: list[Event] = []
        for event in self.batch(max_events, timeout_ms, patience_ms):
            if event.type == EventType.ROWS:
                found.extend(transitions(event.rows))
            else:
                found.append(event)
        return found

    def wake(self) -> None:
        """Makes a waiting events() return."""
        lib.roost_wake_events(self._raw)

    def list(self, sought: Sought = _ALL) -> Iterator[Event]:
        """Everything that is sought, in any order; to_state is the state, id 0 for SLEEP (the store knows it) and for
        born ones. What is there from the first to the last comes once, unless a table grows meanwhile or a million
        others moved."""
        raw = ffi.new("struct roost_event[]", _LISTED)
        with self._listing(sought) as listing:
            while self._raw and not lib.roost_list_done(listing):
                count = lib.roost_list(self._raw, listing, raw, _LISTED)
                yield from events_of(raw, count)

    def page(self, sought: Sought, limit: int) -> tuple[Sequence[Event], int]:
        """The next connections, and where the page after it begins (Sought.after), 0: there is none. A page ends after
        `limit` connections, or earlier, possibly with none, when the engine has looked at PAGE_POSITIONS slots. With
        more than `limit` where that many awake ones lie in one place."""
        events: list[Event] = []
        at, room = sought.after, limit
        with self._listing(sought) as listing:
            while room > 0 and at < sought.after + PAGE_POSITIONS and not lib.roost_list_done(listing):
                raw = ffi.new("struct roost_event[]", room)
                events += events_of(raw, lib.roost_list(self._raw, listing, raw, room))
                stuck = at == (at := int(lib.roost_list_at(listing)))  # all that lie in one place have no room
                room = limit - len(events) if not stuck else 0 if events else 2 * room
            return events, 0 if lib.roost_list_done(listing) else at

    @contextmanager
    def _listing(self, sought: Sought) -> Iterator[Any]:
        numbers = ffi.new("uint64_t[]", sorted(sought.numbers))
        listing = lib.roost_list_begin(self._raw, c_sought(sought, numbers))
        if not listing:
            raise EngineError("out of memory")
        try:
            yield listing
        finally:
            if self._raw:  # otherwise it ended with the engine
                lib.roost_list_end(self._raw, listing)

    def slots_in_sleep(self) -> int:
        """How many clients in SLEEP have a slot. Looks at every slot: for when nothing moves yet."""
        return int(lib.roost_slots_in_sleep(self._raw))

    def find_peer(self, key: bytes) -> Record | None:
        """The server's leg of an IDLE pair, by its client's packed key."""
        raw = ffi.new("struct roost_record *")
        if not lib.roost_find_peer(self._raw, ffi.from_buffer("struct roost_key[1]", key), raw):
            return None
        parts = (("key", KEY.size), ("ka", KA.size), ("rest", REST.size))
        key, ka, rest = (bytes(ffi.buffer(ffi.addressof(raw, part), size)) for part, size in parts)
        return Record(key, ka, rest)

    def find_own(self, key: bytes, number: int) -> Own:
        """What is set for the connection with this packed key and number alone."""
        raw = ffi.new("struct roost_overrides *")
        if not lib.roost_find_overrides(self._raw, ffi.from_buffer("struct roost_key[1]", key), number, raw):
            return Own()
        values = [*zip(QUIETS, raw.quiet_ms, strict=True), ("probe_interval_s", raw.probe_interval_s)]

        def of(bits: int) -> dict[str, int]:
            return {name: int(value) for bit, (name, value) in enumerate(values) if bits & 1 << bit}

        in_band = of(raw.given & ~raw.by_command) | ({"always_active": 1} if raw.always_active else {})
        return Own(in_band, of(raw.by_command), int(raw.group))

    def find_class(self, key: bytes) -> dict[str, int]:
        """The policy in force for the connection with this packed key: values of struct roost_class."""
        raw = ffi.new("struct roost_class *")
        lib.roost_find_class(self._raw, ffi.from_buffer("struct roost_key[1]", key), raw)
        return dict(zip(QUIETS, raw.quiet_ms, strict=True)) | {name: int(getattr(raw, name)) for name in POLICY}

    def find_obstacles(self, key: bytes) -> Obstacles | None:
        """What keeps the awake connection with this packed key from being frozen; None: it is not awake."""
        raw = ffi.new("struct roost_obstacles *")
        if not lib.roost_find_obstacles(self._raw, ffi.from_buffer("struct roost_key[1]", key), raw):
            return None
        values = {name: int(getattr(raw, name)) for name in numbers_of("roost_obstacles", "now")}
        return Obstacles(Obstacle(raw.now), **values)

    def find(self, key: Key) -> Event | None:
        """The connection of a 4-tuple, or None; to_state is its state."""
        return self.find_many([key.pack()])[0]

    def find_many(self, keys: Sequence[bytes]) -> Sequence[Event | None]:
        """`find`, of each of these packed keys."""
        raw, found = ffi.new("struct roost_event[]", len(keys)), ffi.new("uint8_t[]", len(keys))
        joined = b"".join(keys)
        if len(joined) != len(keys) * KEY.size:
            raise ValueError(f"{len(keys)} keys have {len(joined)} bytes")
        of = ffi.from_buffer("struct roost_key[]", joined)
        events = iter(events_of(raw, lib.roost_find(self._raw, of, len(keys), raw, found)))
        return [next(events) if is_there else None for is_there in found]

    def states(self, keys: bytes, numbers: array[int]) -> bytes:
        """The states of the connections with these packed keys, one after the other, and numbers, a byte each: 0 where
        there is none, CANDIDATE added where it may be asleep without a slot."""
        raw = ffi.new("uint8_t[]", len(numbers))
        of = ffi.from_buffer("struct roost_key[]", keys), ffi.from_buffer("uint64_t[]", numbers)
        lib.roost_states(self._raw, *of, len(raw), raw)
        return bytes(ffi.buffer(raw))

    def put_back(self, keys: bytes, kas: bytes, numbers: array[int], clocks: array[int],
                 shifts: Mapping[int, tuple[int, int]]) -> tuple[int, bytes]:  # fmt: skip
        """Puts connections whose rows are of earlier boots into the table, in SLEEP: their keys, the `ka` of their
        rows, their numbers and clocks. shifts: by clock, ms and timestamps_ms as of Record.shifted. Of how many it says
        something, an errno each: 0 it is there; EEXIST another connection has the 4-tuple; EOPNOTSUPP: Op.INSERT is to
        put it back; ESTALE: its clock is not in `shifts`, or it may need no slot, and is left alone. Fewer than all:
        there is no room now."""
        raw = ffi.new("uint8_t[]", len(numbers))
        known = ffi.new("struct roost_clock[]", [(clock, *by) for clock, by in sorted(shifts.items())])
        of = (ffi.from_buffer("struct roost_key[]", keys), ffi.from_buffer(kas),
              ffi.from_buffer("uint64_t[]", numbers), ffi.from_buffer("uint64_t[]", clocks))  # fmt: skip
        done = int(lib.roost_put_back(self._raw, *of, len(raw), known, len(known), raw))
        return done, bytes(ffi.buffer(raw))[:done]

    def retain(self, numbers: array[int]) -> int:
        """Before `start`: removes the slots of all connections but these, whose numbers ascend; how many."""
        return int(lib.roost_retain(self._raw, ffi.from_buffer("uint64_t[]", numbers), len(numbers)))

    def next_number(self, number: int) -> None:
        """Before `start`: the numbers that it gives begin here."""
        lib.roost_next_number(self._raw, number)

    def lease(self, until_ms: int) -> None:
        """This machine has the connections until then, ms of CLOCK_BOOTTIME; afterwards it wakes and probes none."""
        lib.roost_lease(self._raw, until_ms)

    def share_cookies(self, secret: Sequence[int], ahead_ms: int) -> None:
        """Before `start`: another machine, with the same secret of two numbers of 64 bits, ends handshakes that this
        one began. ahead_ms: how far the clock of both is ahead of CLOCK_MONOTONIC."""
        lib.roost_share_cookies(self._raw, *secret, ahead_ms)

    def find_client(self, address: bytes, port: int, local: bytes, one: bool = False) -> Sequence[Event]:
        """The connections of a client's packed address and port: those that are known, in the order of the services
        they came in by, 64 at most, and then each that may be asleep without a slot (`candidate`). local: packed
        addresses of this machine, one after the other, for services that listen on all of them. one: the first that is
        known is enough."""
        room = 16
        while True:
            raw = ffi.new("struct roost_event[]", room)
            found = lib.roost_find_client(self._raw, address, port, local, len(local) // 16, one, raw, room)
            if found < room:
                return events_of(raw, found)
            room *= 4

    def stats(self) -> dict[str, int]:
        """Counters and gauges by name."""
        raw = ffi.new("struct roost_stats *")
        lib.roost_stats_read(self._raw, raw)
        result: dict[str, int] = {}
        index = 0
        while name := lib.roost_stat_name(index):
            result[ffi.string(name).decode()] = raw.value[index]
            index += 1
        return result

    def gauges(self) -> frozenset[str]:
        """Those of `stats` that say how much there is, and count nothing."""
        return frozenset(name for index, name in enumerate(self.stats()) if lib.roost_stat_is_gauge(index))

    def tallies(self) -> Sequence[Tally]:
        """What connections did since this was called before."""
        raw = ffi.new("struct roost_tally[]", lib.ROOST_TALLIES)
        return [
            Tally(getattr(one, "class"), one.service, one.from_state, one.to_state, one.cause, one.count, one.rx_bytes,
                  one.tx_bytes)
            for one in raw[0 : lib.roost_tallies_take(self._raw, raw)]
        ]  # fmt: skip

    def silences(self) -> dict[int, Silences]:
        """For how long clients were silent, by their class."""
        raw = ffi.new("struct roost_silence_counts[]", lib.ROOST_SILENCE_COUNTS)
        found = raw[0 : lib.roost_silences_read(self._raw, raw)]
        return {
            int(getattr(one, "class")): Silences(one.service, tuple(one.spoke), tuple(one.answered), tuple(one.lost))
            for one in found
        }

    def census(self) -> dict[int, Census]:
        """How many connections there are, by their class. Takes 12 ns a slot in use, in parts: of what moves
        meanwhile some count twice, or not at all."""
        at, more = ffi.new("uint64_t[2]"), 1
        raw = ffi.new("struct roost_census[]", lib.ROOST_CLASSES)
        while more:
            more = lib.roost_census(self._raw, at, raw)
            if more == -EAGAIN:
                ffi.memmove(at, bytes(ffi.sizeof(at)), ffi.sizeof(at))
                ffi.memmove(raw, bytes(ffi.sizeof(raw)), ffi.sizeof(raw))
            time.sleep(CENSUS_PAUSE_S)
        numbers = array("Q", bytes(ffi.buffer(raw)))
        width = len(numbers) // lib.ROOST_CLASSES
        rows = (numbers[first : first + width] for first in range(0, len(numbers), width))
        return {number: Census(row[0], tuple(row[1:-1]), row[-1]) for number, row in enumerate(rows) if any(row[1:])}

    def memory(self) -> int:
        """Bytes of kernel memory in our maps and programs, as the kernel accounts them."""
        return int(lib.roost_memory(self._raw))

    def inherit(self, bridge: Bridge) -> None:
        """Services that are added from now on listen at the sockets that were handed over. The bridge must last until
        `start`."""
        lib.roost_inherit(self._raw, bridge.raw)

    def inherit_connections(self) -> int:
        """With services and rules told: the connections that were handed over are this engine's. How many; their bytes
        are moved by the bridge until `start`."""
        return int(lib.roost_inherit_connections(self._raw))

    def hand_over(self, bridge: Bridge) -> int:
        """After `stop`: what is awake, and the sockets of services, to a bridge. How many connections."""
        return int(lib.roost_hand_over(self._raw, bridge.raw))

    def stop(self) -> None:
        """Stops the engine thread; sockets stay until close()."""
        lib.roost_stop(self._raw)

    def close(self) -> None:
        """Frees the engine. Awake connections are closed; sleeping ones stay in the pinned table."""
        if self._raw:
            raw, self._raw = self._raw, None
            lib.roost_close(raw)
