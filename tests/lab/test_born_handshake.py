# SPDX-License-Identifier: Apache-2.0
"""The handshake of clients that are born asleep, segment by segment: what they may do, in whatever order, and what they
are told. Their segments are made by hand (handmade.py)."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q

from appliance.wire import KA, Born, OnServerClose, Op
from control.core.states import Cause, State
from tests.lab.aging import let_socket_notes_run_out
from tests.lab.engine_lab import EngineLab, Pair, receive
from tests.lab.handmade import LINUX, OUR_WSCALE, Handmade, hide
from tests.lab.wire import MOD, Wire, timestamps_of, vlan_device

BORN = {"born": Born.ALWAYS}
BOTH = pytest.mark.parametrize("family", [4, 6])
TIMESTAMPS, SACK, WSCALE = 1, 2, 4
LATER = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (100_000, 0)), ("NOP", None), ("WScale", 9)]
CLOCK_STEP_S = 0.04
"""Until a SYN-ACK is later by its TSval, which carries something else in its lowest bits."""
NO_TIMESTAMPS = tuple(option for option in LINUX if option[0] != "Timestamp")


class Ward:
    """The appliance, and how clients come to it. `stat` counts from when the test began."""

    def __init__(self, box: EngineLab, wire: Wire) -> None:
        self.box, self.wire = box, wire
        self._clients: list[Handmade] = []
        self._before = box.engine.stats()
        wire.clear()

    def stat(self, name: str) -> int:
        return self.box.stat(name) - self._before[name]

    def client(self, family: int = 4, **options: Any) -> Handmade:
        self._clients.append(Handmade(self.wire, self.box.target(family), **options))
        return self._clients[-1]

    def close(self) -> None:
        """Its clients end what they have, and nothing of it is left at the servers' listeners."""
        for client in reversed(self._clients):
            if self.state(client) is not None:
                client.send("R", options=[])
                self.box.wait(lambda client=client: self.state(client) is None, "it is reset")  # type: ignore[misc]
        for family in (4, 6):
            while not self.box.no_server_is_asked(family):
                self.box.accept(family)

    def born(self, family: int = 4, **options: Any) -> Handmade:
        """A client that has shaken hands and sleeps."""
        client = self.client(family, **options)
        client.syn()
        client.ack()
        self.sleeps(client)
        return client

    def state(self, client: Handmade) -> State | None:
        found = self.box.engine.find(client.key)
        return State(found.to_state) if found else None

    def sleeps(self, client: Handmade) -> None:
        self.box.wait(lambda: self.state(client) is State.IDLE, "it is born")
        assert self.stat("awake") == 0, "without a socket"

    def pair(self, client: Handmade, server: socket.socket) -> Pair:
        """As EngineLab knows a connection; there is no client's socket."""
        return Pair(server, server, client.key, self.number(client))

    def number(self, client: Handmade) -> int:
        return next(event.id for event in self.box.events if event.record.key_raw == client.key.pack() and event.id)

    def transitions(self, client: Handmade) -> list[tuple[State, State, Cause]]:
        key = client.key.pack()
        return [(State(e.from_state), State(e.to_state), Cause(e.cause)) for e in self.box.events
                if e.record.key_raw == key and e.to_state]  # fmt: skip

    def gone(self, client: Handmade) -> None:
        self.box.wait(lambda: self.state(client) is None, "it is gone")
        assert (self.stat("table_ipv4"), self.stat("table_ipv6"), self.stat("born")) == (0, 0, 0)

    def converse(self, client: Handmade, question: bytes = b"question") -> socket.socket:
        """The client says its first word, and is answered by a server: this one."""
        client.say(question)
        server = self.box.accept(client.family)
        assert receive(server, len(question)) == question
        server.sendall(b"answer")
        heard = client.hear(lambda tcp: bytes(tcp.payload) == b"answer")
        assert (heard[TCP].seq, heard[TCP].ack) == (client.rcv_nxt, client.snd_nxt % MOD)
        client.rcv_nxt = (client.rcv_nxt + len(b"answer")) % MOD
        client.ack()
        return server


