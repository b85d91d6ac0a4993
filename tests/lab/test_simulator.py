# SPDX-License-Identifier: Apache-2.0
"""Simulated clients are good ones: the kernel's own TCP cannot tell them from real ones, and they see what is wrong
with an answer."""

from __future__ import annotations

import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.simulator import Client, ClientState, Fault, Outcome, Simulator, Unfinished, _simulator
from tests.lab.echo import Echo

FAMILIES = pytest.mark.parametrize("family", [4, 6])
CLIENTS = 300
KILOBYTES = 9000
_ports = count(9000)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(clients=10, nat=False) as lab:
        yield lab


class Ends:
    """Simulated clients, and the kernel's server that they connect to."""

    def __init__(self, simulator: Simulator, echo: Echo) -> None:
        self.simulator = simulator
        self.echo = echo

    def client_socket(self, client: int) -> socket.socket:
        """The server's end of a client's connection."""
        who = self.simulator.address_of(client), self.simulator.port_of(client)
        wait_until(lambda: who in self.echo.connections, 5, f"client {client} is accepted")
        return self.echo.connections[who]

    def who(self, client: int) -> tuple[str, int]:
        return self.simulator.address_of(client), self.simulator.port_of(client)


@pytest.fixture
def ends(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Ends]:
    """`@pytest.mark.parametrize("ends", [options], indirect=True)` gives arguments of Lab.simulator."""
    options = dict(getattr(request, "param", {}))
    family = options.setdefault("family", 4)
    port = next(_ports)
    with Echo(lab.space("box"), lab.address("box", "wan0", family), port) as echo:
        with lab.simulator(options.pop("clients", CLIENTS), port, to_kernel=True, **options) as simulator:
            yield Ends(simulator, echo)


def all_done(outcome: Outcome, clients: int = CLIENTS) -> bool:
    return outcome.done == outcome.begun == clients


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"family": 6},
    {"timestamps": False},
    {"window_scale": False, "sack": False},
    {"timestamps": False, "window_scale": False, "sack": False, "family": 6},
    {"addresses": 7},
    {"segment": 536},
)


