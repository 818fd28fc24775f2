"""``rerank report dense``: the page and its numbers through the command, in a browser, and bad input."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unavailable import unavailable

WORDS = 5
HOSTILE = '</title><script>document.title="taken"</script><img src=http://elsewhere.invalid/x onerror=a()>'
CF = Path(os.environ.get("RERANK_DATA", Path(__file__).parents[3] / "shared" / "data")) / "cf"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def documents(size=60):
    """Six topics; links inside a topic; a hostile title and category among them."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(size):
        topic = i % 6
        words = [f"w{topic * WORDS + j}" for j in rng.integers(WORDS, size=20)]
        words += [f"w{j}" for j in rng.integers(30, 40, size=10)]
        links = [f"d{j}" for j in range(topic, size, 6) if j != i and rng.random() < 0.4]
        found.append(
            {
                "_id": f"d{i}",
                "title": f"topic {topic} no {i}",
                "text": " ".join(words),
                "categories": ["everything", f"topic {topic}"] if i % 7 else [],
                "links": links,
            }
        )
    found[0]["title"] = HOSTILE
    found[6]["categories"] = [HOSTILE]
    found.append({"_id": "empty", "text": "", "links": ["d1"]})
    return found


def options(tiny, *more):
    return ("--model", tiny, "--fragment-tokens", 16, "--batch", 8, "--rate", 0.002, *more)


@pytest.fixture(scope="module")
def learned(run, tiny, write_lines, tmp_path_factory):
    """A workspace with a trained ``dense``; not to be changed: see ``workspace``."""
    folder = tmp_path_factory.mktemp("learned")
    corpus = write_lines(folder / "corpus.jsonl", documents())
    assert run("ingest", corpus, "-w", folder / "ws").code == 0
    done = run("train", "dense", *options(tiny, "--steps", 20), "-w", folder / "ws")
    assert done.code == 0, done
    return folder / "ws"


@pytest.fixture
def workspace(learned, tmp_path):
    return Path(shutil.copytree(learned, tmp_path / "ws"))


@pytest.fixture(scope="module")
def written(run, learned, tmp_path_factory):
    """The page and its numbers, with a few runs of the sensitivity."""
    out = tmp_path_factory.mktemp("written") / "dense.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rerank.reports.dense.sensitivity.VALUES", {"gamma": (0.0, 1.0), **REST})
        numbers = run(
            *("report", "dense", "-w", learned, "--out", out, "--json"), "--sensitivity", "--steps", 2
        ).json
    return out, numbers


REST: dict[str, tuple[float, ...]] = {"semantic_margin": (1.0,), "structural_margin": ()}


# --------------------------------------------------------------------------------------------- numbers


def test_the_numbers(written, learned):
    out, numbers = written
    assert numbers["out"] == str(out)
    assert (numbers["same"], numbers["against"], numbers["remarks"]) == (True, "untrained", [])
    assert numbers["documents"] == 61
    assert numbers["without_text"] == 1
    record = json.loads(next(learned.glob("rankers/dense-*/ranker.json")).read_text())
    assert numbers["version"] == record["version"]
    assert numbers["best"] > 0, "the training found nothing better: nothing to compare here"
    before, after = numbers["before"], numbers["after"]
    # Topics are what the links are made of: both kinds of links are found better after training.
    for kind in ("linked", "held_out"):
        assert after[kind]["pairs"] > 20
        assert after[kind]["nearer"] > before[kind]["nearer"] > 0.4
        for histogram in ("related_histogram", "unrelated_histogram"):
            assert sum(after[kind][histogram]) == pytest.approx(1)
            assert len(after[kind][histogram]) == len(numbers["edges"]) - 1
    assert [g["group"] for g in after["levels"]][-1] == "unrelated"
    assert {"1", "2"} <= {g["group"] for g in after["hops"]}
    assert "no path" in {g["group"] for g in after["hops"]}
    assert after["hop_order"]["correlation"] > before["hop_order"]["correlation"]
    assert {m["level"]: m["asked"] for m in after["margins"]}[2] == 1
    assert after["common_category"]["nearest"] > after["common_category"]["chance"]
    assert numbers["categories_left_out"] == ["everything"]
    assert len(after["map"]) == len(before["map"]) == len(numbers["mapped"])
    runs = numbers["sensitivity"]["curves"]["gamma"]
    assert [run["gamma"] for run in runs] == [0, 0.5, 1]
    assert numbers["sensitivity"]["missing"] == 0
    assert runs[0]["untrained10"] == pytest.approx(numbers["history"][0]["R@10"])