@contextmanager
def opened(**options: Any) -> Iterator[Callable[[], Ward]]:
    """An appliance, for any number of wards, one after the other."""
    with EngineLab(exact_frames=True, **options) as box, Wire(box) as wire:
        hide(box.lab)
        yield lambda: Ward(box, wire)


@pytest.fixture(scope="module")
def plain() -> Iterator[Callable[[], Ward]]:
    with opened(service=BORN | {"on_server_close": OnServerClose.CLIENT}) as new_ward:
        yield new_ward


@pytest.fixture(scope="module")
def generic() -> Iterator[Callable[[], Ward]]:
    with opened(service=BORN, xdp_mode="generic") as new_ward:
        yield new_ward


@pytest.fixture(scope="module")
def probing() -> Iterator[Callable[[], Ward]]:
    with opened(service=BORN | {"probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 2}) as new_ward:
        yield new_ward


@pytest.fixture
def ward(request: pytest.FixtureRequest) -> Iterator[Ward]:
    """Of the appliance that `@pytest.mark.appliance("plain")` names."""
    mark = request.node.get_closest_marker("appliance")
    new_ward: Callable[[], Ward] = request.getfixturevalue(mark.args[0] if mark else "plain")
    with closing(new_ward()) as ward:
        yield ward


@BOTH
def test_a_syn_leaves_nothing_behind(ward: Ward, family: int) -> None:
    client = ward.client(family)
    client.syn()
    assert ward.state(client) is None
    changed = {name for name in ward.box.engine.stats() if ward.stat(name)}
    assert changed == {"syn_cookies"}


@BOTH
@pytest.mark.parametrize(
    ("options", "agreed"),
    [
        pytest.param(LINUX, TIMESTAMPS | SACK | WSCALE, id="linux"),
        pytest.param((), 0, id="none"),
        pytest.param((("MSS", 1400),), 0, id="mss"),
        pytest.param(NO_TIMESTAMPS, 0, id="no-timestamps"),
        pytest.param((("MSS", 1460), ("Timestamp", (5, 0))), TIMESTAMPS, id="timestamps-alone"),
        pytest.param((("Timestamp", (5, 0)), ("SAckOK", b"")), TIMESTAMPS | SACK, id="no-wscale-no-mss"),
        pytest.param((("NOP", None),) * 7 + (("WScale", 0), ("Timestamp", (0, 0)), ("MSS", 1460)),
                     TIMESTAMPS | WSCALE, id="scale-0-clock-0"),
        pytest.param((("Timestamp", (2**32 - 1, 0)), ("WScale", 14), ("EOL", None)), TIMESTAMPS | WSCALE,
                     id="scale-14"),
        pytest.param((("NOP", None),) * 27 + (("Timestamp", (5, 0)), ("WScale", 3)), TIMESTAMPS | WSCALE, id="far-end"),
        pytest.param((("Timestamp", (5, 0)), (254, b"\xf9\x89"), (34, b""), ("WScale", 3), ("SAckOK", b"")),
                     TIMESTAMPS | SACK | WSCALE, id="unknown-ones"),
    ],
)  # fmt: skip
def test_what_both_agree_on_is_what_the_syn_ack_says(ward: Ward, family: int, options: Any, agreed: int) -> None:
    """RFC 7323 1.3, RFC 2018 2: what the SYN did not offer must not be in the SYN-ACK. The record says the same."""
    client = ward.client(family, options=options)
    offered = dict(options)
    answer = client.syn()
    told = dict(answer[TCP].options)
    said = (TIMESTAMPS if "Timestamp" in told else 0) | (SACK if "SAckOK" in told else 0)
    said |= WSCALE if "WScale" in told else 0
    assert said == agreed
    assert told["MSS"] == (1460 if family == 4 else 1440)
    if agreed & TIMESTAMPS:
        assert told["Timestamp"][1] == offered["Timestamp"][0]
    client.ack()
    ward.sleeps(client)
    found = ward.box.engine.find(client.key)
    assert found is not None
    ctl, snd_nxt, rcv_nxt, _, _, _, window, *_ = KA.unpack(found.record.ka)
    assert (ctl >> 16 & 0xFF, snd_nxt, rcv_nxt) == (agreed, client.rcv_nxt, client.snd_nxt)
    scales = (offered["WScale"], OUR_WSCALE) if agreed & WSCALE else (0, 0)
    assert (ctl >> 24 & 0xF, ctl >> 28) == scales
    assert window << scales[1] == answer[TCP].window, "the window is not drawn back"
    ward.converse(client)


@BOTH
@pytest.mark.parametrize("mss", [536, 537, 1219, 1220, 1300, 1399, 1400, 1459, 1460, 8960, 65535])
def test_no_segment_is_larger_than_the_client_takes(ward: Ward, family: int, mss: int) -> None:
    client = ward.client(family, options=[("MSS", mss), *LINUX[1:]])
    client.syn()
    client.ack(window=60000)
    client.say(b"give me much")
    server = ward.box.accept(family)
    server.sendall(bytes(20_000))
    segment = client.hear(lambda tcp: len(tcp.payload) > 200)
    assert len(segment[TCP].payload) + 12 <= mss, "the options count (RFC 6691)"
    if mss >= 1220:
        assert len(segment[TCP].payload) + 12 > min(mss, 1440) - 100, "nor is it much smaller"


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"payload": b"early data"}, id="data"),
        pytest.param({"payload": b"\2\4\5\xb4" * 60}, id="much-data"),
        pytest.param({"options": [("MSS", 400)]}, id="mss-400"),
        pytest.param({"options": [("MSS", 0)]}, id="mss-0"),
    ],
)
def test_an_unusual_syn_is_the_kernels(ward: Ward, family: int, fields: dict[str, Any]) -> None:
    client = ward.client(family)
    client.syn(**fields)
    assert ward.stat("syn_cookies") == 0
    ward.box.wait(lambda: not ward.stat("accepted"), "only shaken hands count")
    client.ack()
    ward.box.wait(lambda: ward.stat("accepted") == 1, "the kernel accepts it")
    assert ward.stat(f"born_ipv{family}") == 0


