# SPDX-License-Identifier: Apache-2.0
"""Millions of TCP clients on one interface: they connect, keep alive, speak, answer, retransmit and close, and they
check every frame that they get (simulator.bpf.c; driver.c sends their frames).

    with Lab(clients=10, nat=False) as lab:
        simulator = lab.simulator(clients=1_000_000)
        config = lab.config(...) | {"network": {"interfaces": [simulator.box_interface]}}
        lab.daemon(config)
        simulator.connect(range(1_000_000), rate=200_000)
        simulator.keep_alive(range(1_000_000))
        assert simulator.offences() == {}

The clients are no sockets, and their addresses exist in no stack: each is 32 bytes. Its link to the appliance stands
beside that of the lab's NAT: `wan1` in "box", and `wan2` and so on for further simulators.

What clients say is a stream that follows from their number (`pattern`), and what they hear must be the same stream: an
echo server's answers are right by themselves, and a server that sends of its own accord sends `pattern(client,
position, count)`.
"""

from __future__ import annotations

import ipaddress
import math
import os
import socket
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic
from typing import Any, Final, Self

from pyroute2 import IPRoute

from appliance.lab.cores import before_all_others, received_on, running_on
from appliance.lab.namespaces import XDP_PASS, Namespace, load_xdp
from appliance.lab.simulator import _simulator
from appliance.paths import bpf_objects

ffi: Any = _simulator.ffi
lib: Any = _simulator.lib

PORTS_AN_ADDRESS: Final = 60_000
FIRST_PORT: Final = 1024
SEGMENT: Final = 1400
"""Bytes of payload in a full segment: below every MSS that a server on an Ethernet announces."""
_COUNTERS: Final = [ffi.typeof("enum sim_counter").elements[i].removeprefix("SIM_N_").lower()
                    for i in range(lib.SIM_COUNTERS)]  # fmt: skip
_SLICE_MS: Final = 50
_BURST: Final = 200_000  # frames that wait for the clients, when a server sends faster than they read
_ERR_LEN: Final = 512
_NO_DAD: Final = 2  # IFA_F_NODAD
_FAMILY: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_PREFIX: Final = {4: 24, 6: 64}
MAX_SIMULATORS: Final = 255  # in a lab, one after the other


class SimulatorError(Exception):
    """The simulator could not do it; the message says what, and what to do."""


class ClientState(IntEnum):
    """States of a client (enum sim_state)."""

    CLOSED = lib.SIM_CLOSED
    SYN_SENT = lib.SIM_SYN_SENT
    ESTABLISHED = lib.SIM_ESTABLISHED
    FIN_WAIT_1 = lib.SIM_FIN_WAIT_1
    FIN_WAIT_2 = lib.SIM_FIN_WAIT_2
    CLOSING = lib.SIM_CLOSING
    CLOSE_WAIT = lib.SIM_CLOSE_WAIT
    LAST_ACK = lib.SIM_LAST_ACK
    DONE = lib.SIM_DONE
    RESET = lib.SIM_RESET
    REFUSED = lib.SIM_REFUSED
    LOST = lib.SIM_LOST


@dataclass(frozen=True)
class Outcome:
    """What became of the clients that a call was for."""

    done: int
    """Clients that got what they wanted."""
    begun: int
    refused: int
    """RST to a SYN."""
    cut: int
    """The connection ended before the answer."""
    lost: int
    """Given up after the last retransmission."""
    skipped: int
    """In no state for it, e.g. to be connected a second time."""
    retransmitted: int
    """Frames."""
    elapsed_s: float
    cpu_s: float
    """CPU time of the calling thread; with NAPI unthreaded, that of most of what the frames set off, too."""

    @property
    def waiting(self) -> int:
        """Clients that have no answer yet."""
        return self.begun - self.done - self.refused - self.cut - self.lost

    @property
    def per_s(self) -> float:
        return self.done / self.elapsed_s if self.elapsed_s else 0.0


