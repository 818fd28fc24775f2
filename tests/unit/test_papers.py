"""docs/papers.md is what benchmarks/papers/page.py makes, and its verdicts follow from figures."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from rerank.records import Qrels
from rerank.scoring.table import ScoreTable

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "papers"


@pytest.fixture(scope="module")
def scripts() -> Any:
    """Import a module of benchmarks/papers by its name."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module
    sys.path.remove(str(SCRIPTS))


def test_the_page_is_what_its_command_makes(scripts: Any) -> None:
    page = scripts("page")
    made = page.pages()
    for path, text in made.items():
        assert path.read_text("utf-8") == text, "run python benchmarks/papers/page.py"
    drawn = {path for path in made if path.suffix == ".svg"}
    assert drawn == {*page.FIGURES.glob("*.svg")}
    for path in drawn:
        ElementTree.parse(path)


def test_every_result_has_its_command() -> None:
    files = sorted((SCRIPTS / "results").rglob("*.json"))
    assert files
    for file in files:
        found = json.loads(file.read_text("utf-8"))
        commands = [found.get("command"), *(row.get("command") for row in found.get("rows", ()) if row)]
        assert found["table"]
        assert any(commands), file


@pytest.mark.parametrize(
    ("right", "p", "expected"),
    [
        (True, None, "holds"),
        (True, 0.04, "holds"),
        (True, 0.26, "does not hold"),
        (False, 0.001, "does not hold"),
    ],
)
def test_verdicts(scripts: Any, right: bool, p: float | None, expected: str) -> None:
    assert scripts("telling").verdict(right, p) == expected


def test_claims_follow_from_the_runs(scripts: Any) -> None:
    """By hand: weighted is above tf-idf at both, plain falls below it, joint is no more than chance."""
    told = scripts("told_003")

    def row(full: float, plain: float, joint: float) -> dict[str, Any]:
        values = {"tfidf": 0.5, "text": 0.4, "tfidf,text,meta": full, "text,meta": plain, "joint": joint}
        tests = [{"stack": "joint", "against": "text", "p": 0.3}]
        return {"rows": {name: {"nDCG": value} for name, value in values.items()}, "tests": tests}

    counts = {"40": row(0.6, 0.55, 0.41), "1000": row(0.7, 0.3, 0.42)}
    step = {"kind": "pool-first", "counts": counts, "command": "c", "seed": 0}
    run = told.Runs([step, {**step, "seed": 1}])
    parts = [{**step, "counts": {count: found}} for count, found in counts.items()]
    assert (run.seeds, told.Runs(parts).seeds, told.Runs([{**step, "seeds": 3}]).seeds) == (2, 1, 3)
    key = ("pool-first", "debian.it", "mlp")
    found = {one.says: one for one in told.claims({key: run, ("pool-random", *key[1:]): run}, [])}
    verdicts = {
        says.split(" ")[0]: one.verdict for says, one in found.items() if "debian.it, MLP" in one.figures
    }
    assert verdicts["Weighted"] == verdicts["Plain"] == "holds"
    assert verdicts["Text"] == "does not hold"  # p 0.3
    assert verdicts["and"] == "holds"  # 0.01 grows to 0.02
    assert "40: +0.1000; 1,000: +0.2000" in found[
        "Weighted reranking is above tf-idf at every number of documents"
    ].figures  # fmt: skip


def test_a_step_is_done_again_without_what_it_leaves(scripts: Any, tmp_path: Path) -> None:
    step = scripts("running").Step("train", "", dict, tmp_path / "ranker", ("table",))
    (tmp_path / "train.json").touch()
    assert not step.done(tmp_path)
    (tmp_path / "ranker").mkdir()
    assert step.done(tmp_path)
    (tmp_path / "ranker").rmdir()
    (tmp_path / "table.json").touch()  # nobody needs the ranker any more
    assert step.done(tmp_path)


