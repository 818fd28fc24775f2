"""Training on a workspace: the queries and documents that take part, the counts, and the errors."""

from __future__ import annotations

import pytest
from msgspec import structs

from rerank.common.errors import TrainingError
from rerank.documents.records import Document, Qrels, Query
from rerank.formats import read_qrels
from rerank.rankers.cnn.config import CnnConfig
from rerank.stack.stack import Stack
from rerank.workflows.encode import encode
from rerank.workflows.train import train
from rerank.workflows.training_data import HELD_OUT
from rerank.workspace.workspace import Workspace
from tests.support.progress import Watch

COUNT = 40
NOUNS = ["apple", "pear", "fig", "plum"]
CONFIG = CnnConfig.of(
    filters=8, vector_size=8, word_size=8, category_size=6, epochs=1, word_epochs=1, walks=1, batch=16, seed=1
)

DOCUMENTS = [
    Document(
        f"d{i:02}",
        title=f"{NOUNS[i % 4]} number {i}",
        text=f"word{i} and {NOUNS[i % 4]}",
        categories=("fruit", f"c{i % 5}"),
        lang="en",
    )
    for i in range(COUNT)
]
QUERIES = [Query(f"q{i:02}", f"{NOUNS[i % 4]} word{i}", (f"c{i % 5}",), "en") for i in range(COUNT)]
TRAIN = Qrels((f"q{i:02}", f"d{i:02}", 2) for i in range(30))
DEV = Qrels((f"q{i:02}", f"d{i:02}", 1) for i in range(30, COUNT))


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write(DOCUMENTS)
    return workspace


def fit(workspace, names=("text",), queries=QUERIES, qrels=TRAIN, dev=DEV, **options):
    return train(
        workspace,
        names,
        queries=queries,
        qrels=qrels,
        dev_qrels=dev,
        config=options.pop("config", CONFIG),
        **options,
    )


def test_training_activates_rankers_and_stores_their_features(workspace):
    report = fit(workspace, ("text", "joint", "text"), first_stage="bm25")
    assert (report.train_queries, report.dev_queries, report.held_out) == (30, 10, None)
    assert [fitted.ranker.name for fitted in report.rankers] == ["text", "joint"]
    assert workspace.trained() == ["joint", "text"]
    assert report.encoded == {"joint": COUNT, "text": COUNT}
    for fitted in report.rankers:
        stored = workspace.ranker(fitted.ranker.name)
        assert (stored.version, stored.trained["first_stage"]) == (fitted.ranker.version, "bm25")
        assert (fitted.epoch, fitted.epochs) == (1, 1)
        assert not fitted.interrupted
        assert workspace.engine.missing_features(fitted.ranker.name, fitted.ranker.version) == 0
    stack = Stack.parse("tfidf*0.5+text*0.25+joint*0.25")
    answer = workspace.pipeline(stack.signals).answer(QUERIES[0], stack)
    assert (answer.recomputed, answer.ranking.ids[0]) == ({}, "d00")
    assert encode(workspace).encoded == {"joint": 0, "text": 0}


def test_without_dev_judgments_a_tenth_of_the_queries_is_held_out(workspace):
    report = fit(workspace, dev=None)
    held = read_qrels(report.held_out)
    assert report.held_out == str(workspace.folder / "held-out.tsv")
    assert (len(held), sorted(held)) == (report.dev_queries, sorted(report.held_out_queries))
    assert {q: dict(held[q]) for q in held} == {q: dict(TRAIN[q]) for q in held}
    assert (report.train_queries, report.dev_queries) == (27, round(HELD_OUT * 30))
    assert fit(workspace, dev=None).rankers[0].ranker.version == report.rankers[0].ranker.version


