"""docs/papers.md is what benchmarks/papers/page.py makes, and its verdicts follow from figures."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

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
