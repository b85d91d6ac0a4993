# SPDX-License-Identifier: Apache-2.0
"""The lab itself: without the daemon, clients reach the server through the appliance as through any router."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute, netns

from appliance import engine
from appliance.lab import Lab, leftovers, names, wait_until
from appliance.lab.leftovers import workspace
from appliance.lab.namespaces import Namespace, load_xdp
from appliance.lab.processes import python_environment, start_bound
from appliance.peers.stream import PERIOD, Receiver, start_of, window
from tests.descriptors import no_collection, open_descriptors

PORT = 8000


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=2000) as lab:
        yield lab


def namespaces_in_use() -> set[int]:
    """Inodes of all network namespaces that any process lives in or holds open."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            links = [*process.glob("task/*/ns/net"), *process.glob("fd/*")]
        except FileNotFoundError:
            continue  # it ended while we looked
        for link in links:
            try:
                target = str(link.readlink())
            except (FileNotFoundError, ProcessLookupError):
                continue
            except PermissionError:
                continue  # a process shielded even from root holds nothing of ours
            if target.startswith("net:["):
                found.add(int(target[5:-1]))
    return found


def test_a_lab_comes_up_and_leaves_nothing_behind() -> None:
    with no_collection():
        descriptors = open_descriptors()
        threads = threading.active_count()
        with Lab(clients=10) as lab:
            inodes = {lab.space(name).inode for name in ("wan", "nat", "box", "lan")}
            assert len(inodes) == 4
            sleeper = lab.run("wan", ["sleep", "1000"])
            server = lab.server(PORT)
            assert workspace(lab.name).is_dir()
        assert open_descriptors() == descriptors
    assert not sleeper.running
    assert not server.process.running
    assert not inodes & namespaces_in_use()
    assert not workspace(lab.name).exists()
    assert threading.active_count() == threads


def test_a_lab_whose_owner_is_killed_leaves_no_namespace_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # out of sight of labs that other tests begin meanwhile
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = """if True:
        import time
        from appliance.lab import Lab
        with Lab(clients=10) as lab:
            server = lab.server(8000)
            swarm = lab.swarm()
            swarm.connect(10, (lab.address("lan", "eth0"), 8000))
            pids = [server.process.pid, swarm.peers[0].process.pid, lab.run("box", ["sleep", "1000"]).pid]
            print(lab.name, *pids, *(lab.space(n).inode for n in ("wan", "nat", "box", "lan")), flush=True)
            time.sleep(1000)
    """
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=python_environment())
    assert owner.stdout is not None
    words = owner.stdout.readline().split()
    name, pids, inodes = words[0].decode(), [int(w) for w in words[1:4]], {int(w) for w in words[4:]}
    assert inodes <= namespaces_in_use()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not any(alive(pid) for pid in pids), 5, "the killed lab's processes end")
    assert not inodes & namespaces_in_use()
    assert workspace(name).is_dir(), "nobody was left to remove it"
    with Lab(clients=10):
        assert not workspace(name).exists(), "the next lab removes what a dead one left"


def test_labs_that_begin_at_the_same_time_remove_what_a_dead_one_left() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    remains = [leftovers.BPFFS / f"roost-lab-{child.pid}-1-{number}" for number in range(300)]
    for directory in remains:
        directory.mkdir()
    program = "import sys; from appliance.lab import leftovers; sys.stdin.read(1); leftovers.reap()"
    labs = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env=python_environment())
        for _ in range(4)
    ]
    for lab in labs:
        assert lab.stdin is not None
        lab.stdin.close()
    assert [lab.wait() for lab in labs] == [0] * len(labs)
    assert not any(directory.exists() for directory in remains)


def test_a_namespace_that_takes_the_number_of_one_that_went_keeps_its_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two take the same names away: the kernel gives the number of a namespace that went to the next one at once."""
    prefix, found = f"roost-test-{os.getpid()}", names.inhabitants
    innocent: list[subprocess.Popen[bytes]] = []
    first = Namespace("first")
    number = first.inode
    names.give(first, f"{prefix}-lan")
    first.close()

    def another_takes_them(spaces: set[tuple[int, int]]) -> list[int]:
        if not innocent:
            netns.remove(f"{prefix}-lan")
            for _ in range(50):
                time.sleep(0.02)  # the kernel needs some to let a namespace go
                space = Namespace("next")
                stack.callback(space.close)
                if space.inode == number:
                    break
            with space.entered():
                innocent.append(subprocess.Popen(["sleep", "60"]))
            stack.callback(innocent[0].wait)
            stack.callback(innocent[0].kill)
        return found(spaces)

    monkeypatch.setattr(names, "inhabitants", another_takes_them)
    with ExitStack() as stack:
        assert names.take(prefix) == []
        assert innocent[0].poll() is None


def test_who_unpins_for_a_dead_lab_is_not_taken_for_a_program_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To unpin is to enter the namespace. Whoever takes that lab down just then ends every process that lives there."""
    space, seen = Namespace("dead"), []
    pins = leftovers.BPFFS / leftovers.new_name()

    def enter(_: str) -> None:
        with space.entered():
            seen.append(Path(f"/proc/{os.getpid()}/ns/net").stat().st_ino)
        pins.rmdir()

    monkeypatch.setattr(engine, "unpin", enter)
    pins.mkdir()
    leftovers.unpin(pins)
    assert (len(seen), space.inode in seen) == (1, False)
    space.close()


def test_pins_in_a_namespace_without_a_way_in_are_left_for_a_later_lab() -> None:
    """Sockets that still have something to send keep a namespace for minutes when all its processes were killed."""
    child = subprocess.Popen(["true"])
    child.wait()
    dead = leftovers.BPFFS / f"roost-lab-{child.pid}-1-1"
    with Lab(clients=10) as lab:
        handle = lab.daemon(lab.config())
        handle.kill()
        handle.pin_dir.rename(dead)
        assert dead.name not in leftovers.reap()
        assert dead.exists()
        sleeper = lab.run("box", ["sleep", "1000"])
        leftovers.reap()
        assert not dead.exists()
        sleeper.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_two_labs_live_side_by_side_with_the_same_addresses() -> None:
    with Lab(clients=10) as one, Lab(clients=10) as other:
        servers = [lab.server(PORT) for lab in (one, other)]
        for count, lab in ((3, one), (5, other)):
            joined = lab.swarm().connect(count, (lab.address("lan", "eth0"), PORT))
            assert joined.connected == count
            assert not joined.failed
        assert [server.request("stats")["hellos"] for server in servers] == [3, 5]


def test_a_process_started_from_a_thread_outlives_the_thread(lab: Lab) -> None:
    started = []
    thread = threading.Thread(target=lambda: started.append(lab.run("wan", ["sleep", "1000"])))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert started[0].running
    started[0].kill()


@pytest.mark.parametrize("nat", [True, False])
def test_the_nat_hides_ipv4_clients_and_ipv6_is_routed_as_it_is(nat: bool) -> None:
    with Lab(clients=10, nat=nat) as lab:
        for family in (4, 6):
            client = lab.client_addresses(family)[0]
            with lab.enter("lan"):
                listener = socket.create_server((lab.address("lan", "eth0", family), PORT),
                                                family=socket.AF_INET6 if family == 6 else socket.AF_INET)  # fmt: skip
            with lab.enter("wan"), listener:
                with socket.create_connection((lab.address("lan", "eth0", family), PORT), 5, (client, 0)) as sock:
                    seen = listener.accept()[1][:2]
                    same = seen == sock.getsockname()[:2]
                    assert same == (not nat or family == 6)
                    assert seen[0] == ("198.19.0.1" if nat and family == 4 else client)


def checksums(frame: bytes) -> bool:
    """Whether the IPv4 header's and the TCP checksum of an Ethernet frame are whole; IPv6 has no header checksum."""
    ether_type = struct.unpack_from("!H", frame, 12)[0]
    packet = frame[14:]
    if ether_type == 0x0800:
        header = (packet[0] & 15) * 4
        total = struct.unpack_from("!H", packet, 2)[0]
        segment = packet[header:total]
        pseudo = packet[12:20] + struct.pack("!HH", 6, len(segment))
        if ones_sum(packet[:header]) != 0xFFFF:
            return False
    else:
        total = struct.unpack_from("!H", packet, 4)[0]
        segment = packet[40 : 40 + total]
        pseudo = packet[8:40] + struct.pack("!II", len(segment), 6)
    return ones_sum(pseudo + segment) == 0xFFFF


def ones_sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def tcp_frames(lab: Lab, space: str, ifname: str) -> list[tuple[bytes, bool]]:
    """(frame, whether it left by the interface) of some traffic of both families, as seen on the interface."""
    server = lab.server(PORT)
    with lab.enter(space):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    frames = []
    with raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        raw.bind((ifname, 0))
        raw.settimeout(0.3)
        for family in (4, 6):
            swarm = lab.swarm(family)
            swarm.connect(20, (lab.address("lan", "eth0", family), PORT))
            assert swarm.say(20, size=3000).answered == 20
            swarm.close()
        with suppress(TimeoutError):
            while True:
                frame, address = raw.recvfrom(1 << 17)
                ether_type = frame[12:14]
                if (ether_type == b"\x08\x00" and frame[23] == 6) or (ether_type == b"\x86\xdd" and frame[20] == 6):
                    frames.append((frame, address[2] == socket.PACKET_OUTGOING))
    server.close()
    return frames


@pytest.mark.parametrize(("space", "ifname"), [("nat", "outside"), ("lan", "eth0"), ("wan", "eth0"), ("box", "wan0")])
def test_frames_are_sent_with_whole_checksums_and_fit_the_mtu(lab: Lab, space: str, ifname: str) -> None:
    sent = [frame for frame, outgoing in tcp_frames(lab, space, ifname) if outgoing]
    assert len(sent) > 200
    assert all(map(checksums, sent))
    assert max(map(len, sent)) <= 1514


def test_a_lab_of_exact_frames_shows_them_whole_in_both_directions() -> None:
    with Lab(clients=100, exact_frames=True) as lab:
        for space, ifname in (("nat", "outside"), ("wan", "eth0")):
            frames = [frame for frame, _ in tcp_frames(lab, space, ifname)]
            assert len(frames) > 400
            assert all(map(checksums, frames))
            assert max(map(len, frames)) <= 1514


REFLECTOR = """
#include <linux/bpf.h>
/* Answers an ICMP echo request with XDP_TX, and passes all else. */
__attribute__((section("xdp"), used)) int reflect(struct xdp_md *ctx)
{
    unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, c;
    if (p + 42 > end || p[12] != 8 || p[13] != 0 || p[23] != 1 || p[34] != 8)
        return XDP_PASS;
    for (int i = 0; i < 6; i++) { c = p[i]; p[i] = p[6 + i]; p[6 + i] = c; }
    for (int i = 26; i < 30; i++) { c = p[i]; p[i] = p[4 + i]; p[4 + i] = c; }
    p[34] = 0;
    unsigned int sum = (p[36] << 8 | p[37]) + 0x800;
    sum = (sum & 0xffff) + (sum >> 16);
    p[36] = sum >> 8;
    p[37] = sum;
    return XDP_TX;
}
"""


def echo_ms(sock: socket.socket, address: str, sequence: int) -> float:
    """One ICMP echo, and how long its answer took."""
    packet = struct.pack("!BBHHH", 8, 0, 0, 77, sequence) + b"roost" * 8
    packet = packet[:2] + struct.pack("!H", ~ones_sum(packet) & 0xFFFF) + packet[4:]
    since = time.perf_counter()
    sock.sendto(packet, (address, 0))
    sock.recv(2000)
    return (time.perf_counter() - since) * 1000


@pytest.mark.parametrize("exact_frames", [False, True])
def test_what_xdp_sends_from_the_appliance_arrives_at_once(tmp_path: Path, exact_frames: bool) -> None:
    # The way that the answers to keep-alives take. Without an XDP program at the other end it is 300 ms long.
    clang = ["clang", "-O2", "-target", "bpf", f"-I/usr/include/{os.uname().machine}-linux-gnu", "-x", "c", "-c", "-"]
    subprocess.run([*clang, "-o", "reflect.o"], cwd=tmp_path, input=REFLECTOR, text=True, check=True)
    copy = ["llvm-objcopy", "-O", "binary", "--only-section=xdp", "reflect.o", "reflect"]
    subprocess.run(copy, cwd=tmp_path, check=True)
    with Lab(clients=10, exact_frames=exact_frames) as lab:
        lab.sysctl("box", "net.ipv4.icmp_echo_ignore_all", 1)
        program = load_xdp((tmp_path / "reflect").read_bytes())
        with lab.enter("box"), IPRoute() as ip:
            ip.link("set", index=ip.link_lookup(ifname="wan0")[0], xdp_fd=program)
        os.close(program)
        with lab.enter("wan"):
            sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        with sock:
            sock.settimeout(1)
            times_ms = sorted(echo_ms(sock, lab.address("box", "wan0"), sequence) for sequence in range(50))
        assert times_ms[25] < 2
        assert times_ms[-1] < 50


def test_a_swarm_of_2000_speaks_keeps_alive_and_loses_nobody(lab: Lab) -> None:
    server = lab.server(PORT)
    swarm = lab.swarm()
    joined = swarm.connect(2000, (lab.address("lan", "eth0"), PORT), keepidle_s=1, keepintvl_s=1)
    assert (joined.connected, joined.failed) == (2000, {})
    said = swarm.say(500)
    assert (said.answered, said.failed) == (500, {})
    assert len(said.rtt_us) == 500
    time.sleep(2.5)
    hearing = swarm.hearing()
    assert hearing.open == 2000
    assert hearing.max_silence_ms < 1800, "keep-alives are sent and answered"
    stats = swarm.stats()
    assert (stats.open, stats.dead, stats.answers) == (2000, {}, 2500)
    assert swarm.peers[0].process.memory_bytes() < 40e6
    assert server.request("stats")["open"] == 2000
    swarm.close()
    wait_until(lambda: server.request("stats")["open"] == 0, 5, "the server sees the clients leave")
    server.close()


def test_a_burst_of_probes_is_queued_and_not_dropped(lab: Lab) -> None:
    server = lab.server(PORT)
    swarm = lab.swarm()
    # All 10,000 at one moment, and keep-alive timers that fire in lumps: more than a veth's ring of 256 can take.
    assert (
        swarm.connect(
            10_000, (lab.address("lan", "eth0"), PORT), keepidle_s=3, keepintvl_s=3, in_flight=10_000
        ).connected
        == 10_000
    )
    time.sleep(4)
    hearing = swarm.hearing(silence_ms=3900)
    assert (hearing.silent, hearing.unanswered_probes) == (0, 0)
    swarm.close()
    server.close()


def test_a_swarm_reports_the_clients_that_lose_their_connection(lab: Lab) -> None:
    server = lab.server(PORT)
    swarm = lab.swarm(6)
    swarm.connect(50, (lab.address("lan", "eth0", 6), PORT))
    server.close()
    wait_until(lambda: swarm.stats().open == 0, 5, "every client notices that the server is gone")
    assert swarm.stats().dead.total() == 50
    refused = swarm.connect(10, (lab.address("lan", "eth0", 6), PORT))
    assert (refused.connected, refused.failed) == (0, {"ECONNREFUSED": 10})
    swarm.close()


# The asker, against the least proxy that can be.


@contextmanager
def stand_in_for_attach(lab: Lab, port: int, answer: Callable[[str, str], str | None]) -> Iterator[None]:
    """An attach address on box/lan0 whose clients are a function: (target, nonce) -> answer line; None = refuse."""
    with lab.enter("box"):
        listener = socket.create_server((lab.address("box", "lan0"), port))

    def serve() -> None:
        while True:
            try:
                sock = listener.accept()[0]
            except OSError:
                return  # shut down below
            with sock, sock.makefile("rwb") as file:
                target = file.readline().split()[1].decode()
                while file.readline().strip():
                    pass
                line = answer(target, "")
                if line is None:
                    file.write(b"HTTP/1.1 404 Not Found\r\n\r\n")
                    continue
                file.write(b"HTTP/1.1 200 OK\r\n\r\n")
                file.flush()
                nonce = file.readline().split()[1].decode()
                file.write((answer(target, nonce) or "").encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_the_asker_accepts_the_right_answer_alone(lab: Lab) -> None:
    def answer(target: str, nonce: str) -> str | None:
        return {"1.1.1.1:1": f"TELL c000001 {nonce}", "1.1.1.1:2": f"TELL c000009 {nonce}",
                "1.1.1.1:3": "TELL c000003 00"}.get(target)  # fmt: skip

    asker = lab.asker()
    with stand_in_for_attach(lab, 3128, answer):
        targets = [["1.1.1.1:1", "c000001"], "1.1.1.1:2", ["1.1.1.1:2", "c000002"], "1.1.1.1:3", "1.1.1.1:4"]
        result = asker.request("ask", proxy=[lab.address("box", "lan0"), 3128], targets=targets, concurrency=2)
    asker.close()
    assert result["answered"] == 2
    assert result["failed"] == {"wrong answer": 2, "HTTP 404": 1}
    assert len(result["latency_us"]) == 2
    assert min(result["latency_us"]) > 0


# Chaos: clean on a clean network, and each kind of damage is called by its name.


def test_chaos_over_every_option_is_clean_when_nothing_meddles(lab: Lab) -> None:
    chaos = lab.chaos(9000)
    for family in (4, 6):
        for index, mss in enumerate((536, 1000, 1220, 0)):
            chaos.connect(5, (lab.address("lan", "eth0", family), 9000), mss=mss, timestamps=index % 2 == 0,
                          sack=index < 2, window_scaling=index != 1)  # fmt: skip
    assert lab.space("wan").read_sysctl("net.ipv4.tcp_timestamps") == "1"
    chaos.start(pause_ms=20)
    time.sleep(3)
    result = chaos.finish()
    chaos.close()
    assert result.clean, result
    assert result.connections == 40
    assert result.sent_bytes == result.received_bytes > 1_000_000


@contextmanager
def meddler(lab: Lab, port: int, meddle: Callable[[bytes, int], bytes]) -> Iterator[None]:
    """A proxy on box/wan0 to the chaos server; meddle(chunk, offset) changes what goes to the server.

    It carries one connection, and closes it as it is closed; meddle raising ConnectionResetError resets both.
    """
    with lab.enter("box"):
        listener = socket.create_server((lab.address("box", "wan0"), port))

    def carry(source: socket.socket, target: socket.socket, change: Callable[[bytes, int], bytes]) -> None:
        offset = 0
        try:
            while data := source.recv(1 << 16):
                target.sendall(change(data, offset))
                offset += len(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for sock in (source, target):
                with suppress(OSError):  # the other direction has done it
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    sock.shutdown(socket.SHUT_RD)  # wakes the other direction's recv(), which close() would not
                    sock.close()

    def serve() -> None:
        with lab.enter("box"):
            near = listener.accept()[0]
            far = socket.create_connection((lab.address("lan", "eth0"), port))
        with near, far:
            back = threading.Thread(target=carry, args=(far, near, lambda data, _: data))
            back.start()
            carry(near, far, meddle)
            back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def at(position: int, change: Callable[[bytes], bytes]) -> Callable[[bytes, int], bytes]:
    """A meddler that changes 500 bytes of the first chunk of 1000 bytes and more after a position. They begin where no
    byte that the change brings next is by chance the expected one: there the damage would have two explanations."""
    done: list[bool] = []

    def meddle(data: bytes, offset: int) -> bytes:
        if done or offset < position or len(data) < 1000:
            return data
        done.append(True)
        begin = next(n for n in range(100, 500) if len({data[n], data[n + 250], data[n + 500]}) == 3)
        return data[:begin] + change(data[begin : begin + 500]) + data[begin + 500 :]

    return meddle


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data[:300] + data[301:], (1, 0, 0, 0)),
        (lambda data: data[:300] + data[299:], (0, 1, 0, 0)),
        (lambda data: data + data, (0, 500, 0, 0)),
        (lambda data: data[250:] + data[:250], (0, 0, 250, 0)),
        (lambda data: data[:99] + bytes([data[99] ^ 1]) + data[100:], (0, 0, 0, 1)),
    ],
    ids=["one byte lost", "one byte twice", "a passage twice", "two passages swapped", "one bit changed"],
)
def test_chaos_calls_damage_by_its_name(
    lab: Lab, change: Callable[[bytes], bytes], expected: tuple[int, int, int, int]
) -> None:
    chaos = lab.chaos(9000)
    with meddler(lab, 9000, at(2000, change)):
        chaos.connect(1, (lab.address("box", "wan0"), 9000))
        chaos.start(pause_ms=5)
        time.sleep(1)
        result = chaos.finish(10)
    chaos.close()
    assert (result.lost_bytes, result.duplicated_bytes, result.reordered, result.corrupted_bytes) == expected
    assert not result.faults
    assert not result.clean


def test_chaos_sees_a_connection_that_is_reset_or_cut_short(lab: Lab) -> None:
    def reset(data: bytes, offset: int) -> bytes:
        if offset > 5000:
            raise ConnectionResetError
        return data

    chaos = lab.chaos(9000)
    with meddler(lab, 9000, reset):
        chaos.connect(1, (lab.address("box", "wan0"), 9000))
        chaos.start(pause_ms=5)
        time.sleep(1)
        result = chaos.finish(5)
    chaos.close()
    assert result.faults.total() >= 1
    assert not result.clean


def all_of(far: socket.socket) -> bytes:
    """What a server says to its FIN."""
    far.shutdown(socket.SHUT_WR)
    return b"".join(iter(lambda: far.recv(1 << 16), b""))


def but_one_byte(far: socket.socket) -> bytes:
    """A place in the stream is found by 24 bytes: as many lie between one loss and the next."""
    answer = all_of(far)
    return answer[:-1] if len(answer) > 24 else answer


def none_and_reset(far: socket.socket) -> bytes:
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return b""


class Relinking:
    """An appliance for one client, which carries each of its words by a server connection of its own (at box/wan0).

    `damage` is how the answers of every fifth are taken; with `overlap` the fifth is open when another one is made.
    """

    def __init__(
        self, lab: Lab, port: int, damage: Callable[[socket.socket], bytes] = all_of, overlap: bool = False
    ) -> None:
        self._server = lab.address("lan", "eth0"), port
        self._damage, self._overlap = damage, overlap
        self._lab = lab
        self.links = 0
        with lab.enter("box"):
            self._listener = socket.create_server((lab.address("box", "wan0"), port))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Relinking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self._listener.close()
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        with self._lab.enter("box"), self._listener.accept()[0] as near:
            (client, client_port), (local, local_port) = near.getpeername(), near.getsockname()
            header = f"PROXY TCP4 {client} {local} {client_port} {local_port}\r\n".encode()
            while data := near.recv(1 << 16):
                self.links += 1
                with socket.create_connection(self._server) as far:
                    far.sendall(header + data)
                    if self._overlap and self.links == 5:
                        socket.create_connection(self._server).sendall(header)
                        time.sleep(0.1)
                    near.sendall((all_of if self.links % 5 else self._damage)(far))


@pytest.mark.parametrize(
    ("options", "lost", "faults"),
    [
        ({}, False, set()),
        ({"damage": but_one_byte}, True, set()),
        ({"damage": none_and_reset}, None, {"ECONNRESET"}),  # whether bytes were under way is chance
        ({"overlap": True}, False, {"two links at a time"}),
    ],
    ids=["nothing", "the last byte of a link", "links that are reset", "two links at a time"],
)
def test_chaos_over_many_links_sees_what_is_done_at_their_ends(
    lab: Lab, options: dict[str, Any], lost: bool | None, faults: set[str]
) -> None:
    chaos = lab.chaos(9000, by="header")
    with Relinking(lab, 9000, **options) as relinking:
        chaos.connect(1, (lab.address("box", "wan0"), 9000))
        chaos.start(pause_ms=5)
        wait_until(lambda: relinking.links > 100, 10, "a hundred links")
        result = chaos.finish(10)
    chaos.close()
    assert set(result.faults) == faults
    assert lost is None or (result.lost_bytes > 0) is lost
    assert result.duplicated_bytes == result.reordered == result.corrupted_bytes == 0
    assert result.made >= relinking.links > 100
    assert result.sent_bytes - result.lost_bytes == result.received_bytes > 1000


def test_the_stream_finds_its_place_again_wherever_it_is_cut() -> None:
    start = start_of(7, to_server=True)
    whole = b"".join(bytes(window(start, position, 1000)) for position in range(0, 20_000, 1000))
    assert whole[:500] == bytes(window(start, PERIOD, 500)), "the stream repeats after a prime number of bytes"
    for size in (1, 7, 23, 24, 25, 1000):
        receiver = Receiver(start)
        damaged = whole[:5000] + whole[5010:9000] + whole[8990:]
        for position in range(0, len(damaged), size):
            receiver.receive(damaged[position : position + size])
        receiver.finish(len(whole))
        assert (receiver.lost, receiver.duplicated, receiver.reordered, receiver.corrupted) == (10, 10, 0, 0), size
    receiver = Receiver(start)
    receiver.receive(whole[:100])
    receiver.finish(110)
    assert receiver.lost == 10, "a stream that ends early has lost its end"
    for left in range(1, 30):
        receiver = Receiver(start)
        receiver.receive(whole[:100] + whole[110 : 110 + left])
        receiver.finish(110 + left)
        assert (receiver.lost, receiver.corrupted) == (10, 0), left


def test_a_capture_holds_what_passed(lab: Lab, tmp_path: Path) -> None:
    server = lab.server(PORT)
    capture = lab.capture("nat", "outside", tmp_path / "lab.pcap", f"tcp port {PORT}")
    swarm = lab.swarm()
    swarm.connect(3, (lab.address("lan", "eth0"), PORT))
    time.sleep(0.2)
    capture.terminate()
    swarm.close()
    server.close()
    assert b"HELLO c000002" in (tmp_path / "lab.pcap").read_bytes()


def test_a_sysctl_is_set_in_one_namespace_alone(lab: Lab) -> None:
    home = Path("/proc/thread-self/ns/net").readlink()
    lab.sysctl("wan", "net.ipv4.tcp_sack", 0)
    assert lab.space("wan").read_sysctl("net.ipv4.tcp_sack") == "0"
    assert lab.space("box").read_sysctl("net.ipv4.tcp_sack") == "1"
    assert Path("/proc/thread-self/ns/net").readlink() == home
    lab.sysctl("wan", "net.ipv4.tcp_sack", 1)


def test_a_program_is_not_begun_whose_owner_has_ended(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    begun = tmp_path / "begun"
    with start_bound(["touch", str(begun)], ended.pid) as program:
        assert program.wait(10) == 127
    assert not begun.exists()
    with start_bound(["touch", str(begun)], os.getpid()) as program:
        assert program.wait(10) == 0
    assert begun.exists()
