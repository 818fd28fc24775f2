"""A small collection and its trainer, for tests of the settings of ``dense``."""

from __future__ import annotations

import numpy as np

from rerank.config import options_of, over, values_of
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig, dense_config
from rerank.rankers.dense.task import DenseTask
from rerank.rankers.dense.texts import Texts
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import Document


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


class Said(Progress):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def trainer(tiny, progress=None, documents=None, scale=None, **changes):
    base = {"model": tiny, "passage_tokens": 16, "batch": 12, "steps": 6, "every": 3, "related": 8}
    if changes.get("held_out") != 0:
        base["average"] = False
    if "linked" in changes.values():
        base.pop("related")
    config = dense_config(**{**base, "precision": "fp32", **changes})
    encoder = TextEncoder.load(tiny, longest=16)
    if scale is not None:
        norm = encoder.model.encoder.layer[-1].output.LayerNorm
        norm.weight.data *= scale
        norm.bias.data *= scale
    documents = collection() if documents is None else documents
    texts = Texts.read(documents, encoder.tokens, structure_from=config.structure_from)
    return DenseTask(texts, encoder, config, progress)


def changed(config, **changes):
    """The options with changes, and with those that the changes imply."""
    known = options_of(DenseConfig)
    wanted = over({**values_of(config), **DenseConfig.implied(changes)}, changes, known)
    return DenseConfig(**{one.name: one.read(wanted[one.name]) for one in known if one.name in wanted})