@BOTH
def test_data_after_a_syns_header_is_not_taken_for_options(ward: Ward, family: int) -> None:
    """A SYN whose four bytes of data look like an MSS option."""
    client = ward.client(family, options=())
    client.syn(payload=b"\x02\x04\x05\xb4")
    assert ward.stat("syn_cookies") == 0


@BOTH
@pytest.mark.parametrize("flags", ["SEC", "SP", "SU"])
def test_a_syn_with_other_bits_is_answered_and_agrees_to_no_ecn(ward: Ward, family: int, flags: str) -> None:
    client = ward.client(family)
    client.send(flags, seq=client.isn, options=client.options)
    answer = client.hear()
    assert str(answer[TCP].flags) == "SA"
    client.take(answer)
    client.ack()
    ward.converse(client)


@pytest.mark.parametrize("flags", ["SF", "SR", "", "F", "R", "P", "FPU", "RA", "SRA", "SFA"])
def test_other_first_words_bear_nobody_and_draw_no_syn_ack(ward: Ward, flags: str) -> None:
    client = ward.client()
    client.send(flags, seq=client.isn, ack=1, options=client.options)
    assert [str(p[TCP].flags) for p in client.all_heard() if p[TCP].flags.S] == []
    assert ward.state(client) is None
    assert ward.stat("syn_cookies") == ward.stat("awake") == ward.stat("table_ipv4") == 0


@BOTH
def test_syns_and_acks_that_come_again_change_nothing(ward: Ward, family: int) -> None:
    client = ward.client(family)
    first = client.syn()
    again = client.syn()
    assert again[TCP].seq == first[TCP].seq, "within a minute the cookie is the same"
    for _ in range(3):
        client.ack()
    ward.sleeps(client)
    assert (ward.stat(f"born_ipv{family}"), ward.stat(f"table_ipv{family}")) == (1, 1)
    client.send("S", seq=client.isn, options=client.options)  # one that was long on its way
    assert [str(p[TCP].flags) for p in client.all_heard()] == ["A"], "challenged (RFC 5961 4.2)"
    ward.converse(client)


