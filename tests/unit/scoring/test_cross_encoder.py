"""Cross-encoders as a second phase: their scores, the order, the time limit, and the weights."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from rerank.cli.query import show
from rerank.cli.tune import show as show_tuned

from rerank import Document, Qrels, Query, Stack, Workspace, evaluate, tune
from rerank.common.errors import UsageError
from rerank.formats import write_qrels
from rerank.rankers.encoder.cross_encoder import TOKENS, CrossEncoder
from rerank.scoring.second_phase import rescore
from rerank.service.context import RequestContext
from rerank.service.endpoints import rerank, rerank_ids, search
from rerank.service.hook import hook
from rerank.service.schemas import HookCall, IdsBody, RerankBody, SearchBody
from rerank.service.settings import Settings
from rerank.service.snapshot import Snapshot
from rerank.stack.file import parse_second_phase
from tests.support.rankers import ENCODER_SIZES, ENCODER_WORDS, bert
from tests.support.service import call, read_answer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def xlm(folder: Path, labels: int) -> Path:
    """Save an XLM-RoBERTa model. It has other positions, token types and head than BERT."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", *ENCODER_WORDS]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    special = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}
    special |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(folder)
    config = transformers.XLMRobertaConfig(
        **ENCODER_SIZES, vocab_size=47, num_labels=labels, type_vocab_size=1, pad_token_id=1
    )
    transformers.XLMRobertaForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    torch.manual_seed(1)
    return bert(tmp_path_factory.mktemp("models") / "bert")


def text(rng: np.random.Generator, longest: int) -> str:
    return " ".join(rng.choice(ENCODER_WORDS, rng.integers(0, longest)))


@pytest.mark.parametrize("make", [bert, xlm])
@pytest.mark.parametrize("labels", [1, 2])
def test_scores_equal_the_scores_of_transformers(make, labels, tmp_path):
    torch.manual_seed(labels)
    folder = make(tmp_path / "model", labels)
    encoder, rng = CrossEncoder.load(str(folder)), np.random.default_rng(0)
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    loader = transformers.AutoTokenizer if make is bert else transformers.PreTrainedTokenizerFast
    tokenizer = loader.from_pretrained(folder)
    scores = []
    for _ in range(10):
        query, document = text(rng, 90), text(rng, 250)  # the query, the document or both may be truncated
        words = tokenizer(query, document, truncation=True, max_length=TOKENS, return_tensors="pt")
        with torch.no_grad():
            logits = oracle(**words).logits[0].tolist()
        scores.append(encoder.score(query, document))
        assert scores[-1] == pytest.approx(logits[-1] - (logits[0] if labels == 2 else 0), abs=1e-4)
    assert np.std(scores) > 1e-2


def test_unusable_models_are_refused(model, tmp_path):
    with pytest.raises(UsageError, match="classes"):
        CrossEncoder.load(str(bert(tmp_path / "three", 3)))
    with pytest.raises(UsageError, match="no model"):
        parse_second_phase(f"cross-encoder:{tmp_path / 'none'}")
    with pytest.raises(UsageError, match="cross-encoder:FOLDER"):
        parse_second_phase("reranker:model")
    config = json.loads((model / "config.json").read_text())
    for name, value in (("architectures", ["BertModel"]), ("hidden_act", "relu")):
        folder = tmp_path / name
        folder.mkdir()
        for file in model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / "config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(UsageError, match="cannot be a cross-encoder"):
            CrossEncoder.load(str(folder))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", lambda data: data[:-100]),
        ("tokenizer.json", lambda data: data[:-100]),
        ("config.json", lambda data: data.replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": 3')),
    ],
)
def test_a_damaged_file_is_reported_in_one_line(model, tmp_path, name, damage):
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(UsageError, match="cannot be read") as raised:
        CrossEncoder.load(str(folder))
    assert "\n" not in str(raised.value)


