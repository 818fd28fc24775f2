"""Cross-encoders in NumPy: scores of a query and a document in one sequence (Nogueira and Cho 2019)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rerank.errors import UsageError
from rerank.files import parse_json, trouble
from rerank.rankers.encoder.bert import Bert, readable
from rerank.rankers.encoder.folder import model_folder

TOKENS = 128
"""Longest sequence; the longer of query and text is cut first, as transformers does."""

_CHARACTERS = 20 * TOKENS  # read of a query or text; more would only cost time
_KIND = "ForSequenceClassification"
_BERT, _ROBERTA = ("pooler.dense", "classifier"), ("classifier.dense", "classifier.out_proj")
_HEADS = {"Bert": _BERT, "Roberta": _ROBERTA, "XLMRoberta": _ROBERTA, "Camembert": _ROBERTA}
"""Architecture -> linear layers of its head."""


@dataclass(frozen=True)
class CrossEncoder:
    """A sequence classifier with one output, or two classes. head: its two linear layers."""

    folder: Path
    bert: Bert
    head: tuple[str, str]

    @classmethod
    def load(cls, name: str) -> CrossEncoder:
        """Read a model in Hugging Face's layout, memory-mapped. name: see :func:`model_folder`.

        Raises UsageError for other models, WorkspaceError if the system cannot read it.
        """
        folder = model_folder(name)
        try:
            config = parse_json((folder / "config.json").read_text("utf-8"))
            kind = str((config.get("architectures") or [""])[0])
            head = _HEADS.get(kind.removesuffix(_KIND)) if kind.endswith(_KIND) else None
            if head is None or not readable(folder):
                known = ", ".join(f"{one}{_KIND}" for one in _HEADS)
                raise UsageError(
                    f"{name}: {kind or 'the model'} cannot be a cross-encoder; give one of {known} with"
                    " model.safetensors, tokenizer.json and the activation gelu"
                )
            made = cls(folder, Bert.load(folder), head)
            longest = len(made.bert.weights["embeddings.position_embeddings.weight"]) - made.bert.first
            made.bert.tokens.tokenizer.enable_truncation(min(TOKENS, longest))
            outputs = len(made.bert.weights[f"{head[1]}.weight"])
            made.score("a", "a")  # every weight is there and has the right shape
        except UsageError:
            raise
        except Exception as error:  # tokenizers raises nothing narrower
            raise trouble(error, folder) or UsageError(
                f"{name}: cannot be read ({error!r}); give another copy of the model"
            ) from error
        if outputs not in (1, 2):
            raise UsageError(f"{name}: has {outputs} classes; give a model with one output or two classes")
        return made

    @cached_property
    def version(self) -> str:
        """Checksum of the files that decide a score."""
        files = [self.folder / name for name in ("config.json", "tokenizer.json", "model.safetensors")]
        crc = 0
        for path in files:
            crc = zlib.crc32(np.memmap(path, np.uint8, "r"), crc)
        return f"{crc:08x}"

    def score(self, query: str, text: str) -> float:
        """Return the output, or the log-odds of the second class."""
        pair = self.bert.tokens.tokenizer.encode(query[:_CHARACTERS], text[:_CHARACTERS])
        first = self.bert.states(pair.ids, pair.type_ids)[:1]
        dense, out = self.head
        logits = self.bert.linear(np.tanh(self.bert.linear(first, dense)), out)[0]
        return float(logits[-1] - (logits[0] if len(logits) > 1 else 0))