@BOTH
@pytest.mark.parametrize("options", [LINUX, NO_TIMESTAMPS], ids=["timestamps", "none"])
@pytest.mark.parametrize("payload", [b"!", b"hello", bytes(1400)], ids=["1", "5", "1400"])
def test_data_instead_of_the_acknowledgement_is_both(ward: Ward, family: int, options: Any, payload: bytes) -> None:
    """The ACK was lost, or never sent: RFC 9293 lets the first data end the handshake."""
    client = ward.client(family, options=options)
    client.syn()
    ward.converse(client, payload)
    ward.box.wait(lambda: ward.transitions(client), "the engine tells of it")
    assert ward.transitions(client)[0] == (State.NONE, State.IDLE, Cause.CLIENT_CONNECT)


@BOTH
@pytest.mark.parametrize("options", [LINUX, NO_TIMESTAMPS], ids=["timestamps", "none"])
def test_a_keepalive_instead_of_the_acknowledgement_bears_it(ward: Ward, family: int, options: Any) -> None:
    client = ward.client(family, options=options)
    client.syn()
    client.keepalive()
    answer = client.hear()
    assert (answer[TCP].seq, answer[TCP].ack) == (client.rcv_nxt, client.snd_nxt)
    ward.sleeps(client)
    ward.converse(client)


@BOTH
@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("layout", ["Linux", "bare"])
def test_a_syn_with_a_tag_is_answered_with_it_where_there_is_a_device_of_its_vlan(
    ward: Ward, family: int, layout: str, number: int
) -> None:
    """A tag of priority alone (IEEE 802.1Q 6.8) has the id 0, and is the interface's own."""
    client = ward.client(family, options=LINUX if layout == "Linux" else ())
    syn = client.ip() / client.tcp("S", options=client.options)
    ward.wire.send(syn, vlan=6)
    assert client.all_heard() == []
    with vlan_device(ward.box, 7):
        ward.wire.send(syn, vlan=number)
        answer = client.hear()
        assert answer[Dot1Q].vlan == number
        client.take(answer)
        ward.wire.send(client.ip() / client.tcp("A"), vlan=number)
        ward.sleeps(client)
    ward.converse(client)
    assert ward.stat("syn_cookies") == 1


@BOTH
def test_a_fin_as_the_first_word_is_answered_and_leaves_nothing(ward: Ward, family: int) -> None:
    client = ward.born(family)
    client.send("FA")
    client.snd_nxt += 1
    end = client.hear(lambda tcp: tcp.flags.F or tcp.flags.R)
    assert end[TCP].ack == client.snd_nxt
    client.rcv_nxt += 1
    client.ack()
    ward.gone(client)
    ward.box.wait(lambda: ward.transitions(client)[-1:] == [(State.IDLE, State.CLOSED, Cause.CLIENT_CLOSE)], "told")


@BOTH
def test_a_fin_instead_of_the_acknowledgement_is_answered_too(ward: Ward, family: int) -> None:
    client = ward.client(family)
    client.syn()
    client.send("FA")
    end = client.hear(lambda tcp: tcp.flags.F or tcp.flags.R)
    assert end[TCP].ack == client.snd_nxt + 1
    ward.gone(client)


@BOTH
def test_a_reset_as_the_first_word_leaves_nothing(ward: Ward, family: int) -> None:
    client = ward.born(family)
    client.send("R")
    ward.gone(client)
    ward.box.wait(lambda: ward.transitions(client)[-1:] == [(State.IDLE, State.CLOSED, Cause.CLIENT_CLOSE)], "told")


@BOTH
def test_a_reset_instead_of_the_acknowledgement_bears_nobody(ward: Ward, family: int) -> None:
    client = ward.client(family)
    client.syn()
    client.send("R")
    client.send("RA")
    assert client.all_heard() == []
    assert ward.stat(f"born_ipv{family}") == 0


