"""Weights of their own for short and long queries, or for each language."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank import Document, Qrels, Query, Stack, Workspace, evaluate, tune
from rerank.errors import InputError
from rerank.scoring.table import ScoreTable
from rerank.service.bodies import HookBody, HookCall, HookWishes, SearchBody
from rerank.service.hook import hook
from rerank.service.settings import Settings
from rerank.service.snapshot import Snapshot
from rerank.service.work import Work, search
from rerank.tuning.kinds import ENOUGH, Gain, tune_kinds, worth
from rerank.tuning.search import tune as tune_table
from tests.commands import run_here as run
from tests.commands import write_json_lines

IDS = [f"d{i}" for i in range(8)]


def collection(
    queries: list[Query], good: Any, seed: int, noise: float = 0.5
) -> tuple[ScoreTable, Qrels, dict[str, Query]]:
    """Two signals of eight candidates; the one that ``good`` names for a query tells which is relevant."""
    rng = np.random.default_rng(seed)
    rows, judged = [], []
    for query in queries:
        raw = rng.random((len(IDS), 2))
        column = good(query)
        told = rng.random(len(IDS)) if column is None else raw[:, column] + noise * rng.random(len(IDS))
        rows.append((query.id, IDS, raw))
        judged.append((query.id, IDS[int(told.argmax())], 1))
    return ScoreTable.build(["bm25", "text"], rows), Qrels(judged), {query.id: query for query in queries}


def asked(count: int = 160) -> list[Query]:
    return [
        Query(f"q{i:03}", " ".join(["wolf"] * (1 + i % 6)), lang=("de", "fr")[i // 2 % 2])
        for i in range(count)
    ]


def tuned(made: tuple[ScoreTable, Qrels, dict[str, Query]]) -> tuple[Any, list[Gain]]:
    found, gains = tune_kinds(*made, first_stage="bm25")
    return found, worth(gains)


@pytest.mark.parametrize(
    ("good", "by", "kinds"),
    [
        (lambda query: int(len(query.text) > 16), "words", {"words<4": 81, "words>=4": 79}),
        (lambda query: int(query.lang == "fr"), "lang", {"lang=de": 80, "lang=fr": 80}),
    ],
)
def test_queries_that_need_opposite_weights_are_told_apart(good: Any, by: str, kinds: dict[str, int]) -> None:
    made = collection(asked(), good, seed=1)
    _, gains = tuned(made)
    assert [(one.by, one.kept) for one in gains] == [("words", by == "words"), ("lang", by == "lang")]
    (kept,) = (one for one in gains if one.kept)
    assert (kept.kinds, kept.p < 0.01, kept.value > kept.together + 0.1) == (kinds, True, True)


def test_noise_is_not_told_apart() -> None:
    kept = []
    for good in (None, 0):
        made = (collection(asked(120), lambda query, good=good: good, seed) for seed in range(5))
        kept += [one.kept for each in made for one in tuned(each)[1]]
    assert (len(kept), sum(kept) <= 1) == (20, True)


def test_what_is_tuned_together_is_as_without_kinds() -> None:
    made = collection(asked(), lambda query: int(query.lang == "fr"), seed=2)
    alone = tune_table(*made[:2], first_stage="bm25")
    for queries in ({}, made[2]):
        found, gains = tune_kinds(*made[:2], queries, first_stage="bm25")
        assert found.stack.to_json() == alone.stack.to_json()
        assert bool(gains) == bool(queries)


@pytest.mark.parametrize("count", [1, 2 * ENOUGH - 2])
def test_few_queries_are_not_told_apart(count: int) -> None:
    assert tuned(collection(asked(count), lambda query: int(query.lang == "fr"), seed=3))[1] == []


def test_a_gain_counts_only_when_it_is_one() -> None:
    worse = Gain("", "words", {"words<2": 60, "words>=2": 60}, value=0.4, together=0.5, p=0.001)
    better = replace(worse, by="lang", value=0.6)
    best = replace(better, value=0.7, p=0.001)
    other = replace(better, case="none", p=0.04)
    assert [(one.p, one.kept) for one in worth([worse, better, best, other])] == [
        (0.004, False),
        (0.004, False),
        (0.004, True),
        (0.04, True),
    ]


@pytest.fixture(scope="module")
def wolves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, list[Query], Qrels]:
    """Short queries want documents in which their word is often; long ones those in which it is rare."""
    workspace = Workspace.create(tmp_path_factory.mktemp("kinds") / "ws", lang="en")
    workspace.engine.ingest(
        Document(f"d{i}", text="wolf " * (1 + i) + "fox " * (8 - i), extra={"rare": 8 - i}) for i in range(8)
    )
    queries = [Query(f"q{i}", "wolf" if i % 2 else "where is the wolf now") for i in range(2 * ENOUGH)]
    qrels = Qrels((query.id, "d7" if query.text == "wolf" else "d0", 1) for query in queries)
    return workspace, queries, qrels


SIGNALS = "bm25,field:rare"


def test_each_query_has_the_weights_of_its_kind_everywhere(
    wolves: tuple[Workspace, list[Query], Qrels], tmp_path: Path
) -> None:
    workspace, queries, qrels = wolves
    report = tune(workspace, SIGNALS, queries=queries, qrels=qrels, out=tmp_path / "kinds.json")
    stack = report.tuned.stack
    assert list(stack.cases) == ["words<3", "words>=3"]
    assert report.tuned.value < 1.0
    assert [one.value for one in report.kinds[""].values()] == [1.0, 1.0]
    (told,) = stack.tuned["gains"]
    assert (told["by"], told["kept"], told["kinds"]) == ("words", True, {"words<3": 50, "words>=3": 50})
    assert Stack.load(tmp_path / "kinds.json") == stack

    plain = tune(workspace, SIGNALS, queries=queries, qrels=qrels, kinds=False, out=tmp_path / "plain.json")
    assert (plain.tuned.stack.cases, plain.gains) == ({}, [])
    given = {
        "queries": queries,
        "qrels": qrels,
        "baseline": str(tmp_path / "plain.json"),
        "measures": ["nDCG"],
    }
    report = evaluate(workspace, [str(tmp_path / "kinds.json")], **given)
    rows = report.results
    by_kind = {(one.case, one.stack): (one.queries, one.measures["nDCG"]) for one in report.cases}
    assert by_kind["words<3", "kinds"] == by_kind["words>=3", "kinds"] == (ENOUGH, 1.0)
    assert len(by_kind) == 4
    assert [row.measures["nDCG"] for row in rows] == [pytest.approx(plain.tuned.value), 1.0]

    snapshot = Snapshot.load(Settings(str(workspace.folder), stack=str(tmp_path / "kinds.json")))
    for query, name in ((queries[1], "words<3"), (queries[0], "words>=3")):
        mine = stack.cases[name]
        answer = workspace.pipeline(stack.signals).answer(query, stack)
        assert (
            (answer.kind, str(answer.stack)) == (name, str(mine)) == (answer.to_json([])["kind"], str(mine))
        )
        best = answer.ranking.ids
        found = search(snapshot, SearchBody(query=query.text, k=8), Work(time.monotonic() + 60, 1000))
        assert ([hit["id"] for hit in found["hits"]], found["kind"]) == (best, name)
        first = workspace.engine.search(query.text, first_stage="bm25", depth=100)
        body = HookBody(query={"match": {"text": query.text}}, ids=first.ids, scores=first.scores.tolist())
        answer = hook(snapshot, HookCall.of(body), Work(time.monotonic() + 60, 1000))
        assert isinstance(answer, dict)
        assert (answer["ids"], "weights" in answer) == (best, False)
        explained = body.model_copy(update={"rerank": HookWishes(explain=True)})
        answer = hook(snapshot, HookCall.of(explained), Work(time.monotonic() + 60, 1000))
        assert isinstance(answer, dict)
        told = {name: found[name] for name in ("stack", "normalisation", "case", "kind")}
        assert answer["weights"] == told == {**told, "stack": str(mine), "case": "none", "kind": name}


def test_the_commands_say_whose_weights_these_are(
    wolves: tuple[Workspace, list[Query], Qrels], tmp_path: Path
) -> None:
    workspace, queries, qrels = wolves
    write_json_lines(tmp_path / "queries.jsonl", [{"_id": query.id, "text": query.text} for query in queries])
    rows = [f"{query}\t{d}\t{grade}\n" for query in qrels for d, grade in qrels[query].items()]
    (tmp_path / "dev.tsv").write_text("".join(rows))
    files = ("--queries", tmp_path / "queries.jsonl", "--qrels", tmp_path / "dev.tsv")
    where = ("--stack", SIGNALS, *files, "-w", workspace.folder, "--out", tmp_path / "kinds.json")
    told = run("tune", *where).out
    for kind in ("up to 2 words", "3 words or more"):
        assert re.search(rf"^queries of {kind}: .* 1\.0000 on 50 queries; bm25 alone", told, re.MULTILINE)
    assert "\nshort and long queries: weights of their own; cross-validated 1.0000 with their own, " in told
    assert "words" not in run("tune", *where[:-1], tmp_path / "plain.json", "--no-kinds").out
    asked = ("--stack", tmp_path / "kinds.json", "--baseline", "bm25", *files, "-w", workspace.folder)
    told = run("evaluate", *asked).out
    assert "retrieved:1000, 50 queries of up to 2 words\n" in told
    ask = ("query", "wolf", "-w", workspace.folder, "--explain", "--stack")
    assert "\nweights for queries of up to 2 words\n" in run(*ask, tmp_path / "kinds.json").out
    assert "weights for" not in run(*ask, tmp_path / "plain.json").out


def test_a_language_comes_with_the_search(
    wolves: tuple[Workspace, list[Query], Qrels], tmp_path: Path
) -> None:
    workspace, _, _ = wolves
    stack = Stack.parse("bm25*1 + field:rare*0", first_stage="bm25")
    stack = replace(stack, cases={"lang=de": Stack.parse("bm25*0 + field:rare*1", first_stage="bm25")})
    stack.save(tmp_path / "lang.json")
    snapshot = Snapshot.load(Settings(str(workspace.folder), stack=str(tmp_path / "lang.json")))
    first = workspace.engine.search("wolf", first_stage="bm25", depth=100)
    for lang, best in (("de", "d0"), ("fr", "d7"), (None, "d7")):
        found = search(snapshot, SearchBody(query="wolf", lang=lang), Work(time.monotonic() + 60, 1000))
        wishes = {"query": "wolf", "lang": lang}
        body = HookBody(rerank=wishes, ids=first.ids, scores=first.scores.tolist())  # type: ignore[arg-type]
        hooked = hook(snapshot, HookCall.of(body), Work(time.monotonic() + 60, 1000))
        assert found["hits"][0]["id"] == hooked["ids"][0] == best


def test_bad_kinds() -> None:
    whole = Stack.parse("bm25*0.5 + text*0.5")
    within = replace(whole, cases={"words<3": whole})
    told = replace(whole, cases={"none": within, "lang=de": whole})
    assert Stack.from_json(json.loads(json.dumps(told.to_json()))) == told
    assert len(told.variants) == 4
    assert [str(one) for one in told.without_first_stage().variants] == ["text*0.50", "text*0.50"]  # type: ignore
    for cases in (
        {"words<0": whole},
        {"words<3": within},
        {"none": replace(whole, cases={"inferred": whole})},
    ):
        data = {**whole.to_json(), "cases": {name: one._case() for name, one in cases.items()}}
        with pytest.raises(InputError, match="is no case with weights"):
            Stack.from_json(data)
    with pytest.raises(InputError, match='"cases" must hold'):
        Stack.from_json({**whole.to_json(), "cases": [1]})
