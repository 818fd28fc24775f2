"""The page of `rerank serve --judge`, in a real browser on a real service."""

from __future__ import annotations

import json
import resource
import signal
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from rerank.judging.judgments import read_judgments, summarize_judgments
from rerank.judging.pool import judged_file
from tests.support.browser import BACKGROUND, browser, contrast, luminance
from tests.support.judging import (
    HOSTILE,
    SIZES,
    TOTAL,
    folder,
    grades,
    make_pool,
    pool,
    serve,
)
from tests.support.service import wait_until

__all__ = ["browser", "folder", "pool", "serve"]


@contextmanager
def opened(browser, url, name="ann", **context):
    """A page that a judge has started. Its errors and requests are collected."""
    made = browser.new_context(**{"viewport": {"width": 900, "height": 800}, **context})
    page = made.new_page()
    page.set_default_timeout(60_000)
    page.errors, page.requested = [], []
    page.on("console", lambda message: page.errors.append(message.text))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda request: page.requested.append(request.url))
    page.goto(url)
    if name:
        page.fill("#name", name)
        page.keyboard.press("Enter")
    yield page
    made.close()


def saw(page, text, selector="#progress"):
    """Wait until an element contains a text."""
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector).textContent.includes(text)",
        arg=[selector, text],
    )


def current(page):
    """Return the position of the hit whose grade group has the focus."""
    return page.evaluate(
        "[...document.querySelectorAll('#hits > li')].findIndex(item => item.matches('[aria-current]')"
        " && item.querySelector('fieldset').contains(document.activeElement))"
    )


def test_keys_grade_undo_and_show_the_next_query(browser, serve, pool):
    with serve(pool) as server, opened(browser, server.url + "/judge") as page:
        saw(page, f"Query 1 of 3. 0 of {TOTAL}")
        assert current(page) == 0
        for number, key in enumerate("3120"):
            assert current(page) == number
            page.keyboard.press(key)
        saw(page, f"4 of {TOTAL}")
        assert page.evaluate("document.activeElement.id") == "next"
        assert grades(pool) == [("ann", f"q1-d{n}", grade) for n, grade in enumerate((3, 1, 2, 0))]
        page.keyboard.press("u")
        saw(page, f"3 of {TOTAL}")
        assert current(page) == 3
        page.keyboard.press("u")
        saw(page, f"2 of {TOTAL}")
        assert [id for _, id, _ in grades(pool)] == ["q1-d0", "q1-d1"]
        page.keyboard.press("Enter")  # q1 is incomplete, and comes again at the end
        saw(page, "Query 2 of 3")
        for key in "100":
            page.keyboard.press(key)
        page.keyboard.press("Enter")
        saw(page, "Query 3 of 3")
        page.keyboard.press("2")
        page.keyboard.press("2")
        page.keyboard.press("Enter")
        saw(page, "Query 1 of 3")
        assert current(page) == 2
        page.keyboard.press("u")  # of the query before
        saw(page, "Query 3 of 3")
        saw(page, f"6 of {TOTAL}")
        page.keyboard.press("3")
        page.keyboard.press("Enter")
        saw(page, "Query 1 of 3")
        page.keyboard.press("1")
        page.keyboard.press("1")
        page.keyboard.press("Enter")
        saw(page, "All hits are judged")
        assert {id: grade for _, id, grade in grades(pool)} == {
            "q1-d0": 3, "q1-d1": 1, "q1-d2": 1, "q1-d3": 1,
            "q2-d0": 1, "q2-d1": 0, "q2-d2": 0, "q3-d0": 2, "q3-d1": 3,
        }  # fmt: skip
        assert page.errors == []


def test_hostile_titles_stay_text_and_nothing_else_is_requested(browser, serve, pool):
    with serve(pool) as server, opened(browser, server.url + "/judge") as page:
        saw(page, "Query 1 of 3")
        assert page.title() == "Judge search results"
        assert [page.text_content(part) for part in ("#query", "#title-0", "#text-0")] == [HOSTILE] * 3
        assert page.locator("img").count() == 0
        page.keyboard.press("1")
        saw(page, "1 of 9")
        assert {url.split("/judge")[0] for url in page.requested} == {server.url}
        policy = page.get_attribute("meta[http-equiv]", "content")
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
        assert page.errors == []