@BOTH
def test_our_clock_never_goes_back_from_the_syn_ack_on(ward: Ward, family: int) -> None:
    """RFC 7323 5.3: the client would drop what is older than what it heard."""
    for _ in range(12):  # the options take the SYN-ACK's lowest bits, whatever the time is
        client = ward.client(family)
        seen = [client.syn()]
        client.ack()
        for _ in range(2):
            client.keepalive()
            seen.append(client.hear())
        clock = [stamps[0] for packet in seen if (stamps := timestamps_of(packet)) is not None]
        assert len(clock) == 3
        assert all((later - earlier) % MOD < 500 for earlier, later in itertools.pairwise(clock)), clock
    client.say(b"now")
    server = ward.box.accept(family)
    server.sendall(b"then")
    stamps = timestamps_of(client.hear(lambda tcp: bytes(tcp.payload) == b"then"))
    assert stamps is not None
    assert (stamps[0] - clock[-1]) % MOD < 2000
    assert stamps[1] == client.clock


@BOTH
def test_keepalives_of_one_born_asleep_are_answered_with_the_window_it_was_told(ward: Ward, family: int) -> None:
    client = ward.client(family)
    edge = client.syn()[TCP].window
    client.ack()
    probes: list[dict[str, Any]] = [{}, {}, {"options": []}]
    for fields in probes:
        client.keepalive(**fields)
        answer = client.hear()
        assert (str(answer[TCP].flags), answer[TCP].seq, answer[TCP].ack) == ("A", client.rcv_nxt, client.snd_nxt)
        assert answer[TCP].window << OUR_WSCALE == edge
        assert timestamps_of(answer) is not None
    assert ward.stat("keepalives_answered") == 3
    ward.sleeps(client)
    ward.converse(client)


@BOTH
def test_a_client_that_comes_again_from_the_same_port_while_it_sleeps_is_taken_in_anew(ward: Ward, family: int) -> None:
    """RFC 9293 3.5.1: it lost its memory. The SYN draws a challenge ACK, the RST for that ends the old connection, and
    the SYN that comes again begins a new one."""
    old = ward.born(family, port=31_000)
    new = ward.client(family, port=31_000, isn=old.isn + 5_000_000)
    new.send("S", seq=new.isn, options=new.options)
    challenge = new.hear()
    assert (str(challenge[TCP].flags), challenge[TCP].ack) == ("A", old.snd_nxt)
    new.send("R", seq=challenge[TCP].ack, options=[])
    ward.box.wait(lambda: ward.state(new) is None, "the old one is closed")
    time.sleep(CLOCK_STEP_S)
    new.syn()
    new.ack()
    ward.sleeps(new)
    ward.converse(new)


@BOTH
def test_a_syn_for_which_the_kernel_has_a_socket_is_that_ones(ward: Ward, family: int) -> None:
    """It is awake: a second answer, with other numbers, would leave the client with half a connection."""
    old = ward.born(family, port=31_001)
    ward.converse(old)
    new = ward.client(family, port=31_001, isn=old.isn + 5_000_000)
    new.send("S", seq=new.isn, options=new.options)
    challenge = new.hear(lambda tcp: not len(tcp.payload))
    assert (str(challenge[TCP].flags), challenge[TCP].ack) == ("A", old.snd_nxt)
    new.send("R", seq=challenge[TCP].ack, options=[])
    ward.box.wait(lambda: ward.stat("awake") == 0, "the old one is closed")
    time.sleep(CLOCK_STEP_S)
    new.syn()
    new.ack()
    ward.sleeps(new)
    ward.converse(new)


@BOTH
def test_a_client_that_returns_to_a_port_in_time_wait_is_served(ward: Ward, family: int) -> None:
    """The appliance ended the last connection, so its kernel remembers the port for a minute."""
    old = ward.born(family, port=31_002)
    ward.converse(old).close()
    fin = old.hear(lambda tcp: bool(tcp.flags.F))
    old.rcv_nxt = (fin[TCP].seq + len(fin[TCP].payload) + 1) % MOD
    old.send("FA")
    assert old.hear()[TCP].ack == old.snd_nxt + 1
    new = ward.client(family, port=31_002, isn=old.isn + 5_000_000, options=LATER)
    new.syn()
    new.ack()
    ward.converse(new)


