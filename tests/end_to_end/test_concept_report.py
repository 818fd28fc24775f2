"""``rerank report concept``: components before and after training through the command, and in a browser."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rerank.formats import write_labelled_pairs
from rerank.records import LabelledPair
from tests.pages import browser, check_in_browser, check_page

__all__ = ["browser"]

HOSTILE = "</title><script>document.title='taken'</script>"
TOPICS, EACH = 8, 6


def documents() -> list[dict]:
    """Topics of words of their own, and words of all."""
    rng = np.random.default_rng(0)
    found = []
    for topic in range(TOPICS):
        for i in range(EACH):
            words = [f"w{topic * 4 + j}" for j in rng.integers(4, size=5)]
            words += [f"w{j}" for j in rng.integers(32, 40, size=10)]
            found.append({"_id": f"d{topic}-{i}", "title": f"w39 no {i}", "text": " ".join(words)})
    found[0]["title"] = found[1]["title"] = HOSTILE
    found.append({"_id": "alone", "text": "w38 w39"})
    return found


def labelled(ids: list[str]) -> list[LabelledPair]:
    """All related pairs, and a fifth of the others."""
    found = []
    for i, a in enumerate(ids):
        for step, b in enumerate(ids[i + 1 :]):
            if a[:2] == b[:2] or step % 5 == 0:
                found.append(LabelledPair(a, b, a[:2] == b[:2]))
    return found


@pytest.fixture(scope="module")
def learned(run, tiny, write_lines, tmp_path_factory):
    """A workspace with a trained ``concept``, and files of pairs beside it."""
    folder = tmp_path_factory.mktemp("concept")
    ids = [one["_id"] for one in documents()[:-1]]
    kept = [one for one in ids if one[-1] in "45"]
    write_labelled_pairs(folder / "dev.tsv", labelled(kept))
    train = [*labelled([one for one in ids if one not in kept]), LabelledPair("alone", ids[0], False)]
    write_labelled_pairs(folder / "train.tsv", train)
    assert run("ingest", write_lines(folder / "c.jsonl", documents()), "-w", folder / "ws").code == 0
    how = ("--model", tiny, "--fragment-tokens", 32, "--steps", 20, "--batch", 16, "--rate", 0.003)
    files = ("--pairs", folder / "train.tsv", "--dev-pairs", folder / "dev.tsv")
    done = run("train", "concept", *how, *files, "--set", "queue=8", "-w", folder / "ws")
    assert done.code == 0, done
    return folder


@pytest.fixture(scope="module")
def written(run, learned, tmp_path_factory):
    """The page and its numbers."""
    out = tmp_path_factory.mktemp("written") / "concept.html"
    done = run(
        *("report", "concept", "-w", learned / "ws", "--pairs", learned / "train.tsv", "--out", out, "--json")
    )
    return out, done.json


def test_the_numbers(written, learned):
    out, numbers = written
    assert numbers["out"] == str(out)
    assert (numbers["components"], numbers["alone"], numbers["sizes"]) == (TOPICS, 1, {"4": TOPICS})
    assert numbers["documents"] == 4 * TOPICS + 1 == len(numbers["mapped"])
    assert numbers["related"] == TOPICS * 6
    assert numbers["shown_counts"] == [4] * 7
    marks = [one["mark"] for one in numbers["mapped"]]
    assert sorted({*marks}) == [-2, -1, *range(7)], "related to none, other components, and seven marks"
    assert len(numbers["before"]["map"]) == len(numbers["after"]["map"]) == len(marks)
    before, after = numbers["before"], numbers["after"]
    assert before["head"] is None
    assert after["head"] is not None
    if numbers["best"]:  # it has learned from these pairs
        assert after["distances"]["nearer"] > before["distances"]["nearer"]
    assert 0 < after["component"]["chance"] < after["component"]["nearest"] <= 1
    record = json.loads(next(learned.glob("ws/rankers/concept-*/ranker.json")).read_text())
    assert numbers["version"] == record["version"]


def test_the_page_needs_nothing_and_holds_no_markup_of_titles(written):
    check_page(written[0], hostile=HOSTILE[:16], sections=4, drawings=4)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("dark", 1000), ("light", 380)])
def test_in_a_browser(browser, written, scheme, width):
    check_in_browser(browser, written[0], scheme, width, title="What concept has learned", drawings=4)


def test_what_it_says(run, learned, tmp_path):
    where = ("report", "concept", "-w", learned / "ws", "--out", tmp_path / "p.html")
    pairs = ("--pairs", learned / "dev.tsv")
    done = run(*where, *pairs, "--sample", 4)
    assert [line.split()[0] for line in done.out.splitlines()[2:4]] == ["before", "after"], done
    assert "too few documents for a map" in (tmp_path / "p.html").read_text("utf-8")
    run(*where).fails(2, "give --pairs")
    run(*where, *pairs, "--sensitivity").fails(2, "--sensitivity")
    run(*where, *pairs, "--against", tmp_path).fails(2, "config.json is missing")
    run("report", "concept", "-w", learned / "ws", *pairs, "--out", tmp_path).fails(2, "a folder", "--out")