class Unfinished(TimeoutError):
    """Time ran out; `outcome` is how far it got."""

    def __init__(self, what: str, timeout_s: float, outcome: Outcome) -> None:
        super().__init__(f"{what}: not finished within {timeout_s} s: {outcome}")
        self.outcome = outcome


@dataclass(frozen=True)
class Client:
    """What a simulated client knows; sequence numbers as they are on the wire."""

    address: str
    port: int
    state: ClientState
    snd_nxt: int
    snd_una: int
    rcv_nxt: int
    ts_recent: int
    """The server's newest TSval."""
    tsval: int
    """That of the client's newest segment."""
    window: int
    """The server's, bytes."""
    timestamps: bool
    retries: int


@dataclass(frozen=True)
class Offence:
    """The first frame that was wrong in some way."""

    kind: str
    client: int
    length: int
    """Bytes of the whole frame."""
    frame: bytes
    """Its first 128 bytes, with the Ethernet header."""
    before: Client
    """The client as it was when the frame came."""


CACHE_LINE = 64  # bytes


class Fault(IntEnum):
    """What is wrong with a reflector's answers (enum reflector_fault)."""

    NONE = lib.REFLECTOR_NONE
    CHECKSUM = lib.REFLECTOR_CHECKSUM
    IP_CHECKSUM = lib.REFLECTOR_IP_CHECKSUM
    SEQ = lib.REFLECTOR_SEQ
    ACK = lib.REFLECTOR_ACK
    TSVAL = lib.REFLECTOR_TSVAL
    TSECR = lib.REFLECTOR_TSECR
    ZERO_TSECR = lib.REFLECTOR_ZERO_TSECR
    FLAGS = lib.REFLECTOR_FLAGS
    PORT = lib.REFLECTOR_PORT
    NO_TIMESTAMP = lib.REFLECTOR_NO_TIMESTAMP
    RESET = lib.REFLECTOR_RESET