def _ended_by_both(ward: Ward, client: Handmade) -> None:
    """The client ends first, then the server: the kernel waits for the last acknowledgement of it."""
    server = ward.converse(client)
    let_socket_notes_run_out(ward.box.pin_dir)
    client.send("FA")
    client.snd_nxt += 1
    assert server.recv(1) == b""
    server.close()
    fin = client.hear(lambda tcp: bool(tcp.flags.F))
    client.rcv_nxt = (fin[TCP].seq + 1) % MOD
    ward.box.wait(lambda: ward.state(client) is None, "the engine is done with it")


def _ended_by_the_server(ward: Ward, client: Handmade) -> None:
    """The server ends first, so the kernel remembers the connection (TIME-WAIT)."""
    server = ward.converse(client)
    let_socket_notes_run_out(ward.box.pin_dir)
    server.close()
    fin = client.hear(lambda tcp: bool(tcp.flags.F))
    client.rcv_nxt = (fin[TCP].seq + 1) % MOD
    client.send("FA")
    client.snd_nxt += 1
    assert client.hear()[TCP].ack == client.snd_nxt
    ward.box.wait(lambda: ward.state(client) is None, "the engine is done with it")


@BOTH
@pytest.mark.parametrize("ended", [_ended_by_both, _ended_by_the_server], ids=["last-ack", "time-wait"])
def test_nobody_is_born_beside_what_is_left_of_a_socket(
    ward: Ward, family: int, ended: Callable[[Ward, Handmade], None]
) -> None:
    """However long the connection lasted: what was noted when it began is forgotten."""
    old = ward.born(family)
    ended(ward, old)
    cookies = ward.stat("syn_cookies")
    new = ward.client(family, port=old.port, isn=old.isn + 5_000_000, options=LATER)
    new.send("S", seq=new.isn, options=new.options)
    assert new.hear()[TCP].flags.A, "the kernel says what is to be said"
    assert ward.stat("syn_cookies") == cookies


@pytest.mark.parametrize("source", ["127.0.0.1", "0.0.0.0", "224.0.0.9", "255.255.255.255", "198.18.0.1"])
def test_a_syn_from_an_address_that_no_client_can_have_is_the_kernels_to_drop(ward: Ward, source: str) -> None:
    client = ward.client()
    client.address = source
    client.send("S", seq=client.isn, options=client.options)
    assert client.all_heard() == []
    assert ward.stat("syn_cookies") == 0


@pytest.mark.parametrize("source", ["fe80::2", "ff02::9", "::1", "::", "::ffff:10.1.2.3", "fd00:18::1"])
def test_nor_from_such_an_ipv6_address(ward: Ward, source: str) -> None:
    """Link-local ones are the kernel's, too: they mean something on one link alone, and are never asleep."""
    client = ward.client(6)
    client.address = source
    client.send("S", seq=client.isn, options=client.options)
    client.all_heard()
    assert ward.stat("syn_cookies") == 0


@BOTH
def test_ip_headers_with_more_in_them_are_answered(ward: Ward, family: int) -> None:
    from scapy.layers.inet import IPOption_NOP
    from scapy.layers.inet6 import IPv6ExtHdrDestOpt

    client = ward.client(family)
    tcp = client.tcp("S", seq=client.isn, options=client.options)
    if family == 4:
        ward.wire.send(client.ip(options=[IPOption_NOP()] * 4) / tcp)
    else:
        ward.wire.send(client.ip() / IPv6ExtHdrDestOpt() / tcp)
    client.take(client.hear())
    client.ack()
    ward.sleeps(client)
    ward.converse(client)


@BOTH
@pytest.mark.parametrize("options", [LINUX, NO_TIMESTAMPS, ()], ids=["timestamps", "none", "bare"])
@pytest.mark.appliance("generic")
def test_generic_xdp_bears_them_too(ward: Ward, family: int, options: Any) -> None:
    client = ward.client(family, options=options)
    client.syn()
    client.ack()
    ward.sleeps(client)
    client.keepalive()
    client.hear()
    ward.converse(client)