def test_the_script_of_the_guide_trains_a_model(collection, tiny, tmp_path, monkeypatch):
    workspace, queries, qrels = collection
    page = (Path(__file__).parents[3] / "docs" / "guides" / "quality.md").read_text("utf-8")
    scripts = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (script,) = [script for script in scripts if 'model_folder("minilm")' in script]
    for text, value in (('model_folder("minilm")', repr(tiny)), ("300", "3"), ('"workspace"', '"ws"')):
        assert text in script
        script = script.replace(text, value)
    rows = [(query, document, grade) for query in qrels for document, grade in qrels[query].items()]
    write_qrels(tmp_path / "train.tsv", Qrels(rows))
    lines = (json.dumps({"_id": query.id, "text": query.text}) + "\n" for query in queries)
    (tmp_path / "queries.jsonl").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    stack = replace(
        workspace.stack("bm25"), second_phase=parse_second_phase("cross-encoder:cross-encoder", 5)
    )
    assert len(workspace.search(queries[0], stack=stack)) > 0


@pytest.fixture(scope="module")
def judged(tmp_path_factory, model):
    """A workspace, and judgments that agree with the model: the best three of twenty documents per query."""
    rng = np.random.default_rng(2)
    workspace = Workspace.create(tmp_path_factory.mktemp("judged") / "ws")
    documents = [Document(f"d{i:02}", text=f"a {text(rng, 12)}") for i in range(20)]
    workspace.engine.write(documents)
    workspace.engine.close()
    queries = [Query(f"q{i}", f"a {text(rng, 5)}") for i in range(12)]
    encoder = CrossEncoder.load(str(model))
    rows = []
    for query in queries:
        order = sorted(documents, key=lambda d: -encoder.score(query.text, d.text))
        rows += [(query.id, document.id, 3 - place) for place, document in enumerate(order[:3])]
    return workspace.folder, queries, Qrels(rows)


@pytest.fixture
def collection(judged, tmp_path):
    """A copy of the workspace, its queries and judgments."""
    folder, *rest = judged
    return Workspace.open(shutil.copytree(folder, tmp_path / "ws")), *rest


def by_hand(workspace, query, stack, model, top):
    """Return the final ids and the scores of the model, computed with a simple loop."""
    encoder = CrossEncoder.load(str(model))
    ids = workspace.search(query, 100, stack=replace(stack, second_phase=None)).answer.ranking.ids
    scores = {d.id: encoder.score(query.text, d.text) for d in workspace.engine.get(ids[:top])}
    return [*sorted(ids[:top], key=lambda id: (-scores[id], id)), *ids[top:]], scores


def test_the_best_documents_are_ordered_by_the_model(collection, model):
    workspace, queries, _ = collection
    stack = replace(workspace.stack("bm25"), second_phase=parse_second_phase(f"cross-encoder:{model}", 5))
    for query in queries:
        page = workspace.search(query, 100, stack=stack)
        ranking = page.answer.ranking
        expected, scores = by_hand(workspace, query, stack, model, 5)
        assert ranking.ids == expected
        assert not page.to_json()["late"]
        assert (np.diff(ranking.scores) <= 0).all()
        for hit in (page[i] for i in range(5)):
            signals = hit["signals"]
            assert signals["cross-encoder"]["raw"] == pytest.approx(scores[hit["id"]])
            parts = signals["stack"]["weighted"] + signals["cross-encoder"]["weighted"]
            assert parts == pytest.approx(hit["score"])
        assert "cross-encoder" not in page[5]["signals"]


def test_a_late_model_changes_no_order_and_its_scores_are_not_shown(collection, model, capsys):
    workspace, queries, _ = collection
    stack = replace(workspace.stack("bm25"), second_phase=parse_second_phase(f"cross-encoder:{model}", 5))
    pipeline = workspace.pipeline(stack.signals)
    before = pipeline.answer(queries[0], replace(stack, second_phase=None))
    late = rescore(before.ranking, queries[0], stack.second_phase, workspace.engine.get, seconds=-1)
    assert late.late
    assert (late.ids, late.scores.tolist()) == (before.ranking.ids, before.ranking.scores.tolist())
    assert not rescore(before.ranking, queries[0], stack.second_phase, workspace.engine.get).late
    for answer in (pipeline.answer(queries[0], stack), replace(before, ranking=late)):
        show(answer, stack, pipeline.hits(answer, 3), explain=True)
    assert capsys.readouterr().out.count("then the best 5") == 1