def test_without_sensitivity_the_runs_that_are_there_are_shown(written, run, learned, tmp_path, monkeypatch):
    monkeypatch.setattr("rerank.reports.dense.sensitivity.VALUES", {"gamma": (0.0, 1.0), **REST})
    again = run("report", "dense", "-w", learned, "--out", tmp_path / "again.html", "--json").json
    first = written[1]
    assert again["sensitivity"] == first["sensitivity"]
    assert again["after"] == first["after"]
    same = (written[0].read_text("utf-8"), (tmp_path / "again.html").read_text("utf-8"))
    assert same[0] == same[1]


def test_what_it_says_in_the_terminal(run, learned, tmp_path):
    done = run("report", "dense", "-w", learned, "--out", tmp_path / "p.html", "--sample", 10)
    assert done.code == 0, done
    assert [line.split()[0] for line in done.out.splitlines()[2:4]] == ["before", "after"]
    assert done.out.splitlines()[-1] == f"written to {tmp_path / 'p.html'}"


# ------------------------------------------------------------------------------------------------ the page


class Page(HTMLParser):
    """Tags of a page, and its text; fails where tags are not balanced."""

    EMPTY = ("meta", "link", "br")

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


def test_the_page_needs_nothing_and_holds_no_markup_of_titles(written):
    text = written[0].read_text("utf-8")
    page = Page(text)
    names = {name for name, _ in page.tags}
    assert not names & {"script", "img", "iframe", "object", "form", "base"}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "data:,") == "data:,"
    assert "url(" not in text
    assert "@import" not in text
    policy = dict(page.tags)["meta"]
    assert any(a.get("http-equiv") == "Content-Security-Policy" for n, a in page.tags if n == "meta"), policy
    assert any(word.startswith("</title><script>") for word in page.words), "the hostile title is not shown"
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert len(headings) == 5
    assert sum(name == "svg" and "aria-label" in a for name, a in page.tags) >= 11
    assert "nan" not in text.lower().split()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser; none: skipped, in CI failed."""
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
          words: shown(document.querySelector('svg text.soft')).fill,
          svgs: [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect())
                .map(r => [r.width, r.height]),
          across: document.documentElement.scrollWidth, width: innerWidth, title: document.title};
}"""


def luminance(colour):
    parts = [int(p) / 255 for p in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 1000), ("light", 380)])
def test_in_a_browser(browser, written, scheme, width):
    """No error, no request, drawings of a size, words that can be read in light and dark, and on a phone."""
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.set_default_timeout(120_000)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(written[0].as_uri())
    seen = page.evaluate(BACKGROUND)
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [written[0].as_uri()]
    assert seen["title"] == "What dense has learned"
    assert len(seen["svgs"]) >= 11
    assert all(w >= 16 and h >= 16 for w, h in seen["svgs"])
    assert seen["across"] <= seen["width"]
    assert (luminance(seen["paper"]) < 0.1) == (scheme == "dark")
    assert contrast(seen["paper"], seen["ink"]) > 7
    assert contrast(seen["paper"], seen["words"]) > 4.5
    if scheme == "dark":  # paper is white
        page.emulate_media(media="print")
        assert luminance(page.evaluate(BACKGROUND)["ink"]) < 0.1
    page.close()


# ------------------------------------------------------------------------------------- real documents


