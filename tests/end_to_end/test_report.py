"""``rerank report dense``: the page and its numbers through the command, in a browser, and bad input."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.commands import sealed
from tests.pages import Page, browser, check_in_browser, check_page
from tests.unavailable import unavailable

__all__ = ["browser"]

WORDS = 5
HOSTILE = '</title><script>document.title="taken"</script><img src=http://elsewhere.invalid/x onerror=a()>'
CF = Path(os.environ.get("RERANK_DATA", Path(__file__).parents[3] / "shared" / "data")) / "cf"


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


SIDES = ("before", "after")


def topic(id: str) -> int:
    """What a document is about; links stay within a topic."""
    return int(id.removeprefix("d")) % 6


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
    assert [r["group"] for r in after["hop_rings"]] == [g["group"] for g in after["hops"][1:]]
    assert after["same_subgraph"]["nearest"] > after["same_subgraph"]["chance"]
    assert len(numbers["subgraphs"]) == len(numbers["subgraph_layout"]) == len(after["subgraphs"])
    nearest = {
        side: [(asked["id"], one) for asked in numbers["asked"] for one in asked[side]] for side in SIDES
    }
    same = {side: sum(topic(asked) == topic(one["id"]) for asked, one in of) for side, of in nearest.items()}
    assert len(nearest["before"]) == len(nearest["after"]) == 30
    assert same["after"] > same["before"]
    linked = [(asked, one["id"]) for of in nearest.values() for asked, one in of if one["held_out"]]
    assert linked
    assert all(topic(asked) == topic(found) for asked, found in linked)
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


def test_the_page_needs_nothing_and_holds_no_markup_of_titles(written):
    check_page(written[0], hostile=HOSTILE[:16], sections=7, drawings=16)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 1000), ("light", 380)])
def test_in_a_browser(browser, written, scheme, width):
    check_in_browser(browser, written[0], scheme, width, title="What dense has learned", drawings=11)


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
    sealed(workspace)
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
    sealed(workspace)
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
    (tmp_path / "pairs.tsv").write_text("d0\td1\t1\nd0\td2\t0\n")
    run("report", "dense", "-w", workspace, "--pairs", tmp_path / "pairs.tsv", *out).fails(2, "no --pairs")
    corpus = write_lines(tmp_path / "c.jsonl", [{"_id": "a", "text": "w1"}])
    assert run("ingest", corpus, "-w", tmp_path / "plain").code == 0
    plain = tmp_path / "plain"
    run("report", "dense", "-w", plain, *out).fails(1, f"rerank train dense -w {plain}`")
    run("ingest", corpus, "--replace", "-w", workspace)
    run("report", "dense", "-w", workspace, *out).fails(1, "no links to each other")
    assert not [path for path in tmp_path.iterdir() if "p.html" in path.name], "something was left behind"
