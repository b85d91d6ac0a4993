# SPDX-License-Identifier: Apache-2.0
"""The configuration: defaults, overrides, and errors a person can act on."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire import Balance, Born, OnServerClose, Priority, SecondServer
from control.config import ConfigError, load, parse, parse_duration, parse_endpoint
from control.config.config import SECTIONS
from control.config.reference import HEADINGS, with_keys
from control.daemon.services import Services
from control.policy.reload import needs_restart
from control.policy.services import service_spec

ROOT = Path(__file__).parents[2]
HASH = f"$scrypt$ln=15,r=8,p=1${'c2FsdA' * 4}${'a' * 43}"
SERVICE = '[[service]]\nname = "a"\nlisten = "192.0.2.1:5"\nserver = "192.0.2.2:6"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[policy]\nqiet = 3", "unknown key `qiet` in [policy]; did you mean `"),
        ("[policy]\nactive_quite = 3", "unknown key `active_quite` in [policy]; did you mean `active_quiet`?"),
        ('instace = "x"', "unknown key `instace` at the top level; did you mean `instance`?"),
        ("zzz = 1", "unknown key `zzz` at the top level; known keys: instance, paths"),
        (SERVICE + "idle_quite = 3", 'unknown key `idle_quite` in [[service]] "a"; did you mean `idle_quiet`?'),
        ('[policy]\nactive_quiet = "5x"', '`active_quiet` in [policy]: "5x" is no duration; write "90s"'),
        ("[policy]\nactive_quiet = -1", "`active_quiet` in [policy]: a duration lies between 0 and"),
        ("[policy]\nactive_quiet = true", "`active_quiet` in [policy]: a duration is seconds, or text"),
        ("[policy]\nprobe_interval = 1.5", "`probe_interval` in [policy]: this duration is counted in whole seconds"),
        ('[policy]\nconnect_timeout = "never"', '`connect_timeout` in [policy]: must not be 0 or "never"'),
        (
            "[policy]\nprobe_count = 0",
            "`probe_count` in [policy]: Input should be greater than or equal to 1 (it is 0)",
        ),
        ("[policy]\nprobe_count = 16", "Input should be less than or equal to 15 (it is 16)"),
        ("[table]\nring_kb = 100", "`ring_kb` in [table]: must be a power of two (it is 100)"),
        ('[network]\nxdp_mode = "fast"', "`xdp_mode` in [network]: Input should be 'auto', 'native' or 'generic'"),
        ('[[service]]\nname = "a"\nlisten = "192.0.2.1:5"', '[[service]] "a": the key `server` is missing'),
        ("[[service]]\nlisten = 5", "[[service]] number 1: the key `name` is missing"),
        (SERVICE.replace("192.0.2.1:5", "host:5"), '`listen` in [[service]] "a": "host:5" is no address and port'),
        (SERVICE.replace("192.0.2.1:5", "::1:5"), '"::1:5" is no address and port; write "192.0.2.1:80" or "[2001'),
        (SERVICE + SERVICE, 'two [[service]] have the name "a"'),
        (SERVICE + SERVICE.replace('"a"', '"b"'), 'two [[service]] have the listen "192.0.2.1:5"'),
        ('[attach]\nprotocols = ["http"]', "`protocols` in [attach]: Input should be 'connect' or 'socks5'"),
        ("[attach]\nprotocols = []", "`protocols` in [attach]: must have at least 1 item"),
        ('[attach]\ndomain = "Roost."', "`domain` in [attach]: String should match pattern"),
        ('[attach]\nauth = "password"', 'auth = "password" needs a user: [attach.users]'),
        (f'[attach]\nusers.bob = "{HASH}"', '[attach.users] are asked for nothing; set auth = "password"'),
        (f'[attach]\nauth = "password"\nusers."b:b" = "{HASH}"', '"b:b" is no name of a user'),
        (f'[attach]\nauth = "password"\nusers.bob = "{HASH[:-40]}"', "a password's hash needs ln=14,r=8,p=1"),
        (
            '[absent]\nsteps = ["dial"]\ndial_networks = ["10.0.0.0/8"]\ndial_port = 5\ndial_service = "b"\n' + SERVICE,
            'for clients of a [[service]] with servers: dial_service = "b" is none',
        ),
        (
            '[absent]\nsteps = ["dial"]\ndial_networks = ["10.0.0.0/8"]\ndial_port = 5\n'
            + SERVICE.replace('server = "192.0.2.2:6"', 'kind = "held"'),
            "for clients of a [[service]] with servers: there is none",
        ),
        (
            SERVICE + 'in_band_clients = ["release"]',
            '`in_band_clients` in [[service]] "a": Input should be ',
        ),
        (SERVICE + 'born = "often"', "`born` in [[service]] \"a\": Input should be 'never', 'storm' or 'always'"),
        (SERVICE + "born_rate = 0", '`born_rate` in [[service]] "a": Input should be greater than or equal to 1'),
        (SERVICE + "ready_links = 65", '`ready_links` in [[service]] "a": Input should be less than or equal to 64'),
        (SERVICE + 'ready_for = "5s"', '[[service]] "a": ready_links is 0, and ready_for says how long they last'),
        (SERVICE + 'ready_links = 1\nready_for = "never"', '`ready_for` in [[service]] "a": must be between 1s and 1h'),
        (
            SERVICE + 'ready_links = 1\ninterface = "persistent"',
            '[[service]] "a": ready_links and interface = "persistent": a client keeps its link while it sleeps',
        ),
        (
            SERVICE + 'reuse_links = 1\nproxy_protocol = "v2"',
            '[[service]] "a": reuse_links and proxy_protocol, whose header says whose the link is',
        ),
        (
            SERVICE + 'ready_links = 1\nreuse_links = 1\ninterface = "persistent"',
            '[[service]] "a": reuse_links and interface = "persistent": a client keeps its link while it sleeps',
        ),
        (
            '[router]\nlan = ["lan0"]\n' + SERVICE + 'ready_links = 1\nsource = "client"',
            '[[service]] "a": ready_links need source = "appliance"',
        ),
        (
            SERVICE + 'source = "2001:db8::1"',
            '[[service]] "a": source = "2001:db8::1" and the server 192.0.2.2 must both be IPv4 or both IPv6',
        ),
        (
            '[paths]\ndatabase = "postgresql://db/roost"\n[standby]\naddress = "192.0.2.1"\n'
            + SERVICE
            + 'interface = "persistent"',
            '[[service]] "a" is persistent, and the other machine of [standby] is to go on with its servers',
        ),
        (
            SERVICE.replace('server = "192.0.2.2:6"', 'kind = "held"') + "ready_links = 1",
            '[[service]] "a": kind = "held" has no server, and no key about one',
        ),
        (SERVICE + "trust_address = true", '[[service]] "a": trust_address is for kind = "held"'),
        (SERVICE + "names_each = 0", '`names_each` in [[service]] "a": Input should be greater than or equal to 1'),
        (
            SERVICE + 'born = "always"\ninterface = "persistent"',
            '[[service]] "a": born = "always" is for transient services that are not transparent',
        ),
        (
            '[router]\nlan = ["lan0"]\n'
            + SERVICE.replace('server = "192.0.2.2:6"', "transparent = true")
            + 'born = "storm"',
            '[[service]] "a": born = "storm" is for transient services that are not transparent',
        ),
        (
            SERVICE.replace("192.0.2.1:5", "0.0.0.0:5") + 'born = "always"',
            'born = "always" needs the address that clients connect to: listen = "0.0.0.0:5" stands for any',
        ),
        (
            SERVICE.replace("192.0.2.1:5", "[::]:5") + 'born = "always"',
            'born = "always" needs the address that clients connect to: listen = "[::]:5" stands for any',
        ),
        (
            SERVICE + 'sleep_keepalive = "none"',
            '[[service]] "a": sleep_keepalive = "none" needs room: [table] filter says for how many connections',
        ),
        (
            '[policy]\nsleep_keepalive = "none"\n[table]\nfilter = 5\n' + SERVICE + 'interface = "persistent"',
            '[[service]] "a": sleep_keepalive = "none" is for transient services',
        ),
        (
            "[table]\nfilter = 5\n" + SERVICE + 'sleep_keepalive = "none"\nprobe_interval = 60',
            '[[service]] "a": sleep_keepalive = "none" and probe_interval: to probe a client takes its slot',
        ),
        (
            '[table]\nfilter = 5\n[router]\nlan = ["lan0"]\n' + SERVICE + 'sleep_keepalive = "none"',
            '[[service]] "a": sleep_keepalive = "none" is not for routers',
        ),
        (
            "[table]\nfilter = 5\n"
            + SERVICE.replace('server = "192.0.2.2:6"', 'kind = "held"')
            + 'sleep_keepalive = "none"',
            '[[service]] "a": sleep_keepalive = "none" is not for kind = "held"',
        ),
        (
            '[policy]\ninterface = "persistent"',
            "unknown key `interface` in [policy]; it belongs in [[service]]",
        ),
        (
            '[network]\ninterface = "eth0"',
            "unknown key `interface` in [network]; did you mean `interfaces`? (`interface` belongs in [[service]])",
        ),
        (
            SERVICE + 'interfaces = ["eth0"]',
            '`interfaces` in [[service]] "a"; did you mean `interface`? (`interfaces` belongs in [network])',
        ),
        ('server = "192.0.2.2:6"', "unknown key `server` at the top level; it belongs in [[service]]"),
        (SERVICE + 'path = "/x"', 'unknown key `path` in [[service]] "a"; it belongs in [service.health]'),
        ('[network]\ninterfaces = "eth0"', '`interfaces` in [network]: must be a list, in brackets: ["eth0"]'),
        ("[router]\nattach_ports = 80", "`attach_ports` in [router]: must be a list, in brackets: [80]"),
        (SERVICE.replace("[[service]]", "[service]"), "`service` at the top level: must be written as [[service]]"),
        ('[[service]]\nname = "a"\nlisten = "192.0.2.1:5"\nservers = "192.0.2.2:6"', 'brackets: ["192.0.2.2:6"]'),
        ("policy = 4", "`policy` at the top level: must be a table: [policy]"),
        (SERVICE + "health = 4", '`health` in [[service]] "a": must be a table: [service.health]'),
        ("[network]\nxdp_mode = 4\ninterfaces = [4]", "`interfaces` in [network]: must be text, in quotes (it is 4)"),
        ('[table]\nipv4 = "many"', "`ipv4` in [table]: must be a whole number (it is 'many')"),
        ('[table]\ngrow = "maybe"', "`grow` in [table]: must be true or false (it is 'maybe')"),
        (
            SERVICE.replace("192.0.2.2:6", "192.0.2.1:5"),
            '[[service]] "a" has the server 192.0.2.1:5, which is where it listens: it would connect to itself',
        ),
        (
            SERVICE.replace("192.0.2.1:5", "0.0.0.0:6").replace("192.0.2.2:6", "127.0.0.1:6"),
            '[[service]] "a" has the server 127.0.0.1:6, which is where it listens: it would connect to itself',
        ),
        (
            '[[service]]\nname = "a"\nlisten = "[::1]:5"\nservers = ["[::2]:5", "[::1]:5"]',
            '[[service]] "a" has the server [::1]:5, which is where it listens: it would connect to itself',
        ),
        ("x = [", "f.toml:1:6: not TOML: Invalid value"),
        ("policy = 4", "`policy` at the top level: "),
    ],
)
def test_a_wrong_file_is_answered_with_file_key_and_fix(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.toml")
    assert message in str(caught.value)
    assert all(re.match(r"f\.toml:[1-9]\d*:[1-9]\d*: ", line) for line in str(caught.value).splitlines())


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    return str(caught.value).splitlines()


def test_every_mistake_is_named_one_a_line_in_their_order() -> None:
    found = mistakes(
        '[policy]\nprobe_count = 0\n  yyy = 2\n[table]\n"ring_kb" = 3\n[zzz]\n[network]\ninterfaces = ["a",\n 4]'
    )
    assert [one.split(" ")[0] for one in found] == ["f:2:1:", "f:3:3:", "f:5:1:", "f:6:1:", "f:9:2:"]


def test_a_mistake_about_one_key_is_not_looked_for_elsewhere() -> None:
    found = mistakes("[policy]\nactive_quiet = 5\n" + SERVICE + "active_quite = 5")
    assert found == ['f:7:1: unknown key `active_quite` in [[service]] "a"; did you mean `active_quiet`?']


def test_every_conflict_is_named_at_the_key_that_its_sentence_names() -> None:
    second = (
        SERVICE.replace('name = "a"', 'name = "proxy_protocol"').replace(":6", ":5")
        + 'proxy_protocol = "v1"\nready_links = 1\ninterface = "persistent"\n'
    )
    keeps = 'ready_links and interface = "persistent": a client keeps its link while it sleeps'
    assert mistakes(
        '[attach]\nlocal_connect = true\n[network]\ninterfaces = ["lo"]\n'
        + SERVICE.replace("192.0.2.2:6", "192.0.2.1:5")
        + second
    ) == [
        'f:2:1: [attach] local_connect: "lo" must not be in [network] interfaces',
        'f:8:1: [[service]] "a" has the server 192.0.2.1:5, which is where it listens: it would connect to itself',
        'f:11:1: two [[service]] have the listen "192.0.2.1:5"',
        f'f:14:1: [[service]] "proxy_protocol": {keeps}',
    ]
    never = "once reached, it would never be over, for it has to fall by clear ="
    above = "give a threshold above `clear`, or 0, which switches it off"
    assert mistakes("[pressure]\nrate = 1\nidle = 5\ncpu_stall = 4.5") == [
        f"f:3:1: [pressure]: idle = 5 and cpu_stall = 4.5: {never} 5; {above}"
    ]
    assert mistakes("[pressure]\nclear = 25") == [f"f:2:1: [pressure]: memory_stall = 20: {never} 25; {above}"]
    assert mistakes('[policy]\nsleep_keepalive = "none"\n' + SERVICE) == [
        'f:2:1: [[service]] "a": sleep_keepalive = "none" needs room: [table] filter says for how many connections'
    ]
    assert mistakes(SERVICE + "probe_interval = 60\nmost_probe_interval = 30") == [
        'f:6:1: [[service]] "a": `most_probe_interval` must be longer than `probe_interval`, which must not be never'
    ]
    assert mistakes('[api]\nuser = "root"\n[attach]\n\nauth = "password"\n[agents]\nprivate_key = "k"') == [
        "f:2:1: [api]: user must not be root",
        'f:5:1: [attach]: auth = "password" needs a user: [attach.users]',
        "f:7:1: [agents]: needs certificate and private_key, or neither",
    ]


def test_a_reload_tells_the_same_with_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "roost.toml"
    services = Services(str(path), parse('[router]\nlan = ["lan0"]\n' + SERVICE), {"a": 1}, {})
    for text, line, said in (
        ("\n[policy]\nqiet = 3", 3, "unknown key `qiet` in [policy]; did you mean `idle_quiet`?"),
        ("[table]\nfilter = 5\n" + SERVICE + 'sleep_keepalive = "none"', 7, 'until a restart, [[service]] "a": '),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as refused:
            services.read()
        assert f"{path}:{line}:1: {said}" in str(refused.value)


def test_a_missing_or_binary_file_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it: No such file"):
        load(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.toml:1:1: not UTF-8"):
        load(tmp_path / "binary.toml")
    (tmp_path / "latin1.toml").write_bytes("é = 1\nmä".encode() + b"\xe9")
    with pytest.raises(ConfigError, match=r"latin1\.toml:2:3: not UTF-8"):
        load(tmp_path / "latin1.toml")


@pytest.mark.parametrize(
    ("given_value", "seconds"),
    [
        *[("90s", 90), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("250ms", 0.25), ("2 d", 172800)],
        *[(2.5, 2.5), (0, 0), ("never", 0), ("7", 7), ("1.5h", 5400)],
    ],
)
def test_durations(given_value: object, seconds: float) -> None:
    assert parse_duration(given_value) == seconds


@given(st.floats(0, 0.01) | st.from_regex(r"0\.0{1,4}[0-9]{1,3}(ms|s)", fullmatch=True))
def test_a_duration_that_is_none_in_the_engines_unit_was_said_to_be_none(given_value: float | str) -> None:
    with suppress(ValueError):
        seconds = parse_duration(given_value)
        assert bool(round(seconds * 1000)) == bool(seconds)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_sentence(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        problem = str(error)
        seconds = 0.0
    else:
        problem = "duration"
    assert "duration" in problem
    assert seconds >= 0


@given(st.text(max_size=30))
def test_any_text_is_an_endpoint_or_a_sentence(text: str) -> None:
    try:
        port, problem = parse_endpoint(text)[1], ""
    except ValueError as error:
        port, problem = 1, str(error)
    assert 1 <= port <= 65535
    assert not problem or "no address and port" in problem


def test_the_instance_decides_the_default_paths() -> None:
    config = parse('instance = "east"')
    assert config.pin_dir == "/sys/fs/bpf/roost/east"
    assert config.database_url == "sqlite:////var/lib/roost/east.db"
    assert config.control_socket == "/run/roost/east.sock"
    assert parse('[paths]\ndatabase = "postgresql://h/d"').database_url == "postgresql://h/d"


def test_a_service_overrides_the_global_policy_key_by_key() -> None:
    text = "[policy]\nactive_quiet = 1\nidle_quiet = 9\n" + SERVICE
    config = parse(text + 'idle_quiet = "never"\non_server_close = "close"')
    spec = service_spec(config.service[0], 3, config)
    assert (spec.index, spec.standby_quiet_ms, spec.sleep_quiet_ms) == (3, 1000, 0)
    assert spec.on_server_close == OnServerClose.CLIENT
    assert (spec.listen, spec.listen_port, spec.servers) == ("192.0.2.1", 5, (("192.0.2.2", 6),))


WORDS: list[tuple[str, str, str, int]] = [
    *(("priority", word, "priority", number) for word, number in
      [("low", Priority.LOW), ("normal", Priority.NORMAL), ("high", Priority.HIGH)]),
    *(("on_second_server", word, "second_server", number) for word, number in
      [("refuse", SecondServer.REFUSED), ("wait", SecondServer.WAITS), ("take-over", SecondServer.TAKES_OVER)]),
    *(("balance", word, "balance", number) for word, number in
      [("least-connections", Balance.LEAST_CONNECTIONS), ("source-hash", Balance.SOURCE_HASH)]),
    *(("born", word, "born", number) for word, number in
      [("never", Born.NEVER), ("storm", Born.STORM), ("always", Born.ALWAYS)]),
    *(("proxy_protocol", word, "proxy_header", number) for word, number in [("none", 0), ("v1", 1), ("v2", 2)]),
    *(("interface", word, "persistent", number) for word, number in [("transient", 0), ("persistent", 1)]),
    *(("on_server_close", word, "on_server_close", number)
      for number, word in enumerate(["standby", "close", "idle", "sleep"])),
]  # fmt: skip


@pytest.mark.parametrize(("key", "word", "field", "number"), WORDS, ids=lambda value: str(value))
def test_words_are_the_engines_numbers(key: str, word: str, field: str, number: int) -> None:
    config = parse(SERVICE + f'{key} = "{word}"')
    assert getattr(service_spec(config.service[0], 1, config), field) == number


def test_every_number_of_the_engine_can_be_configured() -> None:
    by_key = {key: {number for one, _, _, number in WORDS if one == key} for key, *_ in WORDS}
    kinds = {"priority": Priority, "on_second_server": SecondServer, "balance": Balance, "born": Born}
    assert {key: set(kind) for key, kind in kinds.items()} == {key: by_key[key] for key in kinds}


def test_every_interval_reaches_the_engine_in_its_unit() -> None:
    keys = ["active_quiet", "standby_quiet", "idle_quiet", "connect_timeout", "second_server_wait"]
    seconds = ["probe_interval", "probe_retry", "most_probe_interval"]
    in_band = "least_quiet = 1.25\nleast_probe_interval = 9\n[service.in_band]\nstay = true\n"
    text = "\n".join([*(f"{key} = {n}.5" for n, key in enumerate(keys, 1)),
                      *(f"{key} = {n}" for n, key in enumerate(seconds, 1)), "probe_count = 7"])  # fmt: skip
    config = parse(SERVICE + text + "\n" + in_band)
    spec = service_spec(config.service[0], 1, config)
    assert (spec.standby_quiet_ms, spec.idle_quiet_ms, spec.sleep_quiet_ms) == (1500, 2500, 3500)
    assert (spec.connect_timeout_ms, spec.second_server_ms) == (4500, 5500)
    assert (spec.probe_interval_s, spec.probe_retry_s, spec.probe_count, spec.most_probe_s) == (1, 2, 7, 3)
    assert (spec.least_quiet_ms, spec.least_probe_s, spec.in_band_stay, spec.in_band_forward) == (1250, 9, 1, 0)


def test_a_service_with_a_probe_interval_of_its_own_takes_no_part_in_an_experiment_of_all() -> None:
    text = '[policy]\nprobe_interval = "10m"\nmost_probe_interval = "1h"\n' + SERVICE
    bounds = []
    for own in ("", "probe_interval = 300\n", "probe_interval = 300\nmost_probe_interval = 600\n"):
        config = parse(text + own)
        spec = service_spec(config.service[0], 1, config)
        bounds.append((spec.probe_interval_s, spec.most_probe_s))
    assert bounds == [(600, 3600), (300, 0), (300, 600)]
    with pytest.raises(ConfigError, match="needs a `probe_interval` beside it"):
        parse(text + "most_probe_interval = 600\n")


def test_the_tables_of_the_documentation_are_those_of_the_code() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert with_keys(written) == written, "run: python -m control.config"
    for model in HEADINGS.values():
        for name, key in model.model_fields.items():
            assert f"\n| `{name}` |" in written or name in SECTIONS
            assert key.description or name in SECTIONS


def test_a_document_that_lacks_a_section_is_refused() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"no table of keys.* under \"## \[history\]\""):
        with_keys(written.replace("## [history]", "## history"))


def test_the_examples_of_the_documentation_are_valid() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    first, *others = re.findall(r"```toml\n(.*?)```", written, re.DOTALL)
    assert len(parse(first).service) == 2
    for example in others:
        parse(example.replace("$scrypt$ln=15,r=8,p=1$...", HASH))


def test_whether_clients_are_born_asleep_reaches_the_engine_at_a_reload() -> None:
    old = parse(SERVICE)
    new = parse(SERVICE + 'born = "storm"\nborn_rate = 50')
    assert needs_restart(old, new) == []
    assert service_spec(old.service[0], 1, old).born == Born.NEVER
    spec = service_spec(new.service[0], 1, new)
    assert (spec.born, spec.born_rate) == (Born.STORM, 50)


def test_who_needs_no_keepalives_reaches_the_engine_at_a_reload() -> None:
    table = "[table]\nfilter = 5\n"
    old, new = parse(table + SERVICE), parse(table + SERVICE + 'sleep_keepalive = "none"')
    assert needs_restart(old, new) == []
    assert not service_spec(old.service[0], 1, old).no_keepalives
    assert service_spec(new.service[0], 1, new).no_keepalives


def test_only_policy_and_servers_are_taken_over_by_a_running_daemon() -> None:
    old = parse(SERVICE)
    assert needs_restart(old, parse(SERVICE + "active_quiet = 5\n[policy]\nidle_quiet = 7")) == []
    assert needs_restart(old, parse(SERVICE + '[export]\ndirectory = "/srv/roost"')) == []
    assert needs_restart(old, parse(SERVICE.replace(":6", ":7") + 'balance = "source-hash"')) == []
    moved = parse("[table]\nipv4 = 5\n" + SERVICE.replace(":5", ":7"))
    assert needs_restart(old, moved) == ["table", '[[service]] "a" (listen)']
    both = parse(SERVICE.replace(":5", ":7").replace(":6", ":8") + 'interface = "persistent"\n')
    assert needs_restart(old, both) == ['[[service]] "a" (listen, interface, server)']
    other = parse(SERVICE.replace('"a"', '"b"'))
    assert needs_restart(old, other) == [], "they go and come"
    held = SERVICE.replace('"a"', '"b"').replace('server = "192.0.2.2:6"', 'kind = "held"')
    assert needs_restart(old, parse(held)) == ['[[service]] "b" (is new, and kind = "held")']
    lasting = parse(SERVICE.replace('"a"', '"b"') + 'interface = "persistent"\n')
    assert needs_restart(old, lasting) == []
    assert needs_restart(parse(held), old) == [], "it goes"
    session = parse(SERVICE + 'interface = "persistent"\n')
    assert needs_restart(session, parse(SERVICE.replace(":6", ":7") + 'interface = "persistent"\n')) == [
        '[[service]] "a" (server)'
    ]


def test_users_of_attach_are_read() -> None:
    attach = parse(f'[attach]\nauth = "password"\n[attach.users]\nbob = "{HASH}"\n"b@ob" = "{HASH}"').attach
    assert attach.users == {"bob": HASH, "b@ob": HASH}
    assert (parse("").attach.auth, parse("").attach.protocols) == ("none", ("connect", "socks5"))


def test_a_password_in_place_of_its_hash_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="a password's hash is") as caught:
        parse('[attach]\nauth = "password"\nusers.bob = "hunter2"', "f.toml")
    assert "hunter2" not in str(caught.value)
    assert "`bob` in [attach]" in str(caught.value)


AGENT = '[[agent]]\nname = "site"\ntoken = "{token}"\nclients = ["camera"]\n'
DIAL = '[absent]\nsteps = ["dial"]\ndial_networks = ["10.0.0.0/8"]\n'
AGENT_SERVICE = '[[service]]\nname = "agents"\nlisten = "0.0.0.0:7100"\nkind = "agents"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (AGENT_SERVICE, "[[agent]] must say who they are"),
        (AGENT.format(token="0" * 64), 'no [[service]] with kind = "agents"'),
        (AGENT.format(token="0" * 64) * 2 + AGENT_SERVICE, "two [[agent]] have the same name"),
        (AGENT.format(token="secret") + AGENT_SERVICE, '`token` in [[agent]] "site"'),
        (AGENT_SERVICE + 'server = "10.0.0.1:1"\n', 'kind = "agents" has no server'),
        ('[absent]\nsteps = ["dial"]\n', "dial_networks must say where clients are"),
        (SERVICE + 'when_absent = "wait"\n', '[[service]] "a": when_absent is wait, and [absent] steps has agent'),
        ('[policy]\nwhen_absent = "dial, wait"\n', "[policy]: when_absent is dial, wait, and [absent] steps has agent"),
        (DIAL, 'dial_port is 0: dial_ports must say which ports a server may ask for, ["1-65535"]: any'),
        (DIAL + "dial_port = 5\ndial_ports = [5]\n", "the only one that is dialled: leave dial_ports out"),
        (DIAL + 'dial_ports = ["0-9"]\n', '"0-9" is no port and no range of ports; write 443 or "10240-32767"'),
        (DIAL + "dial_ports = [65536]\n", '"65536" is no port and no range of ports'),
        (DIAL + "dial_ports = [true]\n", "no port and no range of ports"),
        ('[absent]\nsteps = ["wait", "wait"]\n', "names a step twice"),
        ('[absent]\ndial_networks = ["10.0.0.1/8"]\n', "host bits set"),
        ('[agents]\ncertificate = "x.pem"\n', "needs certificate and private_key"),
    ],
)
def test_what_is_wrong_about_agents_is_said_without_a_secret(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert "'secret'" not in str(caught.value)


def test_a_client_that_is_gone_is_found_within_a_day_unless_the_configuration_says_otherwise() -> None:
    def probed(text: str) -> int:
        config = parse(text)
        return service_spec(config.service[0], 1, config).probe_interval_s

    config = parse(SERVICE)
    spec = service_spec(config.service[0], 1, config)
    assert spec.probe_interval_s
    assert spec.probe_interval_s * 9 / 8 + spec.probe_count * spec.probe_retry_s < 86400
    without_slot = "[table]\nfilter = 5\n" + SERVICE + 'sleep_keepalive = "none"\n'
    assert probed(without_slot) == 0, "a probe would take the slot that it does without"
    assert probed(SERVICE + 'probe_interval = "never"') == probed("[policy]\nprobe_interval = 0\n" + SERVICE) == 0