@pytest.mark.slow
def test_a_part_of_cf(run, write_lines, tmp_path):
    """Abstracts that cite each other, MiniLM's first layer."""
    if not (CF / "corpus.jsonl.gz").exists():
        message = "the collection ../shared/data/cf is not there"
        unavailable(message)
    with gzip.open(CF / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        some = [json.loads(line) for line in file][:300]
    corpus = write_lines(tmp_path / "cf.jsonl", some)
    assert run("ingest", corpus, "-w", tmp_path / "ws").code == 0
    quick = ("--set", "layers=1", "--fragment-tokens", 32, "--fragments", 3, "--steps", 10)
    assert run("train", "dense", *quick, "-w", tmp_path / "ws").code == 0
    numbers = run(
        *("report", "dense", "-w", tmp_path / "ws", "--out", tmp_path / "p.html", "--json", "--sample", 80)
    ).json
    assert numbers["anchors"] == 80
    assert numbers["before"] is not None
    # Abstracts that cite each other are alike, in one layer of MiniLM too.
    assert numbers["after"]["linked"]["nearer"] > 0.55
    assert "Cystic Fibrosis" in numbers["categories_left_out"]
    assert numbers["categories"]
    Page((tmp_path / "p.html").read_text("utf-8"))


# ------------------------------------------------------------------------- what is not as it should be


def test_the_start_is_no_longer_there(run, workspace, tiny, tmp_path):
    (record,) = workspace.glob("rankers/dense-*/ranker.json")
    record.write_text(record.read_text().replace(json.dumps(tiny), json.dumps(str(tmp_path / "gone"))))
    numbers = run("report", "dense", "-w", workspace, "--out", tmp_path / "p.html", "--json").json
    assert numbers["before"] is None
    assert numbers["against"] is None
    text = (tmp_path / "p.html").read_text("utf-8")
    assert "not at hand" in text
    assert "shown alone" in text
    Page(text)
    run("report", "dense", "-w", workspace, "--sensitivity", "--out", tmp_path / "p.html").fails(
        2, "no model on this machine"
    )
    # Where it is now can be said.
    found = run("report", "dense", "-w", workspace, "--against", tiny, "--out", tmp_path / "p.html", "--json")
    assert found.json["before"] is not None
    run("report", "dense", "-w", workspace, "--against", "minilm", "--out", tmp_path / "p.html").fails(
        2, "other tokens"
    )


def test_settings_of_another_version(run, workspace, tmp_path):
    (record,) = workspace.glob("rankers/dense-*/ranker.json")
    record.write_text(record.read_text().replace('"objective": "contrastive"', '"objective": "other"'))
    run("report", "dense", "-w", workspace, "--out", tmp_path / "p.html").fails(1, "other", "train it again")


def test_documents_changed_since_the_training(run, workspace, write_lines, tmp_path):
    more = write_lines(tmp_path / "more.jsonl", [{"_id": "new", "text": "w1 w2", "links": ["d0"]}])
    assert run("ingest", more, "-w", workspace).code == 0
    done = run("report", "dense", "-w", workspace, "--out", tmp_path / "p.html")
    assert "held-out links cannot be told" in done.err
    text = (tmp_path / "p.html").read_text("utf-8")
    assert "have changed since the training" in text
    assert "Held-out links, never learned from" not in text


def test_documents_without_categories(run, tiny, write_lines, tmp_path):
    plain = [{**one, "categories": []} for one in documents()]
    assert run("ingest", write_lines(tmp_path / "c.jsonl", plain), "-w", tmp_path / "ws").code == 0
    assert run("train", "dense", *options(tiny, "--steps", 2), "-w", tmp_path / "ws").code == 0
    done = run("report", "dense", "-w", tmp_path / "ws", "--out", tmp_path / "p.html", "--json")
    assert done.json["after"]["common_category"] is None
    assert "are not given" in (tmp_path / "p.html").read_text("utf-8")


def test_three_documents(run, tiny, write_lines, tmp_path):
    """Hardly anything can be shown of two linked documents and a third: the page says so, and is one."""
    few = [
        {"_id": "a", "text": "w1 w2", "links": ["b"]},
        {"_id": "b", "text": "w3"},
        {"_id": "c", "text": "w4"},
    ]
    assert run("ingest", write_lines(tmp_path / "c.jsonl", few), "-w", tmp_path / "ws").code == 0
    how = ("--steps", 1, "--held-out", 0, "--objective", "structure")
    assert (
        run("train", "dense", "--model", tiny, "--fragment-tokens", 16, *how, "-w", tmp_path / "ws").code == 0
    )
    done = run("report", "dense", "-w", tmp_path / "ws", "--out", tmp_path / "p.html")
    assert done.code == 0, done
    assert "fewer than the sample" in done.err
    text = (tmp_path / "p.html").read_text("utf-8")
    assert "too few documents for a map" in text
    assert "No links were held out of the training" in text
    Page(text)


def test_bad_input(run, workspace, tmp_path, write_lines):
    out = ("--out", tmp_path / "p.html")
    run("report", "dense", "-w", workspace, "--out", tmp_path).fails(2, "a folder", "--out")
    run("report", "dense", "-w", workspace, "--out", tmp_path / "no" / "p.html").fails(1, "p.html")
    run("report", "text", "-w", workspace, *out).fails(1, "'text' is not trained")
    run("report", "dense", "-w", workspace, "--against", tmp_path, *out).fails(2, "config.json is missing")
    corpus = write_lines(tmp_path / "c.jsonl", [{"_id": "a", "text": "w1"}])
    assert run("ingest", corpus, "-w", tmp_path / "plain").code == 0
    run("report", "dense", "-w", tmp_path / "plain", *out).fails(1, "rerank train dense`")
    run("ingest", corpus, "--replace", "-w", workspace)
    run("report", "dense", "-w", workspace, *out).fails(1, "no links to each other")
    assert not [path for path in tmp_path.iterdir() if "p.html" in path.name], "something was left behind"