class Reflector:
    """The least that answers the clients' SYNs and keep-alive probes: a yardstick, or a server with a fault.

    With `memory_bytes`, it reads and writes a cache line of a client's in that much memory before it answers (IPv4).
    """

    def __init__(self, box: Namespace, ifname: str, memory_bytes: int = 0) -> None:
        err = ffi.new("char[]", _ERR_LEN)
        path = str(bpf_objects() / "reflector.bpf.o").encode()
        with box.entered():
            lines = memory_bytes // CACHE_LINE
            self._handle = lib.reflector_open(path, socket.if_nametoindex(ifname), lines, err, _ERR_LEN) or None
        if self._handle is None:
            raise SimulatorError(ffi.string(err).decode())

    def fault(self, fault: Fault) -> None:
        """From now on all answers have it."""
        lib.reflector_set_fault(self._handle, fault)

    def close(self) -> None:
        if self._handle is not None:
            lib.reflector_close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Simulator:
    """Clients behind an interface of their own. Made by Lab.simulator."""

    def __init__(self, box: Namespace, number: int, server: str, port: int, clients: int,
                 addresses: int | None = None, timestamps: bool = True, window_scale: bool = True, sack: bool = True,
                 answer_fin: bool = True, segment: int = SEGMENT, to_kernel: bool = False,
                 base: str | None = None) -> None:  # fmt: skip
        """See Lab.simulator. `number` distinguishes the simulators of a lab: 1, 2, ..."""
        if not 1 <= number <= MAX_SIMULATORS:
            raise SimulatorError(f"a lab has room for {MAX_SIMULATORS} simulators")
        self.clients = clients
        self.family = 6 if ":" in server else 4
        self.server = (server, port)
        self.addresses = addresses or max(1, math.ceil(clients / PORTS_AN_ADDRESS))
        self.box_interface = f"wan{number}"
        first = ipaddress.ip_address(f"fd00:65:{number}::1" if self.family == 6 else "100.64.0.1")
        self._base = int(ipaddress.ip_address(base)) if base else int(first) + (number << 14 if self.family == 4 else 0)
        self._box = box
        self.space = Namespace(f"simulator{number}")
        """The namespace of the clients' end of the link, which is `eth0` there."""
        self._handle: Any = None
        self._linked = False
        try:
            mac = self._link(number, to_kernel)
            self._open(mac=mac, offer_timestamps=timestamps, offer_wscale=window_scale, offer_sack=sack,
                       answer_fin=answer_fin, segment=segment)  # fmt: skip
        except BaseException:
            self.close()
            raise

    def _link(self, number: int, to_kernel: bool) -> bytes:
        """The link, and the way to the clients; the link's two Ethernet addresses."""
        self._networks = {4: f"198.18.{number}.", 6: f"fd00:18:{number}::"}
        with self._box.entered(), IPRoute() as ip:
            ip.link("add", ifname=self.box_interface, kind="veth", peer={"ifname": "eth0", "net_ns_fd": self.space.fd})
        self._linked = True
        with self.space.entered(), IPRoute() as ip:
            self._ifindex = ip.link_lookup(ifname="eth0")[0]
            ip.link("set", index=self._ifindex, state="up")
            self._mac = ip.link("get", index=self._ifindex)[0].get("address")
        with self._box.entered(), IPRoute() as ip:
            index = ip.link_lookup(ifname=self.box_interface)[0]
            there = ip.link("get", index=index)[0].get("address")
            self._tell_the_way(ip, index)
            ip.tc("add", "pfifo", index, limit=_BURST)
            if to_kernel:  # a veth without a program forgets to wake its NAPI for what the other end sends with XDP_TX
                program = load_xdp(XDP_PASS)
                ip.link("set", index=index, xdp_fd=program)
                os.close(program)
        self._box.offload(self.box_interface, tx=False, tso=False, gso=False, gro=True)
        return bytes.fromhex((there + self._mac).replace(":", ""))

    def _tell_the_way(self, ip: IPRoute, index: int) -> None:
        """Addresses of the appliance's interface, and the routes to the clients."""
        link = self._networks
        ip.link("set", index=index, state="up")
        for family in (4, 6):
            ip.addr("add", index=index, address=f"{link[family]}1", prefixlen=_PREFIX[family],
                    family=_FAMILY[family], flags=_NO_DAD)  # fmt: skip
        ip.neigh("replace", dst=f"{link[self.family]}2", family=_FAMILY[self.family], lladdr=self._mac, ifindex=index,
                 state="permanent")  # fmt: skip
        ends = (ipaddress.ip_address(self.address_of(n)) for n in (0, self.addresses - 1))
        for network in ipaddress.summarize_address_range(*ends):
            ip.route("add", dst=str(network), family=_FAMILY[self.family], gateway=f"{link[self.family]}2",
                     oif=index)  # fmt: skip

    def plug_into(self, box: Namespace) -> None:
        """Take the appliance's end of the link out of one appliance, and put it into another. No daemon may be attached
        to it."""
        with self._box.entered(), IPRoute() as ip:
            ip.link("set", index=ip.link_lookup(ifname=self.box_interface)[0], net_ns_fd=box.fd)
        self._box = box
        with box.entered(), IPRoute() as ip:
            self._tell_the_way(ip, ip.link_lookup(ifname=self.box_interface)[0])

    def _open(self, **options: Any) -> None:
        server, port = self.server
        config = ffi.new("struct sim_config *", {
            "ifindex": self._ifindex, "clients": self.clients, "addresses": self.addresses, "first_port": FIRST_PORT,
            "base": _words(self._base.to_bytes(16)), "server": _words(ipaddress.ip_address(server).packed),
            "server_port": socket.htons(port), "v6": self.family == 6, "secret": int.from_bytes(os.urandom(4)),
            **options})  # fmt: skip
        err = ffi.new("char[]", _ERR_LEN)
        with self.space.entered():
            path = str(bpf_objects() / "simulator.bpf.o").encode()
            self._handle = lib.sim_open(path, config, err, _ERR_LEN) or None
        if self._handle is None:
            raise SimulatorError(ffi.string(err).decode())

    def close(self) -> None:
        """Take the link and the clients away. Their connections are left to the other end."""
        if self._handle is not None:
            lib.sim_close(self._handle)
            self._handle = None
        if self._linked:
            with self._box.entered(), IPRoute() as ip:
                ip.link("del", index=ip.link_lookup(ifname=self.box_interface)[0])
            self._linked = False
        self.space.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def one_core_each(self, box_cpu: int, own_cpu: int) -> Iterator[list[int]]:
        """What arrives in the box is received on one processor, what arrives at the clients on another, where the
        calling thread runs, too. Yields the kernel threads that do the box's receiving (for cores.cpu_ns). To be
        entered once the daemon, or the reflector, is attached."""
        with (
            received_on(self._box, self.box_interface, box_cpu) as threads,
            received_on(self.space, "eth0", own_cpu) as own,
            running_on(own_cpu),
        ):
            before_all_others(own)  # or a run of frames would keep the answers waiting for as long as it lasts
            yield threads

    def reflector(self, memory_bytes: int = 0) -> Reflector:
        """A bare reflector in place of the appliance; not with to_kernel, nor while a daemon is on the interface."""
        return Reflector(self._box, self.box_interface, memory_bytes)

    # Clients by number and by address

    def address_of(self, client: int) -> str:
        address = self._base + client % self.addresses
        return str(ipaddress.IPv6Address(address) if self.family == 6 else ipaddress.IPv4Address(address))

    def port_of(self, client: int) -> int:
        return FIRST_PORT + client // self.addresses

    def pattern(self, client: int, position: int, count: int) -> bytes:
        """Bytes [position, position + count) of the stream of a client: of what it says, and of what it is to hear."""
        data = ffi.new("uint8_t[]", count)
        lib.sim_pattern(self._handle, client, position, data, count)
        return bytes(ffi.buffer(data))

    # What clients do. `clients` are numbers from 0 on. `rate` is clients a second; 0 is as fast as answers come, with
    # `in_flight` of them waited for. With more than the defaults the veth's ring of 256 frames overruns where the two
    # ends run on different processors, and what it loses is sent again: what is not answered within rto_s is, up to
    # `tries` times, each time after twice as long.

    def connect(self, clients: Sequence[int], rate: float = 0, in_flight: int = 112, rto_s: float = 1.0, tries: int = 6,
                timeout_s: float = 60) -> Outcome:  # fmt: skip
        """Handshakes."""
        return self._run("connect", lib.SIM_CONNECT, clients, rate, in_flight, rto_s, tries, timeout_s)

    def keep_alive(self, clients: Sequence[int], rate: float = 0, in_flight: int = 240, rto_s: float = 1.0,
                   tries: int = 6, timeout_s: float = 60) -> Outcome:  # fmt: skip
        """A keep-alive probe (RFC 9293 3.8.4) of each client, and its answer."""
        return self._run("keep_alive", lib.SIM_PROBE, clients, rate, in_flight, rto_s, tries, timeout_s)

    def speak(self, clients: Sequence[int], say: int, answer: int, rate: float = 0, in_flight: int = 64,
              rto_s: float = 0.3, tries: int = 8, timeout_s: float = 60) -> Outcome:  # fmt: skip
        """Each client says `say` bytes, and waits for `answer` bytes; 65,535 at most of either. say=0: it only listens.
        Done when all is acknowledged and all has come."""
        if not (0 <= say <= 0xFFFF and 0 <= answer <= 0xFFFF):
            raise ValueError("a client says, and waits for, 65,535 bytes at most")
        return self._run("speak", lib.SIM_SAY, clients, rate, in_flight, rto_s, tries, timeout_s, say, answer)

    def finish(self, clients: Sequence[int], rate: float = 0, in_flight: int = 64, rto_s: float = 0.3, tries: int = 8,
               timeout_s: float = 60) -> Outcome:  # fmt: skip
        """FIN, until the other end has acknowledged it and sent its own (or an RST)."""
        return self._run("finish", lib.SIM_FINISH, clients, rate, in_flight, rto_s, tries, timeout_s)

    def abort(self, clients: Sequence[int], rate: float = 0, timeout_s: float = 60) -> Outcome:
        """RST. There is no answer, and nothing tells whether it arrived."""
        return self._run("abort", lib.SIM_ABORT, clients, rate, lib.SIM_BATCH // 2, 1.0, 0, timeout_s)

    def tend(self, rto_s: float = 0.3, tries: int = 8) -> int:
        """Between the calls above: send again what is due of any client, e.g. the FIN that answered a server's. Returns
        the frames sent."""
        with self.space.entered():
            sent = int(lib.sim_tend(self._handle, int(rto_s * 1000), tries))
        if sent < 0:
            raise SimulatorError(f"the simulator cannot send: {os.strerror(-sent)}")
        return sent

    # What others do in the clients' names, knowing nothing of it: as fast as can be, or so many a second, and each of
    # the clients in turn. The frames sent.

    def spoof_syns(self, clients: range, seconds: float, rate: float = 0) -> int:
        """SYNs. The clients answer what comes back by RST, as hosts that have asked for nothing do, unless all that
        they get is lost (drop_every(1))."""
        return self._spoof(lib.SIM_SPOOF_SYN, clients, seconds, rate)

    def spoof_segments(self, clients: range, seconds: float, rate: float = 0) -> int:
        """Bare acknowledgements with sequence numbers outside of the window."""
        return self._spoof(lib.SIM_SPOOF_SEGMENT, clients, seconds, rate)

    def spoof_wrong(self, clients: range, seconds: float, rate: float = 0) -> int:
        """The same with wrong checksums."""
        return self._spoof(lib.SIM_SPOOF_WRONG, clients, seconds, rate)

    def _spoof(self, action: int, clients: range, seconds: float, rate: float) -> int:
        if not clients or clients.step != 1 or clients.start < 0 or clients.stop > self.clients:
            raise ValueError(f"the simulator has {self.clients} clients, from 0 on")
        end, sent = monotonic() + seconds, 0
        with self.space.entered():
            while (left := end - monotonic()) > 0:
                slice_ms = max(1, min(_SLICE_MS, int(left * 1000)))
                now = int(lib.sim_spoof(self._handle, action, clients.start, len(clients), sent % len(clients), rate,
                                        slice_ms))  # fmt: skip
                if now < 0:
                    raise SimulatorError(f"spoofing: the simulator cannot send: {os.strerror(-now)}")
                sent += now
        return sent

    def _run(self, what: str, action: int, clients: Sequence[int], rate: float, in_flight: int, rto_s: float,
             tries: int, timeout_s: float, say: int = 0, answer: int = 0) -> Outcome:  # fmt: skip
        ends = (clients[0], clients[-1]) if isinstance(clients, range) and clients else clients
        if ends and not (min(ends) >= 0 and max(ends) < self.clients):
            raise ValueError(f"the simulator has {self.clients} clients, from 0 on")
        phase = ffi.new("struct sim_phase *")
        phase.action, phase.count = action, len(clients)
        phase.rate, phase.in_flight, phase.say, phase.answer = rate, in_flight, say, answer
        phase.rto_ms, phase.tries = int(rto_s * 1000), tries
        if isinstance(clients, range) and clients.step == 1:
            phase.first = clients.start
            numbers = None
        else:
            numbers = array("I", clients)
            phase.list = ffi.from_buffer("uint32_t[]", numbers)
        deadline = monotonic() + timeout_s
        with self.space.entered():
            lib.sim_phase_begin(self._handle, phase)
            while not (result := lib.sim_phase_step(self._handle, phase, _SLICE_MS)) and monotonic() < deadline:
                pass
        if result < 0:
            raise SimulatorError(f"{what}: the simulator cannot send: {os.strerror(-result)}")
        outcome = Outcome(phase.done, phase.begun, phase.refused, phase.cut, phase.lost, phase.skipped,
                          phase.retransmitted, phase.elapsed_ns / 1e9, phase.cpu_ns / 1e9)  # fmt: skip
        if not result:
            raise Unfinished(what, timeout_s, outcome)
        return outcome

    # What became of them

    def counters(self) -> dict[str, int]:
        """Everything that was counted since the start, by the names of enum sim_counter."""
        values = ffi.new("uint64_t[]", lib.SIM_COUNTERS)
        lib.sim_count(self._handle, values)
        return dict(zip(_COUNTERS, values, strict=True))

    def offences(self) -> dict[str, int]:
        """How many frames were wrong, by what was wrong with them; empty when all was right."""
        counters = list(self.counters().items())
        return {kind: count for kind, count in counters[lib.SIM_FIRST_OFFENCE :] if count}

    def first_offences(self) -> list[Offence]:
        """The first frame of each kind that was wrong."""
        found = []
        raw = ffi.new("struct sim_offence *")
        for counter in range(lib.SIM_FIRST_OFFENCE, lib.SIM_COUNTERS):
            if lib.sim_offence_of(self._handle, counter, raw):
                frame = bytes(ffi.buffer(raw.frame))[: raw.length]
                found.append(
                    Offence(_COUNTERS[counter], raw.index, raw.length, frame, self._client(raw.index, raw.client))
                )
        return found

    def forget_offences(self) -> None:
        """Begin to count them anew."""
        lib.sim_forget_offences(self._handle)

    def census(self, clients: range | None = None) -> dict[ClientState, int]:
        """How many clients are in which state."""
        clients = clients if clients is not None else range(self.clients)
        values = ffi.new("uint64_t[]", lib.SIM_STATES)
        lib.sim_census(self._handle, clients.start, len(clients), values)
        return {state: values[state] for state in ClientState if values[state]}

    def client(self, number: int) -> Client:
        raw = ffi.new("struct sim_client *")
        lib.sim_client_at(self._handle, number, raw)
        return self._client(number, raw)

    def _client(self, number: int, raw: Any) -> Client:
        flags = raw.ctl >> 8 & 0xFF
        return Client(self.address_of(number), self.port_of(number), ClientState(raw.ctl & 0xFF), raw.snd_nxt,
                      raw.snd_una, raw.rcv_nxt, raw.ts_recent, lib.sim_tsval(self._handle, number, raw.sent_ms),
                      raw.window << (raw.ctl >> 24 & 0xF), bool(flags & lib.SIM_F_TIMESTAMPS),
                      raw.ctl >> 16 & 0xFF)  # fmt: skip

    # Trouble

    def drop_every(self, frames: int) -> None:
        """Of the frames that the clients get, lose each n-th; 0: none."""
        lib.sim_settings(self._handle).drop_every = frames

    def lose_every(self, frames: int) -> None:
        """Of the frames that the clients send, lose each n-th; 0: none."""
        lib.sim_settings(self._handle).lose_every = frames

    def expect_loss(self, expected: bool = True) -> None:
        """The network loses frames, so that an acknowledgement may have a number that is ahead of the client's,
        or the echo of an older clock."""
        lib.sim_settings(self._handle).expect_loss = expected


def _words(address: bytes) -> list[int]:
    """An address as struct sim_config has it; IPv4: in the last word."""
    return list(array("I", address.rjust(16, b"\0")))
