# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium without a screen, in a namespace of a lab, as one who uses the console has it.

Texts are those that a user reads: a control is found by its name for assistive technology.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, ChromeOptions, Remote
from selenium.webdriver.chrome.remote_connection import ChromeRemoteConnection
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.command import Command
from selenium.webdriver.remote.webelement import WebElement

from appliance.lab import Lab, wait_until

DRIVER: Final = "/usr/bin/chromedriver"
DRIVER_PORT: Final = 9515
WAIT_S: Final = 60.0
CONTROLS: Final = "a, button, input, select, textarea, summary"
NAMED: Final = """
const [css, name] = arguments;
const text = (one) => one.ariaLabel ?? one.labels?.[0]?.textContent ?? one.textContent.trim();
return [...document.querySelectorAll(css)].find((one) => text(one) === name && one.checkVisibility());
"""
FAULTS: Final = """
const faults = [];
const seen = (one) => one.checkVisibility() && one.getClientRects().length > 0;
const all = (css) => [...document.querySelectorAll(css)].filter(seen);
for (const one of all("input, select, textarea")) {
  if (!one.labels?.length && !one.ariaLabel) faults.push(`no label: ${one.outerHTML}`);
}
for (const one of all("a, button")) {
  if (!(one.textContent.trim() || one.ariaLabel)) faults.push(`no name: ${one.outerHTML}`);
}
for (const one of all("table")) {
  if (!one.caption?.textContent) faults.push(`no caption: ${one.outerHTML.slice(0, 99)}`);
  for (const head of one.querySelectorAll("th")) if (!head.scope) faults.push(`no scope: ${head.outerHTML}`);
}
if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
if (document.documentElement.lang !== "en" || !document.querySelector("main")) faults.push("no language, or no main");
const levels = all("h1, h2, h3").map((one) => Number(one.tagName[1]));
if (levels.some((level, at) => level > (levels[at - 1] ?? 0) + 1)) faults.push(`a heading skips a level: ${levels}`);

const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (colour) => channels(colour).slice(0, 3).map((one) => one / 255)
  .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
  .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
function behind(one) {
  for (let at = one; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if ((channels(colour)[3] ?? 1) === 1) return colour;
  }
  return "rgb(255, 255, 255)";
}
let texts = 0;
for (const one of all("body *")) {
  const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!(own || one.matches("input, select, textarea")) || one.closest("svg")) continue;
  texts += 1;
  const [a, b] = [getComputedStyle(one).color, behind(one)].map(light).sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${one.outerHTML.slice(0, 99)}`);
}
if (texts < 5) faults.push(`only ${texts} texts`);
const wide = document.documentElement.scrollWidth;
if (wide > innerWidth) faults.push(`${wide} pixels wide`);
return faults;
"""
"""What is wrong with any page: a script that returns sentences."""
REFUSED: Final = "Failed to load resource: the server responded with a status of 4"
"""What Chromium says of any answer that is an error: the pages say it, too, and better."""