@pytest.mark.parametrize("signals", ["bm25,tfidf", "bm25"])
def test_tuning_finds_the_weight_and_the_stack_file_keeps_it(collection, model, signals, capsys):
    workspace, queries, qrels = collection
    judged = {"queries": queries, "qrels": qrels, "measure": "nDCG@3"}
    report = tune(workspace, signals, second_phase=f"cross-encoder:{model}", top=30, **judged)
    phase = report.stack.second_phase
    assert phase is not None
    assert phase.linear().weights_by_signal()["cross-encoder"] > 0
    assert report.second_phase.value > report.second_phase.first_stage_value
    show_tuned(report)
    assert "second phase: " in capsys.readouterr().out
    assert Stack.load(report.path) == report.stack
    without = replace(report.stack, second_phase=None)
    table = evaluate(
        workspace, [report.stack], baseline=without, queries=queries, qrels=qrels, measures=["nDCG@3"]
    )
    values = [row.measures["nDCG@3"] for row in table.results]
    assert values == pytest.approx([report.second_phase.first_stage_value, report.second_phase.value])
    changed = replace(report.stack, second_phase=structs.replace(phase, version="0"))
    with pytest.raises(UsageError, match="tune the stack again"):
        workspace.search(queries[0], stack=changed)


def test_a_model_that_does_not_help_is_removed(collection, model):
    workspace, queries, _ = collection
    best = {q.id: workspace.search(q, 1, stack="bm25")[0]["id"] for q in queries}
    qrels = Qrels((query, document, 1) for query, document in best.items())
    report = tune(
        workspace,
        "bm25,tfidf",
        second_phase=f"cross-encoder:{model}",
        queries=queries,
        qrels=qrels,
        measure="RR",
    )
    assert report.stack.second_phase is None
    assert report.second_phase.combiner.weights_by_signal()["cross-encoder"] == 0


def test_the_service_uses_the_second_phase(collection, model):
    workspace, queries, _ = collection
    stack = replace(workspace.stack("bm25"), second_phase=parse_second_phase(f"cross-encoder:{model}", 5))
    workspace.use_stack(stack)
    snapshot, query = Snapshot(Settings(folder=str(workspace.folder))), queries[0]
    expected, _ = by_hand(workspace, query, stack, model, 5)

    def context(deadline: float = math.inf) -> RequestContext:
        return RequestContext(deadline, 1000)

    actual = search(snapshot, SearchBody(query=query.text, k=100), context())
    assert [hit["id"] for hit in actual["hits"]] == expected
    given = context()
    given.timeout = 0.0  # the client does not wait
    late = search(snapshot, SearchBody(query=query.text, k=100), given)
    assert late["late"]
    assert given.to_log(False)["late"]
    plain = workspace.search(query, 100, stack=replace(stack, second_phase=None)).answer.ranking.ids
    assert [hit["id"] for hit in late["hits"]] == plain
    actual = rerank_ids(snapshot, IdsBody(query=query.text, ids=plain), context())
    assert [plain[one["index"]] for one in actual["results"]] == expected
    scores = np.linspace(2, 1, len(plain)).tolist()
    body = {"query": {"match": {"text": query.text}}, "ids": plain, "scores": scores}
    actual = read_answer(
        hook(snapshot, HookCall.read(call({**body, "rerank": {"explain": True}})), context()), plain
    )
    assert actual["ids"] == expected
    assert ["cross-encoder" in one for one in actual["signals"]] == [True] * 5 + [False] * (len(plain) - 5)
    sent = HookCall.read(call({**body, "timeout": 1e-9}))
    actual = read_answer(hook(snapshot, sent, context()), plain)
    assert (actual["ids"], actual["late"]) == (plain, True)
    texts = [document.text for document in workspace.engine.get(plain[:5])]
    actual = rerank(snapshot, RerankBody(query=query.text, documents=texts), context())
    assert [plain[one["index"]] for one in actual["results"]] == expected[:5]
    assert all(0 <= one["relevance_score"] <= 1 for one in actual["results"])
