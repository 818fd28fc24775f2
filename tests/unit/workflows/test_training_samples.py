"""Large trainings use samples: which queries and documents take part, and what small trainings keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rerank.common.progress import SILENT
from rerank.documents.records import Document, Qrels, Query
from rerank.rankers.cnn import embeddings
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Inputs as CnnInputs
from rerank.rankers.projection import fit, ranker, solver
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.fit import TermVectors, sample_documents
from rerank.rankers.projection.solver import descend
from rerank.rankers.training import data as training
from rerank.rankers.training.data import Corpus, DevSet
from rerank.workflows import training_data as workflow
from rerank.workflows.train import train
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace.workspace import Workspace
from tests.support.progress import Watch

COUNT = 40
NOUNS = ["apple", "pear", "fig", "plum"]
DOCUMENTS = [Document(f"d{i:02}", text=f"word{i} {NOUNS[i % 4]} old{i % 7}") for i in range(COUNT)]
QUERIES = [Query(f"q{i:02}", f"{NOUNS[i % 4]} word{i}") for i in range(COUNT)]
TRAIN = Qrels((f"q{i:02}", f"d{i:02}", 2) for i in range(30))
DEV = Qrels((f"q{i:02}", f"d{i:02}", 1) for i in range(30, COUNT))
CONFIG = ProjectionConfig(dim=4, letters=0, epochs=6)


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write(DOCUMENTS)
    return workspace


def read(workspace, progress=SILENT, **changes):
    """Return the data and the report of a training."""
    inputs = replace(Inputs(queries=QUERIES, qrels=TRAIN, dev_qrels=DEV, first_stage="bm25"), **changes)
    report = TrainReport()
    return training_data(workspace, inputs, report, progress), report


def test_of_many_queries_a_sample_trains_and_stops(workspace, monkeypatch):
    monkeypatch.setattr(workflow, "MAX_TRAIN_QUERIES", 12)
    monkeypatch.setattr(workflow, "MAX_DEV_QUERIES", 5)
    watch = Watch()
    data, report = read(workspace, watch)
    again, _ = read(workspace)
    assert watch.said == [
        "a sample of 12 of 30 train queries is used",
        "a sample of 5 of 10 dev queries is used",
    ]
    assert (report.train_queries, report.dev_queries) == (12, 5)
    assert (len(report.seen["trained"]), len(report.seen["stopped"])) == (12, 5)
    assert data.query_texts == again.query_texts
    assert data.query_texts != read(workspace, seed=1)[0].query_texts


def test_of_many_queries_few_are_held_out(workspace, monkeypatch):
    monkeypatch.setattr(workflow, "MAX_DEV_QUERIES", 2)
    _, report = read(workspace, dev_qrels=None)
    assert len(report.held_out_queries) == 2
    assert (report.train_queries, report.dev_queries) == (28, 2)


@pytest.mark.parametrize("with_judgments", [True, False])
def test_of_many_text_pairs_a_sample_trains(workspace, monkeypatch, with_judgments):
    monkeypatch.setattr(workflow, "MAX_TRAIN_QUERIES", 30)
    pairs = [(f"fruit{i}", f"word{i}") for i in range(50)]
    changes = {} if with_judgments else {"qrels": None, "dev_qrels": None}
    data, report = read(workspace, pairs=pairs, **changes)
    first_texts, second_texts = data.pairs
    expected = (30, 0) if with_judgments else (30, 5)
    assert (report.train_pairs, data.dev_pairs) == expected
    assert len(first_texts.tokens) == len(second_texts.tokens) == sum(expected)


def test_a_sample_of_a_corpus_has_only_its_words():
    corpus = Corpus.read(DOCUMENTS)
    rows = np.array([3, 7, 11])
    taken = corpus.take(rows)
    assert list(taken.sentences()) == [list(corpus.sentences())[row] for row in rows]
    assert set(taken.words) == {word for text in taken.sentences() for word in text}
    assert Corpus.read([]).take(np.zeros(0, np.int64)).words == []


def test_documents_without_a_use_are_left_out(workspace, monkeypatch):
    data, _ = read(workspace)
    assert sample_documents(data, SILENT) is data
    monkeypatch.setattr(fit, "MAX_DOCUMENTS", 5)
    monkeypatch.setattr(training, "MAX_DEV_DOCUMENTS", 10)
    few = replace(data, train=data.train[:6], dev=DevSet.from_candidates(data).judged)
    watch = Watch()
    sampled = sample_documents(few, watch)
    assert watch.said == [
        f"term vectors of {len(sampled.document_ids)} of 40 documents are used",
    ]
    texts = list(data.documents.sentences())
    position = {id: row for row, id in enumerate(data.document_ids)}
    for row, id in enumerate(sampled.document_ids):
        assert list(sampled.documents.sentences())[row] == texts[position[id]]
    for before, after in zip([*few.train, *few.dev], [*sampled.train, *sampled.dev]):
        assert [sampled.document_ids[row] for row in after.documents] == [
            data.document_ids[row] for row in before.documents
        ]
        assert after.grades.tolist() == before.grades.tolist()
    assert len(DevSet.from_candidates(sampled).documents) <= 10


def test_dev_queries_rank_fewer_candidates_of_many_documents(workspace, monkeypatch):
    data, _ = read(workspace)
    complete = DevSet.from_candidates(data)
    monkeypatch.setattr(training, "MAX_DEV_DOCUMENTS", len(complete.documents))
    watch = Watch()
    assert DevSet.from_candidates(data, watch).judged == complete.judged
    assert watch.said == []
    monkeypatch.setattr(training, "MAX_DEV_DOCUMENTS", 20)
    few = DevSet.from_candidates(data, watch)
    assert watch.said == ["dev queries rank their first 2 candidates only"]
    assert len(few.documents) <= 20
    for query, before in zip(few.judged, complete.judged):
        assert query.candidates.tolist() == before.candidates[:2].tolist()
        assert query.scores.tolist() == before.scores[:2].tolist()


def test_of_many_dev_queries_a_sample_is_ranked(workspace, monkeypatch):
    """All families print the remark once, also a family that fits several rankers."""
    data, _ = read(workspace)
    monkeypatch.setattr(training, "DEV_QUERIES", 10)
    watch = Watch()
    assert DevSet.from_candidates(data, watch).judged == data.dev
    assert watch.said == []
    monkeypatch.setattr(training, "DEV_QUERIES", 9)
    inputs = CnnInputs(data, CnnConfig(), watch)
    assert inputs.dev_set is inputs.dev_set
    assert inputs.dev_set.judged == TermVectors(data, CONFIG, SILENT).dev.judged == data.dev[::2]
    assert watch.said == ["5 of 10 dev queries are ranked to measure a ranker"]


def test_lsi_reads_a_sample_of_many_texts(workspace, monkeypatch):
    data, _ = read(workspace)
    vectors = TermVectors(data, CONFIG, SILENT)
    watch = Watch()
    monkeypatch.setattr(fit, "MAX_LSI_TEXTS", COUNT)
    complete = vectors.collection(watch)
    assert watch.said == []
    monkeypatch.setattr(fit, "MAX_LSI_TEXTS", COUNT - 1)
    sample = vectors.collection(watch)
    assert watch.said == ["lsi reads 20 of 40 texts"]
    assert (sample != complete[::2]).nnz == 0


def test_term_vectors_do_not_depend_on_the_chunks(workspace, monkeypatch):
    data, _ = read(workspace)
    complete = TermVectors(data, CONFIG, SILENT)
    monkeypatch.setattr(ranker, "CHUNK_TEXTS", 7)
    chunked = TermVectors(data, CONFIG, SILENT)
    assert chunked.terms.names == complete.terms.names
    assert chunked.terms.idf.tolist() == complete.terms.idf.tolist()
    assert (chunked.documents != complete.documents).nnz == 0


def test_word_vectors_of_many_words_are_trained_on_a_sample(workspace, monkeypatch):
    data, _ = read(workspace)
    watch = Watch()
    monkeypatch.setattr(embeddings, "MAX_WORDS", 60)
    embedding, tokens = CnnInputs(data, CnnConfig(word_size=4, word_epochs=1), watch).text["document"]
    assert watch.said == ["word vectors are trained on 20 of 40 texts"]
    assert set(embedding.vocabulary.names) <= set(data.documents.words)
    assert len(tokens) == COUNT


def test_of_many_pairs_each_draw_compares_others(workspace, monkeypatch):
    data, _ = read(workspace)
    monkeypatch.setattr(solver, "MAX_PRODUCTS", 1)
    monkeypatch.setattr(solver, "PART_SIZE", 4)
    monkeypatch.setattr(solver, "ITERATIONS_PER_PART", 2)
    vectors = TermVectors(data, CONFIG, SILENT)
    start = np.random.default_rng(0).normal(size=(len(vectors.terms.names), 4)).astype(np.float32)
    watch = Watch()
    all_parts = descend("s2net", vectors, start, CONFIG, watch)
    assert watch.said == []
    monkeypatch.setattr(solver, "MAX_PARTS", 3)
    sizes = []
    take = type(vectors.pairs).take
    monkeypatch.setattr(
        type(vectors.pairs), "take", lambda pairs, rows: sizes.append(rows) or take(pairs, rows)
    )
    few_parts = descend("s2net", vectors, start, CONFIG, watch)
    assert watch.said == ["s2net: every 2 iterations, other 12 of 30 pairs are used"]
    assert [len(rows) for rows in sizes] == [12, 12, 12]
    assert len({tuple(rows.tolist()) for rows in sizes}) == 3
    assert few_parts.iterations == all_parts.iterations == 6
    assert few_parts.measure >= few_parts.history[0][2]
    sample = take(vectors.pairs, np.array([4, 2]))
    assert sample.comparisons.weight.sum() == pytest.approx(1)
    assert (sample.queries != vectors.pairs.queries[[4, 2]]).nnz == 0
    assert (sample.partners != vectors.pairs.partners[[4, 2]]).nnz == 0


def test_families_with_the_same_inputs_share_their_data(workspace, monkeypatch):
    calls = []
    read_data = workflow.training_data
    monkeypatch.setattr(
        "rerank.workflows.train.training_data", lambda *inputs: calls.append(1) or read_data(*inputs)
    )
    config = {"epochs": 1, "word_epochs": 1, "word_size": 8, "dim": 4}
    report = train(workspace, ["text", "lsi"], queries=QUERIES, qrels=TRAIN, dev_qrels=DEV, config=config)
    assert calls == [1]
    assert [result.ranker.name for result in report.rankers] == ["text", "lsi"]
    assert (report.train_queries, report.dev_queries, report.first_stage) == (30, 10, "bm25")


def test_families_with_different_inputs_have_the_same_query_text(
    workspace, write_lines, tmp_path, monkeypatch
):
    """Text pairs are an input of `lsi`, so it does not share the data of `text`. The file is read once."""
    sizes = []
    read_data = workflow.training_data

    def counted(*inputs):
        data = read_data(*inputs)
        sizes.append(len(data.query_text.tokens))
        return data

    monkeypatch.setattr("rerank.workflows.train.training_data", counted)
    path = write_lines(tmp_path / "log.jsonl", [{"_id": str(i), "text": f"fig word{i}"} for i in range(7)])
    train(
        workspace,
        ["text", "lsi"],
        queries=QUERIES,
        qrels=TRAIN,
        dev_qrels=DEV,
        pairs=[(f"fruit{i}", f"word{i}") for i in range(7)],
        query_text=path,
        config={"epochs": 1, "word_epochs": 1, "word_size": 8, "dim": 4},
    )
    assert sizes == [7, 7]