class Browser:
    """origin: of the console. Every call is to be made in the namespace."""

    def __init__(self, driver: Remote, origin: str) -> None:
        self.driver = driver
        self.origin = origin

    def go(self, where: str) -> None:
        """To a page of the console, by its hash, without loading it anew; to another site."""
        if not where.startswith("#") or not self.driver.current_url.startswith(f"{self.origin}/console/"):
            self.driver.get(where if "://" in where else f"{self.origin}/console/{where}")
        else:
            self.run("location.hash = arguments[0]", where)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def log_out(self) -> None:
        """Whoever is logged in leaves."""
        self.go("")
        self.wait(lambda: self.all("#token") or self.all("#pages a"), "the console")
        if not self.all("#token"):
            self.press("Log out")

    def log_in(self, token: str) -> None:
        """As whoever has it, unless that one is logged in."""
        if self.all("#pages a") and self.run("return Object.values(sessionStorage)") == [token]:
            return
        self.log_out()
        self.write("Token", token + "\n")
        self.wait(lambda: self.all("#pages a"), "the pages")

    # -- looking ------------------------------------------------------------------------------------------------------

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str = "main") -> str:
        """What is to be read there, its words with one space between them."""
        words: str = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText).join()", css
        )
        return " ".join(words.split())

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of a condition."""
        found: list[Any] = []

        def holds() -> bool:
            with suppress(StaleElementReferenceException):
                found[:] = [value] if (value := condition()) else []
            return bool(found)

        try:
            wait_until(holds, WAIT_S, what, 0.02)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; there is:\n{self.text('body')}") from None
        return found[0]

    def reads(self, *texts: str, css: str = "main") -> None:
        """Wait until all of these can be read there."""
        self.wait(lambda: all(text in self.text(css) for text in texts), " and ".join(texts))

    def control(self, name: str, within: str = "body") -> WebElement:
        """The one with this name that can be seen."""

        found: WebElement = self.wait(lambda: self.run(NAMED, f":is({within}) :is({CONTROLS})", name),
                                      f'a control "{name}"')  # fmt: skip
        assert found.accessible_name == name
        return found

    # -- acting -------------------------------------------------------------------------------------------------------

    def press(self, name: str, within: str = "body") -> None:
        """Click on it, in the middle of the window: at its edge, a message may lie above it."""
        for _ in range(5):
            with suppress(StaleElementReferenceException):
                control = self.control(name, within)
                self.run("arguments[0].scrollIntoView({block: 'center'})", control)
                control.click()
                return
        raise TimeoutError(f'the control "{name}" is made anew again and again')

    def write(self, name: str, text: str, within: str = "body") -> None:
        """In place of what the field has."""
        field = self.control(name, within)
        field.clear()
        field.send_keys(text)

    def choose(self, name: str, text: str) -> None:
        """An option of a list."""
        self.control(name).send_keys(text)

    def keys(self, *keys: str) -> None:
        """Type them, wherever the focus is."""
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def focused(self) -> str:
        """The name of what has the focus."""
        return self.driver.switch_to.active_element.accessible_name

    def colours(self, scheme: str) -> None:
        """light, dark."""
        self.medium("", scheme)

    def medium(self, medium: str, scheme: str) -> None:
        """print, with the colours that the user prefers; "": a screen."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", media=medium, features=features)

    def printed(self) -> str:
        """The page as PDF, in base64."""
        made: str = self._devtools("Page.printToPDF", preferCSSPageSize=True)["data"]
        return made

    def width(self, pixels: int) -> None:
        """Of the window; 0: as it was."""
        if pixels:
            size = {"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            self._devtools("Emulation.setDeviceMetricsOverride", **size)
        else:
            self._devtools("Emulation.clearDeviceMetricsOverride")

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute("executeCdpCommand", {"cmd": command, "params": parameters})["value"]

    def complaints(self) -> list[str]:
        """Errors in the browser's console since this was asked last, but for answers that are errors."""
        rows = self.driver.execute(Command.GET_LOG, {"type": "browser"})["value"]
        return [row["message"] for row in rows if row["level"] == "SEVERE" and REFUSED not in row["message"]]


@contextmanager
def browser(lab: Lab, space: str, origin: str, hosts: Mapping[str, str], profile: Path) -> Iterator[Browser]:
    """hosts: the addresses of the names that there are. What Chromium asks of others by itself would make the first
    page wait for want of an answer, 16 s."""
    known = [f"MAP {name} {address}" for name, address in hosts.items()]
    # Chromium ends where the path of its socket there is longer than 107 bytes (sun_path).
    own = {"HOME": str(profile), "TMPDIR": str(lab.workspace), "PATH": "/usr/bin:/bin"}
    lab.run_tree(space, [DRIVER, f"--port={DRIVER_PORT}"], env=own, stdout=subprocess.DEVNULL)
    options = ChromeOptions()
    options.accept_insecure_certs = True
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                     "--window-size=1280,900", f"--user-data-dir={profile}",
                     f"--host-resolver-rules={','.join([*known, 'MAP * ~NOTFOUND'])}"):  # fmt: skip
        options.add_argument(argument)

    def listens() -> bool:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", DRIVER_PORT)):
            return True
        return False

    with lab.enter(space):
        wait_until(listens, 20, "the browser's driver listens")
        driver = Remote(ChromeRemoteConnection(f"http://127.0.0.1:{DRIVER_PORT}"), options=options)
        try:
            yield Browser(driver, origin)
        finally:
            driver.quit()
