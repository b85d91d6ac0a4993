# SPDX-License-Identifier: Apache-2.0
"""The console (docs/console.md) in a browser: each page clicked through, as each role, with a daemon behind it."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from appliance.lab import Lab, wait_until
from tests.certificates import make_certificate
from tests.lab.api_lab import API_PORT, ApiLab
from tests.lab.browser import FAULTS, Browser, browser

HOST = "roost.test"
ORIGIN = f"https://{HOST}:{API_PORT}"
MARKUP = '<img src=x onerror="document.title=1">'
PAGES = ("", "connections", "policy", "attaches", "events", "audit", "tokens")
OTHER, OTHER_PORT = "other.test", 8088


TYPED = {
    "": {},
    "cellar": {"name": "*cellar*"},
    "meter-?": {"name": "meter-?"},
    "10.64.3.7": {"network": "10.64.3.7/32"},
    "10.64": {"network": "10.64.0.0/16"},
    "10.64.": {"network": "10.64.0.0/16"},
    "10.64.0.0/10": {"network": "10.64.0.0/10"},
    "10.64.3.7:40001": {"network": "10.64.3.7", "client": "10.64.3.7:40001"},
    "2001:db8": {"network": "2001:db8::/32"},
    "2001:db8::7": {"network": "2001:db8::7"},
    "2001:db8::/32": {"network": "2001:db8::/32"},
    "[2001:db8::7]:40001": {"network": "2001:db8::7", "client": "[2001:db8::7]:40001"},
    "fd:00": {"network": "fd:00::/32"},
    "face": {"name": "*face*"},
}
VALUES: dict[tuple[str, Any], str] = {
    ("idle_quiet", 0): "never",
    ("idle_quiet", 600): "10m",
    ("probe_interval", 93784.5): "1d2h3m4.5s",
    ("probe_retry", 0.25): "0.25s",
    ("probe_count", 4): "4",
    ("priority", "low"): "low",
}


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiLab]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = map(str, make_certificate(folder))
    with ApiLab(nat_free_lab, certificate=certificate, private_key=key) as box:
        box.tls = ssl.create_default_context(cafile=certificate)
        box.wait_for_api()
        for role in ("viewer", "operator", "admin"):
            box.token(role)
        yield box


@pytest.fixture(scope="module")
def opened(box: ApiLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    hosts = {HOST: box.host, OTHER: box.lab.address("lan", "eth0")}
    with browser(box.lab, "lan", ORIGIN, hosts, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(opened: Browser, box: ApiLab) -> Iterator[Browser]:
    """What the browser finds wrong, what its policy forbids included, is an error of the test."""
    with box.lab.enter("lan"):
        opened.complaints()
        yield opened
        assert opened.complaints() == []


def named(box: ApiLab, name: str, *tags: str, family: int = 4) -> tuple[socket.socket, str]:
    """A client of this name, and its address and port."""
    client, address = box.client(family)
    assert box.ask("operator", "PUT", f"/v1/connections/{address}/name", {"name": name})[0] == 200
    if tags:
        assert box.ask("operator", "PUT", f"/v1/names/{name}/tags", {"add": tags})[0] == 200
    return client, address


def state_of(box: ApiLab, address: str) -> str:
    found = box.daemon.http("GET", f"/v1/connections/{address}")
    return str(found.json()["state"]) if found.status_code == 200 else "CLOSED"


def rows(page: Browser, css: str = "main") -> list[str]:
    """Of the tables there, each as a line of text."""
    lines: list[str] = page.run("return [...document.querySelectorAll(arguments[0])].map((row) => row.innerText)",
                                f"{css} tbody tr")  # fmt: skip
    return lines


def shown(page: Browser, where: str) -> None:
    """Wait until the page is that one, by its heading, and has come."""
    page.wait(lambda: page.run("return location.hash") == f"#/{where}" and page.all("h1 + *"), where)


# -- who --------------------------------------------------------------------------------------------------------------


def test_a_token_lets_one_in_stays_in_the_tab_and_is_gone_afterwards(page: Browser, box: ApiLab) -> None:
    page.go(f"{ORIGIN}/")
    page.reads("Log in with a token")
    for text, why in (("let me in", "that is no token"), (f"roost_{'a' * 8}_{'b' * 43}", "the token is not good")):
        page.write("Token", text + "\n")
        page.reads(why, css="#problem")
    page.write("Token", box.texts["viewer"])
    page.press("Log in")
    page.reads("Overview", "connections")
    token = box.texts["viewer"]
    kept = "return [location.href, document.cookie, JSON.stringify(localStorage), document.documentElement.innerHTML]"
    assert not [one for one in page.run(kept) if token[15:] in one]
    assert page.run("return Object.values(sessionStorage)") == [token]
    page.driver.refresh()
    page.reads("Overview")
    page.press("Log out")
    page.reads("Log in with a token")
    assert page.run("return sessionStorage.length") == 0


def test_a_token_that_is_revoked_leads_back_to_the_log_in_with_the_reason(page: Browser, box: ApiLab) -> None:
    page.log_in(box.token("viewer"))
    page.go("#/attaches")
    page.reads("Requests")
    box.daemon.http("DELETE", f"/v1/tokens/{box.names['viewer']}")
    wait_until(lambda: box.ask("viewer", "GET", "/v1/me")[0] == 401, 5, "it is revoked")
    page.go("#/connections")
    page.reads("the token is not good (any more)", css="#problem")
    page.reads("Log in with a token")
    box.token("viewer")


def test_a_viewer_looks_and_nothing_else(page: Browser, box: ApiLab) -> None:
    _, address = named(box, "lamp-1", family=6)
    page.log_in(box.texts["viewer"])
    assert page.text("#pages").split() == ["Overview", "Connections", "Policy", "Attaches", "Events"]
    for where in (*PAGES, f"connections/{address}"):
        page.go(f"#/{where}")
        shown(page, where)
        page.reads("role admin" if where in ("audit", "tokens") else "")
        names = {one.accessible_name for one in page.all("main button")}
        assert names <= {"Search", "Explain", "Follow", "Pause", ""}, where
    page.reads("Why it is where it is", "active_quiet is 0")
    assert page.driver.title == "lamp-1 – Roost"
    page.driver.back()
    page.wait(lambda: page.driver.title == "Tokens – Roost", "the page before")


def test_a_server_has_the_connections_of_its_service(page: Browser, box: ApiLab) -> None:
    (_, own), (_, other) = box.client(4), box.client(6)
    page.log_in(box.token("server", "lab4"))
    assert page.text("#pages").split() == ["Connections", "Events"]
    page.reads(own)
    assert other not in page.text()
    page.press(f"Sleep {own}")
    page.reads(f"{own}: put to SLEEP.", css="#notice")
    assert state_of(box, own) == "SLEEP"
    page.go(f"#/connections/{other}")
    page.reads(f'no connection "{other}"', css="#problem")


# -- what -------------------------------------------------------------------------------------------------------------


def test_the_overview_says_how_it_stands(page: Browser, box: ApiLab) -> None:
    _, address = box.client()
    box.ask("operator", "POST", f"/v1/connections/{address}/idle")
    status = box.daemon.status()
    page.log_in(box.texts["viewer"])
    page.go("#/")
    page.reads("Nothing needs attention.", f"IDLE {status['connections']['IDLE']:,}", "× 3.6 kB", "lab4", "lab6",
               "sent down a step", "the client was in")  # fmt: skip
    box.ask("operator", "POST", f"/v1/connections/{address}/wake")
    page.press("Overview")  # otherwise 5 s later
    page.reads(f"IDLE {status['connections']['IDLE'] - 1:,}")
    page.press("IDLE", "h2")
    page.reads("Part of a name")
    assert page.driver.title == "Connections – Roost"


def test_charts_have_their_figures_as_tables(page: Browser, box: ApiLab) -> None:
    def moment(minute: int, times: int) -> list[dict[str, Any]]:
        counts = {"ACTIVE": 3, "IDLE": 10, "born": 5, "SLEEP": 1000, "spoke after 64": 9,
                  "SLEEP ACTIVE client-data": 8, "IDLE STANDBY server-attach": 2, "ACTIVE STANDBY client-data": 50,
                  "IDLE SLEEP pressure": 6}  # fmt: skip
        whole = {"maps_bytes": 2_000_000, "rss_bytes": 1_000_000, "memory_permille": 255}
        return [
            {"at_ms": minute * 60_000, "span_ms": 120_000, "service": service, "rules": None,
             "counts": {name: count * times for name, count in some.items()}}
            for service, some in (("lab4", counts), ("lab6", counts), (None, whole))
        ]  # fmt: skip

    page.log_in(box.texts["viewer"])
    page.run("""const [rows, real] = [arguments[0], window.fetch];
        window.fetch = (path, more) =>
            (path.startsWith("/v1/snapshots") ? Promise.resolve(Response.json(rows)) : real(path, more));
        location.hash = "#/policy";""", moment(1, 1) + moment(3, 2))  # fmt: skip
    page.reads("Rules in force")
    page.go("#/")
    page.reads("Wake-ups a minute")

    def figures() -> dict[str, list[list[str]]]:
        for summary in page.all("figure summary"):
            summary.click()
        page.wait(lambda: len(page.all("figure tbody")) == len(page.all("figure")), "the figures")
        found: dict[str, list[list[str]]] = page.run("""return Object.fromEntries(
            [...document.querySelectorAll("figure")].map((one) => [one.querySelector("h2").innerText,
                [...one.querySelectorAll("tr")].map((row) =>
                    [...row.cells].slice(1).map((cell) => cell.innerText))]));""")
        return found

    assert figures() == {
        "ACTIVE": [["ACTIVE"], ["12"], ["6"]],
        "STANDBY": [["STANDBY"], ["0"], ["0"]],
        "IDLE": [["IDLE"], ["60"], ["30"]],
        "SLEEP": [["SLEEP"], ["4,000"], ["2,000"]],
        "Wake-ups a minute": [["the client spoke", "a server asked"], ["16", "4"], ["8", "2"]],
        "Sent down by pressure, a minute": [["connections"], ["12"], ["6"]],
        "Memory": [["Roost, all of it", "as kernel sockets"], ["6.0 MB", "14.6 MB"], ["3.0 MB", "7.3 MB"]],
        "Pressure": [["memory", "descriptors", "stalls for memory", "stalls for the processor"],
                     ["51 %", "0 %", "0 %", "0 %"], ["25.5 %", "0 %", "0 %", "0 %"]],
    }  # fmt: skip
    page.choose("Service", "lab6")
    page.wait(lambda: len(page.all("figure")) == 6, "those of a service")
    assert figures()["IDLE"] == [["IDLE"], ["30"], ["15"]]
    page.driver.refresh()


def test_connections_are_found_and_moved(page: Browser, box: ApiLab) -> None:
    clients = [named(box, f"meter-{number}-cellar", "winter") for number in range(3)]
    page.log_in(box.texts["operator"])
    page.write("Find a client by name, address or number", "CELLAR\n")
    page.reads("3 connections (names like *CELLAR*)")
    page.press("all on this page")
    page.press("select meter-1-cellar")
    page.press("Sleep", "[aria-label=Results] > .row")
    page.reads("2 connections: put to SLEEP.", css="#notice")
    assert [state_of(box, address) for _, address in clients] == ["SLEEP", "ACTIVE", "SLEEP"]
    assert [line.split("\t")[2] for line in rows(page)] == ["SLEEP", "ACTIVE", "SLEEP"]
    page.press("Wake meter-0-cellar")
    page.reads("meter-0-cellar: woken.", css="#notice")
    page.wait(lambda: page.focused() == "Sleep meter-0-cellar", "the focus stays")
    page.choose("State", "STANDBY")
    page.write("Tag", "winter")
    page.press("Search")
    page.reads("1 connections")
    assert "state=STANDBY" in page.driver.current_url
    page.driver.back()
    page.reads("3 connections")
    for text, told in ((clients[1][1][:-1], f"(the client {clients[1][1][:-1]})"),
                       ("10.64.", "(addresses in 10.64.0.0/16)"),
                       ("none-such", "There is none. (names like *none-such*)")):  # fmt: skip
        page.write("Part of a name, address, network or number", text)
        page.press("Search")
        page.reads(told)
    page.write("Part of a name, address, network or number", "a b")
    page.press("Search")
    page.reads("is a client's name without the domain", css="#problem")
    page.write("Find a client by name, address or number", clients[1][1] + "\n")
    page.reads("meter-1-cellar", "Timeline")


def test_what_is_typed_is_understood_and_values_are_written_as_they_may_be_typed(page: Browser, box: ApiLab) -> None:
    page.log_in(box.texts["viewer"])
    told = page.driver.execute_async_script("""
        const [texts, values, done] = arguments;
        Promise.all([import("/console/connections.js"), import("/console/dom.js")]).then(([search, dom]) => done([
            texts.map((text) => search.understood(text)[0]),
            values.map(([key, value]) => dom.policyValue(key, value)),
            [0, 9.87, 59.6, 61, 3600, 90061].map(dom.span), [0, 999, 61_234_567, 3.1e9].map(dom.bytes)]));
    """, list(TYPED), [list(one) for one in VALUES])  # fmt: skip
    assert told[0] == list(TYPED.values())
    assert dict(zip(VALUES, told[1], strict=True)) == VALUES
    assert told[2] == ["0s", "9.9s", "1m", "1m 1s", "1h", "1d 1h"]
    assert told[3] == ["0 B", "999 B", "61.2 MB", "3.1 GB"]


def test_a_page_of_many_has_some_hundred_rows_and_each_is_on_one(page: Browser, box: ApiLab) -> None:
    def addresses() -> list[str]:
        found: list[str] = page.run("return [...document.querySelectorAll('tbody .mono')].map((one) => one.innerText)")
        return found

    page.log_in(box.texts["viewer"])
    with box.crowd(120) as several:
        page.go("#/connections?service=lab4")
        page.reads("connections on this page")
        first = addresses()
        assert 100 <= len(first) < 110, "where the engine has several in one place, the API gives all of them"
        page.press("Next page")
        page.control("First page")
        told = first + addresses()
        assert set(several) <= set(told)
        assert len(told) == len(set(told))
        page.press("First page")
        page.wait(lambda: addresses()[:50] == first[:50], "the first page")


def test_one_connection_is_explained_moved_named_and_given_values(page: Browser, box: ApiLab) -> None:
    client, address = box.client()
    page.log_in(box.texts["operator"])
    page.go(f"#/connections/{address}")
    page.reads("Its policy lets it stay ACTIVE for ever", "client-connect", "active_quiet")
    page.press("Sleep")
    page.reads("It was in ACTIVE, and is in SLEEP.", css="#notice")
    page.reads("its record is a row of the database", "command")
    box.woken(client)
    page.reads("ACTIVE", "client-data")
    page.write("Name", "gate-7")
    page.press("Set the name")
    page.reads("Servers reach it as gate-7.", css="#notice")
    page.wait(lambda: page.driver.title == "gate-7 – Roost", "its name")
    page.write("Another tag", "Yard")
    page.press("Add the tag")
    page.reads("gate-7 has the tags yard.", css="#notice")
    page.press("Remove the tag yard")
    page.reads("gate-7 has no tags.", css="#notice")
    page.write("Value", "5m")
    page.write("Why", MARKUP)
    page.press("Give")
    page.reads("idle_quiet is 5m for this connection.", css="#notice")
    page.wait(lambda: any(line.split() == ["idle_quiet", "5m", "by", "command"] for line in rows(page)), "its value")
    page.write("Value", "soon")
    page.press("Give")
    page.reads("idle_quiet", css="#problem")
    page.press("Take away")
    page.reads("idle_quiet is what its rules and its service say.", css="#notice")
    page.press("Forget it")
    page.reads("The name gate-7 is forgotten.", css="#notice")
    page.press("Close")
    page.press("Cancel", "dialog")
    number = box.daemon.get(f"/v1/connections/{address}")["id"]
    assert state_of(box, address) == "STANDBY"
    page.press("Close")
    page.press("Close", "dialog")
    page.reads("is in CLOSED", css="#notice")
    assert state_of(box, address) == "CLOSED"
    assert page.run("return location.hash") == "#/connections"
    for link in (f"#/connections/{number}", f"#/connections/{address}?id={number}"):
        page.go(link)
        page.reads(f"Number {number} has ended.", "client-connect", "CLOSED")
        page.reads("no connection", css="#problem")


def test_rules_are_tried_put_in_force_and_taken_back(page: Browser, box: ApiLab) -> None:
    _, address = named(box, "rover")
    network = f"{address.rsplit('.', 1)[0]}.0/24"
    page.log_in(box.texts["operator"])
    page.go(f"#/connections/{address}")
    page.press(f"Make a rule for {network}")
    page.wait(lambda: page.focused() == "Rules", "the editor")
    text = page.control("Rules").get_attribute("value") or ""
    assert f'network = "{network}"\nservice = "lab4"\nidle_quiet = "10m"\n' in text
    page.press("Try")
    page.reads("What it would change", ": new.", "Nothing has been changed.")
    assert box.ask("viewer", "GET", "/v1/policy")[1]["version"] == 0
    page.write("Why", MARKUP)
    page.press("Put in force")
    page.reads("Version 1 is in force.", css="#notice")
    page.reads(MARKUP)
    assert page.all("main img") == []
    name = text.split('"')[1]
    wait_until(lambda: _value(box, address, "idle_quiet") == 600, 5, "it obeys")
    assert (
        box.ask("operator", "PUT", f"/v1/policy/rules/{name}", {"rule": {"idle_quiet": "1h"}, "why": "mine"})[0] == 200
    )
    page.write("Rules", text.replace("10m", "20m"))
    page.press("Put in force")
    page.reads("the rules are not those of version 1, which you saw: version 2 is by", css="#problem")
    page.reads("Another has changed the rules meanwhile", "idle_quiet=1h")
    assert "20m" in (page.control("Rules").get_attribute("value") or "")
    page.press("I have seen version 2")
    page.press("Put in force")
    page.reads("Version 3 is in force.", css="#notice")
    page.press("Take it back to version 2")
    page.reads("Version 4 is in force.", css="#notice")
    page.press("Back to version 1")
    page.press("Roll back", "dialog")
    page.reads("Version 5 is in force.", css="#notice")
    assert _value(box, address, "idle_quiet") == 600
    page.press(name)
    page.wait(lambda: text == page.control("Rules").get_attribute("value"), "the rule as it is in force")
    page.write("Number, address, address:port, or name with its domain", "10.99.0.1")
    page.choose("It is", "an address that connects to lab4")
    page.press("Explain")
    page.reads("10.99.0.1, service lab4, rules of version 5")
    page.write("Rules", "[[rule]]\nname = 'x'\nidle_quiet = 'soon'")
    page.press("Try")
    page.reads('rule "x"', css="#problem")
    page.press(f"Remove the rule {name}")
    page.press("Remove", "dialog")
    page.reads("Version 6 is in force.", css="#notice")
    page.reads("There are none")


def _value(box: ApiLab, address: str, key: str) -> Any:
    values = box.daemon.get(f"/v1/connections/{address}/policy")["values"]
    return next(row["value"] for row in values if row["key"] == key)


def test_attaches_that_failed_say_why(page: Browser, box: ApiLab) -> None:
    _, address = named(box, "camera-3")
    box.ask("operator", "POST", f"/v1/connections/{address}/idle")
    for target, begins in (("camera-3.roost:22", b"HTTP/1.1 200"), ("nobody.roost:22", b"HTTP/1.1 404")):
        with socket.create_connection((box.host, 3128), 5) as server:
            server.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert server.recv(4096).startswith(begins)
    page.log_in(box.texts["viewer"])
    page.go("#/attaches")
    page.reads("nobody.roost:22", "camera-3.roost:22", "linked", "× no such client")
    page.press("only those that failed")
    page.wait(lambda: "camera-3.roost:22" not in page.text(), "those that failed")
    page.reads("nobody.roost:22")


def test_events_come_as_they_happen_whatever_is_killed(page: Browser, box: ApiLab) -> None:
    _, address = box.client()
    page.log_in(box.texts["operator"])
    page.go("#/events")
    page.reads("live", address)
    box.daemon.act(address, "idle")
    before = box.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    box.daemon.act(address, "sleep")

    def told() -> list[list[str]]:
        return [line.split("\t")[2:5] for line in rows(page) if address in line]

    page.wait(lambda: ["IDLE", "SLEEP", "command"] in told(), "what happened meanwhile")
    assert told() == [["IDLE", "SLEEP", "command"], ["STANDBY", "IDLE", "command"], ["ACTIVE", "STANDBY", "command"],
                      ["new", "ACTIVE", "client-connect"]]  # fmt: skip
    page.press("Pause")
    box.daemon.act(address, "wake")
    page.reads("1 wait")
    assert "STANDBY" not in rows(page)[0]
    page.press("Go on")
    page.wait(lambda: rows(page)[0].split("\t")[2:4] == ["SLEEP", "STANDBY"], "what waited")
    assert "ERR_INCOMPLETE_CHUNKED_ENCODING" in page.complaints()[0]
    box.wait_for_api()


def test_an_admin_makes_a_token_revokes_it_and_reads_who_did(page: Browser, box: ApiLab) -> None:
    page.log_in(box.texts["admin"])
    page.go("#/tokens")
    page.write("Name", "ann")
    page.choose("Role", "operator")
    page.press("Make a token")
    text = page.control("It is shown this once, and kept nowhere").get_attribute("value") or ""
    assert box.ask(text, "GET", "/v1/me")[1]["role"] == "operator"
    page.press("I have it")
    page.press("Revoke the token ann")
    page.press("Revoke", "dialog")
    page.reads("The token ann is revoked.", css="#notice")
    wait_until(lambda: box.ask(text, "GET", "/v1/me")[0] == 401, 5, "it is good no more")
    page.go("#/audit")
    page.reads("DELETE /v1/tokens/", box.names["admin"])
    page.press("only what was refused")
    page.press("Show")
    page.wait(lambda: "DELETE /v1/tokens/" not in page.text(), "what was refused")


# -- however it is used -----------------------------------------------------------------------------------------------


def test_another_site_can_do_nothing_with_it(page: Browser, box: ApiLab, tmp_path: Path) -> None:
    _, address = box.client()
    page.log_in(box.texts["operator"])
    (tmp_path / "index.html").write_text("<!doctype html><title>other</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer((box.lab.address("lan", "eth0"), OTHER_PORT), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page.go(f"http://{OTHER}:{OTHER_PORT}/index.html")
        ask = """const [url, token, done] = arguments;
            const headers = {Authorization: `Bearer ${token}`};
            const frame = document.createElement("iframe");
            frame.src = `${url}/console/`;
            document.body.append(frame);
            const outcome = (promise) => promise.then(() => "done", () => "refused");
            frame.onload = async () => done([
                await outcome(fetch(`${url}/v1/status`, {headers})),
                await outcome(fetch(`${url}/v1/connections/${arguments[1]}/close`, {method: "POST", headers})),
                await outcome(fetch(`${url}/console/`, {mode: "no-cors"})),
                await outcome(import(`${url}/console/api.js`)),
            ]);"""
        assert page.driver.execute_async_script(ask, ORIGIN, box.texts["operator"]) == ["refused"] * 4
        other.shutdown()
    told = "\n".join(page.complaints())
    assert "frame-ancestors" in told
    assert "blocked by CORS policy" in told
    assert state_of(box, address) == "ACTIVE"


def test_the_main_ways_need_no_mouse(page: Browser, box: ApiLab) -> None:
    _, address = named(box, "boiler-9")

    def tab_to(name: str) -> None:
        for _ in range(40):
            if page.focused() == name:
                return
            page.keys(Keys.TAB)
        raise AssertionError(f"the key Tab does not lead to {name}")

    page.log_in(box.texts["operator"])
    page.go("#/")
    page.reads("Nothing needs attention")
    page.driver.refresh()
    page.reads("Nothing needs attention")
    page.run("document.activeElement.blur()")
    tab_to("Skip to the content")
    page.keys(Keys.ENTER)
    assert page.driver.switch_to.active_element.tag_name == "main"
    page.run("document.activeElement.blur()")
    tab_to("Find a client by name, address or number")
    page.keys("boiler", Keys.ENTER)
    page.reads("1 connections")
    tab_to("boiler-9")
    page.keys(Keys.ENTER)
    page.reads("Timeline")
    page.wait(lambda: page.driver.switch_to.active_element.text == "boiler-9", "the heading is read first")
    tab_to("Idle")
    page.keys(Keys.SPACE)
    page.reads("It was in ACTIVE, and is in IDLE.", css="#notice")
    assert page.focused() == "Idle"
    tab_to("Close")
    page.keys(Keys.ENTER)
    page.wait(lambda: page.focused() == "Cancel", "the question")
    page.keys(Keys.ESCAPE)
    page.wait(lambda: not page.all("dialog"), "no question")
    assert page.focused() == "Close"
    assert state_of(box, address) == "IDLE"


def test_all_is_named_legible_and_fits_in_either_scheme(page: Browser, box: ApiLab) -> None:
    _, address = named(box, "heron-1", "pond")
    box.ask("operator", "POST", f"/v1/connections/{address}/idle")
    found: dict[str, list[str]] = {}
    try:
        page.log_out()
        page.reads("Log in with a token")
        found["log-in"] = page.run(FAULTS)
        page.log_in(box.texts["admin"])
        for where in (*PAGES, f"connections/{address}", "connections?find=heron"):
            page.go(f"#/{where}")
            shown(page, where)
            time.sleep(0.1)
            for scheme, width in (("light", 400), ("dark", 0)):
                page.colours(scheme)
                page.width(width)
                found[f"{where} {scheme}"] = page.run(FAULTS)
    finally:
        page.colours("light")
        page.width(0)
    assert {where: faults for where, faults in found.items() if faults} == {}
