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
WAIT_S: Final = 10.0
CONTROLS: Final = "a, button, input, select, textarea, summary"
NAMED: Final = """
const [css, name] = arguments;
const text = (one) => one.ariaLabel ?? one.labels?.[0]?.textContent ?? one.textContent.trim();
return [...document.querySelectorAll(css)].find((one) => text(one) === name && one.checkVisibility());
"""
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
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", features=features)

    def width(self, pixels: int) -> None:
        """Of the window; 0: as it was."""
        if pixels:
            size = {"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            self._devtools("Emulation.setDeviceMetricsOverride", **size)
        else:
            self._devtools("Emulation.clearDeviceMetricsOverride")

    def _devtools(self, command: str, **parameters: Any) -> None:
        self.driver.execute("executeCdpCommand", {"cmd": command, "params": parameters})

    def complaints(self) -> list[str]:
        """Errors in the browser's console since this was asked last, but for answers that are errors."""
        rows = self.driver.execute(Command.GET_LOG, {"type": "browser"})["value"]
        return [row["message"] for row in rows if row["level"] == "SEVERE" and REFUSED not in row["message"]]


@contextmanager
def browser(lab: Lab, space: str, origin: str, hosts: Mapping[str, str], profile: Path) -> Iterator[Browser]:
    """hosts: the addresses of the names that there are. What Chromium asks of others by itself would make the first
    page wait for want of an answer, 16 s."""
    known = [f"MAP {name} {address}" for name, address in hosts.items()]
    own = {"HOME": str(profile), "TMPDIR": str(profile), "PATH": "/usr/bin:/bin"}
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