def test_excluded_queries_and_documents_are_counted(workspace):
    extra = [
        ("q00", "nowhere", 1),  # an unknown document
        ("lost", "d00", 1),  # an unknown query
        ("q05", "d05", 0),  # judged, but not relevant
        ("mute", "d01", 1),  # a query without hits
        ("only lost ones", "nowhere", 1),
    ]
    qrels = Qrels([*((q, d, g) for q in TRAIN for d, g in TRAIN[q].items() if q != "q05"), *extra])
    dev = Qrels([("q30", "d30", 1), ("q31", "nowhere", 1), ("lost too", "d00", 1)])
    queries = [*QUERIES, Query("mute", "unheard"), Query("only lost ones", "apple")]
    report = fit(workspace, queries=queries, qrels=qrels, dev=dev)
    assert report.train_queries == 30  # 29 and the query without hits
    assert report.dev_queries == 1
    assert report.unknown_queries == 2
    assert report.unknown_documents == 3
    assert report.without_hits == 1


def test_queries_without_categories_get_those_of_their_candidates(workspace):
    bare = [Query(query.id, query.text) for query in QUERIES]
    assert fit(workspace, ("meta",), bare).inferred_categories == COUNT
    assert fit(workspace, ("meta",)).inferred_categories == 0
    assert fit(workspace, ("meta",), bare, infer=False).inferred_categories == 0


def test_an_interruption_keeps_and_reports_completed_training(workspace):
    watch, config = Watch(line="text, epoch 1 of"), structs.replace(CONFIG, epochs=2)
    report = fit(workspace, ("text", "meta"), config=config, progress=watch)
    assert [(f.ranker.name, f.epoch, f.interrupted) for f in report.rankers] == [("text", 1, True)]
    assert watch.said[-1] == "interrupted: kept epoch 1 of text, the best one"
    assert workspace.trained() == ["text"]
    assert report.encoded == {}  # a user who interrupts does not wait for the encoding
    other = structs.replace(config, filters=9)  # refused without a restart
    assert not fit(workspace, config=other, restart=True).rankers[0].interrupted


def test_the_same_call_resumes_an_interrupted_training(workspace):
    config = structs.replace(CONFIG, epochs=3)
    expected = fit(workspace, config=config).rankers[0].ranker.version
    assert fit(workspace, config=config, progress=Watch(line="text, epoch 2 of")).rankers[0].interrupted
    with pytest.raises(TrainingError, match=r"text: a training with other settings.*restart"):
        fit(workspace, config=structs.replace(config, filters=9))
    watch = Watch()
    assert fit(workspace, config=config, progress=watch).rankers[0].ranker.version == expected
    assert "text continues at epoch 1 of 3" in watch.said


def test_an_interruption_before_the_first_epoch_changes_nothing(workspace):
    before = fit(workspace).rankers[0].ranker.version
    with pytest.raises(KeyboardInterrupt, match="text; nothing of it was kept"):
        fit(workspace, config=structs.replace(CONFIG, seed=9), progress=Watch(at=1))
    assert workspace.ranker("text").version == before


def test_impossible_trainings_are_refused(workspace, tmp_path):
    with pytest.raises(TrainingError, match=r"1 query in both .*'q03' first"):
        fit(workspace, dev=Qrels([("q03", "d03", 1), ("q35", "d35", 1)]))
    with pytest.raises(TrainingError, match="no judged query has a relevant document"):
        fit(workspace, qrels=Qrels([("q00", "nowhere", 1), ("lost", "d00", 1)]))
    with pytest.raises(TrainingError, match="no judged dev query has a relevant document"):
        fit(workspace, dev=Qrels([("q35", "d35", 0)]))
    with pytest.raises(TrainingError, match="too few judged queries"):
        fit(workspace, qrels=Qrels([("q00", "d00", 1)]), dev=None)
    empty = Workspace.create(tmp_path / "empty")
    with pytest.raises(TrainingError, match=r"the workspace is empty; run `rerank ingest` first"):
        fit(empty)
    assert workspace.trained() == empty.trained() == []
