# SPDX-License-Identifier: Apache-2.0
"""The report's page (spark/page) in Chromium: light, dark, narrow and as it is printed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.lab import Lab
from spark.page import page as report_page
from tests import report_tables as given
from tests.lab.browser import FAULTS, Browser, browser

LONG = "a-service-whose-name-is-longer-than-what-is-good-for-a-page-and-has-no-place-where-a-line-ends"
SERVICES = ("meter", given.MARKUP, LONG, None, "lamp", "lift", "door", "pump")

LAID_OUT = """
const faults = [];
const wide = document.documentElement.clientWidth;
const box = (one) => one.getBoundingClientRect();
const named = (one) => one.outerHTML.slice(0, 99);
const all = (css, root = document) => [...root.querySelectorAll(css)];
const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.5;
function apart(some) {
  const boxes = some.map(box);
  boxes.forEach((a, at) => boxes.slice(at + 1).forEach((b, more) => {
    if (meet(a, b)) faults.push(`overlap: ${named(some[at])} and ${named(some[at + 1 + more])}`);
  }));
}
for (const one of all("body *:not(.unseen)")) {
  if (one.closest("svg") && one.tagName !== "svg") continue;
  const {left, right} = box(one);
  if (one.closest(".scroll table")) continue;
  if (right > wide + 0.5 || left < -0.5) faults.push(`beyond the edge: ${named(one)}`);
  if (getComputedStyle(one).overflowX === "visible" && one.clientWidth && one.scrollWidth > one.clientWidth + 1
      && one.tagName !== "svg") faults.push(`too long: ${named(one)}`);
}
for (const one of all("main, section, figure, .panels, .matrices, .panel, .legend")) {
  apart([...one.children].filter((child) => !child.matches(".unseen")));
}
for (const plot of all("svg")) {
  const {width, height} = box(plot);
  if (width < 250 || height < 60) faults.push(`${width} x ${height}: ${named(plot)}`);
  const drawn = all("path, use", plot).filter((one) => box(one).width + box(one).height > 0);
  if (drawn.length < 5) faults.push(`nothing is drawn: ${named(plot)}`);
  const texts = all("text", plot);
  if (texts.length < 3) faults.push(`no axis: ${named(plot)}`);
  apart(texts);
  for (const text of texts) {
    const [a, b] = [box(text), box(plot)];
    const cut = a.left < b.left || a.right > b.right || a.bottom > b.bottom || a.top < b.top;
    if (cut) faults.push(`cut: ${named(text)}`);
    if (a.height < 9) faults.push(`${a.height} pixels high: ${named(text)}`);
  }
}
return [faults, all("svg").length];
"""
CONTRAST = """
const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((one) => one / 255)
  .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
  .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
const paper = light(getComputedStyle(document.body).backgroundColor);
const least = Math.min(...[...document.querySelectorAll("svg text")].map((one) => light(getComputedStyle(one).fill))
  .map((one) => (Math.max(one, paper) + 0.05) / (Math.min(one, paper) + 0.05)));
return [least, paper];
"""
ASKED = """
return performance.getEntriesByType("resource").map((one) => one.name);
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = given.a_week(SERVICES) | given.of_jobs(SERVICES)
    tables["another"] = [{f"column_{number}_s": 3.5 for number in range(12)} | {"text": given.MARKUP}]
    return report_page.write(given.write(tmp_path_factory.mktemp("report"), tables))


@pytest.fixture(scope="module")
def opened(nat_free_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(nat_free_lab, "lan", "http://nowhere.test", {}, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(opened: Browser, nat_free_lab: Lab, written: Path) -> Iterator[Browser]:
    """What the browser finds wrong, what the page's policy forbids included, is an error of the test."""
    with nat_free_lab.enter("lan"):
        opened.complaints()
        opened.go(written.as_uri())
        yield opened
        assert opened.complaints() == []


@pytest.mark.parametrize(("scheme", "width", "medium"), [
    ("light", 1280, ""), ("dark", 1280, ""), ("light", 400, ""), ("dark", 400, ""), ("dark", 688, "print"),
])  # fmt: skip
def test_a_page_is_legible_and_nothing_overlaps(page: Browser, scheme: str, width: int, medium: str) -> None:
    page.medium(medium, scheme)
    page.width(width)
    try:
        faults, plots = page.run(LAID_OUT)
        assert (faults, plots) == ([], 30)
        assert page.run(FAULTS) == []
        contrast, paper = page.run(CONTRAST)
        assert contrast >= 4.5
        assert (paper < 0.1) == (scheme == "dark" and not medium), "what is printed is black on white"
        assert page.run(ASKED) == []
    finally:
        page.medium("", "light")
        page.width(0)


def test_text_of_data_is_text_and_the_contents_lead_to_sections(page: Browser) -> None:
    assert page.run("return document.scripts.length") == 0
    assert given.MARKUP in page.text("h4")
    assert page.run("return [...document.querySelectorAll('svg desc')].every((one) => one.textContent.length > 20)")
    for link in page.all("nav a"):
        link.click()
        name = page.run("return location.hash.slice(1)")
        top = page.run("return document.getElementById(arguments[0]).getBoundingClientRect().top", name)
        assert -1 < top < 900


def test_what_is_printed_has_pages(page: Browser) -> None:
    printed = base64.b64decode(page.printed())
    assert printed.startswith(b"%PDF")
    assert 5 <= printed.count(b"/Type /Page\n") <= 40