def test_words_are_translated_by_pairs_of_texts(scripts: Any) -> None:
    """Model 1 tells apart what always comes together with something else."""
    pairs = [
        ("red house", "casa rossa"),
        ("house", "casa"),
        ("red book", "libro rosso rossa"),
        ("book", "libro"),
    ]
    found = scripts("translations").model_one([(left.split(), right.split()) for left, right in pairs])
    assert found == {"book": "libro", "house": "casa", "red": "rossa"}


def test_runs_of_another_dimension_are_not_averaged(scripts: Any) -> None:
    told = scripts("told_002")

    def run(dim: int, seed: int, mrr: float, **more: Any) -> dict[str, Any]:
        found = {"collection": "c", "dim": dim, "pairs": 500, "seed": seed, "mrr": mrr, "command": "m"}
        return {**found, "dev": mrr, "top1": mrr, **more}

    runs = [run(50, 0, 0.4), run(100, 0, 0.8), run(50, 1, 0.6)]
    figures = [one.figures for one in told._sizes(runs)]
    assert [one.split(": ", 1)[0].split(",")[1].strip() for one in figures] == ["k = 50", "k = 100"]
    assert ["500: 0.5000" in figures[0], "500: 0.8000" in figures[1]] == [True, True]
    hard = [{**one, "hard": 5, "table": "hard negatives"} for one in runs]
    assert [table.rows[0][2] for table in told._extra(hard)] == ["0.5000 ± 0.1414", "0.8000"]


def test_a_start_is_judged_by_those_that_ran(scripts: Any) -> None:
    told = scripts("told_002")

    def run(init: str, dev: float) -> dict[str, Any]:
        found = {"table": "starts", "collection": "c", "dim": 1000, "pairs": 9, "seed": 0, "command": "m"}
        return {**found, "init": init, "dev": dev, "mrr": dev}

    steps = [run("opca", 0.5), run("random", 0.4), run("cllsi", 0.6)]
    verdicts = [told._starts(steps[:n])[0].verdict for n in range(4)]
    assert verdicts == ["not run yet", "not run yet", "holds", "does not hold"]
    assert "CL-LSI not run yet" in told._starts(steps[:2])[0].figures


def test_a_training_says_what_it_took(scripts: Any) -> None:
    run = {"table": "training", "collection": "c", "setting": "paper", "ranker": "text", "epochs": 20}
    seeds = [
        {**run, "epoch": 7, "dev": 0.5, "cpu_hours": 0.1},
        {**run, "epoch": 9, "dev": 0.5, "cpu_hours": 0.2},
    ]
    (table,) = scripts("told_003")._trainings(seeds)
    assert table.rows == [["c, `--preset paper`", "text", "7 of 20, 9 of 20", "0.5000 ± 0.0000", "9.0 ± 4.2"]]


def test_candidates_of_a_protocol_are_a_part_of_the_deepest_pool(scripts: Any) -> None:
    """By hand: r and s are relevant, s is not found by tf-idf; b and c tie."""
    scores = {"a": 0.9, "r": 0.8, "b": 0.7, "c": 0.7, "d": 0.1, "s": 0.0}
    rows = [("q", list(scores), np.array([[one] for one in scores.values()]))]
    table = ScoreTable.build(["tfidf"], rows)
    qrels = Qrels([("q", "r", 2), ("q", "s", 1)])
    cut = scripts("003").cut

    def ids(kind: str, count: int, seed: int = 0) -> str:
        return "".join(cut(table, qrels, kind, count, seed).document_ids[0])

    assert [ids("retrieved", n) for n in (1, 3, 9)] == ["a", "abr", "abcdr"]
    assert [ids("pool-first", n) for n in (1, 2, 9)] == ["ars", "abrs", "abcdrs"]
    assert {ids("pool-random", 1, seed) for seed in range(40)} == {"ars", "brs", "crs", "drs"}
    assert ids("pool-random", 4) == "abcdrs"
