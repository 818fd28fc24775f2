"""Checks of report pages: their markup, and their behavior in a real browser."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.opensearch import unavailable

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Page(HTMLParser):
    """Tags and text of a page. Unbalanced tags fail."""

    EMPTY = ("meta", "link", "br", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser. Without one, tests are skipped, or fail in CI."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        reason = f"no browser on this machine ({', '.join(BROWSERS)})"
        unavailable(reason)
    if os.environ.get("CI") != "true":
        pytest.importorskip("playwright", reason="playwright drives the browser; the dev extra has it")
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    quiet += ["--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=quiet, timeout=300_000)
        yield started
        started.close()


BACKGROUND = """() => {
  const shown = e => getComputedStyle(e);
  return {paper: shown(document.body).backgroundColor, ink: shown(document.body).color,
          words: shown(document.querySelector('.soft')).color,
          across: document.documentElement.scrollWidth, width: innerWidth, title: document.title};
}"""


def luminance(color):
    parts = [int(p) / 255 for p in re.findall(r"\d+", color)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def check_page(path: Path, *, hostile: str, sections: int) -> None:
    """Assert that the page is one file that loads nothing and runs only its script, for any title."""
    text = path.read_text("utf-8")
    page = Page(text)
    names = {name for name, _ in page.tags}
    assert not names & {"img", "iframe", "object", "form", "base"}
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for n, a in page.tags if n == "meta" and "http-equiv" in a)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            to = attributes.get(name, "data:,")
            assert to == "data:," or to.startswith("#")  # within the page
    assert "url(" not in text
    assert "@import" not in text
    assert any(word.startswith(hostile) for word in page.words), "the hostile title is not shown"
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert len(headings) == sections
    assert "nan" not in text.lower().split()


def check_in_browser(browser: Any, path: Path, scheme: str, width: int, *, title: str) -> None:
    """Assert that a page has no errors or requests, and that text is readable in all color schemes."""
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.set_default_timeout(120_000)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    seen = page.evaluate(BACKGROUND)
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert seen["title"] == title
    assert seen["across"] <= seen["width"]
    assert (luminance(seen["paper"]) < 0.1) == (scheme == "dark")
    assert contrast(seen["paper"], seen["ink"]) > 7
    assert contrast(seen["paper"], seen["words"]) > 4.5
    if scheme == "dark":  # the page is printed on white
        page.emulate_media(media="print")
        assert luminance(page.evaluate(BACKGROUND)["ink"]) < 0.1
    page.close()