@pytest.mark.parametrize("ends", OPTIONS, indirect=True, ids=str)
def test_a_kernels_server_serves_simulated_clients_like_any_others(ends: Ends) -> None:
    simulator, echo = ends.simulator, ends.echo
    everybody = range(CLIENTS)
    assert all_done(simulator.connect(everybody))
    assert all_done(simulator.keep_alive(everybody))
    assert all_done(simulator.speak(everybody, 100, 100))
    assert all_done(simulator.speak(everybody[::3], KILOBYTES, KILOBYTES), CLIENTS // 3)
    assert simulator.census() == {ClientState.ESTABLISHED: CLIENTS}
    assert all_done(simulator.abort(everybody[:50]), 50)
    assert all_done(simulator.finish(everybody[50:]), CLIENTS - 50)
    assert simulator.census() == {ClientState.DONE: CLIENTS - 50, ClientState.RESET: 50}
    wait_until(lambda: echo.ended + echo.resets == CLIENTS, 5, "the server has seen the end of each")
    assert (echo.accepted, echo.ended, echo.resets) == (CLIENTS, CLIENTS - 50, 50)
    assert echo.received == 100 * CLIENTS + KILOBYTES * CLIENTS // 3
    counters = simulator.counters()
    assert counters["said_bytes"] == counters["heard_bytes"] == echo.received
    assert simulator.offences() == {}, simulator.first_offences()


def test_a_client_can_connect_again(ends: Ends) -> None:
    for _ in range(3):
        assert all_done(ends.simulator.connect(range(CLIENTS)))
        assert all_done(ends.simulator.speak(range(CLIENTS), 200, 200))
        assert all_done(ends.simulator.finish(range(CLIENTS)))
    assert ends.simulator.offences() == {}


def test_a_signal_is_no_failure_to_send(ends: Ends) -> None:
    """The kernel leaves a run of frames for it: a debugger that attaches ended a soak of all faults."""
    assert all_done(ends.simulator.connect(range(CLIENTS)))
    over, sender = threading.Event(), threading.get_ident()

    def send() -> None:
        while not over.wait(0.0002):
            signal.pthread_kill(sender, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    signals = threading.Thread(target=send)
    signals.start()
    try:
        for _ in range(300):
            assert all_done(ends.simulator.speak(range(CLIENTS), 100, 100))
    finally:
        over.set()
        signals.join()
        signal.signal(signal.SIGUSR1, before)


@FAMILIES
def test_handshakes_by_syn_cookies_are_good_ones(lab: Lab, family: int) -> None:
    port = next(_ports)
    lab.sysctl("box", "net.ipv4.tcp_syncookies", 2)  # always
    try:
        with Echo(lab.space("box"), lab.address("box", "wan0", family), port):
            with lab.simulator(CLIENTS, port, family, to_kernel=True) as simulator:
                assert all_done(simulator.connect(range(CLIENTS)))
                assert all_done(simulator.speak(range(CLIENTS), 3000, 3000))
                assert all_done(simulator.finish(range(CLIENTS)))
                assert simulator.offences() == {}, simulator.first_offences()
    finally:
        lab.sysctl("box", "net.ipv4.tcp_syncookies", 1)


@pytest.mark.parametrize("ends", [{"clients": 20}], indirect=True)
def test_a_client_that_lost_its_connection_ends_the_servers_half_and_connects_again(ends: Ends) -> None:
    simulator, some = ends.simulator, range(20)
    simulator.connect(some)
    simulator.speak(some, 10, 10)
    simulator.drop_every(1)
    assert simulator.keep_alive(some, rto_s=0.02, tries=0).lost == 20
    simulator.drop_every(0)
    again = simulator.connect(some, rto_s=0.1)
    assert again.done == 20
    assert again.retransmitted >= 20, "the first SYN of each was for the old one"
    assert simulator.counters()["half_open"] == 20
    wait_until(lambda: ends.echo.resets == 20, 5, "the server's old connections are gone")
    assert all_done(simulator.speak(some, 10, 10), 20)
    assert simulator.offences() == {}, simulator.first_offences()


def test_the_clients_options_are_what_the_server_negotiates(ends: Ends) -> None:
    ends.simulator.connect(range(1))
    info = ends.client_socket(0).getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    timestamps, sack, wscale = 1, 2, 4  # TCPI_OPT_*
    assert info[5] & (timestamps | sack | wscale) == timestamps | sack | wscale
    assert info[6] & 0xF == 7


@pytest.mark.parametrize("ends", [{}, {"family": 6}], indirect=True, ids=str)
def test_clients_end_their_half_when_the_server_has_closed(ends: Ends) -> None:
    simulator = ends.simulator
    simulator.connect(range(CLIENTS))
    for client in range(CLIENTS):
        ends.client_socket(client).shutdown(socket.SHUT_WR)
    wait_until(lambda: simulator.census() == {ClientState.DONE: CLIENTS}, 5, "all ended")
    wait_until(lambda: ends.echo.ended == CLIENTS, 5, "the server has heard their FIN")
    assert simulator.offences() == {}


@pytest.mark.parametrize("ends", [{"answer_fin": False}], indirect=True)
def test_a_client_may_speak_on_after_the_servers_fin(ends: Ends) -> None:
    ends.simulator.connect(range(1))
    server = ends.client_socket(0)
    ends.echo.deaf(ends.who(0))
    server.shutdown(socket.SHUT_WR)
    wait_until(lambda: ends.simulator.client(0).state is ClientState.CLOSE_WAIT, 5, "the FIN is heard")
    assert all_done(ends.simulator.speak(range(1), 5000, 0), 1)
    assert server.recv(10_000) == ends.simulator.pattern(0, 0, 5000)
    assert all_done(ends.simulator.finish(range(1)), 1)
    assert server.recv(1) == b""
    assert ends.simulator.client(0).state is ClientState.DONE
    assert ends.simulator.offences() == {}


def test_an_rst_closes_a_client_and_is_counted(ends: Ends) -> None:
    ends.simulator.connect(range(10))
    for client in range(4):
        server = ends.client_socket(client)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ends.echo.deaf(ends.who(client))
        server.close()
    wait_until(lambda: ends.simulator.counters()["reset"] == 4, 5, "the RSTs are heard")
    assert ends.simulator.census(range(10)) == {ClientState.RESET: 4, ClientState.ESTABLISHED: 6}
    outcome = ends.simulator.keep_alive(range(10))
    assert (outcome.done, outcome.skipped) == (6, 4), "who has no connection keeps none alive"


@FAMILIES
def test_a_port_where_nobody_listens_refuses(lab: Lab, family: int) -> None:
    with lab.simulator(20, next(_ports), family, to_kernel=True) as simulator:
        outcome = simulator.connect(range(20))
        assert (outcome.refused, outcome.done, outcome.waiting) == (20, 0, 0)
        assert simulator.census() == {ClientState.REFUSED: 20}


def test_what_a_server_sends_by_itself_is_taken_and_checked(ends: Ends) -> None:
    simulator = ends.simulator
    simulator.connect(range(3))
    ends.client_socket(0).sendall(simulator.pattern(0, 0, 20_000))
    wait_until(lambda: simulator.counters()["heard_bytes"] == 20_000, 5, "it is heard")
    assert simulator.counters()["unasked_bytes"] == 20_000
    assert simulator.offences() == {}
    server = ends.client_socket(1)
    listening = threading.Timer(0.2, server.sendall, [simulator.pattern(1, 0, 3000)])
    listening.start()
    assert all_done(simulator.speak(range(1, 2), 0, 3000), 1), "a client may wait without saying anything"
    listening.join()
    ends.client_socket(2).sendall(simulator.pattern(2, 1, 100))  # one byte is missing
    wait_until(lambda: simulator.offences() == {"bad_payload": 1}, 5, "it is seen")
    [offence] = simulator.first_offences()
    assert (offence.kind, offence.client) == ("bad_payload", 2)


def test_a_byte_that_came_back_wrong_is_an_offence(lab: Lab) -> None:
    def wrong(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    port = next(_ports)
    with Echo(lab.space("box"), lab.address("box", "wan0"), port, wrong) as echo, ExitStack() as stack:
        simulator = stack.enter_context(lab.simulator(10, port, to_kernel=True))
        simulator.connect(range(10))
        for size in (1, 7, 8, 9, 1400):
            simulator.forget_offences()
            echo.answer = bytes
            assert all_done(simulator.speak(range(5), size, size), 5)
            assert simulator.offences() == {}
            echo.answer = wrong
            assert all_done(simulator.speak(range(1), size, size), 1)
            assert simulator.offences() == {"bad_payload": 1}, size


def test_a_servers_keepalives_are_answered(ends: Ends) -> None:
    ends.simulator.connect(range(1))
    server = ends.client_socket(0)
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1),
    ):
        server.setsockopt(level, option, value)
    wait_until(lambda: ends.simulator.counters()["probed_by_peer"] == 3, 8, "it has probed three times")
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert all_done(ends.simulator.speak(range(1), 10, 10), 1)
    assert ends.simulator.offences() == {}


def test_clients_honour_the_servers_window(ends: Ends) -> None:
    simulator, echo = ends.simulator, ends.echo
    echo.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    simulator.connect(range(1))
    server = ends.client_socket(0)
    echo.deaf(ends.who(0))
    with pytest.raises(Unfinished) as stuck:
        simulator.speak(range(1), 60_000, 60_000, rto_s=0.1, timeout_s=1, tries=100)
    assert stuck.value.outcome.waiting == 1
    client = simulator.client(0)
    assert 0 < simulator.counters()["said_bytes"] < 20_000
    assert client.snd_nxt - client.snd_una <= client.window + 1
    echo.deaf(ends.who(0), False)
    wait_until(lambda: bool(simulator.tend(0.1)) or simulator.counters()["spoken"] == 1, 5, "the window opens")
    wait_until(lambda: simulator.tend(0.1) >= 0 and simulator.counters()["spoken"] == 1, 10, "all is said and heard")
    assert simulator.offences() == {}
    assert echo.received == 60_000
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


@pytest.mark.parametrize("ends", [{"clients": 20}, {"clients": 20, "family": 6}], indirect=True, ids=str)
def test_what_the_clients_do_not_get_is_sent_again(ends: Ends) -> None:
    simulator = ends.simulator
    simulator.drop_every(5)
    assert all_done(simulator.connect(range(20), rto_s=0.2), 20)
    assert all_done(simulator.speak(range(20), KILOBYTES, KILOBYTES, rto_s=0.2), 20)
    assert all_done(simulator.finish(range(20), rto_s=0.2), 20)
    counters = simulator.counters()
    assert counters["dropped"] > 30
    assert counters["retransmitted"] > 0
    assert counters["heard_bytes"] == ends.echo.received == 20 * KILOBYTES
    assert simulator.offences() == {}, simulator.first_offences()


@pytest.mark.parametrize("ends", [{"clients": 20}], indirect=True)
def test_what_the_server_does_not_get_is_sent_again(lab: Lab, ends: Ends) -> None:
    simulator = ends.simulator
    lab.nft("box", f"""
        table netdev lossy {{
            chain in {{
                type filter hook ingress device "{simulator.box_interface}" priority 0;
                numgen inc mod 8 0 counter drop
            }}
        }}""")  # fmt: skip
    try:
        simulator.expect_loss()
        assert all_done(simulator.connect(range(20), rto_s=0.2), 20)
        assert all_done(simulator.keep_alive(range(20), rto_s=0.6), 20)
        assert all_done(simulator.speak(range(20), KILOBYTES, KILOBYTES, rto_s=0.2), 20)
        assert all_done(simulator.finish(range(20), rto_s=0.2), 20)
    finally:
        lab.nft("box", "delete table netdev lossy")
    assert simulator.counters()["retransmitted"] > 20
    assert ends.echo.received == 20 * KILOBYTES
    assert simulator.offences() == {}, simulator.first_offences()


@pytest.mark.parametrize("ends", [{"clients": 1}], indirect=True)
def test_an_answer_may_echo_what_was_sent_before_a_segment_that_was_lost(lab: Lab, ends: Ends) -> None:
    """The handshake takes a second, for the SYN-ACK is lost once, and its last segment is lost, too: a probe is then
    answered with the clock of the SYN."""
    simulator = ends.simulator
    simulator.expect_loss()
    lab.nft("box", f"""
        table netdev lossy {{
            chain in {{
                type filter hook ingress device "{simulator.box_interface}" priority 0;
                tcp flags & (syn | ack) == ack quota until 60 bytes drop
            }}
        }}
        table inet lossy {{
            chain out {{
                type filter hook output priority 0;
                oifname "{simulator.box_interface}" tcp flags & (syn | ack) == syn | ack quota until 70 bytes drop
            }}
        }}""")  # fmt: skip
    try:
        assert all_done(simulator.connect(range(1), rto_s=5), 1)
        assert all_done(simulator.keep_alive(range(1), rto_s=0.6), 1)
    finally:
        lab.nft("box", "delete table netdev lossy; delete table inet lossy")
    assert simulator.offences() == {}, simulator.first_offences()


@pytest.mark.parametrize("ends", [{"clients": 4}], indirect=True)
def test_a_client_that_is_never_answered_gives_up_and_is_counted(lab: Lab, ends: Ends) -> None:
    simulator = ends.simulator
    simulator.connect(range(3))
    simulator.drop_every(1)
    quick: dict[str, Any] = {"rto_s": 0.02, "tries": 3, "timeout_s": 10}
    for lost in (simulator.connect(range(3, 4), **quick), simulator.keep_alive(range(1), **quick),
                 simulator.speak(range(1, 2), 10, 10, **quick), simulator.finish(range(2, 3), **quick)):  # fmt: skip
        assert (lost.begun, lost.lost, lost.done) == (1, 1, 0)
        assert lost.retransmitted == 3
    counters = simulator.counters()
    assert [counters[f"lost_{what}"] for what in ("connecting", "probed", "asking", "ending")] == [1, 1, 1, 1]
    assert simulator.census() == {ClientState.LOST: 4}


FAULTS = {
    Fault.CHECKSUM: "bad_checksum",
    Fault.IP_CHECKSUM: "bad_ip_checksum",
    Fault.SEQ: "bad_seq",
    Fault.ACK: "bad_ack",
    Fault.TSVAL: "old_tsval",
    Fault.TSECR: "bad_tsecr",
    Fault.ZERO_TSECR: "zero_tsecr",
    Fault.FLAGS: "bad_flags",
    Fault.PORT: "bad_peer",
    Fault.NO_TIMESTAMP: "no_timestamp",
    Fault.RESET: "bad_reset",
}


@FAMILIES
def test_every_fault_of_an_answer_is_seen_named_and_not_taken_for_an_answer(lab: Lab, family: int) -> None:
    assert set(FAULTS) == set(Fault) - {Fault.NONE}
    with lab.simulator(len(FAULTS), next(_ports), family) as simulator, simulator.reflector() as reflector:
        assert all_done(simulator.connect(range(len(FAULTS))), len(FAULTS))
        assert all_done(simulator.keep_alive(range(len(FAULTS))), len(FAULTS))
        assert simulator.offences() == {}, simulator.first_offences()
        for client, (fault, kind) in enumerate(FAULTS.items()):
            if family == 6 and fault is Fault.IP_CHECKSUM:
                continue  # IPv6 has none
            simulator.forget_offences()
            reflector.fault(fault)
            outcome = simulator.keep_alive(range(client, client + 1), rto_s=0.02, tries=2)
            assert (outcome.done, outcome.lost) == (0, 1), fault
            assert simulator.offences() == {kind: 3}, (fault, simulator.first_offences())
            [offence] = simulator.first_offences()
            assert (offence.kind, offence.client, offence.length) == (kind, client, 66 if family == 4 else 86)
            assert len(offence.frame) == offence.length
            assert offence.before.state is ClientState.ESTABLISHED


@pytest.mark.parametrize("fault", [Fault.CHECKSUM, Fault.ACK, Fault.TSECR, Fault.ZERO_TSECR, Fault.PORT])
def test_a_handshake_with_a_fault_is_none(lab: Lab, fault: Fault) -> None:
    with lab.simulator(10, next(_ports)) as simulator, simulator.reflector() as reflector:
        reflector.fault(fault)
        outcome = simulator.connect(range(10), rto_s=0.02, tries=0)
        assert (outcome.done, outcome.lost) == (0, 10)
        assert simulator.offences() == {FAULTS[fault]: 10}


@FAMILIES
def test_an_echo_of_zero_is_none_for_a_client_whose_clock_is_near_zero(lab: Lab, family: int) -> None:
    clients, allowance_ms = 20_000, 7_200_000  # so far back reaches an echo for what was sent more than once
    with lab.simulator(clients, next(_ports), family) as simulator, simulator.reflector() as reflector:
        now_ms = time.monotonic_ns() // 1_000_000
        offset = [simulator.client(i).tsval for i in range(clients)]  # of what was sent at 0
        young = [i for i in range(clients) if 60_000 < (offset[i] + now_ms) % 2**32 < allowance_ms - 60_000][:2]
        assert len(young) == 2  # one in 600
        first, second = (range(i, i + 1) for i in young)
        assert all_done(simulator.connect(first), 1)
        reflector.fault(Fault.ZERO_TSECR)
        for outcome in (simulator.keep_alive(first, rto_s=0.02, tries=2), simulator.connect(second, rto_s=0.02)):
            assert (outcome.done, outcome.lost) == (0, 1)
        assert set(simulator.offences()) == {"zero_tsecr"}


def test_a_client_is_32_bytes_and_has_an_address_and_port_of_its_own(lab: Lab) -> None:
    clients = 1_000_000
    with lab.simulator(clients, next(_ports), addresses=1000) as simulator:
        assert _simulator.ffi.sizeof("struct sim_client") == 32
        some = range(0, clients, 37)
        assert len({(simulator.address_of(i), simulator.port_of(i)) for i in some}) == len(some)
        with simulator.reflector():
            assert all_done(simulator.connect(range(clients - 500, clients)), 500)


def test_a_rate_is_kept(lab: Lab) -> None:
    with lab.simulator(2000, next(_ports)) as simulator, simulator.reflector():
        outcome = simulator.connect(range(2000), rate=4000)
        assert all_done(outcome, 2000)
        assert 3600 < outcome.per_s <= 4000


def test_each_end_can_have_a_processor_of_its_own(lab: Lab) -> None:
    with lab.simulator(5000, next(_ports)) as simulator, simulator.reflector():
        with simulator.one_core_each(box_cpu=1, own_cpu=0) as threads:
            assert all_done(simulator.connect(range(5000)), 5000)
            outcome = simulator.keep_alive(range(5000))
            assert all_done(outcome, 5000)
            assert len(threads) == 1
        assert all_done(simulator.keep_alive(range(5000)), 5000), "and it is taken back"
        assert simulator.offences() == {}


def test_client_numbers_that_do_not_exist_are_refused(lab: Lab) -> None:
    with lab.simulator(10, next(_ports)) as simulator:
        for numbers in (range(5, 11), [3, -1]):
            with pytest.raises(ValueError, match="has 10 clients"):
                simulator.connect(numbers)


def _essence(client: Client) -> tuple[ClientState, int, int]:
    return client.state, client.snd_nxt, client.rcv_nxt


def test_strangers_cannot_move_a_client(ends: Ends) -> None:
    """A frame of another client's numbers, or for no connection, changes nothing."""
    simulator = ends.simulator
    simulator.connect(range(2))
    before = [_essence(simulator.client(i)) for i in range(2)]
    assert before[0] != before[1]
    simulator.keep_alive(range(2))
    assert [_essence(simulator.client(i)) for i in range(2)] == before


@FAMILIES
def test_spoofed_syns_reach_the_server_and_their_senders_disown_them(lab: Lab, family: int) -> None:
    port = next(_ports)
    with (
        Echo(lab.space("box"), lab.address("box", "wan0", family), port) as echo,
        lab.simulator(CLIENTS, port, family, to_kernel=True) as simulator,
    ):
        sent = simulator.spoof_syns(range(CLIENTS), seconds=0.5, rate=10_000)
        assert sent >= CLIENTS, "each in turn"
        wait_until(
            lambda: simulator.counters()["stray"] >= CLIENTS, 5, "the server answered, and was told to forget it"
        )
        assert simulator.census() == {ClientState.CLOSED: CLIENTS}
        assert echo.accepted == 0
        assert simulator.offences() == {}


def test_segments_outside_of_the_window_leave_both_ends_as_they_were(ends: Ends) -> None:
    simulator = ends.simulator
    assert all_done(simulator.connect(range(CLIENTS)))
    before = [_essence(simulator.client(i)) for i in range(CLIENTS)]
    assert simulator.spoof_segments(range(CLIENTS), seconds=0.5, rate=10_000) >= CLIENTS
    assert all_done(simulator.speak(range(CLIENTS), 100, 100)), "the connections live"
    now = [_essence(simulator.client(i)) for i in range(CLIENTS)]
    assert [(state, sent - 100 & 0xFFFFFFFF, heard - 100 & 0xFFFFFFFF) for state, sent, heard in now] == before


def test_only_clients_that_exist_are_spoofed(lab: Lab) -> None:
    with lab.simulator(10, next(_ports)) as simulator:
        for clients in (range(0), range(5, 11), range(0, 10, 2)):
            with pytest.raises(ValueError, match="has 10 clients"):
                simulator.spoof_syns(clients, seconds=1)