@BOTH
@pytest.mark.appliance("probing")
def test_one_that_is_dead_is_removed_and_counted_and_one_that_answers_lives(ward: Ward, family: int) -> None:
    dead, alive = ward.born(family), ward.born(family)

    def given_up() -> bool:
        for probe in alive.all_heard(0.02):
            assert (probe[TCP].seq, probe[TCP].ack) == ((alive.rcv_nxt - 1) % MOD, alive.snd_nxt)
            alive.ack()
        return ward.stat("probe_dead") == 1

    ward.box.wait(given_up, "the dead one is given up", 10)
    assert (ward.state(dead), ward.state(alive)) == (None, State.IDLE)
    assert (ward.stat("born_gone"), ward.stat("born"), ward.stat(f"table_ipv{family}")) == (1, 1, 1)
    ward.converse(alive)


@pytest.mark.appliance("probing")
def test_one_that_was_given_up_and_is_not_dead_is_not_taken_for_another(ward: Ward) -> None:
    """Its cookie is still good, but the clock it echoes is that of a later answer: what its SYN said is lost."""
    client = ward.born(options=[("MSS", 1460), ("Timestamp", (5, 0)), ("WScale", 2)])
    for _ in range(8):  # until the clock says something else than the SYN-ACK's did
        client.keepalive()
        stamps = timestamps_of(client.hear())
        assert stamps is not None
        client.heard = stamps[0]
        if stamps[0] & 0x1F != 2:
            break
    ward.box.wait(lambda: ward.stat("probe_dead") == 1, "it is given up", 10)
    client.all_heard()
    client.keepalive()
    assert str(client.hear()[TCP].flags) == "R"
    assert ward.state(client) is None


@pytest.mark.parametrize(("end", "family"), [("reset", 4), ("reset", 6), ("given-up", 6)])
@pytest.mark.appliance("probing")
def test_the_address_of_those_who_are_born_is_not_given_away_when_one_of_them_goes(
    ward: Ward, family: int, end: str
) -> None:
    """Slots name it by a number, and the number is free for another when no slot needs it any more."""
    for _ in range(2):
        gone = ward.born(family)
        if end == "reset":
            gone.send("R")
        ward.box.wait(lambda gone=gone: ward.state(gone) is None, "it is gone", 10)  # type: ignore[misc]
    other = ward.client(10 - family)  # whose slots name another address
    other.syn()
    other.ack()
    server = ward.converse(other)
    ward.box.submit(Op.IDLE, ward.pair(other, server))
    ward.box.wait(lambda: ward.state(other) is State.IDLE, "it sleeps again")
    new = ward.born(family)
    assert (ward.state(new), ward.state(other)) == (State.IDLE, State.IDLE)
    ward.converse(new)


def _layers(packet: Any) -> Any:
    return packet[IP] if packet.haslayer(IP) else packet[IPv6]


@BOTH
def test_the_syn_ack_goes_to_whom_the_syn_came_from(ward: Ward, family: int) -> None:
    client = ward.client(family)
    answer = client.syn()
    assert (answer.src, answer.dst) == (ward.wire.box_mac, ward.wire.mac)
    assert _layers(answer).src == client.target[0]
    assert len(answer[TCP].payload) == 0


@BOTH
def test_a_socket_that_was_there_before_the_appliance_is_known_to_it(family: int) -> None:
    """Of a server program that stood at the address, say: its last connections are the kernel's still."""
    with opened(service=BORN) as new_ward:
        before = new_ward()
        address = before.box.target(family)
        before.box.stop()
        before.box.unpin()
        with before.box.lab.enter("box"):
            listener = socket.create_server(address, family=socket.AF_INET6 if family == 6 else socket.AF_INET)
        old = before.client(family, port=31_003)
        with listener:
            old.syn()
            old.ack()
            server = listener.accept()[0]
        with server:
            before.box.start()
            ward = new_ward()
            new = ward.client(family, port=31_003, isn=old.isn + 5_000_000)
            new.send("S", seq=new.isn, options=new.options)
            challenge = new.hear()
            assert (str(challenge[TCP].flags), challenge[TCP].ack) == ("A", old.snd_nxt)
            assert ward.stat("syn_cookies") == 0