def test_notes_mouse_and_arrow_keys(browser, serve, pool):
    """In a note, keys are letters. A click or an arrow key grades, and does not move on."""
    with serve(pool) as server, opened(browser, server.url + "/judge") as page:
        saw(page, "Query 1 of 3")
        page.locator("#hits li").nth(1).locator(".note input").click()
        page.keyboard.type("0123 u, see d2")
        page.keyboard.press("Enter")
        assert current(page) == 1
        assert grades(pool) == []
        page.keyboard.press("2")
        saw(page, "1 of 9")
        page.locator("#hits li").nth(3).get_by_label("3 the best answer").check()
        saw(page, "2 of 9")
        assert current(page) == 3
        page.keyboard.press("ArrowLeft")
        wait_until(lambda: ("ann", "q1-d3", 2) in grades(pool))
        assert current(page) == 3
        (first, second) = read_judgments(judged_file(pool))
        assert (first.id, first.grade, first.note, second.note) == ("q1-d1", 2, "0123 u, see d2", "")
        page.locator("#hits li").nth(1).locator(".note input").fill("other")
        page.locator("#query").click()
        wait_until(lambda: any(one.note == "other" for one in read_judgments(judged_file(pool))))
        page.reload()
        page.keyboard.press("Enter")  # the name is remembered
        saw(page, "2 of 9")
        assert page.locator("#hits li").nth(1).locator(".note input").input_value() == "other"
        assert page.locator("#hits li").nth(1).get_by_label("2 relevant").is_checked()


def test_two_judges_and_two_pages_of_one_judge(browser, serve, pool):
    with serve(pool) as server:
        url = server.url + "/judge"
        with opened(browser, url) as ann, opened(browser, url) as again, opened(browser, url, "ben") as ben:
            for page in (ann, again, ben):
                saw(page, "0 of 9")
            for page in (ann, ben):
                for key in "0123":
                    page.keyboard.press(key)
            ben.keyboard.press("u")
            saw(ann, "4 of 9")
            saw(ben, "3 of 9")
            again.keyboard.press("3")  # d0 again, in the other page of the same judge
            saw(again, "4 of 9")
            again.keyboard.press("Enter")
            saw(again, "Query 2 of 3")
    summary = summarize_judgments(read_judgments(judged_file(pool)))
    assert summary.judges == {"ann": 4, "ben": 3}
    assert dict(summary.qrels["q1"]) == {"q1-d0": 0, "q1-d1": 1, "q1-d2": 2, "q1-d3": 3}
    assert [(one.id, one.grades) for one in summary.disagreements] == [("q1-d0", {"ann": 3, "ben": 0})]


def test_a_restart_continues_at_the_right_hit(browser, serve, pool):
    with serve(pool) as server, opened(browser, server.url + "/judge") as page:
        saw(page, "Query 1 of 3")
        page.keyboard.press("0")
        page.keyboard.press("1")
        saw(page, "2 of 9")
        port = server.port
    with serve(pool, "--port", port), opened(browser, f"http://127.0.0.1:{port}/judge") as page:
        saw(page, "Query 1 of 3. 2 of 9")
        assert current(page) == 2


def test_a_killed_service_loses_nothing(browser, serve, pool):
    with serve(pool) as server, opened(browser, server.url + "/judge") as page:
        saw(page, "Query 1 of 3")
        page.keyboard.press("3")
        saw(page, "1 of 9")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        server.ends = -signal.SIGKILL
        page.keyboard.press("2")
        saw(page, "Not saved", "#problem")
        saw(page, "1 of 9")
        assert current(page) == 1
        assert page.locator("#hits li").nth(1).locator(":checked").count() == 0
        assert grades(pool) == [("ann", "q1-d0", 3)]
        with serve(pool, "--port", server.port):
            page.keyboard.press("1")  # the same page continues
            saw(page, "2 of 9")
            assert page.text_content("#problem") == ""
    assert grades(pool) == [("ann", "q1-d0", 3), ("ann", "q1-d1", 1)]


def test_a_full_disk_is_shown(browser, serve, pool):
    """The file of judgments is larger than the log, so only its writes fail."""
    line = json.dumps({"query_id": "q0", "id": "d", "grade": 1, "by": "ben"}) + "\n"
    judged_file(pool).write_text(line * 5000)
    size = judged_file(pool).stat().st_size
    with serve(pool) as server, opened(browser, server.url + "/judge") as page:
        saw(page, "0 of 9")
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        page.keyboard.press("3")
        saw(page, "Not saved", "#problem")
        saw(page, "free space", "#problem")
        assert current(page) == 0
        body = {"query_id": "q1", "id": "q1-d0", "grade": 1, "by": "ann"}
        server.post("/judge", body).fails(507, "not saved", "free space")
        assert judged_file(pool).stat().st_size == size
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
        page.keyboard.press("3")
        saw(page, "1 of 9")
    assert ("ann", "q1-d0", 3) in grades(pool)


def test_only_the_page_itself_needs_no_token(browser, serve, pool, tmp_path):
    (tmp_path / "tokens").write_text("all-secret\nhook-secret hook\njudge-secret judge\n")
    body = {"query_id": "q1", "id": "q1-d0", "grade": 1, "by": "ann"}
    with serve(pool, "--token-file", tmp_path / "tokens") as server:
        assert server.get("/judge").status == 200
        server.get("/judge/next?by=ann").fails(401, "token")
        server.post("/judge", body).fails(401, "token")
        statuses = {"hook-secret": 403, "other": 401, "judge-secret": 200, "all-secret": 200}
        for token, status in statuses.items():
            server.token = token
            assert server.get("/judge/next?by=ann").status == status
            assert server.post("/judge", body).status == status
        server.token = "judge-secret"
        server.post("/v1/search", {"query": "wolf"}).fails(403, "not valid for /v1/search")
        server.token = ""
        with opened(browser, f"{server.url}/judge#wrong") as page:
            saw(page, "wrong or missing token", "#problem")
            assert page.locator("#work").is_hidden()
        with opened(browser, f"{server.url}/judge#judge-secret", "ben") as page:
            saw(page, "Query 1 of 3. 0 of 9")
            page.keyboard.press("2")
            saw(page, "1 of 9")
            assert not any("judge-secret" in url.partition("#")[0] for url in page.requested)
        assert "judge-secret" not in server.log_file.read_text()


