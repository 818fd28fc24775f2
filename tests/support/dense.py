"""Small collections and their training, for tests of encoders."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from rerank import Workspace
from rerank.common.config import merge_options, options_of, values_of
from rerank.common.progress import SILENT
from rerank.documents.records import Document
from rerank.engines.search_request import SearchRequest
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask
from rerank.rankers.dense.texts import Texts
from rerank.rankers.encoder.transformer import TextEncoder


def collection(size=60, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for i in range(size):
        topic = i % 6
        words = [f"w{topic * 5 + j}" for j in rng.integers(5, size=6)]
        words += [f"w{j}" for j in rng.integers(30, 40, size=6)]
        links = [str(j) for j in range(topic, size, 6) if j != i and rng.random() < 0.5]
        found.append(Document(str(i), text=" ".join(words), links=tuple(links)))
    return found


def trainer(tiny, progress=SILENT, documents=None, checkpoint=None, loss=None, **changes):
    base = {"model": tiny, "passage_tokens": 16, "batch": 12, "steps": 6, "every": 3}
    if changes.get("held_out") != 0:
        base["average"] = False
    if changes.get("objective") == "quintuplet":
        base["related"] = 8
    config = DenseConfig.of(**{**base, "precision": "fp32", **changes})
    encoder = TextEncoder.load(tiny, longest=16)
    documents = collection() if documents is None else documents
    cited, separator = config.strategy is not None, encoder.separator if config.separator else None
    texts = Texts.read(
        documents, encoder.tokens, relation="citations" if cited else config.relation, separator=separator
    )
    return DenseTask(texts, encoder, config, progress, checkpoint, loss=loss)


def with_changes(config, **changes):
    """Return the options with changes and their implied options."""
    options = options_of(DenseConfig)
    defaults = {**values_of(config), **DenseConfig.derived_defaults(changes)}
    values = merge_options(defaults, changes, options)
    return DenseConfig(
        **{option.name: option.read(values[option.name]) for option in options if option.name in values}
    )


def documents(size=48, links=True):
    """Return documents of six topics: links are inside a topic, and half of the words belong to the topic."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(size):
        words = [f"w{(i % 6) * 5 + j}" for j in rng.integers(5, size=6)]
        words += [f"w{j}" for j in rng.integers(30, 40, size=6)]
        others = [f"d{j}" for j in range(i % 6, size, 6) if j != i and rng.random() < 0.6]
        one = {"_id": f"d{i}", "title": f"topic {i % 6} no {i}", "text": " ".join(words)}
        found.append({**one, "links": others if links else []})
    return found


def linked_documents():
    """Return these documents with unusual links, and one document without text."""
    found = documents()
    found[0]["links"] += ["d0", "nobody", found[0]["links"][0]]
    return [*found, {"_id": "empty", "text": "", "links": ["d1"]}]


def write_judgments(folder, write_lines):
    """Write a query per topic, whose documents are all relevant. Return the options with the files."""
    asked = [{"_id": f"q{t}", "text": " ".join(f"w{t * 5 + j}" for j in range(3))} for t in range(6)]
    rows = [f"q{t}\td{i}\t1" for t in range(6) for i in range(t, 48, 6)]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n")
    return "--queries", write_lines(folder / "queries.jsonl", asked), "--qrels", folder / "qrels.tsv"


def options(tiny, *more):
    return ("--model", tiny, "--passage-tokens", 16, "--batch", 8, "--rate", 0.002, *more)


def wait_for_step(process, folder, step, name="dense"):
    """Wait until a training process has written a checkpoint at this step or later, or has ended."""
    state = folder / "training" / name / "state.json"
    while process.poll() is None:
        try:
            if json.loads(state.read_text())["run"]["steps"] >= step:
                break
        except (OSError, ValueError):
            pass  # not written yet
        time.sleep(0.002)


def stored_ranker(folder, name="dense"):
    """Return version, files and features of the ranker in use."""
    workspace = Workspace.open(folder)
    ranker = workspace.ranker(name)
    ids = sorted(document.id for document in workspace.engine.documents())
    asked = SearchRequest("w1", ids=ids, first_stage="bm25", features={name: ranker.version})
    found = workspace.engine.find(asked)
    assert not found.missing[name].any()
    files = sorted(Path(folder).glob(f"rankers/{name}-*/**/*.safetensors"))
    rows = dict(zip(found.ids, np.asarray(found.features[name]).tolist()))
    return ranker.version, [file.read_bytes() for file in files], [rows[one] for one in ids]
