"""``dense`` on judged queries: pairs, negatives, prompts, the gain on dev, interruptions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from rerank import Workspace, train
from rerank.common.arrays import Ragged
from rerank.common.progress import SILENT
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.judged import JudgedTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.registry import load_ranker
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from tests.support.data import QUERIES, RELEVANT, qrels, topical
from tests.support.progress import Watch

CONFIG = {"passage_tokens": 16, "batch": 12, "epochs": 2, "every": 8, "rate": 4e-3, "precision": "fp32"}


JUDGED = {"queries": QUERIES, "qrels": qrels(0, 24), "dev_qrels": qrels(24, 36)}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return topical(tmp_path / "ws")


def task_of(workspace: Workspace, model: str) -> JudgedTask:
    data = training_data(workspace, Inputs(**JUDGED), TrainReport(), SILENT)
    encoder = TextEncoder.load(model, longest=16)
    contents = [document.content for document in workspace.engine.documents()]
    config = DenseConfig.of(**{**CONFIG, "model": model})
    return JudgedTask(data, Ragged.from_lists(encoder.tokens(contents)), encoder, config)


def test_pairs_are_relevant_and_negatives_are_not(workspace, tiny):
    task = task_of(workspace, tiny)
    ids = [document.id for document in workspace.engine.documents()]
    names, seen = sorted(JUDGED["qrels"]), set()
    for batch in (*task.sampler.epoch(0), *task.sampler.epoch(1)):
        for row, pair in enumerate(batch.pairs):
            relevant = RELEVANT[names[pair.anchor - len(ids)]]
            assert ids[pair.positive] in relevant
            assert ids[pair.negative] not in relevant
            others = [ids[one.positive] in relevant for one in batch.pairs]
            assert batch.near_positive[row].tolist() == others
            assert not batch.near_negative[row, row]
            seen.add((pair.anchor, pair.positive))
    assert len(seen) > 24 * 4  # each query has several relevant documents


def test_training_improves_dev_and_gives_an_ordinary_dense_ranker(workspace, tiny):
    (fitted,) = train(workspace, "dense", **JUDGED, config={**CONFIG, "model": tiny}).rankers
    assert fitted.dev > fitted.baseline_value + 0.05
    assert fitted.ranker.family == "dense"
    (folder,) = workspace.folder.glob("rankers/dense-*")
    ranker = load_ranker(folder)
    assert ranker.version == fitted.ranker.version
    vector = ranker.encode_query(QUERIES[0])
    exported = TextEncoder.load(str(folder / "model"))
    exported.precision = "fp32"
    other = exported.encode(exported.tokens([QUERIES[0].text]))[0]
    np.testing.assert_allclose(vector, other, atol=1e-5)
    assert "encoder" not in vars(ranker)
    assert workspace.search(QUERIES[30], stack="dense").answer.ranking.ids


def test_an_interrupted_training_continues_to_the_same_ranker(workspace, tiny, tmp_path):
    config = {**CONFIG, "model": tiny, "average": False, "train_layers": 1}
    shutil.copytree(workspace.folder, tmp_path / "other")
    (whole,) = train(Workspace.open(tmp_path / "other"), "dense", **JUDGED, config=config).rankers
    (part,) = train(workspace, "dense", **JUDGED, config=config, progress=Watch(at=12)).rankers
    assert part.interrupted
    assert 0 < part.epochs < whole.epochs
    stored: set[str] = set()
    for path in workspace.folder.glob("training/dense/*.safetensors"):
        stored |= load_file(path).keys()
    assert any("encoder.layer.1." in name for name in stored)
    assert not any("word_embeddings" in name for name in stored)  # frozen
    (again,) = train(workspace, "dense", **JUDGED, config=config).rankers
    assert again.ranker.version == whole.ranker.version
    assert again.details["history"] == whole.details["history"]
    assert not list(workspace.folder.glob("training/dense/*"))


def test_prompts_are_put_before_queries_and_documents(workspace, tiny, tmp_path):
    model = tmp_path / "model"
    TextEncoder.load(tiny, longest=16).save(model)
    prompts = {"prompts": {"query": "w1 w2", "document": "w3"}}
    (model / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    task, plain = task_of(workspace, str(model)), task_of(workspace, tiny)
    numbers = plain.encoder.tokens(["w1 w2", "w3"])
    count = len(workspace.engine)
    for text, prompt in ((0, numbers[1]), (count, numbers[0])):
        assert task.text(text).tolist() == [*prompt, *plain.text(text).tolist()]
    assert task.encoder.tokens.frame == plain.encoder.tokens.frame