NAMES = """() => {
  const problems = [];
  for (const input of document.querySelectorAll('input'))
    if (!input.labels[0]?.textContent.trim()) problems.push('no label: ' + input.outerHTML);
  for (const button of document.querySelectorAll('button'))
    if (!button.textContent.trim()) problems.push('no name: ' + button.outerHTML);
  for (const radio of document.querySelectorAll('[type=radio]')) {
    const group = radio.closest('fieldset');
    if (!group || !group.querySelector('legend').textContent) problems.push('no legend');
    for (const id of group.getAttribute('aria-describedby').split(' '))
      if (document.querySelectorAll('#' + id).length != 1) problems.push('not one element: ' + id);
  }
  const levels = [...document.querySelectorAll('h1,h2,h3')].map(heading => Number(heading.tagName[1]));
  levels.forEach((level, n) => { if (n && level > levels[n - 1] + 1) problems.push('skipped level') });
  for (const part of document.querySelectorAll('fieldset label,button')) {
    const box = part.getBoundingClientRect();
    if (box.width && (box.height < 24 || box.width < 24)) problems.push('small: ' + part.outerHTML);
  }
  return problems;
}"""
COLORS = """() => {
  const paper = element => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!color.endsWith(', 0)')) return color;
    }
  };
  return [...document.querySelectorAll('h1,h2,h3,p,legend,fieldset label,fieldset span,.note,button,summary')]
    .filter(part => part.checkVisibility() && part.textContent.trim())
    .map(part => [part.tagName + part.className, getComputedStyle(part).color, paper(part)]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 900])
def test_the_page_is_readable_and_named(browser, serve, pool, scheme, width):
    view = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    with serve(pool) as server, opened(browser, server.url + "/judge", **view) as page:
        saw(page, "Query 1 of 3")
        page.keyboard.press("2")
        saw(page, "1 of 9")
        page.locator("summary:visible").first.click()
        shown = page.evaluate(BACKGROUND)
        assert shown["across"] <= shown["width"]
        assert (luminance(shown["paper"]) < 0.1) == (scheme == "dark")
        assert page.evaluate(NAMES) == []
        for name, ink, paper in page.evaluate(COLORS):
            assert contrast(ink, paper) >= 4.5, name
        assert page.get_attribute("#progress", "aria-live") == "polite"
        assert page.get_attribute("#problem", "role") == "alert"
        assert page.get_attribute("html", "lang") == "en"


def test_tab_follows_the_order_of_the_page(browser, serve, pool):
    """From the heading on: each group of radio buttons is one stop, then its note, then the next hit."""
    with serve(pool) as server, opened(browser, server.url + "/judge") as page:
        saw(page, "Query 1 of 3")
        stops = []
        for _ in range(2 * SIZES["q1"] + 5):
            stops.append(
                page.evaluate(
                    "(at => at.name || at.id || at.tagName + [...document.querySelectorAll('#hits > li')]"
                    ".findIndex(item => item.contains(at)))(document.activeElement)"
                )
            )
            page.keyboard.press("Tab")
        expected = ["grade-0", "INPUT0"]
        for number in range(1, SIZES["q1"]):
            expected += [f"SUMMARY{number}", f"grade-{number}", f"INPUT{number}"]
        assert stops[: len(expected) + 2] == [*expected, "next", "undo"]
        outline = page.evaluate(
            "() => { document.querySelector('#next').focus();"
            " return getComputedStyle(document.querySelector('#next')).outlineStyle }"
        )
        assert outline == "solid"


def test_four_hundred_keys_take_far_less_time_than_a_judge(browser, serve, tmp_path):
    """A judge needs 5 seconds for a hit, 35 minutes for 400. The page may need a third of that."""
    pool = tmp_path / "pool.json"
    make_pool({f"q{n}": 10 for n in range(1, 41)}).save(pool)
    with serve(pool) as server, opened(browser, server.url + "/judge") as page:
        begin = time.monotonic()
        for query in range(1, 41):
            saw(page, f"Query {query} of 40")
            for key in "0123012301":
                page.keyboard.press(key)
            page.keyboard.press("Enter")
        saw(page, "All hits are judged")
        seconds = time.monotonic() - begin
    counts = Counter(grade for _, _, grade in grades(pool))
    assert counts == {0: 120, 1: 120, 2: 80, 3: 80}
    assert seconds < 35 * 60 / 3
